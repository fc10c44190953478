//! Child processes, printed before they run.

use std::process::Command;

use anyhow::Context;

use crate::Outcome;

/// `cargo`, the one that runs us.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The command as one would type it, without its environment.
pub(crate) fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Prints and runs `command` with our own input and output.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<Outcome> {
    println!("$ {}", describe(command));
    let status = command.status().with_context(|| format!("cannot run {}", describe(command)))?;
    Ok(Outcome::from(status))
}
