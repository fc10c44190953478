//! What to do, in plain words.

use serde::Serialize;

use super::confidence::{self, Confidence, Doubt};
use super::{Mode, SizeOutcome, Uncached};
use crate::profile::Profile;

/// Part of what the largest cache gains that the recommended one must gain. Beyond it each further
/// percent costs ever more room.
const KNEE_RATIO: f64 = 0.95;
/// Below this speed-up a cache is not worth its trouble.
const SPEEDUP_LITTLE: f64 = 1.2;
/// From this on it plainly is.
const SPEEDUP_PLAIN: f64 = 1.5;
/// A mode that can lose data, or keeps reads out, must be so much faster, or so little slower.
const MODE_FACTOR: f64 = 1.25;
const MODE_SLACK: f64 = 1.05;
/// Below this part of the requests writes do not decide anything.
const WRITES_FEW: f64 = 0.01;

/// An origin that is busy for less than this part of the time seldom makes requests wait.
const BUSY_LITTLE: f64 = 0.05;
/// From this part of first touches on, a trace does not come back to what it used.
const ONCE_RATIO: f64 = 0.9;

/// Whether to use a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It pays.
    WorthIt,
    /// It gains a little.
    Marginal,
    /// It does not pay for what is in the trace.
    NotWorthIt,
}

/// What to set up.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// Size of the cache.
    pub cache_bytes: u64,
    /// Its place in the sizes of the report.
    pub size_index: usize,
    /// Mode of the volume.
    pub mode: Mode,
    /// Time of all requests without a cache, divided by that with it.
    pub speedup: f64,
    /// Part of the blocks that are found.
    pub hit_ratio: f64,
}

/// What to do and why.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recommendation {
    /// Whether to use a cache.
    pub verdict: Verdict,
    /// What to set up; also if it does not pay, as the best there is.
    pub choice: Choice,
    /// Part of the gain of the largest size that the choice must reach.
    pub knee_ratio: f64,
    /// In one sentence.
    pub headline: String,
    /// Why this size.
    pub size_reason: String,
    /// Why this mode.
    pub mode_reason: String,
    /// What else should be known.
    pub remarks: Vec<String>,
    /// How sure all this is.
    pub confidence: Confidence,
    /// Why it is not surer.
    pub doubts: Vec<Doubt>,
}

/// Judges the sizes, of which there is at least one.
pub(super) fn recommend(
    profile: &Profile,
    uncached: &Uncached,
    sizes: &[SizeOutcome],
) -> Recommendation {
    let largest = sizes.last().expect("there is a size");
    let (mode, mode_reason) = choose_mode(profile, largest);
    let (size_index, size_reason) = choose_size(profile, mode, sizes);
    let size = &sizes[size_index];
    let speedup = size.mode(mode).speedup;
    let verdict = match speedup {
        speedup if speedup >= SPEEDUP_PLAIN => Verdict::WorthIt,
        speedup if speedup >= SPEEDUP_LITTLE => Verdict::Marginal,
        _ => Verdict::NotWorthIt,
    };
    let choice = Choice {
        cache_bytes: size.cache_bytes,
        size_index,
        mode,
        speedup,
        hit_ratio: size.hit_ratio,
    };
    let doubts = confidence::doubts(profile);
    Recommendation {
        verdict,
        choice,
        knee_ratio: KNEE_RATIO,
        headline: headline(verdict, &choice, profile),
        size_reason,
        mode_reason,
        remarks: remarks(profile, uncached, size, mode),
        confidence: confidence::confidence(&doubts),
        doubts,
    }
}

