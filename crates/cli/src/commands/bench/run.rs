//! `forebay bench run`: every repetition of every target, and the report.

use std::path::{Path, PathBuf};

use forebay_bench::folder::{Folder, Outcome};
use forebay_bench::plan::{Clock, Phase, Plan, Target};
use forebay_bench::result::TargetResult;
use forebay_bench::summary::Summary;
use forebay_bench::{report, virtual_time};

use super::{built_in, machine};
use crate::args::BenchRunArguments;
use crate::exit::Failure;
use crate::output;
use crate::progress::{Progress, Unit};

pub(super) fn run(arguments: &BenchRunArguments) -> Result<(), Failure> {
    let (name, text) = text(&arguments.plan)?;
    let mut plan = Plan::parse(&text).map_err(|error| {
        let failure = Failure::from(error);
        Failure::new(failure.exit, format!("plan {}: {failure}", arguments.plan))
    })?;
    plan.clock = arguments.clock.map_or(plan.clock, Clock::from);
    plan.repetitions = arguments.repetitions.unwrap_or(plan.repetitions);
    for name in &arguments.only {
        if !plan.targets.iter().any(|target| target.name == *name) {
            let names: Vec<&str> = plan.targets.iter().map(|target| target.name.as_str()).collect();
            return Err(Failure::usage(format!("the plan has no target {name}"))
                .or(format!("it has {}", names.join(", "))));
        }
    }
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from(format!("bench-{name}")));
    let folder = Folder::create(&out, &text, &machine::examine())?;
    let mut failed = 0;
    let mut summary = None;
    for repetition in 1..=plan.repetitions {
        let chosen =
            |target: &&Target| arguments.only.is_empty() || arguments.only.contains(&target.name);
        for target in plan.targets.iter().filter(chosen) {
            if matches!(folder.outcome(target, repetition)?, Outcome::Measured(_)) {
                continue;
            }
            match measure(&plan, target, repetition) {
                Ok(result) => folder.save(&result)?,
                Err(why) => {
                    eprintln!("{}, repetition {repetition}: {why}", target.name);
                    folder.save_failure(target, repetition, &why)?;
                    failed += 1;
                }
            }
            // Also of a run that is interrupted something can be read.
            summary = Some(write_reports(&folder, &plan)?);
        }
    }
    let summary = match summary {
        Some(summary) => summary,
        None => write_reports(&folder, &plan)?,
    };
    if arguments.json {
        output::print_json(&summary)?;
    } else {
        output::print(&report::table(&summary))?;
        output::print(&format!("\nall figures are in {}\n", folder.path().display()))?;
    }
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} measurements failed"))
            .or("run it again to try only these"));
    }
    Ok(())
}

/// A plan by its name or path: its name, and its text.
fn text(plan: &str) -> Result<(String, String), Failure> {
    let path = Path::new(plan);
    let is_path =
        plan.contains('/') || path.extension().is_some_and(|extension| extension == "toml");
    if !is_path {
        return Ok((plan.to_owned(), built_in(plan)?.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("cannot read plan {plan}: {error}");
        match error.kind() {
            std::io::ErrorKind::NotFound => Failure::not_found(message),
            _ => Failure::failed(message),
        }
    })?;
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    Ok((name.unwrap_or_else(|| "plan".to_owned()), text))
}

/// Measures a target once; the error is for the report.
fn measure(plan: &Plan, target: &Target, repetition: u32) -> Result<TargetResult, String> {
    let phases: Vec<&Phase> = plan.phases.iter().filter(|phase| phase.is_for(target)).collect();
    let lasts = |phase: &&Phase| Some(phase.seconds? * u64::from(phase.times));
    let total = phases.iter().filter_map(lasts).sum();
    let label = format!("{} ({repetition} of {})", target.name, plan.repetitions);
    match plan.clock {
        Clock::Virtual => {
            let mut progress = Progress::start(&label, Unit::Seconds, total);
            // Phases without an end in time do not count.
            let (mut current, mut before) = (String::new(), 0);
            let mut last = 0;
            let result = virtual_time::run(plan, target, repetition, &mut |now| {
                if current != now.phase {
                    before += last;
                    current = now.phase.to_owned();
                }
                last = if now.seconds.is_some() { now.second } else { 0 };
                progress.set(before + last);
            });
            progress.finish();
            result.map_err(|error| error.to_string())
        }
        Clock::Real => Err("the real clock is not there yet".to_owned()),
    }
}

fn write_reports(folder: &Folder, plan: &Plan) -> Result<Summary, Failure> {
    let summary = Summary::of(folder, plan)?;
    folder.write("figures.csv", report::csv(&summary).as_bytes())?;
    folder.write("report.md", report::table(&summary).as_bytes())?;
    let page = report::html(&summary, plan, &folder.machine()?);
    folder.write("report.html", page.as_bytes())?;
    Ok(summary)
}
