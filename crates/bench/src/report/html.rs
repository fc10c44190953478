//! The report as a page.
//!
//! It is made of `report.html`, `report.css` and `report.js` beside this file, on top of what all
//! pages have ([`page`](super::page)). Figures and samples are in it as JSON, from which the script
//! draws; what was measured, where, in which clock and with which figures is there without it, too.
//!
//! Invariants:
//! - Every target of the plan is on the page, measured or not, with its clock or the reason.
//! - Samples are all there: thinning them is the script's matter, by the pixels that there are.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::columns::{self, Cell, HEADINGS};
use super::page::{Content, escaped, filled, prose};
use super::{markdown, verdicts, work};
use crate::bounds::{Judged, Verdict};
use crate::machine::Machine;
use crate::plan::{Clock, Phase, Plan, Published, Work};
use crate::result::{PERCENTILES, Sample};
use crate::size;
use crate::summary::{FIRST_SECONDS, PhaseSummary, Spread, Summary, TargetSummary};

const TEMPLATE: &str = include_str!("report.html");
/// The part about bounds, for plans that have some.
const BOUNDS: &str = include_str!("bounds.html");
const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Hit ratios of samples are kept in this many parts: more digits than any chart can show.
const RATIO_PARTS: f64 = 1e6;
/// The first second of the year 10000, which dates cannot be written from on.
const DATES_END_S: u64 = 253_402_300_800;

/// All that the script draws from.
#[derive(Serialize)]
struct Data<'a> {
    markdown: String,
    percentiles: [f64; PERCENTILES.len()],
    first_seconds: usize,
    phases: Vec<&'a ShownPhase<'a>>,
    targets: Vec<DataTarget<'a>>,
    published: &'a [Published],
}

#[derive(Serialize)]
struct DataTarget<'a> {
    title: &'a str,
    clock: Option<&'static str>,
    phases: Vec<DataPhase<'a>>,
}

/// A phase of a target, as [`PhaseSummary`] has it.
#[derive(Serialize)]
struct DataPhase<'a> {
    /// Which of the phases that the page shows.
    place: usize,
    seconds: Option<Spread>,
    run_s: Option<Spread>,
    first_run_s: Option<Spread>,
    iops: Option<Spread>,
    first_iops: Option<Spread>,
    last_iops: Option<Spread>,
    read_us: &'a [Option<Spread>],
    write_us: &'a [Option<Spread>],
    hit_ratio: Option<Spread>,
    fairness: Option<Spread>,
    origin_bytes: Option<Spread>,
    cache_written_bytes: Option<Spread>,
    write_amplification: Option<Spread>,
    cpu_us: Option<Spread>,
    samples: Columns,
}

/// Samples by column, which takes a fourth of the room.
#[derive(Serialize)]
struct Columns {
    second: Vec<u64>,
    requests: Vec<u64>,
    hit_ratio: Vec<Option<f64>>,
    dirty_bytes: Vec<u64>,
}

impl Columns {
    fn of(samples: &[Sample]) -> Columns {
        let ratio = |sample: &Sample| {
            sample.hit_ratio.map(|ratio| (ratio * RATIO_PARTS).round() / RATIO_PARTS)
        };
        Columns {
            second: samples.iter().map(|sample| sample.second).collect(),
            requests: samples.iter().map(|sample| sample.requests).collect(),
            hit_ratio: samples.iter().map(ratio).collect(),
            dirty_bytes: samples.iter().map(|sample| sample.dirty_bytes).collect(),
        }
    }
}

/// Phases that stand side by side: the same name, and the same occurrence of it in each target.
#[derive(Serialize)]
struct ShownPhase<'a> {
    name: &'a str,
    #[serde(skip)]
    occurrence: usize,
    /// What its jobs do, `None` if they do not all do the same: rates stand beside those of others
    /// of the same.
    kind: Option<Work>,
    /// Of every phase of the plan that it stands for.
    work: Vec<Vec<String>>,
}

