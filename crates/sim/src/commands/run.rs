//! `forebay-sim run`: one run, or one after the other until the first violation.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_sim::config::Config;
use forebay_sim::event_hash::EventHash;
use forebay_sim::random::Random;
use forebay_sim::run::{Missed, run_with};
use forebay_sim::{CrashKind, Outcome, Plan, PlannedCrash, RunOptions, TraceMode};

use super::trace_file::{self, Recorded};
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
  forebay-sim run --seed 3 --cut-power-at-io 41 --survivors 5
  forebay-sim run --seed 7 --trace-file seven.trace")]
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
    /// Write all events to a file, for `forebay-sim replay`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "watch"])]
    trace_file: Option<PathBuf>,
    /// Print the events that touch a block of a volume, both counted from zero
    #[arg(long, value_name = "VOLUME:BLOCK", value_parser = parse_watch)]
    watch: Option<(usize, u64)>,
    #[command(flatten)]
    plan: PlanOptions,
    #[command(flatten)]
    judged: Judged,
}

/// A small run in which something happens at some operation; operations are counted from zero.
#[derive(Args, Debug)]
#[group(multiple = true, conflicts_with = "long")]
struct PlanOptions {
    /// In a small run, fail operation N of the cache device
    #[arg(long, value_name = "N")]
    fail_cache_io: Option<u64>,
    /// In a small run, fail operation N of the origin
    #[arg(long, value_name = "N")]
    fail_origin_io: Option<u64>,
    /// In a small run, fail writes of the cache device from operation N on until it is given up
    #[arg(long, value_name = "N")]
    break_cache_io: Option<u64>,
    /// In a small run, take the cache device away at operation N, and again after it came back
    #[arg(long, value_name = "N")]
    lose_cache_io: Option<u64>,
    /// In a small run, let the process die at operation N
    #[arg(long, value_name = "N")]
    kill_at_io: Option<u64>,
    /// In a small run, cut the power at operation N
    #[arg(long, value_name = "N", conflicts_with = "kill_at_io")]
    cut_power_at_io: Option<u64>,
    /// Which of the unfinished or unflushed writes survive that: the number of a choice, modulo the
    /// choices that there are [default: by chance]
    #[arg(long, value_name = "CHOICE")]
    survivors: Option<u64>,
}

impl PlanOptions {
    fn plan(&self) -> Result<Plan, String> {
        let kill = self.kill_at_io.map(|at_io| (at_io, CrashKind::Kill));
        let cut = self.cut_power_at_io.map(|at_io| (at_io, CrashKind::PowerCut));
        let crash = kill.or(cut);
        if crash.is_none() && self.survivors.is_some() {
            return Err("--survivors needs --kill-at-io or --cut-power-at-io".to_owned());
        }
        let choice = self.survivors;
        Ok(Plan {
            fail_cache_io: self.fail_cache_io,
            fail_origin_io: self.fail_origin_io,
            break_cache_io: self.break_cache_io,
            lose_cache_io: self.lose_cache_io,
            crash: crash.map(|(at_io, kind)| PlannedCrash { at_io, kind, choice }),
        })
    }
}

fn parse_watch(text: &str) -> Result<(usize, u64), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(volume, block)| Some((volume.parse().ok()?, block.parse().ok()?)));
    parsed.ok_or_else(|| "expected VOLUME:BLOCK, two numbers as in 0:12".to_owned())
}

impl Options {
    fn run_options(&self, trace: TraceMode) -> Result<RunOptions, String> {
        Ok(RunOptions { long: self.long, trace, plan: self.plan.plan()? })
    }

    /// Makes the first of the runs.
    pub(crate) fn run_first(&self, trace: TraceMode) -> Result<Outcome, String> {
        Ok(run_with(self.seed, self.run_options(trace)?, &*self.judged.launcher()))
    }

    /// Makes one run and writes its events to a file.
    fn record(&self, path: &Path) -> CommandResult {
        let outcome = self.run_first(TraceMode::Full)?;
        check_plan(&outcome)?;
        let arguments = outcome.replay_arguments() + self.judged.arguments();
        let lines = trace_file::lines(&outcome.trace, &outcome.to_string());
        let line_count = lines.len();
        trace_file::write(path, &Recorded { arguments, lines })?;
        say(&outcome);
        say(format_args!("{}: {line_count} lines", path.display()));
        Ok(if outcome.failure.is_some() { Verdict::Violation } else { Verdict::Good })
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    if let Some(path) = &options.trace_file {
        if options.runs > 1 {
            return Err("--trace-file takes one run, not several".to_owned());
        }
        return options.record(path);
    }
    let trace = match options.watch {
        Some((volume, block)) => TraceMode::Watch { volume, block },
        None if options.trace => TraceMode::Full,
        None => TraceMode::Ring,
    };
    let run_options = options.run_options(trace)?;
    let launcher = options.judged.launcher();
    let mut hash = EventHash::default();
    for seed in seeds(options.seed, options.runs)? {
        check_watch(seed, run_options)?;
        let outcome = run_with(seed, run_options, &*launcher);
        outcome.trace.iter().for_each(say);
        if outcome.failure.is_some() {
            say(&outcome);
            return Ok(Verdict::Violation);
        }
        check_plan(&outcome)?;
        hash.add(outcome.hash);
        if options.runs == 1 {
            say(&outcome);
            for (name, number) in outcome.stats.named() {
                say(format_args!("  {number:>8} {name}"));
            }
        }
    }
    if options.runs > 1 {
        say(format_args!("{} runs, all good, hash {hash}", options.runs));
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
    let seed = outcome.seed;
    if let Some(Missed { argument, operations }) = outcome.plan_missed {
        return Err(format!(
            "{argument}: the run of seed {seed} has only {operations} such operations, counted \
             from 0"
        ));
    }
    Ok(())
}