/// The mode is judged where room is no question: at the largest size.
fn choose_mode(profile: &Profile, largest: &SizeOutcome) -> (Mode, String) {
    let writes = profile.writes.request_count;
    let write_ratio = writes as f64 / (profile.reads.request_count + writes).max(1) as f64;
    if write_ratio < WRITES_FEW {
        let what = if writes == 0 { "no writes" } else { "hardly any writes" };
        let reason = format!(
            "There are {what} in the trace, so writing back later would gain nothing, and \
             writethrough never puts data at risk. If the real workload writes, record it with its \
             writes."
        );
        return (Mode::Writethrough, reason);
    }
    let speedup = |mode| largest.mode(mode).speedup;
    let (back, through) = (speedup(Mode::Writeback), speedup(Mode::Writethrough));
    let only = speedup(Mode::Writeonly);
    if only >= SPEEDUP_LITTLE && back <= only * MODE_SLACK {
        let reason = format!(
            "Almost all of the gain comes from writes ({only:.1} times as fast with them alone, \
             {back:.1} times with reads, too), so promoting reads would wear the cache device for \
             little. Dirty data is lost if the cache device dies: use a mirrored one, or \
             writeback_order=ordered, or accept it."
        );
        return (Mode::Writeonly, reason);
    }
    if back >= through * MODE_FACTOR {
        let reason = format!(
            "{:.0} % of the requests are writes, and answering them from the cache device makes \
             the whole {back:.1} times as fast at the largest size, where writethrough makes it \
             {through:.1} times as fast. The price: what the origin does not have yet is lost if \
             the cache device dies. If that must not be, choose writethrough, a mirrored cache \
             device, or writeback_order=ordered.",
            100.0 * write_ratio
        );
        return (Mode::Writeback, reason);
    }
    let reason = format!(
        "Writing back later would make the whole {back:.1} times as fast, writethrough makes it \
         {through:.1} times: too little to have data on the cache device alone."
    );
    (Mode::Writethrough, reason)
}

/// The smallest size that gains enough, and has room for what is dirty at a time.
fn choose_size(profile: &Profile, mode: Mode, sizes: &[SizeOutcome]) -> (usize, String) {
    // With a cache all requests take 1 / speedup of their time, so this much of it is gained.
    let gain = |size: &SizeOutcome| 1.0 - 1.0 / size.mode(mode).speedup;
    let gain_max = sizes.iter().map(gain).fold(0.0, f64::max);
    let is_enough = |size: &SizeOutcome| gain(size) >= KNEE_RATIO * gain_max;
    let last = sizes.len() - 1;
    let knee = sizes.iter().position(is_enough).unwrap_or(last);
    let dirty_bytes = match mode {
        Mode::Writethrough => 0,
        Mode::Writeback | Mode::Writeonly => {
            profile.windows.iter().map(|window| window.written_set_bytes).max().unwrap_or(0)
        }
    };
    let has_room = |size: &SizeOutcome| size.cache_bytes >= dirty_bytes;
    let index = (knee..=last).find(|index| has_room(&sizes[*index])).unwrap_or(last);
    let chosen = &sizes[index];
    let best = best(sizes, gain);
    let mut reason = if sizes.len() == 1 {
        format!("It is the only size looked at, and saves {:.1} % of the time.", 100.0 * gain_max)
    } else if std::ptr::eq(&sizes[knee], best) {
        format!(
            "{} saves {:.1} % of the requests' time, and none of the smaller sizes looked at as \
             much as {:.0} % of that.",
            size_text(best.cache_bytes),
            100.0 * gain_max,
            100.0 * KNEE_RATIO,
        )
    } else {
        format!(
            "{} is the smallest of the sizes looked at that gains at least {:.0} % of the time \
             that the best of them ({}) gains: it saves {:.1} % of the requests' time, that one \
             {:.1} %.",
            size_text(sizes[knee].cache_bytes),
            100.0 * KNEE_RATIO,
            size_text(best.cache_bytes),
            100.0 * gain(&sizes[knee]),
            100.0 * gain_max,
        )
    };
    if index > knee {
        reason.push_str(&format!(
            " But {} are written in the busiest part of the trace, and all of that may be dirty at \
             once: so {}.",
            size_text(dirty_bytes),
            size_text(chosen.cache_bytes),
        ));
    }
    if let Some(next) = sizes.get(index + 1) {
        let more = 100.0 * (next.hit_ratio - chosen.hit_ratio);
        reason.push_str(&format!(
            " The next size, {}, would find {more:.1} % more of the blocks.",
            size_text(next.cache_bytes)
        ));
    }
    (index, reason)
}

fn best(sizes: &[SizeOutcome], gain: impl Fn(&SizeOutcome) -> f64) -> &SizeOutcome {
    sizes.iter().max_by(|a, b| gain(a).total_cmp(&gain(b))).expect("there is a size")
}

