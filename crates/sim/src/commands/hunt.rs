//! `forebay-sim hunt`: many runs on all cores, and the kinds of violation among them.
//!
//! The clock is read here and nowhere else in the simulator: it ends a hunt and, without a seed,
//! says where it begins. The runs themselves are functions of their seeds.

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use forebay_sim::hunt::{Catch, Kind};
use forebay_sim::run::run_with;
use forebay_sim::{Outcome, RunOptions};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// Time from one line of progress to the next.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// A year: a number that `Duration` can hold, and nobody means more.
const MINUTES_MAX: f64 = 60.0 * 24.0 * 365.0;

/// Make many runs on all cores and list the kinds of violation, with the shortest example of each.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim hunt --minutes 3                  fresh seeds, from the clock
  forebay-sim hunt --runs 1000 --jobs 1
  forebay-sim hunt --runs 100 --seed 5000 --long")]
pub(crate) struct Options {
    /// How many runs to make
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(required_unless_present = "minutes")]
    runs: Option<u64>,
    /// How long to go on
    #[arg(long, value_name = "M", value_parser = parse_minutes, conflicts_with = "runs")]
    minutes: Option<Duration>,
    /// Seed of the first run [default: 1 with --runs, from the clock with --minutes]
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    seed: Option<u64>,
    /// Runs at a time [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// More lives, and more requests in each
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    judged: Judged,
}

fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| *minutes > 0.0);
    let minutes = minutes.filter(|minutes| *minutes <= MINUTES_MAX);
    let minutes = minutes.ok_or("expected minutes above 0, as 3 or 0.5")?;
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// Which runs to make.
struct Task<'a> {
    options: RunOptions,
    judged: &'a Judged,
    seeds: RangeInclusive<u64>,
    next_seed: AtomicU64,
    ends: Option<Instant>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let started = Instant::now();
    let first = options.seed.unwrap_or(if options.minutes.is_some() { clock_seed() } else { 1 });
    let seeds = match options.runs {
        Some(runs) => seeds(first, runs)?,
        None => first..=u64::MAX,
    };
    let jobs = options.jobs.or(std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
    say(format_args!("seeds from {first} on, {jobs} runs at a time"));
    let task = Task {
        options: RunOptions { long: options.long, ..RunOptions::default() },
        judged: &options.judged,
        seeds,
        next_seed: AtomicU64::new(first),
        ends: options.minutes.map(|minutes| started + minutes),
    };
    let (sender, outcomes) = channel();
    let caught = std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (task, sender) = (&task, sender.clone());
            scope.spawn(move || work(task, &sender));
        }
        drop(sender);
        gather(&outcomes, started)
    });
    print_catch(&caught, started.elapsed(), jobs);
    Ok(if caught.bad_runs == 0 { Verdict::Good } else { Verdict::Violation })
}

/// Microseconds, so that a hunt has made fewer runs than have passed when the next one begins.
fn clock_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}

fn work(task: &Task, outcomes: &Sender<Outcome>) {
    let launcher = task.judged.launcher();
    while task.ends.is_none_or(|ends| Instant::now() < ends) {
        let seed = task.next_seed.fetch_add(1, Ordering::Relaxed);
        if !task.seeds.contains(&seed) {
            return;
        }
        let outcome = run_with(seed, task.options, &*launcher);
        if outcomes.send(outcome).is_err() {
            return;
        }
    }
}

/// Counts until all workers have ended, and says now and then how far it is.
fn gather(outcomes: &Receiver<Outcome>, started: Instant) -> Catch {
    let mut caught = Catch::default();
    let mut next_line = started + PROGRESS_INTERVAL;
    loop {
        match outcomes.recv_timeout(next_line.saturating_duration_since(Instant::now())) {
            Ok(outcome) => {
                let is_new = outcome
                    .failure
                    .as_ref()
                    .is_some_and(|failure| !caught.kinds.contains_key(&failure.violation.kind));
                if is_new {
                    say(&outcome);
                }
                caught.add(outcome);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return caught,
        }
        if Instant::now() >= next_line {
            next_line += PROGRESS_INTERVAL;
            say(progress(&caught, started.elapsed()));
        }
    }
}

fn progress(caught: &Catch, elapsed: Duration) -> String {
    let total = |name: &str| caught.totals.get(name).copied().unwrap_or(0);
    let recoveries = total("recoveries");
    format!(
        "{:>4} s: {} runs, {} crashes, {} recoveries, {:.0} recoveries per minute, {} violations",
        elapsed.as_secs(),
        caught.runs,
        total("crashes"),
        recoveries,
        per_minute(recoveries, elapsed),
        caught.bad_runs
    )
}

fn per_minute(count: u64, elapsed: Duration) -> f64 {
    count as f64 * 60.0 / elapsed.as_secs_f64().max(0.001)
}

fn print_catch(caught: &Catch, elapsed: Duration, jobs: usize) {
    say(format_args!(
        "{} runs, {} with a violation; sum and per run:",
        caught.runs, caught.bad_runs
    ));
    for (name, total) in &caught.totals {
        let per_run = *total as f64 / caught.runs.max(1) as f64;
        say(format_args!("  {total:>12} {per_run:>12.3} {name}"));
    }
    let recoveries = caught.totals.get("recoveries").copied().unwrap_or(0);
    let per_core = per_minute(recoveries, elapsed) / jobs as f64;
    say(format_args!(
        "{recoveries} recoveries in {:.0} s on {jobs} cores: {per_core:.0} per minute and core",
        elapsed.as_secs_f64()
    ));
    let mut kinds: Vec<(&String, &Kind)> = caught.kinds.iter().collect();
    kinds.sort_by_key(|(_, kind)| kind.shortest.events);
    for (name, kind) in kinds {
        say(format_args!("{:>6}x {name}", kind.count));
        say(&kind.shortest);
    }
}
