//! `cargo xtask bench guest`: what a block device of the kernel costs, over ublk and over NBD.
//!
//! A guest of `cargo xtask vm` measures (`xtask/vm/figures.sh`): this machine's kernel may have
//! neither driver. All of it is emulated, processors included, so a figure says nothing by itself;
//! ratios within the run say how much work each way is.

mod pauses;
mod profile;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bounds::{Bound, Limit};
use super::document::{cell, table, verdicts};
use super::fairness;
use super::machine::Machine;
use super::spread::Spread;
use crate::build::Build;
use crate::workspace::Workspace;
use crate::{Outcome, vm};
use pauses::Pause;
use profile::Share;

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/guest-figures.md";
/// Of everything that is measured.
const ROUNDS: u64 = 3;
const SECONDS: u64 = 10;
const QUICK_SECONDS: u64 = 3;
/// What is measured in each round.
const PHASES: u64 = 9;
/// For starts and stops of a round, on a busy machine.
const ROUND_SECONDS_MAX: u64 = 180;
const TARGETS: [Target; 4] = [Target::Ram, Target::Loop, Target::Ublk, Target::Nbd];
const DEPTHS: [u32; 2] = [1, 32];

/// How much to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure once instead of three times, with shorter phases; only printed
    #[arg(long)]
    quick: bool,
    /// Write the document here [default: docs/guest-figures.md; nowhere with --quick]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all raw figures here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Target {
    Ram,
    Loop,
    Ublk,
    Nbd,
}

impl Target {
    fn short(self) -> &'static str {
        match self {
            Target::Ram => "RAM",
            Target::Loop => "loop",
            Target::Ublk => "ublk",
            Target::Nbd => "NBD",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Target::Ram => "RAM disk",
            Target::Loop => "loop device on it",
            Target::Ublk => "forebay, ublk",
            Target::Nbd => "forebay, kernel's NBD client",
        }
    }
}

/// One phase, as a line of the script has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Phase {
    target: Target,
    depth: u32,
    requests: f64,
    seconds: f64,
    mean_us: f64,
    p99_us: f64,
    /// CPU time of fio, in its own code and in the kernel.
    client_user_ms: f64,
    client_system_ms: f64,
    /// The same of the daemon.
    server_user_ms: f64,
    server_system_ms: f64,
    /// CPU time of everything in the guest.
    all_ms: f64,
    /// Times that a processor went from one thread to another, or to none or from none.
    switches: f64,
}

impl Phase {
    fn iops(&self) -> f64 {
        self.requests / self.seconds
    }

    /// Microseconds of so much CPU time, a request.
    fn each_us(&self, ms: f64) -> f64 {
        ms * 1e3 / self.requests
    }

    fn cpu_us(&self) -> f64 {
        self.each_us(self.all_ms)
    }

    /// The same, but no less than what client and server have of it: the whole is sampled, and
    /// misses short spells.
    fn cpu_us_at_least(&self) -> f64 {
        self.each_us(self.all_ms.max(self.processes_ms()))
    }

    /// Client and server.
    fn processes_ms(&self) -> f64 {
        let Phase { client_user_ms, client_system_ms, .. } = self;
        let Phase { server_user_ms, server_system_ms, .. } = self;
        client_user_ms + client_system_ms + server_user_ms + server_system_ms
    }

    /// Threads of the kernel, and interrupts.
    fn kernel_ms(&self) -> f64 {
        self.all_ms - self.processes_ms()
    }
}

impl FromStr for Phase {
    type Err = anyhow::Error;

    /// `NAME=VALUE` by `NAME=VALUE`.
    fn from_str(text: &str) -> anyhow::Result<Phase> {
        let phase: Phase = from_line(text)?;
        if phase.requests == 0.0 || phase.seconds == 0.0 {
            bail!("nothing was read: {text}");
        }
        Ok(phase)
    }
}

/// Two clients at once, each on a ublk device of its own: requests a second of each, as a line of
/// the script has them.
#[derive(Clone, Debug, Serialize)]
struct Pair([f64; 2]);

impl Pair {
    fn less_over_more(&self) -> f64 {
        fairness::less_over_more(self.0)
    }
}

impl FromStr for Pair {
    type Err = anyhow::Error;