/// The phases that at least one target was measured in, in the order of the plan.
fn shown_phases<'a>(plan: &'a Plan, summary: &Summary) -> Vec<ShownPhase<'a>> {
    let mut shown: Vec<ShownPhase<'_>> = Vec::new();
    let mut counts = HashMap::new();
    for phase in plan.phases.iter().filter(|phase| phase.is_measured()) {
        let words = work::phase(phase);
        for target in plan.targets.iter().filter(|target| phase.is_for(target)) {
            let count = counts.entry((&target.name, &phase.name)).or_insert(0);
            let occurrence = *count;
            *count += 1;
            let is_it = |known: &&mut ShownPhase<'_>| {
                known.name == phase.name && known.occurrence == occurrence
            };
            match shown.iter_mut().find(is_it) {
                Some(known) if known.work.contains(&words) => {}
                Some(known) => known.work.push(words.clone()),
                None => {
                    shown.push(ShownPhase {
                        name: &phase.name,
                        occurrence,
                        kind: kind(phase),
                        work: vec![words.clone()],
                    });
                }
            }
        }
    }
    let measured: Vec<Vec<(&str, usize)>> = summary.targets.iter().map(occurrences).collect();
    shown.retain(|phase| {
        measured.iter().flatten().any(|found| *found == (phase.name, phase.occurrence))
    });
    shown
}

/// What all jobs of a phase do.
fn kind(phase: &Phase) -> Option<Work> {
    let first = phase.jobs.first()?.work;
    phase.jobs.iter().all(|job| job.work == first).then_some(first)
}

/// The phases of a target by name, and the how-manieth of that name each is, from zero.
fn occurrences(target: &TargetSummary) -> Vec<(&str, usize)> {
    let mut counts = HashMap::new();
    let each = target.phases.iter().map(|phase| {
        let count = counts.entry(&phase.name).or_insert(0);
        *count += 1;
        (phase.name.as_str(), *count - 1)
    });
    each.collect()
}

