//! `forebay-sim sweep`: failures and crashes at each operation of a run in turn.

use clap::Args;
use forebay_sim::sweep::{Sweep, sweep};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// Fail each operation of a small run in turn, let the process die at each, cut the power at each.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim sweep
  forebay-sim sweep --seed 5 --runs 10 --stride 7")]
pub(crate) struct Options {
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
    #[command(flatten)]
    judged: Judged,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let launcher = options.judged.launcher();
    for seed in seeds(options.seed, options.runs)? {
        for kind in Sweep::ALL {
            match sweep(seed, kind, options.stride, &*launcher) {
                Ok(count) => say(format_args!("seed {seed} {kind:?}: {count} runs, all good")),
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
