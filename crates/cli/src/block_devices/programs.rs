//! Programs of others: where they are, and how they end.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

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
    let (status, printed, said) = end(command(name).args(arguments))
        .map_err(|error| Failure::failed(format!("cannot run {text}: {error}")))?;
    if status.success() {
        return Ok(printed);
    }
    let said = said.replace('\n', "; ");
    Err(Failure::failed(format!("{text} ended with {status}: {said}")))
}

/// How a program ended, what it printed, and what it complained of. These go to files: some clients
/// leave a process behind that would keep a pipe open.
fn end(command: &mut Command) -> io::Result<(ExitStatus, String, String)> {
    let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let status = command.stdout(out.try_clone()?).stderr(err.try_clone()?).status()?;
    Ok((status, content(out)?, content(err)?))
}

fn content(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_leaves_a_process_behind_is_not_waited_for() {
        assert_eq!(run("sh", &["-c", "sleep 600 & echo $!"]).map(|pid| end_of(&pid)), Ok(true));
        let failure = run("sh", &["-c", "echo one >&2; echo two >&2; exit 7"]).unwrap_err();
        assert!(failure.message.contains("exit status: 7: one; two"), "{failure}");
        assert!(run("no-such-program", &[]).unwrap_err().message.contains("no-such-program"));
    }

    fn end_of(pid: &str) -> bool {
        run("sh", &["-c", &format!("kill {pid}")]).is_ok()
    }
}
