//! Programs of others: where they are, and how they end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::exit::Failure;

/// Where administrators keep programs; not every root's search path has these folders.
const ADMINISTRATOR_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where a program is, if it is there.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).collect::<Vec<_>>();
    let folders = folders.into_iter().chain(ADMINISTRATOR_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A command of a program, which reads nothing. One that is missing fails at its start, by name.
pub(super) fn command(name: &str) -> Command {
    let mut command = Command::new(find(name).unwrap_or_else(|| name.into()));
    command.stdin(Stdio::null());
    command
}

/// Runs a program to its end, and returns what it printed. A failure says what it complained of.
pub(super) fn run(name: &str, arguments: &[&str]) -> Result<String, Failure> {
    let text = format!("`{name} {}`", arguments.join(" "));
    let output = command(name)
        .args(arguments)
        .output()
        .map_err(|error| Failure::failed(format!("cannot run {text}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().replace('\n', "; ");
    Err(Failure::failed(format!("{text} ended with {}: {said}", output.status)))
}
