//! `forebay-sim step-response`: how writeback answers a burst and a steady writer.

use clap::Args;
use forebay_sim::response::{Response, Sample, Step, respond};
use serde::Serialize;

use super::{CommandResult, Verdict, parse_seed, say};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Show how writeback answers a step of dirty data, second by second, in virtual time.
///
/// A client reads what is not cached, with pauses of a tenth of a second, so that the origin (the
/// model of a hard disk) is in use all the time and writeback is paced. After ten seconds another
/// one writes a burst, until dirty data is --burst-mib beyond `writeback_percent` (2 here, of a
/// cache of 1 GiB); then --stream-kib a second for --stream-seconds; then nothing. Equal arguments
/// give equal output.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim step-response
  forebay-sim step-response --every 60
  forebay-sim step-response --stream-kib 1024 --stream-seconds 200    more than the disk takes
  forebay-sim step-response --json --every 5 > response.json")]
pub(crate) struct Options {
    /// Decides where is read and written, and when
    #[arg(long, value_name = "SEED", value_parser = parse_seed, default_value = "1")]
    seed: u64,
    /// MiB of the burst beyond the target
    #[arg(long, value_name = "N", default_value_t = Step::usual(1).burst_bytes / MIB)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    burst_mib: u64,
    /// KiB that are written each second after the burst, in blocks of 4 KiB
    #[arg(long, value_name = "N")]
    #[arg(default_value_t = Step::usual(1).stream_bytes_per_second / KIB)]
    #[arg(value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    stream_kib: u64,
    /// How long that goes on
    #[arg(long, value_name = "N", default_value_t = Step::usual(1).stream_seconds)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    stream_seconds: u64,
    /// How long nothing is written then
    #[arg(long, value_name = "N", default_value_t = Step::usual(1).rest_seconds)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=100_000))]
    rest_seconds: u64,
    /// Print every Nth second; rates are those of all seconds between
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    every: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints, in columns: each has a figure for each sample.
#[derive(Serialize)]
struct Document {
    step_bytes: u64,
    overshoot_bytes: u64,
    band_bytes: u64,
    /// `null` if it does not settle.
    settled_after_seconds: Option<u64>,
    swings_after_settling: Option<usize>,
    stream_begins_second: u64,
    stream_ends_second: u64,
    samples: Columns,
}

#[derive(Default, Serialize)]
struct Columns {
    second: Vec<u64>,
    dirty_bytes: Vec<u64>,
    target_bytes: Vec<u64>,
    controller_bytes_per_second: Vec<u64>,
    written_bytes_per_second: Vec<u64>,
    written_back_bytes_per_second: Vec<u64>,
}

/// The state at the end of each group of seconds, and the mean rates within it.
fn thinned(samples: &[Sample], every: u64) -> Vec<Sample> {
    let groups = samples.chunks(usize::try_from(every).unwrap_or(usize::MAX));
    let mean = |group: &[Sample], value: fn(&Sample) -> u64| {
        group.iter().map(value).sum::<u64>() / group.len() as u64
    };
    groups
        .map(|group| Sample {
            written_bytes: mean(group, |sample| sample.written_bytes),
            written_back_bytes: mean(group, |sample| sample.written_back_bytes),
            ..*group.last().expect("a group is not empty")
        })
        .collect()
}

fn document(response: &Response, samples: &[Sample]) -> Document {
    let mut columns = Columns::default();
    for sample in samples {
        columns.second.push(sample.second);
        columns.dirty_bytes.push(sample.dirty_bytes);
        columns.target_bytes.push(sample.target_bytes);
        columns.controller_bytes_per_second.push(sample.rate_bytes);
        columns.written_bytes_per_second.push(sample.written_bytes);
        columns.written_back_bytes_per_second.push(sample.written_back_bytes);
    }
    let settled = response.settled_after();
    Document {
        step_bytes: response.step_bytes(),
        overshoot_bytes: response.overshoot_bytes(),
        band_bytes: response.band_bytes(),
        settled_after_seconds: settled,
        swings_after_settling: settled.map(|_| response.swings_after_settling()),
        stream_begins_second: response.stream_begins,
        stream_ends_second: response.stream_ends,
        samples: columns,
    }
}

fn print(response: &Response, samples: &[Sample]) {
    let kib = |bytes: u64| bytes / KIB;
    say("second  dirty KiB  target KiB  controller KiB/s  written KiB/s  written home KiB/s");
    for sample in samples {
        say(format_args!(
            "{:>6}  {:>9}  {:>10}  {:>16}  {:>13}  {:>18}",
            sample.second,
            kib(sample.dirty_bytes),
            kib(sample.target_bytes),
            kib(sample.rate_bytes),
            kib(sample.written_bytes),
            kib(sample.written_back_bytes),
        ));
    }
    let (step, overshoot) = (response.step_bytes(), response.overshoot_bytes());
    say(format_args!(
        "step: {} KiB beyond the target, reached after {} s; the stream ends after {} s",
        kib(step),
        response.stream_begins,
        response.stream_ends
    ));
    let percent = overshoot as f64 * 100.0 / step.max(1) as f64;
    say(format_args!("overshoot: {} KiB below the target, {percent:.1} %", kib(overshoot)));
    match response.settled_after() {
        Some(seconds) => say(format_args!(
            "settled: {seconds} s after the burst, within {} KiB; swings after that: {}",
            kib(response.band_bytes()),
            response.swings_after_settling()
        )),
        None => say("settled: not while the stream lasted"),
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let step = Step {
        seed: options.seed,
        burst_bytes: options.burst_mib * MIB,
        stream_bytes_per_second: options.stream_kib * KIB,
        stream_seconds: options.stream_seconds,
        rest_seconds: options.rest_seconds,
    };
    let (bytes, most) = (step.written_bytes(), Step::WRITTEN_BYTES_MAX);
    if bytes > most {
        return Err(format!(
            "that would write up to {} MiB, and {} MiB are there to be written: less with \
             --stream-kib or --stream-seconds",
            bytes / MIB,
            most / MIB
        ));
    }
    let response = respond(&step);
    let samples = thinned(&response.samples, options.every);
    if options.json {
        let text = serde_json::to_string(&document(&response, &samples));
        say(text.expect("numbers can be written"));
    } else {
        print(&response, &samples);
    }
    Ok(if response.lost_blocks == 0 { Verdict::Good } else { Verdict::Violation })
}
