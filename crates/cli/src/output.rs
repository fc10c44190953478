//! What goes to stdout. A reader that has left (`forebay status | head -1`) is no error.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Writes text and flushes it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to stderr. If nobody reads it any more, the work goes on all the same.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a value as indented JSON.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::failed(format!("cannot form JSON: {error}")))?;
    text.push('\n');
    print(&text)
}
