//! `forebay-sim sweep`: failures and crashes at each operation of a run in turn.

use std::io::{IsTerminal, Write};

use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_sim::sweep::{Effort, Sweep, Swept, sweep};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// Fail each operation of a small run in turn, let the process die at each, cut the power at each.
///
/// A crash is made with every subset of the unfinished or unflushed writes if these are few, and
/// with a sample of the subsets otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Kinds:
  fail-cache           operation N of the cache device fails
  fail-origin          operation N of the origin fails
  kill                 the process dies at operation N
  cut-power            the power goes at operation N
  fail-then-kill       an operation fails, and a little later the process dies
  fail-then-cut-power  an operation fails, and a little later the power goes

Examples:
  forebay-sim sweep
  forebay-sim sweep cut-power --seed 5 --runs 10
  forebay-sim sweep --stride 7 --choices 4            a quick look")]
pub(crate) struct Options {
    /// What to do at each operation [default: one kind after the other]
    #[arg(value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(Sweep::ALL.map(Sweep::name)))]
    kind: Option<String>,
    /// Seed of the first run
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// For how many seeds, this one and those that follow
    #[arg(long, value_name = "M", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Take only every Nth operation
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    stride: u64,
    /// Most choices of survivors for each crash [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    choices: Option<u64>,
    #[command(flatten)]
    judged: Judged,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let launcher = options.judged.launcher();
    let choices_max = options.choices.unwrap_or(u64::MAX);
    let effort = Effort { stride: options.stride, choices_max };
    let is_wanted = |kind: &Sweep| options.kind.as_deref().is_none_or(|name| name == kind.name());
    for seed in seeds(options.seed, options.runs)? {
        for kind in Sweep::ALL.into_iter().filter(is_wanted) {
            let mut progress = |swept: &Swept| show_progress(kind, swept, effort);
            match sweep(seed, kind, effort, &*launcher, &mut progress) {
                Ok(Swept { operations, runs, .. }) => say(format_args!(
                    "seed {seed} {}: {operations} operations, {runs} runs, all good",
                    kind.name()
                )),
                Err(outcome) => {
                    outcome.trace.iter().for_each(say);
                    say(&outcome);
                    return Ok(Verdict::Violation);
                }
            }
        }
    }
    Ok(Verdict::Good)
}

/// One line that is written over, if somebody looks.
fn show_progress(kind: Sweep, swept: &Swept, effort: Effort) {
    let mut screen = std::io::stderr();
    if screen.is_terminal() {
        let Swept { operations, done, runs } = swept;
        let all = operations.div_ceil(effort.stride);
        let end = if *done == all { "\r" } else { "" };
        let _ = write!(screen, "\r{}: {done} of {all} operations, {runs} runs{end}", kind.name());
    }
}