    /// `NAME=VALUE` by `NAME=VALUE`.
    fn from_str(text: &str) -> anyhow::Result<Pair> {
        #[derive(Deserialize)]
        struct Line {
            one_iops: f64,
            other_iops: f64,
        }
        let Line { one_iops, other_iops } = from_line(text)?;
        let pair = Pair([one_iops, other_iops]);
        if pair.0 == [0.0; 2] {
            bail!("nothing was read: {text}");
        }
        Ok(pair)
    }
}

/// What a line has, `NAME=VALUE` by `NAME=VALUE`. Names that are not asked for are passed over.
fn from_line<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
    let values = pairs.map(|(name, text)| (name.to_owned(), value(text))).collect();
    serde_json::from_value(Value::Object(values))
        .with_context(|| format!("not a line of ours: {text}"))
}

/// All figures of a run.
#[derive(Serialize)]
struct Figures {
    machine: Machine,
    command: String,
    seconds: u64,
    phases: Vec<Phase>,
    pairs: Vec<Pair>,
    pauses: Vec<Pause>,
    /// Of a run of its own, if there is perf.
    profile: Vec<Share>,
    bounds: Vec<Bound>,
}

impl Figures {
    fn of(&self, target: Target, depth: u32) -> impl Iterator<Item = &Phase> {
        self.phases.iter().filter(move |phase| phase.target == target && phase.depth == depth)
    }

    fn spread(&self, target: Target, depth: u32, value: fn(&Phase) -> f64) -> Option<Spread> {
        Spread::of(self.of(target, depth).map(value))
    }

    /// ublk over NBD, round by round.
    fn over_nbd(&self, depth: u32, value: fn(&Phase) -> f64) -> Option<Spread> {
        let pairs = self.of(Target::Ublk, depth).zip(self.of(Target::Nbd, depth));
        Spread::of(pairs.map(|(ublk, nbd)| value(ublk) / value(nbd)))
    }

    fn judge(&self) -> Vec<Bound> {
        let judged = |depth: u32| {
            let work = |what: &str| format!("random reads that hit, QD{depth}: {what}");
            let iops = work("IOPS over ublk, over those of NBD");
            let cpu = work("CPU time of a request over ublk, over that of NBD");
            [
                Bound::new(iops, Limit::AtLeast(3.0), "", self.over_nbd(depth, Phase::iops)),
                Bound::new(
                    cpu,
                    Limit::AtMost(0.5),
                    "",
                    self.over_nbd(depth, Phase::cpu_us_at_least),
                ),
            ]
        };
        let work = "two equal clients over ublk, random reads that hit, QD32 each: less over more";
        let shares = self.pair_spread(Pair::less_over_more);
        let shares = Bound::new(work.to_owned(), Limit::AtLeast(0.9), "", shares);
        DEPTHS.into_iter().flat_map(judged).chain([shares]).collect()
    }

    fn pair_spread(&self, value: impl Fn(&Pair) -> f64) -> Option<Spread> {
        Spread::of(self.pairs.iter().map(value))
    }
}

/// Measures, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let workspace = Workspace::load()?;
    let (rounds, seconds) = if options.quick { (1, QUICK_SECONDS) } else { (ROUNDS, SECONDS) };
    println!("this will take about {} min, after the build", rounds * PHASES * seconds / 60 + 5);
    // What guests are made of may have to be downloaded first, while sources change.
    let build = Build::begin(&workspace)?;
    let forebay = build.forebay(&workspace)?;
    let mut figures = Figures {
        machine: Machine::examine(&workspace),
        command: super::command_line(),
        seconds,
        phases: Vec::new(),
        pairs: Vec::new(),
        pauses: Vec::new(),
        profile: Vec::new(),
        bounds: Vec::new(),
    };
    let time_max = Duration::from_secs((rounds + 1) * (PHASES * seconds + ROUND_SECONDS_MAX));
    let scripts = [
        (format!("figures.sh {rounds} {seconds}"), time_max),
        (format!("pauses.sh {rounds}"), pauses::time_max(rounds)),
    ];
    vm::measure(&workspace, &forebay, &scripts, &mut |line| {
        if let Some(text) = line.strip_prefix("figure ") {
            figures.phases.push(text.parse()?);
        } else if let Some(text) = line.strip_prefix("pair ") {
            figures.pairs.push(text.parse()?);
        } else if let Some(text) = line.strip_prefix("pause ") {
            figures.pauses.push(from_line(text)?);
        } else if let Some(text) = line.strip_prefix("profile ") {
            figures.profile.push(text.parse()?);
        }
        Ok(())
    })?;
    let counts = [figures.pairs.len() as u64, figures.pauses.len() as u64];
    ensure!(counts == [rounds; 2], "pairs and takeovers should be {rounds} each: {counts:?}");
    figures.bounds = figures.judge();
    super::print_bounds(&figures.bounds);
    if let Some(path) = &options.json {
        super::write(path, &serde_json::to_string_pretty(&figures)?)?;
    }
    let usual = (!options.quick).then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        super::write(&path, &text(&figures))?;
    }
    Ok(Outcome::Passed)
}

