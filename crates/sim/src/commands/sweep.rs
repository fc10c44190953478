//! `forebay-sim sweep`: failures and crashes at each operation of a run in turn.

use std::io::{IsTerminal, Write};

use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_sim::fuzz::flips::{self, Flipped, Which};
use forebay_sim::fuzz::image::End;
use forebay_sim::sweep::{Effort, Sweep, Swept, sweep};

use super::{CommandResult, Judged, Verdict, parse_seed, say, seeds};

/// How the history of a device ended whose bytes are flipped.
const ENDS: [End; 3] = [End::Stopped, End::Idle, End::Killed];

/// Fail each operation of a small run in turn, let the process die at each, cut the power at each;
/// flip each byte of what recovery goes by.
///
/// A crash is made with every subset of the unfinished or unflushed writes if these are few, and
/// with a sample of the subsets otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Kinds:
  fail-cache           operation N of the cache device fails
  fail-origin          operation N of the origin fails
  break-cache          from operation N on the cache device fails writes until it is given up
  lose-cache           the cache device goes at operation N, comes back and goes again
  kill                 the process dies at operation N
  cut-power            the power goes at operation N
  fail-then-kill       an operation fails, and a little later the process dies
  fail-then-cut-power  an operation fails, and a little later the power goes
  flip-stopped         byte N of a superblock, checkpoint, record header or summary is flipped, on a
                       device that was stopped in order; all its bits, and one
  flip-idle            the same on a device whose process was killed when it was idle
  flip-killed          the same on a device whose process was killed in the middle of a write

Examples:
  forebay-sim sweep
  forebay-sim sweep cut-power --seed 5 --runs 10
  forebay-sim sweep --stride 7 --choices 4            a quick look
  forebay-sim sweep flip-killed --stride 509")]
pub(crate) struct Options {
    /// What to do at each operation [default: one kind after the other]
    #[arg(value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    kind: Option<String>,
    /// Seed of the first run
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// For how many seeds, this one and those that follow
    #[arg(long, value_name = "M", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Take only every Nth operation or byte
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    stride: u64,
    /// Most choices of survivors for each crash [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    choices: Option<u64>,
    /// Flip only this byte of the device, counted from zero
    #[arg(long, value_name = "N", requires = "kind", conflicts_with = "stride")]
    byte: Option<usize>,
    #[command(flatten)]
    judged: Judged,
}

fn names() -> Vec<&'static str> {
    Sweep::ALL.map(Sweep::name).into_iter().chain(ENDS.map(flips::name)).collect()
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let is_wanted = |name: &str| options.kind.as_deref().is_none_or(|wanted| wanted == name);
    if options.byte.is_some() && !ENDS.iter().any(|end| is_wanted(flips::name(*end))) {
        return Err("--byte is for flip-stopped, flip-idle and flip-killed".to_owned());
    }
    for seed in seeds(options.seed, options.runs)? {
        for kind in Sweep::ALL.into_iter().filter(|kind| is_wanted(kind.name())) {
            if sweep_operations(seed, kind, options) == Verdict::Violation {
                return Ok(Verdict::Violation);
            }
        }
        for end in ENDS.into_iter().filter(|end| is_wanted(flips::name(*end))) {
            if sweep_bytes(seed, end, options)? == Verdict::Violation {
                return Ok(Verdict::Violation);
            }
        }
    }
    Ok(Verdict::Good)
}

fn sweep_operations(seed: u64, kind: Sweep, options: &Options) -> Verdict {
    let choices_max = options.choices.unwrap_or(u64::MAX);
    let effort = Effort { stride: options.stride, choices_max };
    let mut progress = |swept: &Swept| {
        let Swept { operations, done, runs, .. } = swept;
        let all = operations.div_ceil(effort.stride);
        show_progress(format!("{}: {done} of {all} operations, {runs} runs", kind.name()));
    };
    let swept = sweep(seed, kind, effort, &*options.judged.launcher(), &mut progress);
    clear_progress();
    match swept {
        Ok(Swept { operations, runs, totals, .. }) => {
            let name = kind.name();
            say(format_args!("seed {seed} {name}: {operations} operations, {runs} runs, all good"));
            for (what, count) in totals {
                say(format_args!("  {count:>10} {what}"));
            }
            Verdict::Good
        }
        Err(outcome) => {
            outcome.trace.iter().for_each(say);
            say(&outcome);
            Verdict::Violation
        }
    }
}

fn sweep_bytes(seed: u64, end: End, options: &Options) -> CommandResult {
    let which = options.byte.map_or(Which::Every(options.stride), Which::One);
    let mut progress = |flipped: &Flipped| {
        let all = flipped.bytes.div_ceil(options.stride);
        show_progress(format!("{}: {} of {all} bytes", flips::name(end), flipped.done));
    };
    let flipped = flips::sweep(seed, end, which, &mut progress);
    clear_progress();
    match (flipped, options.byte) {
        (Ok(Flipped { bytes, done: 0, .. }), Some(byte)) => Err(format!(
            "--byte {byte} is none of the {bytes} bytes that recovery of seed {seed} goes by"
        )),
        (Ok(Flipped { bytes, done, reached }), _) => {
            let name = flips::name(end);
            say(format_args!("seed {seed} {name}: {done} of {bytes} bytes flipped, all good"));
            for (what, count) in reached.iter() {
                say(format_args!("  {count:>8} {what}"));
            }
            Ok(Verdict::Good)
        }
        (Err(bad), _) => {
            say(bad);
            Ok(Verdict::Violation)
        }
    }
}

/// One line that is written over, if somebody looks.
fn show_progress(line: String) {
    let mut screen = std::io::stderr();
    if screen.is_terminal() {
        let _ = write!(screen, "\r{line:<79}");
    }
}

fn clear_progress() {
    let mut screen = std::io::stderr();
    if screen.is_terminal() {
        let _ = write!(screen, "\r{:<79}\r", "");
    }
}
