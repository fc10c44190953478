//! `forebay bench`: experiments by plans.

mod course;
mod machine;
mod measurement;
mod run;
mod watch;

use forebay_bench::compare::{Change, REPETITIONS_MIN, Verdict, compare};
use forebay_bench::folder::{Folder, FolderError};
use forebay_bench::machine::{Machine, Scope};
use forebay_bench::plan::{Clock, Plan, PlanError};
use forebay_bench::plans::BUILT_IN;
use forebay_bench::report;
use forebay_bench::summary::Summary;
use serde::Serialize;

use crate::args::{BenchArguments, BenchCommand, BenchCompareArguments, BenchListArguments};
use crate::exit::{Exit, Failure};
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    match &arguments.command {
        BenchCommand::List(arguments) => list(arguments),
        BenchCommand::Run(arguments) => run::run(arguments),
        BenchCommand::Report(arguments) => run::report(arguments),
        BenchCommand::Compare(arguments) => compare_folders(arguments),
    }
}

#[derive(Serialize)]
struct ListRow {
    name: &'static str,
    about: String,
    clock: &'static str,
    targets: Vec<String>,
}

fn list(arguments: &BenchListArguments) -> Result<(), Failure> {
    if let Some(name) = &arguments.text {
        return output::print(built_in(name)?);
    }
    let mut rows = Vec::new();
    for (name, text) in BUILT_IN {
        let plan = Plan::parse(text)?;
        rows.push(ListRow {
            name,
            about: plan.about,
            clock: plan.clock.name(),
            targets: plan.targets.into_iter().map(|target| target.name).collect(),
        });
    }
    if arguments.json {
        return output::print_json(&rows);
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
    let lines = rows.iter().map(|row| {
        let ListRow { name, about, clock, targets } = row;
        let targets = targets.join(", ");
        format!("{name:width$}  {about}\n{:width$}  {clock} time; targets {targets}\n", "")
    });
    output::print(&lines.collect::<String>())
}

/// The text of a plan that comes with the program.
fn built_in(name: &str) -> Result<&'static str, Failure> {
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        Failure::not_found(format!("there is no plan {name}"))
            .or("`forebay bench list` shows all; a file is named with its path")
    })
}

/// What `bench compare --json` prints.
#[derive(Serialize)]
struct Comparison {
    clock: Clock,
    /// What else is not the same in the two folders, each as `what: there this, now that`.
    differences: Vec<String>,
    changes: Vec<Change>,
}

fn compare_folders(arguments: &BenchCompareArguments) -> Result<(), Failure> {
    let open = |path| -> Result<(Summary, Plan, Machine), Failure> {
        let (folder, plan, machine) = Folder::open(path)?;
        Ok((Summary::of(&folder, &plan)?, plan, machine))
    };
    let (before, old_plan, old_machine) = open(&arguments.before)?;
    let (after, plan, machine) = open(&arguments.after)?;
    let clock = one_clock(&before, &after)?;
    let changes = compare(&before, &after, &plan);
    if changes.is_empty() {
        return Err(Failure::failed("no target and phase was measured in both folders"));
    }
    let mut differences = old_machine.differences(&machine, Scope::TwoFolders);
    // How often it was measured is told beside each figure.
    let same = Plan { repetitions: plan.repetitions, ..old_plan };
    if same != plan {
        differences.push("the plan".to_owned());
    }
    if arguments.json {
        return output::print_json(&Comparison { clock, differences, changes });
    }
    output::print(&format!("In {} time.\n\n{}", clock.name(), report::changes(&changes)))?;
    if !differences.is_empty() {
        let what = differences.join("; ");
        output::print(&format!("\nThe two differ in more than figures: {what}\n"))?;
    }
    let count = |verdict| changes.iter().filter(|change| change.verdict == verdict).count();
    output::print(&format!(
        "\n{} better, {} worse, {} within noise, {} with fewer than {REPETITIONS_MIN} repetitions; \
         of {REPETITIONS_MIN} on each side, one figure in ten changes by chance\n",
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::WithinNoise),
        count(Verdict::Unknown)
    ))
}

/// The clock of both; figures of models and of machines have nothing to say of each other.
fn one_clock(before: &Summary, after: &Summary) -> Result<Clock, Failure> {
    // All results of a folder have one.
    let clock = |summary: &Summary| summary.targets.iter().find_map(|target| target.clock);
    let (Some(old), Some(new)) = (clock(before), clock(after)) else {
        return Err(Failure::failed("nothing was measured in one of the folders"));
    };
    if old != new {
        let text = format!("one is in {} time, the other in {} time", old.name(), new.name());
        return Err(Failure::refused(text).or("compare folders of one clock"));
    }
    Ok(new)
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        // Of a plan, or of a file beside it.
        let inner = match &error {
            PlanError::File { error, .. } => error,
            error => error,
        };
        let exit = match inner {
            PlanError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Exit::NotFound
            }
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

/// What to do about results that do not belong.
const OTHER_RESULTS: &str = "--out names another folder, --replace measures all anew in this one";

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Failure {
        let text = error.to_string();
        match error {
            FolderError::Plan(plan) => plan.into(),
            FolderError::OtherMachine { are_devices_elsewhere: true, .. } => Failure::refused(text)
                .or(format!(
                    "--dir names the folder for devices, which has to be the same; {OTHER_RESULTS}"
                )),
            FolderError::OtherPlan(_) | FolderError::OtherMachine { .. } => {
                Failure::refused(text).or(OTHER_RESULTS)
            }
            _ => Failure::failed(text),
        }
    }
}
