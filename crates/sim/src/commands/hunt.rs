//! `forebay-sim hunt`: many runs, and the kinds of violation among them.

use clap::Args;
use forebay_sim::RunOptions;
use forebay_sim::hunt::{Catch, Kind, hunt};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// Make many runs and list the kinds of violation, with the shortest example of each.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim hunt --runs 1000
  forebay-sim hunt --runs 100 --seed 5000 --long")]
pub(crate) struct Options {
    /// How many runs to make
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Seed of the first run
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// More lives, and more requests in each
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    judged: Judged,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let seeds = seeds(options.seed, options.runs)?;
    let run_options = RunOptions { long: options.long, ..RunOptions::default() };
    let caught = hunt(seeds, run_options, &*options.judged.launcher());
    print_catch(&caught);
    Ok(if caught.bad_runs == 0 { Verdict::Good } else { Verdict::Violation })
}

fn print_catch(caught: &Catch) {
    say(format_args!("{} runs, {} with a violation; per run:", caught.runs, caught.bad_runs));
    for (name, total) in &caught.totals {
        say(format_args!("  {:>10.3} {name}", *total as f64 / caught.runs.max(1) as f64));
    }
    let mut kinds: Vec<(&String, &Kind)> = caught.kinds.iter().collect();
    kinds.sort_by_key(|(_, kind)| kind.shortest.events);
    for (name, kind) in kinds {
        say(format_args!("{:>6}x {name}", kind.count));
        say(&kind.shortest);
    }
}
