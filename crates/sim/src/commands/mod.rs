//! The commands of the program: each declares its options, runs, and tells how it went.
//!
//! An error is a message about arguments that make no sense for the seed; whatever else can be
//! wrong with arguments is said while they are read.

pub(crate) mod defects;
pub(crate) mod fuzz;
pub(crate) mod hunt;
pub(crate) mod models;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod shares;
pub(crate) mod step_response;
pub(crate) mod sweep;
mod trace_file;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::Args;
use forebay_sim::reference::{Fault, Reference};
use forebay_sim::under_test::{Launch, launch_engine};

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// What is wrong has been printed.
    Violation,
    /// The run differs from its record; where has been printed.
    Differs,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> ExitCode {
        match verdict {
            Verdict::Good => ExitCode::SUCCESS,
            Verdict::Violation | Verdict::Differs => ExitCode::FAILURE,
        }
    }
}

/// A verdict, or what is wrong with the arguments.
pub(crate) type CommandResult = Result<Verdict, String>;

/// Which engine is judged.
#[derive(Args, Debug)]
pub(crate) struct Judged {
    /// Judge the pass-through engine that the simulator is tested with
    #[arg(long)]
    reference: bool,
}

impl Judged {
    pub(crate) fn launcher(&self) -> Box<Launch<'static>> {
        if self.reference {
            Box::new(Reference::launcher(Fault::None))
        } else {
            Box::new(launch_engine)
        }
    }

    /// As on the command line, with a space before it.
    pub(crate) fn arguments(&self) -> &'static str {
        if self.reference { " --reference" } else { "" }
    }
}

/// Writes a line. A reader that has left (`| head`) is no error: the exit code still tells how it
/// went.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        assert!(error.kind() == ErrorKind::BrokenPipe, "cannot write to stdout: {error}");
    }
}

/// Reads a seed.
pub(crate) fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| {
        "a seed is a number from 0 to 18446744073709551615, decimal as 1049 or hexadecimal as \
         0x419"
            .to_owned()
    })
}

/// The seeds of `count` runs, which is not 0.
pub(crate) fn seeds(first: u64, count: u64) -> Result<RangeInclusive<u64>, String> {
    let last = first.checked_add(count - 1).ok_or_else(|| {
        format!("{count} runs from seed {first} on go beyond the last seed, {}", u64::MAX)
    })?;
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_decimal_or_hexadecimal() {
        assert_eq!(parse_seed("1049"), Ok(1049));
        assert_eq!(parse_seed("0x419"), Ok(1049));
        assert_eq!(parse_seed("0XfF"), Ok(255));
        assert_eq!(parse_seed("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "x", "0x", "-1", "+1", "0x+1", "1e3", "0b1", "18446744073709551616", "1 "] {
            let message = parse_seed(bad).unwrap_err();
            assert!(message.contains("decimal") && message.contains("hexadecimal"), "{bad}");
        }
    }

    #[test]
    fn seeds_end_at_the_last_one() {
        assert_eq!(seeds(u64::MAX - 1, 2), Ok(u64::MAX - 1..=u64::MAX));
        assert!(seeds(u64::MAX - 1, 3).is_err());
    }
}