/// Where each phase of a target stands among those shown.
fn places(target: &TargetSummary, shown: &[ShownPhase<'_>]) -> Vec<usize> {
    let place = |found: &(&str, usize)| {
        let is_it = |phase: &ShownPhase<'_>| (phase.name, phase.occurrence) == *found;
        shown.iter().position(is_it).expect("what was measured is in the plan")
    };
    occurrences(target).iter().map(place).collect()
}

/// The whole page. It needs no other file and no network.
///
/// # Panics
///
/// If the summary is of another plan.
#[must_use]
pub fn html(summary: &Summary, plan: &Plan, machine: &Machine) -> String {
    let shown = shown_phases(plan, summary);
    let columns = columns::shown(summary);
    let data = Data {
        markdown: markdown::table(summary),
        percentiles: PERCENTILES,
        first_seconds: FIRST_SECONDS,
        phases: shown.iter().collect(),
        targets: summary.targets.iter().map(|target| data_target(target, &shown)).collect(),
        published: &summary.published,
    };
    let json = serde_json::to_string(&data).expect("keys are strings");
    let source = match summary.source.trim() {
        "" => String::new(),
        source => format!("<p class=\"source\">{}</p>", prose(source)),
    };
    let (repeated, repeated_bars) = match summary.is_repeated() {
        false => ("", ""),
        true => (
            "Medians of the repetitions, and below them the smallest and largest. ",
            "Bars are medians of the repetitions, and a line on a bar goes from the smallest to \
             the largest. ",
        ),
    };
    let parts = [
        ("{{title}}", escaped(&summary.about)),
        ("{{source}}", source),
        ("{{clock}}", clock_text(summary)),
        ("{{machine}}", machine_text(machine)),
        ("{{targets}}", targets(summary, plan)),
        ("{{headings}}", headings(&columns)),
        ("{{rows}}", rows(summary, &shown, &columns)),
        ("{{repeated}}", repeated.to_owned()),
        ("{{repeated-bars}}", repeated_bars.to_owned()),
        ("{{bounds}}", bounds(&summary.bounds)),
        ("{{first-seconds}}", FIRST_SECONDS.to_string()),
        ("{{phases}}", phases_text(&shown)),
    ];
    Content {
        title: &summary.about,
        body: &filled(TEMPLATE, &parts),
        style: STYLE,
        script: SCRIPT,
        data: &json,
        without_script: "Charts need JavaScript; the table does not.",
        version: &machine.version,
    }
    .page()
}

fn data_target<'a>(target: &'a TargetSummary, shown: &[ShownPhase<'_>]) -> DataTarget<'a> {
    let phases = places(target, shown).into_iter().zip(&target.phases);
    DataTarget {
        title: &target.title,
        clock: target.clock.map(Clock::name),
        phases: phases.map(|(place, phase)| data_phase(place, phase)).collect(),
    }
}

fn data_phase(place: usize, phase: &PhaseSummary) -> DataPhase<'_> {
    DataPhase {
        place,
        seconds: phase.seconds,
        run_s: phase.run_s,
        first_run_s: phase.first_run_s,
        iops: phase.iops,
        first_iops: phase.first_iops,
        last_iops: phase.last_iops,
        read_us: &phase.read_us,
        write_us: &phase.write_us,
        hit_ratio: phase.hit_ratio,
        fairness: phase.fairness,
        origin_bytes: phase.origin_bytes,
        cache_written_bytes: phase.cache_written_bytes,
        write_amplification: phase.write_amplification,
        cpu_us: phase.cpu_us,
        samples: Columns::of(&phase.samples),
    }
}

/// What figures are of.
fn clock_text(summary: &Summary) -> String {
    let of = |clock| {
        let targets = summary.targets.iter().filter(move |target| target.clock == Some(clock));
        targets.map(|target| target.title.as_str()).collect::<Vec<_>>().join("; ")
    };
    let (of_models, of_machine) = (of(Clock::Virtual), of(Clock::Real));
    let (class, text) = match (of_models.is_empty(), of_machine.is_empty()) {
        (true, true) => ("none", "<b>Nothing has been measured yet.</b>".to_owned()),
        (false, true) => (
            Clock::Virtual.name(),
            "<b>Virtual time.</b> All figures measured here are of models of devices, and not of \
             a machine."
                .to_owned(),
        ),
        (true, false) => (
            Clock::Real.name(),
            "<b>Real time.</b> All figures measured here are of the machine below.".to_owned(),
        ),
        (false, false) => (
            "both",
            format!(
                "<b>Two clocks.</b> In <b>virtual</b> time, figures of models of devices: {}. In \
                 <b>real</b> time, figures of the machine below: {}.",
                escaped(&of_models),
                escaped(&of_machine)
            ),
        ),
    };
    let published = match summary.published.is_empty() {
        true => "",
        false => " Rows “as published” are what others measured on machines of theirs.",
    };
    format!("<p class=\"clock {class}\">{text}{published}</p>")
}

/// Where and when.
fn machine_text(machine: &Machine) -> String {
    let time = match machine.unix_time_s {
        0 | DATES_END_S.. => String::new(),
        seconds => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)),
    };
    let memory = match machine.memory_bytes {
        0 => String::new(),
        bytes => size::text(bytes),
    };
    let pairs = [
        ("Run", time.as_str()),
        ("forebay", &machine.version),
        ("Processors", &machine.processors),
        ("Memory", &memory),
        ("Kernel", &machine.kernel),
        ("fio", machine.fio.as_deref().unwrap_or_default()),
    ];
    let known = pairs.iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escaped(value))).collect()
}

fn badge(clock: Option<Clock>) -> String {
    clock.map_or_else(String::new, |clock| {
        let name = clock.name();
        format!("<span class=\"badge {name}\">{name}</span>")
    })
}

/// Every target: its clock, what it is, and what became of it.
fn targets(summary: &Summary, plan: &Plan) -> String {
    let mut html = String::new();
    for (index, target) in summary.targets.iter().enumerate() {
        let known = plan.targets.iter().find(|known| known.name == target.name);
        let what = known.map_or_else(String::new, |known| {
            work::target(plan, known, target.clock.unwrap_or(plan.clock))
        });
        let state = match target.measured {
            0 => "not measured".to_owned(),
            1 if summary.repetitions == 1 => String::new(),
            measured => format!("{measured} of {} repetitions", summary.repetitions),
        };
        let _ = write!(
            html,
            "<li><span class=\"swatch\" data-target=\"{index}\"></span><div><b>{}</b> {} \
             <span class=\"state\">{state}</span><p>{}</p>",
            escaped(&target.title),
            badge(target.clock),
            prose(&what),
        );
        for why in reasons(target) {
            let _ = write!(html, "<p class=\"failed\">Failed: {}</p>", escaped(&why));
        }
        html.push_str("</div></li>");
    }
    html
}