fn headline(verdict: Verdict, choice: &Choice, profile: &Profile) -> String {
    let size = size_text(choice.cache_bytes);
    let (mode, speedup) = (choice.mode.name(), choice.speedup);
    let hits = match choice.mode {
        // Its reads are not promoted, so the share of blocks that would be found says nothing.
        Mode::Writeonly => String::new(),
        Mode::Writeback | Mode::Writethrough => {
            format!("finds {:.0} % of the blocks and ", 100.0 * choice.hit_ratio)
        }
    };
    let works = format!(
        "one of {size} in {mode} {hits}makes the requests about {speedup:.1} times as fast."
    );
    match verdict {
        Verdict::WorthIt => format!("A cache is worth it: {works}"),
        Verdict::Marginal => format!("A cache gains a little: {works}"),
        Verdict::NotWorthIt => {
            let why = match profile.first_touch_ratio {
                ratio if ratio > ONCE_RATIO => ", which hardly ever comes back to a block",
                _ => "",
            };
            format!(
                "A cache is not worth it for this trace{why}. The best choice, {size} in {mode}, \
                 makes the requests {speedup:.2} times as fast."
            )
        }
    }
}

fn remarks(profile: &Profile, uncached: &Uncached, size: &SizeOutcome, mode: Mode) -> Vec<String> {
    let mut remarks = Vec::new();
    let outcome = size.mode(mode);
    if let Some(per_day) = outcome.drive_writes_per_day {
        remarks.push(format!(
            "Wear: {} are written to the cache device in the trace. At this rate it is {} a day, \
             {} drive writes a day if the device has {}. Common SSDs are made for .3 to 1, \
             those for servers for 1 to 3; a larger device lasts longer.",
            size_text(outcome.cache_written_bytes),
            size_text((per_day * size.cache_bytes as f64) as u64),
            if per_day < 100.0 { format!("{per_day:.2}") } else { format!("{per_day:.0}") },
            size_text(size.cache_bytes)
        ));
    }
    if let (Some(before), Some(after)) = (uncached.origin_busy_ratio, outcome.origin_busy_ratio) {
        remarks.push(origin_load(before, after, mode));
    }
    let absorbed = profile.absorption.iter().rev().find_map(|found| Some((found, found.ratio?)));
    let absorbed = absorbed.filter(|(found, _)| found.delay_s >= 60);
    if let (Some((found, ratio)), Mode::Writeback | Mode::Writeonly) = (absorbed, mode) {
        remarks.push(format!(
            "Of all that is written at least {:.0} % is overwritten or discarded within {}: \
             so much less has to go to the origin if dirty data may rest that long.",
            100.0 * ratio,
            match found.delay_s / 60 {
                1 => "a minute".to_owned(),
                60 => "an hour".to_owned(),
                minutes => format!("{minutes} minutes"),
            }
        ));
    }
    remarks
}

/// What the origin has to do without the cache and with it, in parts of its time.
fn origin_load(before: f64, after: f64, mode: Mode) -> String {
    let part = |busy: f64| match busy {
        busy if busy > 1.0 => format!("{busy:.1} times as long as the trace takes"),
        busy => format!("{:.1} % of the time", 100.0 * busy),
    };
    let mut text = format!(
        "By these figures the requests keep the origin busy for {} without a cache, and for at \
         most {} with it.",
        part(before),
        part(after)
    );
    let writes_back = mode != Mode::Writethrough;
    text.push_str(match (before, after) {
        (_, after) if after > 1.0 && writes_back => {
            " If that were to last, the cache would fill with dirty data, and writes would wait \
             for the origin after all; writeback sorts and merges, which may save it."
        }
        (_, after) if after > 1.0 => " So it stays a bottleneck.",
        (before, _) if before > 1.0 => " So it is a bottleneck no more.",
        (before, _) if before < BUSY_LITTLE => {
            " A cache shortens waits then, but there is no jam to clear up."
        }
        _ => "",
    });
    text
}

/// A size for people.
fn size_text(bytes: u64) -> String {
    let unit = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((name, shift)) = unit.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let digits = usize::from(value < 100.0 && !bytes.is_multiple_of(1 << shift));
    format!("{value:.digits$} {name}")
}