/// The whole document, in Markdown.
fn text(figures: &Figures) -> String {
    let Figures { machine, command, seconds, .. } = figures;
    format!(
        "\
# Figures of a guest

Generated as a whole by a run of

```
{command}
```

on {}, at commit `{}`.

{}
Random reads of 4 KiB with direct I/O in a guest whose processors and devices QEMU emulates
(`xtask/vm/figures.sh`), phases of {seconds} s, in turns. Cache device and origin of forebay are RAM
disks, and each read is a hit. The figures say nothing of real machines; what is several times as
much work here is so there, too. Tables have the median of the rounds, and in parentheses the
smallest and the largest. Latency is from the call that submits a request to its end.

## Aims

{}## Requests

{}## CPU time of a request, in microseconds

Of fio, of the daemon, and of the rest, which is threads of the kernel and interrupts. Emulated
time is dear: a request costs some tens of times what it does on a real processor. `all` is
sampled by the kernel, a hundred times a second, and the rest is what the others leave of it: where
it is below zero, short spells of work were missed, and `all` is too low by that at least. The aims
above have the sum of the other four there.

{}## Two clients at once

Two devices of ublk of one daemon, each a volume of its own of one set, both read at the same time
with 32 requests each: what the one with less gets over what the other one gets.

{}{}{}",
        machine.date,
        machine.commit,
        machine.items(),
        verdicts(&figures.bounds),
        requests_table(figures),
        cpu_table(figures),
        pairs_table(figures),
        pauses::text(&figures.pauses),
        profile_text(figures),
    )
}

fn profile_text(figures: &Figures) -> String {
    let table = profile::text(&figures.profile);
    if table.is_empty() {
        return "No profile was taken: this machine has no perf.\n".to_owned();
    }
    format!(
        "\
## Where the time goes

By function, in percent of the time in which processors were not idle: perf's samples of all
processors in phases of their own, a thousand a second. `shard` is the daemon's thread. Functions
that take little each are left out, and there are many of these; – is little. There is no counter
of cycles in such a guest; a timer takes the samples, and what runs while interrupts are off counts
where these are switched on again (`_raw_spin_unlock_irqrestore`, `finish_task_switch`).

At a depth of 1 the processors are idle most of the time and what is left is mostly going to sleep
and waking up, so latency follows the context switches of a request, as counted above. Over ublk the
kernel wakes the daemon for a request, and fio for its end. Over NBD it wakes a thread of the client
to send the request as well, one to receive the answer, and one that tells of the end. With two of
five wake-ups, and the work that both ways have in common, the ratio stays below the aim; a daemon
that polls instead of sleeping would save one more, and take a processor for itself.

At a depth of 32 there is little of that on either way, and the checksum of the block that is read
takes more than any other function, as long on both ways: QEMU emulates its instructions one by one,
where a real processor takes a tenth of a microsecond. NBD has more copies through the socket
(`_copy_from_iter`, `_copy_to_iter`), memory for them, and the client's threads. So the checksum is
one reason why the ratio is less than the aim at this depth, and not the only one: the work that
both ways have in common, of fio, of the engine and of the RAM disks, is a larger part of a request
here than at a depth of 1, and leaves less that a front end can save.

{table}"
    )
}

/// A value of a phase, and its decimals.
type Column = (fn(&Phase) -> f64, usize);