/// Why repetitions failed; what several have in common stands once.
fn reasons(target: &TargetSummary) -> Vec<String> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for why in &target.failures {
        match counts.iter_mut().find(|(known, _)| known == why) {
            Some((_, count)) => *count += 1,
            None => counts.push((why, 1)),
        }
    }
    let text = |(why, count): (&str, usize)| match count {
        1 => why.to_owned(),
        _ => format!("{why} ({count} repetitions)"),
    };
    counts.into_iter().map(text).collect()
}

fn headings(columns: &[usize]) -> String {
    let heading = |column: &usize| format!("<th scope=\"col\">{}</th>", HEADINGS[*column]);
    columns.iter().map(heading).collect()
}

/// The rows of the table: of what was measured, of what was not, and of what was published.
fn rows(summary: &Summary, shown: &[ShownPhase<'_>], columns: &[usize]) -> String {
    let mut html = String::new();
    let whole = columns.len();
    let of_columns = |cells: [Cell; HEADINGS.len()]| -> Vec<Cell> {
        columns.iter().map(|column| cells[*column].clone()).collect()
    };
    for target in &summary.targets {
        let title = escaped(&target.title);
        for (place, phase) in places(target, shown).iter().zip(&target.phases) {
            let cells = of_columns(columns::cells(phase));
            let name = escaped(&phase.name);
            row(
                &mut html,
                &format!(" data-place=\"{place}\""),
                &title,
                &name,
                target.clock,
                &cells,
            );
        }
        let begin = format!("<th scope=\"row\">{title}</th>");
        for why in reasons(target) {
            let why = escaped(&why);
            let _ = write!(
                html,
                "<tr class=\"failed\">{begin}<td colspan=\"{}\">failed: {why}</td></tr>",
                whole + 2
            );
        }
        if target.measured == 0 && target.failures.is_empty() {
            let _ = write!(
                html,
                "<tr class=\"missing\">{begin}<td colspan=\"{}\">not measured yet</td></tr>",
                whole + 2
            );
        }
    }
    for published in &summary.published {
        let cells = of_columns(columns::published_cells(published));
        let phase = escaped(&columns::published_phase(published));
        let title = escaped(&published.title);
        row(&mut html, " class=\"published\"", &title, &phase, Some(Clock::Real), &cells);
    }
    html
}

/// A row; title and phase are escaped.
fn row(
    html: &mut String,
    attributes: &str,
    title: &str,
    phase: &str,
    clock: Option<Clock>,
    cells: &[Cell],
) {
    let _ = write!(
        html,
        "<tr{attributes}><th scope=\"row\">{title}</th><td>{phase}</td><td>{}</td>",
        badge(clock)
    );
    for cell in cells {
        let range = cell.range.as_ref();
        let range =
            range.map_or_else(String::new, |range| format!("<small>{}</small>", prose(range)));
        let _ = write!(html, "<td>{}{range}</td>", prose(&cell.figure));
    }
    html.push_str("</tr>");
}

/// How the bounds of the plan stand; empty if it has none.
fn bounds(bounds: &[Judged]) -> String {
    if bounds.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for bound in bounds {
        let class = match bound.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::NotMeasured => "absent",
        };
        let _ = write!(
            rows,
            "<tr class=\"{class}\"><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
            prose(&bound.text),
            verdicts::limit(bound.limit),
            verdicts::value(bound),
            verdicts::word(bound.verdict),
        );
    }
    filled(BOUNDS, &[("{{sentence}}", verdicts::sentence(bounds)), ("{{bound-rows}}", rows)])
}

/// What the phases do, for those who read without a script.
fn phases_text(shown: &[ShownPhase<'_>]) -> String {
    let mut html = String::new();
    for phase in shown {
        let _ = write!(html, "<dt>{}</dt>", escaped(phase.name));
        for lines in &phase.work {
            let lines = lines.iter().map(|line| prose(line));
            let _ = write!(html, "<dd>{}</dd>", lines.collect::<Vec<_>>().join("<br>"));
        }
    }
    html
}

#[cfg(test)]
mod tests;
