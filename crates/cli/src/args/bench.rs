//! The command line of `forebay bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forebay_bench::plan::Clock;

/// Measure caches by a plan, and see what comes out.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay bench list
  forebay bench run writes
  forebay bench compare before after")]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// What to do with plans.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    List(BenchListArguments),
    Run(BenchRunArguments),
    Report(BenchReportArguments),
    Compare(BenchCompareArguments),
}

/// List the plans that come with the program.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay bench list
  forebay bench list --json
  forebay bench list --text zipf > mine.toml      a plan to change")]
pub(crate) struct BenchListArguments {
    /// Print the text of a plan
    #[arg(long, value_name = "PLAN")]
    pub(crate) text: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "text")]
    pub(crate) json: bool,
}

/// Measure what a plan says, and write figures and a report into a folder.
///
/// In virtual time the engine works on models of devices, and half an hour on a hard disk takes
/// one to ten minutes. In real time fio works on devices of this machine, on files in their
/// place, and on what is served over NBD; see that nothing else runs. A run that was interrupted
/// goes on when it is started again with the same folder, by the same build of forebay, on the
/// same machine, and in real time with devices in the same place; what failed is tried again. A
/// target that fails is reported, and the others are measured. How the bounds of the plan stand is
/// told below the figures; the run does not fail if one is missed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay bench run zipf
  forebay bench run zipf --out /srv/results/zipf --only empty --only ssd
  forebay bench run peers --dir /mnt/ssd                 files for devices on the SSD
  forebay bench run mine.toml --overwrite /dev/nvme0n1p4
  forebay bench run mine.toml --repetitions 1 --json")]
pub(crate) struct BenchRunArguments {
    /// A plan of `bench list`, or a file
    #[arg(value_name = "PLAN")]
    pub(crate) plan: String,
    /// Folder for the results [default: bench-PLAN, in this folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Measure anew in a folder that has results of another plan, of another build of forebay, of
    /// another machine, or of devices elsewhere, and remove these. Results that belong to this run
    /// are kept. Without it such a folder is refused
    #[arg(long)]
    pub(crate) replace: bool,
    /// Only this target; may be given several times
    #[arg(long, value_name = "TARGET")]
    pub(crate) only: Vec<String>,
    /// Which time passes, other than the plan says
    #[arg(long, value_name = "CLOCK")]
    pub(crate) clock: Option<ClockName>,
    /// How often each target is measured, other than the plan says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// How many measurements go on at once in virtual time, each with memory of its own [default:
    /// one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) jobs: Option<u32>,
    /// Folder for files in place of devices, in real time [default: the folder for the results];
    /// they are removed in the end. A run that goes on needs the same folder, on the same disk
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// A device of the plan, as the plan writes its path, whose content may be lost, or an NBD
    /// export that is there already and that the plan writes to, as the plan writes its URI; may be
    /// given several times
    #[arg(long, value_name = "PATH|URI")]
    pub(crate) overwrite: Vec<String>,
    /// Print all figures as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the report of a folder of results anew, and show its table.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay bench report bench-zipf
  forebay bench report bench-zipf --json")]
pub(crate) struct BenchReportArguments {
    /// Folder of the results
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Print all figures as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what changed from one folder of results to another.
///
/// A figure has changed if no repetition after is within the range of those before.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay bench compare before after
  forebay bench compare before after --json")]
pub(crate) struct BenchCompareArguments {
    /// Folder of the results before
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// Folder of the results after
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A clock, as an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ClockName {
    Real,
    Virtual,
}

impl From<ClockName> for Clock {
    fn from(name: ClockName) -> Clock {
        match name {
            ClockName::Real => Clock::Real,
            ClockName::Virtual => Clock::Virtual,
        }
    }
}
