//! `forebay-sim replay`: makes a recorded run again and says where it first differs.

use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};
use forebay_sim::TraceMode;

use super::trace_file::{self, first_difference};
use super::{CommandResult, Verdict, run, say};

/// Make the run of a trace file again and say at which line it first differs.
///
/// FILE is what `forebay-sim run --trace-file FILE` wrote. After a change of the code a seed may do
/// something else, from the line that is named on.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim run --seed 7 --trace-file seven.trace
  forebay-sim replay seven.trace")]
pub(crate) struct Options {
    /// The recorded run
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let name = options.file.display();
    let recorded = trace_file::read(&options.file)?;
    let run_options = parse(&recorded.arguments)
        .map_err(|text| format!("{name} is no trace of a run: {}", text.trim_end()))?;
    let outcome = run_options.run_first(TraceMode::Full)?;
    let now = trace_file::lines(&outcome.trace, &outcome.to_string());
    match first_difference(&recorded.lines, &now) {
        None => {
            say(format_args!("{name}: the same {} lines, hash {}", now.len(), outcome.hash));
            Ok(Verdict::Good)
        }
        Some(difference) => {
            say(format_args!("{name}: {difference}"));
            Ok(Verdict::Differs)
        }
    }
}

/// The options of `run`, from a line.
fn parse(arguments: &str) -> Result<run::Options, String> {
    let words = arguments.strip_prefix("run ").ok_or("its arguments are not those of `run`")?;
    let command = run::Options::augment_args(Command::new("run").no_binary_name(true));
    let matches = command.try_get_matches_from(words.split(' '));
    let options = matches.and_then(|matches| run::Options::from_arg_matches(&matches));
    options.map_err(|error| error.to_string())
}
