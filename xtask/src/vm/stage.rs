//! What a scenario has to do with: its disks, guests on them, and the report.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use tempfile::{TempDir, TempPath};

use super::Effort;
use super::disk::Disk;
use super::guest::{Answer, Guest, Hardware};
use super::report::{Finding, Report, parse_finding};
use super::scenarios::{Scenario, System};
use super::supplies::Supplies;

/// Where disks are if it is there: their speed shall not hang on the machine's own disk.
const MEMORY_FOLDER: &str = "/dev/shm";
/// The copy of the system of a scenario with systemd, among the disks.
const ROOT: &str = "root";

/// What all scenarios share.
pub(crate) struct Theatre {
    pub(crate) supplies: Supplies,
    pub(crate) image: TempPath,
    /// The disk of a system with systemd, or what is missing for it.
    pub(crate) root: Result<PathBuf, String>,
    /// The program under test, for what runs outside of guests.
    pub(crate) forebay: PathBuf,
    /// Where the kernel's messages are kept.
    pub(crate) consoles: PathBuf,
    pub(crate) effort: Effort,
}

impl Theatre {
    /// What a scenario needs and is not there.
    pub(crate) fn lack_of(&self, scenario: &Scenario) -> Option<&str> {
        match scenario.system {
            System::Busybox | System::KernelCaches | System::Profiled => None,
            System::Systemd => self.root.as_ref().err().map(String::as_str),
        }
    }
}

/// One scenario at work.
pub(crate) struct Stage<'a> {
    theatre: &'a Theatre,
    scenario: &'a Scenario,
    report: &'a mut Report,
    disks: TempDir,
    boot_count: u32,
}

impl<'a> Stage<'a> {
    /// With new, empty disks.
    pub(crate) fn new(
        theatre: &'a Theatre,
        scenario: &'a Scenario,
        report: &'a mut Report,
    ) -> anyhow::Result<Stage<'a>> {
        let memory = Path::new(MEMORY_FOLDER);
        let disks = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        let disks = disks.context("cannot make a folder for disks")?;
        for disk in scenario.disks {
            disk.make(disks.path())?;
        }
        if scenario.system == System::Systemd {
            let root = theatre.root.as_ref().map_err(|missing| anyhow!("{missing}"))?;
            let mut copy = Command::new("cp");
            copy.arg("--sparse=always").arg(root).arg(disks.path().join(ROOT));
            ensure!(copy.status().context("cannot run cp")?.success(), "no copy of the system");
        }
        Ok(Stage { theatre, scenario, report, disks, boot_count: 0 })
    }

    pub(crate) fn is_long(&self) -> bool {
        self.theatre.effort == Effort::Long
    }

    /// The program under test.
    pub(crate) fn forebay(&self) -> &Path {
        &self.theatre.forebay
    }

    /// Where the disks are; it goes away with this value.
    pub(crate) fn folder(&self) -> &Path {
        self.disks.path()
    }

    /// Boots a guest on the disks as they are.
    pub(crate) fn boot(&mut self) -> anyhow::Result<Guest> {
        self.boot_with(None)
    }

    /// The same with a disk more, which somebody serves at a socket.
    pub(crate) fn boot_with(&mut self, vhost_user: Option<&Path>) -> anyhow::Result<Guest> {
        let disks = self.scenario.disks.iter();
        let disks = disks.map(|disk| (*disk, self.path_of(disk.name))).collect();
        self.boot_hardware(disks, vhost_user)
    }

    /// Boots a guest with other disks than those of the scenario, or with these under other names.
    /// Their content is in the files `path_of` names.
    pub(crate) fn boot_on(&mut self, disks: Vec<(Disk, PathBuf)>) -> anyhow::Result<Guest> {
        self.boot_hardware(disks, None)
    }

    /// The file with the content of a disk of this scenario.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.disks.path().join(name)
    }

    fn boot_hardware(
        &mut self,
        disks: Vec<(Disk, PathBuf)>,
        vhost_user: Option<&Path>,
    ) -> anyhow::Result<Guest> {
        self.boot_count += 1;
        let console = format!("{}-{}.console", self.scenario.name, self.boot_count);
        let root = self.path_of(ROOT);
        let root = (self.scenario.system == System::Systemd).then_some(root.as_path());
        Guest::boot(&Hardware {
            supplies: &self.theatre.supplies,
            image: &self.theatre.image,
            disks,
            root,
            vhost_user,
            console: self.theatre.consoles.join(console),
        })
    }

    /// Counts something that was found to be as it should, outside of a guest.
    pub(crate) fn ok(&mut self, name: &str) {
        println!("  ok {name}");
        self.report.passed_count += 1;
    }

    /// Has a guest run a script of `xtask/vm` with its arguments, and takes its findings in.
    pub(crate) fn script(
        &mut self,
        guest: &mut Guest,
        script: &str,
        time_max: Duration,
    ) -> anyhow::Result<()> {
        self.script_with(guest, script, time_max, &mut |_| Ok(()))
    }

    /// The same, with something that is done at lines of the script.
    pub(crate) fn script_with(
        &mut self,
        guest: &mut Guest,
        script: &str,
        time_max: Duration,
        at_line: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let result = self.follow(guest, script, time_max, at_line);
        if result.is_err() {
            guest.show_console();
        }
        result
    }

    fn follow(
        &mut self,
        guest: &mut Guest,
        script: &str,
        time_max: Duration,
        at_line: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let deadline = started + time_max;
        guest.send(&format!("sh /vm/{script}"))?;
        let mut failures = Vec::new();
        loop {
            let line = match guest.answer(deadline).with_context(|| script.to_owned())? {
                Answer::Done(status) if failures.is_empty() => {
                    ensure!(status == 0, "{script} ended with {status}");
                    return Ok(());
                }
                Answer::Done(_) => bail!("{}", failures.join("; ")),
                Answer::Line(line) => line,
            };
            println!("  {:6.1} s  {line}", started.elapsed().as_secs_f64());
            at_line(&line)?;
            match parse_finding(&line) {
                Some(Finding::Ok) => self.report.passed_count += 1,
                Some(Finding::Failed(why)) => failures.push(why.to_owned()),
                None => {}
            }
        }
    }
}
