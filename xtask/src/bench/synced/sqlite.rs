//! SQLite: one transaction after the other, through its shell.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use super::super::interrupt;
use super::Count;

/// The shell of a database.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn open(database: &Path) -> anyhow::Result<Shell> {
        // Its answers shall come line by line.
        let mut command = Command::new("stdbuf");
        command.args(["--output=L", "sqlite3", "-batch", "-bail"]).arg(database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot start sqlite3")?;
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Shell { child, input, output })
    }

    /// Runs statements of which the last prints `answer`.
    fn run(&mut self, statements: &str, answer: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{statements}").context("sqlite3 has ended")?;
        let mut line = String::new();
        while line.trim_end() != answer {
            line.clear();
            if self.output.read_line(&mut line).context("cannot read from sqlite3")? == 0 {
                bail!("sqlite3 gave up; its message stands above");
            }
        }
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Transactions of an insert and an update for so many seconds.
pub(super) fn transactions(folder: &Path, journal: &str, seconds: u64) -> anyhow::Result<Count> {
    let mut shell = Shell::open(&folder.join(format!("{journal}.sqlite")))?;
    let setup = format!(
        "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL; \
         CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT, n INTEGER); SELECT 'ready';"
    );
    shell.run(&setup, "ready")?;
    let mut count = Count::default();
    let began = Instant::now();
    for number in 1u64.. {
        interrupt::check()?;
        // Some row that is there. An odd factor spreads them.
        let other = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % number + 1;
        let statements = format!(
            "BEGIN; INSERT INTO t(text, n) VALUES(hex(randomblob(100)), 0); \
             UPDATE t SET n = n + 1 WHERE id = {other}; COMMIT; SELECT {number};"
        );
        let before = Instant::now();
        shell.run(&statements, &number.to_string())?;
        count.latencies_ms.push(before.elapsed().as_secs_f64() * 1e3);
        if began.elapsed().as_secs() >= seconds {
            break;
        }
    }
    count.seconds = began.elapsed().as_secs_f64();
    Ok(count)
}
