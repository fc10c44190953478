//! `forebay-sim run`: one run, or one after the other until the first violation.

use clap::Args;
use forebay_sim::config::Config;
use forebay_sim::random::Random;
use forebay_sim::run::run_with;
use forebay_sim::{Outcome, Plan, RunOptions, TraceMode};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// Make the run of a seed, or of several seeds until the first violation.
///
/// Prints the events of a run that went wrong (the last ones, or all with --trace), what was wrong,
/// and the command that repeats it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim run --seed 7
  forebay-sim run --seed 0x1f --long --trace
  forebay-sim run --seed 7 --watch 0:12              what touches block 12 of volume 0
  forebay-sim run --seed 1 --runs 1000
  forebay-sim run --seed 3 --cut-power-at-io 41")]
pub(crate) struct Options {
    /// Seed of the first run
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    seed: u64,
    /// How many runs to make, with this seed and those that follow
    #[arg(long, value_name = "M", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// More lives, and more requests in each
    #[arg(long)]
    long: bool,
    /// Print all events
    #[arg(long, conflicts_with = "watch")]
    trace: bool,
    /// Print the events that touch a block of a volume, both counted from zero
    #[arg(long, value_name = "VOLUME:BLOCK", value_parser = parse_watch)]
    watch: Option<(usize, u64)>,
    #[command(flatten)]
    plan: PlanOptions,
    #[command(flatten)]
    judged: Judged,
}

/// A small run in which something happens at one operation; operations are counted from zero.
#[derive(Args, Debug)]
#[group(multiple = false, conflicts_with = "long")]
struct PlanOptions {
    /// In a small run, fail operation N of the cache device
    #[arg(long, value_name = "N")]
    fail_cache_io: Option<u64>,
    /// In a small run, fail operation N of the origin
    #[arg(long, value_name = "N")]
    fail_origin_io: Option<u64>,
    /// In a small run, let the process die at operation N
    #[arg(long, value_name = "N")]
    kill_at_io: Option<u64>,
    /// In a small run, cut the power at operation N
    #[arg(long, value_name = "N")]
    cut_power_at_io: Option<u64>,
}

impl PlanOptions {
    fn plan(&self) -> Plan {
        let plans = [
            self.fail_cache_io.map(Plan::FailCacheIo),
            self.fail_origin_io.map(Plan::FailOriginIo),
            self.kill_at_io.map(Plan::KillAtIo),
            self.cut_power_at_io.map(Plan::CutPowerAtIo),
        ];
        plans.into_iter().flatten().next().unwrap_or(Plan::Seeded)
    }
}

fn parse_watch(text: &str) -> Result<(usize, u64), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(volume, block)| Some((volume.parse().ok()?, block.parse().ok()?)));
    parsed.ok_or_else(|| "expected VOLUME:BLOCK, two numbers as in 0:12".to_owned())
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let trace = match options.watch {
        Some((volume, block)) => TraceMode::Watch { volume, block },
        None if options.trace => TraceMode::Full,
        None => TraceMode::Ring,
    };
    let run_options = RunOptions { long: options.long, trace, plan: options.plan.plan() };
    let launcher = options.judged.launcher();
    for seed in seeds(options.seed, options.runs)? {
        check_watch(seed, run_options)?;
        let outcome = run_with(seed, run_options, &*launcher);
        outcome.trace.iter().for_each(say);
        if outcome.failure.is_some() {
            say(&outcome);
            return Ok(Verdict::Violation);
        }
        check_plan(&outcome)?;
        if options.runs == 1 {
            say(&outcome);
            for (name, number) in outcome.stats.named() {
                say(format_args!("  {number:>8} {name}"));
            }
        }
    }
    if options.runs > 1 {
        say(format_args!("{} runs, all good", options.runs));
    }
    Ok(Verdict::Good)
}

/// The watched block must be one that the run has.
fn check_watch(seed: u64, options: RunOptions) -> Result<(), String> {
    let TraceMode::Watch { volume, block } = options.trace else { return Ok(()) };
    let config = Config::new(&mut Random::new(seed), &options);
    let Some(found) = config.volumes.get(volume) else {
        let count = config.volumes.len();
        return Err(format!(
            "--watch {volume}:{block}: the run of seed {seed} has {count} volumes, counted from 0"
        ));
    };
    let block_count = found.size_bytes.div_ceil(4096);
    if block >= block_count {
        return Err(format!(
            "--watch {volume}:{block}: that volume of the run of seed {seed} has {block_count} \
             blocks, counted from 0"
        ));
    }
    Ok(())
}

/// What was to happen must have happened.
fn check_plan(outcome: &Outcome) -> Result<(), String> {
    let Some(operation_count) = outcome.plan_missed else { return Ok(()) };
    Err(format!(
        "the run of seed {} has only {operation_count} operations of this kind, counted from 0: \
         it ended well before the one that was named",
        outcome.seed
    ))
}