fn rows<'a>(figures: &'a Figures, values: &'a [Column]) -> impl Iterator<Item = Vec<String>> + 'a {
    let places = DEPTHS.into_iter().flat_map(|depth| TARGETS.map(|target| (target, depth)));
    places.map(|(target, depth)| {
        let value =
            |(value, decimals): &Column| cell(figures.spread(target, depth, *value), *decimals);
        let place = [target.title().to_owned(), depth.to_string()];
        place.into_iter().chain(values.iter().map(value)).collect()
    })
}

fn requests_table(figures: &Figures) -> String {
    let header = [
        "device",
        "queue depth",
        "IOPS",
        "mean latency, us",
        "p99, us",
        "context switches of each",
    ];
    let values: [Column; 4] = [
        (Phase::iops, 0),
        (|phase| phase.mean_us, 0),
        (|phase| phase.p99_us, 0),
        (|phase| phase.switches / phase.requests, 1),
    ];
    table(&header, rows(figures, &values))
}

fn cpu_table(figures: &Figures) -> String {
    let header = [
        "device",
        "queue depth",
        "all",
        "fio, own code",
        "fio, in the kernel",
        "daemon, own code",
        "daemon, in the kernel",
        "rest",
    ];
    let values: [Column; 6] = [
        (Phase::cpu_us, 0),
        (|phase| phase.each_us(phase.client_user_ms), 0),
        (|phase| phase.each_us(phase.client_system_ms), 0),
        (|phase| phase.each_us(phase.server_user_ms), 0),
        (|phase| phase.each_us(phase.server_system_ms), 0),
        (|phase| phase.each_us(phase.kernel_ms()), 0),
    ];
    table(&header, rows(figures, &values))
}

fn pairs_table(figures: &Figures) -> String {
    let line = vec![
        "random reads that hit, QD32 each".to_owned(),
        cell(figures.pair_spread(|pair| pair.0[0]), 0),
        cell(figures.pair_spread(|pair| pair.0[1]), 0),
        cell(figures.pair_spread(Pair::less_over_more), 2),
    ];
    table(&["both do", "one, IOPS", "the other, IOPS", "less over more"], [line])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "target=ublk depth=32 round=1 requests=5000 seconds=10.000 mean_us=640.5 \
                        p99_us=1500.0 client_user_ms=100 client_system_ms=200 \
                        server_user_ms=300 server_system_ms=400 all_ms=2000 switches=12500";

    fn phase(line: &str) -> Phase {
        line.parse().expect("a whole line")
    }

    #[test]
    fn a_line_of_the_script_is_a_phase() {
        let phase = phase(LINE);
        assert_eq!((phase.target, phase.depth, phase.iops()), (Target::Ublk, 32, 500.0));
        assert_eq!((phase.cpu_us(), phase.kernel_ms()), (400.0, 1000.0));
        for (from, to) in [("requests=5000", "requests=0"), ("p99_us", "p98_us"), ("ublk", "md")] {
            assert!(LINE.replace(from, to).parse::<Phase>().is_err(), "{to}");
        }
    }

    #[test]
    fn ublk_is_held_against_nbd_round_by_round() {
        let nbd = LINE.replace("ublk", "nbd").replace("requests=5000", "requests=1000");
        let phases = vec![phase(LINE), phase(&nbd)];
        let mut figures = Figures {
            machine: Machine::default(),
            command: String::new(),
            seconds: SECONDS,
            phases,
            pairs: vec!["round=1 one_iops=400 other_iops=380".parse().expect("a whole line")],
            pauses: Vec::new(),
            profile: Vec::new(),
            bounds: Vec::new(),
        };
        figures.bounds = figures.judge();
        let verdicts: Vec<&str> = figures.bounds.iter().map(|b| b.verdict.text()).collect();
        assert_eq!(verdicts, ["not measured", "not measured", "met", "met", "met"]);
        let text = text(&figures);
        assert!(text.contains("| forebay, ublk | 32 | 500 | 640 | 1,500 | 2.5 |"), "{text}");
        assert!(text.contains("| RAM disk | 1 | – |"), "{text}");
        assert!(text.contains("random reads that hit, QD32 each | 400 | 380 | 0.95 |"), "{text}");
        assert!("round=1 one_iops=0 other_iops=0".parse::<Pair>().is_err());
    }
}
