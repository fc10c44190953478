//! The folder that results go to.
//!
//! | file | holds |
//! |---|---|
//! | `plan.toml` | the plan, as it was run; beside it the job files that it names |
//! | `machine.json` | where it was run, and by which version |
//! | `raw/TARGET-N.json` | the `N`th repetition of a target |
//! | `raw/TARGET-N.failed` | why there is none |
//! | `figures.csv`, `report.md`, `report.html` | what people read |
//!
//! A file takes its place when it is whole, so a run that was interrupted goes on where it was.
//! What failed is tried again.
//!
//! Invariant: all results of a folder are of one plan, one clock, one build of forebay, and one
//! machine; in real time also of one folder for files in place of devices, on one disk.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Scope};
use crate::plan::{Plan, PlanError, Target};
use crate::result::{TargetResult, VERSION};

const PLAN: &str = "plan.toml";
const MACHINE: &str = "machine.json";
const RAW: &str = "raw";
/// Figures of all repetitions, and what people read.
pub const FIGURES: &str = "figures.csv";
/// The table as Markdown.
pub const TABLE: &str = "report.md";
/// The page with charts.
pub const PAGE: &str = "report.html";
/// What a job file beside the plan cannot be called.
pub(crate) const OWN_NAMES: [&str; 6] = [PLAN, MACHINE, RAW, FIGURES, TABLE, PAGE];
/// How names end below `raw`.
const RESULT: &str = "json";
const FAILURE: &str = "failed";

/// What went wrong with a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds results of another plan.
    #[error("{} has results of another plan", .0.display())]
    OtherPlan(PathBuf),
    /// It holds results of another build, or of another machine.
    #[error("{} has results that were made elsewhere ({})", path.display(), differences.join("; "))]
    OtherMachine {
        /// Which one.
        path: PathBuf,
        /// What is not the same, each as `what: there this, now that`.
        differences: Vec<String>,
        /// Whether files in place of devices lay elsewhere, which the operator chooses.
        are_devices_elsewhere: bool,
    },
    /// A file is not what this version writes.
    #[error("{}: {what}", path.display())]
    Content {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The plan in it is none.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// What becomes of results of another plan, build, or machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// They stay, and the folder is refused.
    Refuse,
    /// They are removed.
    Replace,
}

/// A folder of results.
pub struct Folder {
    path: PathBuf,
}

/// What became of one repetition of a target.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It was measured.
    Measured(TargetResult),
    /// It failed, for this reason.
    Failed(String),
    /// It was not tried yet.
    Missing,
}

impl Folder {
    /// Makes a folder for a plan, or goes on with one that has results of the same plan, build and
    /// machine. `files` are those that lie beside the plan, by name, with their texts.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or has results of another plan, build or machine.
    pub fn create(
        path: &Path,
        plan_text: &str,
        files: &[(String, String)],
        machine: &Machine,
    ) -> Result<Folder, FolderError> {
        Folder::begin(path, plan_text, files, machine, Others::Refuse)
    }

    /// As [`Folder::create`], but results of another plan, build or machine are removed.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create_or_replace(
        path: &Path,
        plan_text: &str,
        files: &[(String, String)],
        machine: &Machine,
    ) -> Result<Folder, FolderError> {
        Folder::begin(path, plan_text, files, machine, Others::Replace)
    }

    fn begin(
        path: &Path,
        plan_text: &str,
        files: &[(String, String)],
        machine: &Machine,
        others: Others,
    ) -> Result<Folder, FolderError> {
        let folder = Folder { path: path.to_owned() };
        let raw = path.join(RAW);
        std::fs::create_dir_all(&raw).map_err(|source| FolderError::File { path: raw, source })?;
        // The plan comes last: whoever finds it finds its files.
        let files = files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let texts: Vec<(&str, &str)> = files.chain([(PLAN, plan_text)]).collect();
        if let Some(why) = folder.why_other(&texts, machine)? {
            let kept = folder.raw_files()?;
            let is_result = |path: &PathBuf| path.extension().is_some_and(|end| end == RESULT);
            if others == Others::Refuse && kept.iter().any(is_result) {
                return Err(why);
            }
            // Before anything says that they are of this run.
            for path in kept {
                std::fs::remove_file(&path).map_err(|source| FolderError::File { path, source })?;
            }
            for (name, text) in texts {
                folder.write(name, text.as_bytes())?;
            }
        }
        folder.write(MACHINE, &json(machine))?;
        Ok(folder)
    }

    /// Why results that it has are not of a run of this plan, and of what lies beside it, here and
    /// now.
    fn why_other(
        &self,
        texts: &[(&str, &str)],
        machine: &Machine,
    ) -> Result<Option<FolderError>, FolderError> {
        for (name, text) in texts {
            if self.read(name)?.as_deref() != Some(*text) {
                return Ok(Some(FolderError::OtherPlan(self.path.clone())));
            }
        }
        let (there, path) = (self.machine()?, self.path.clone());
        let differences = there.differences(machine, Scope::OneFolder);
        let are_devices_elsewhere = there.are_devices_elsewhere(machine, Scope::OneFolder);
        let is_other = !differences.is_empty();
        let error = FolderError::OtherMachine { path, differences, are_devices_elsewhere };
        Ok(is_other.then_some(error))
    }

    /// Results, and reasons for which there are none.
    fn raw_files(&self) -> Result<Vec<PathBuf>, FolderError> {
        let raw = self.path.join(RAW);
        let list = || -> std::io::Result<Vec<PathBuf>> {
            std::fs::read_dir(&raw)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut files = list().map_err(|source| FolderError::File { path: raw, source })?;
        let is_ours = |end: &std::ffi::OsStr| end == RESULT || end == FAILURE;
        files.retain(|path| path.extension().is_some_and(is_ours));
        Ok(files)
    }

    /// Opens a folder that has results.
    ///
    /// # Errors
    ///
    /// If it has none that this version can read.
    pub fn open(path: &Path) -> Result<(Folder, Plan, Machine), FolderError> {
        let folder = Folder { path: path.to_owned() };
        let plan = folder.as_run(Plan::read(&path.join(PLAN))?)?;
        let machine = folder.machine()?;
        Ok((folder, plan, machine))
    }

    /// The plan with as many repetitions as there are results of, if these are more.
    ///
    /// # Errors
    ///
    /// If a file of it cannot be read.
    pub fn as_run(&self, mut plan: Plan) -> Result<Plan, FolderError> {
        while self.has_repetition(&plan, plan.repetitions + 1)? {
            plan.repetitions += 1;
        }
        Ok(plan)
    }

    /// Where its results were made, and when last; nothing is known if it does not say.
    ///
    /// # Errors
    ///
    /// If the file is there and cannot be read.
    pub fn machine(&self) -> Result<Machine, FolderError> {
        Ok(self.read_json(MACHINE)?.unwrap_or_default())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether any target was tried so often.
    fn has_repetition(&self, plan: &Plan, repetition: u32) -> Result<bool, FolderError> {
        for target in &plan.targets {
            if self.outcome(target, repetition)? != Outcome::Missing {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What became of one repetition of a target.
    ///
    /// # Errors
    ///
    /// If a file is there and cannot be read.
    pub fn outcome(&self, target: &Target, repetition: u32) -> Result<Outcome, FolderError> {
        let name = format!("{RAW}/{}-{repetition}", target.name);
        if let Some(result) = self.read_json::<TargetResult>(&format!("{name}.{RESULT}"))? {
            if result.version != VERSION {
                let path = self.path.join(format!("{name}.{RESULT}"));
                let what = format!("is of version {}, not {VERSION}", result.version);
                return Err(FolderError::Content { path, what });
            }
            return Ok(Outcome::Measured(result));
        }
        let failed = self.read(&format!("{name}.{FAILURE}"))?;
        Ok(failed.map_or(Outcome::Missing, |why| Outcome::Failed(why.trim_end().to_owned())))
    }

    /// Keeps a result.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn save(&self, result: &TargetResult) -> Result<(), FolderError> {
        let name = format!("{RAW}/{}-{}", result.target, result.repetition);
        self.write(&format!("{name}.{RESULT}"), &json(result))?;
        let path = self.path.join(format!("{name}.{FAILURE}"));
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(FolderError::File { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the reason for which there is no result.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn save_failure(
        &self,
        target: &Target,
        repetition: u32,
        why: &str,
    ) -> Result<(), FolderError> {
        let name = format!("{RAW}/{}-{repetition}.{FAILURE}", target.name);
        self.write(&name, format!("{why}\n").as_bytes())
    }

    /// Writes a file of the folder; it takes its place when it is whole.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let new = self.path.join(format!("{name}.new"));
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(content)?;
            // A power cut leaves the old one or the new one, and no empty one.
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|source| FolderError::File { path: path.clone(), source })
    }

    fn read(&self, name: &str) -> Result<Option<String>, FolderError> {
        let path = self.path.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FolderError::File { path, source }),
        }
    }

    fn read_json<T: for<'de> Deserialize<'de>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, FolderError> {
        let Some(text) = self.read(name)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| FolderError::Content {
            path: self.path.join(name),
            what: format!("is no result: {error}"),
        })
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("keys are strings");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::DevicesFolder;
    use crate::plan::Clock;

    fn target() -> Target {
        Target { name: "ssd".to_owned(), device: Some("ssd".to_owned()), ..Target::default() }
    }

    fn result() -> TargetResult {
        TargetResult {
            version: VERSION,
            target: "ssd".to_owned(),
            repetition: 2,
            clock: Clock::Virtual,
            wall_s: 0.1,
            phases: Vec::new(),
        }
    }

    fn machine(version: &str, kernel: &str) -> Machine {
        let (version, kernel) = (version.to_owned(), kernel.to_owned());
        Machine { version, kernel, memory_bytes: 8 << 30, ..Machine::default() }
    }

    fn create(path: &Path, plan: &str, machine: &Machine) -> Result<Folder, FolderError> {
        Folder::create(path, plan, &[], machine)
    }

    fn error(result: Result<Folder, FolderError>) -> String {
        result.err().expect("it is refused").to_string()
    }

    #[test]
    fn a_run_goes_on_where_it_was_and_what_failed_is_tried_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results");
        let folder = create(&path, "a plan", &machine("1", "6")).unwrap();
        assert_eq!(folder.outcome(&target(), 2).unwrap(), Outcome::Missing);
        folder.save_failure(&target(), 2, "no device").unwrap();
        // A little memory less, as after another start.
        let later =
            Machine { unix_time_s: 7, memory_bytes: (8 << 30) - (300 << 20), ..machine("1", "6") };
        let again = create(&path, "a plan", &later).unwrap();
        assert_eq!(again.machine().unwrap(), later);
        let failed = Outcome::Failed("no device".to_owned());
        assert_eq!(again.outcome(&target(), 2).unwrap(), failed);
        again.save(&result()).unwrap();
        assert_eq!(again.outcome(&target(), 2).unwrap(), Outcome::Measured(result()));
        assert!(!path.join("raw/ssd-2.failed").exists());
        assert_eq!(again.outcome(&target(), 1).unwrap(), Outcome::Missing);
        let text = "about = 'x'\nclock = 'virtual'\n\
                    device = [{ name = 'ssd', preset = 'nvme_ssd', size = '1M' }]\n\
                    target = [{ name = 'ssd', device = 'ssd' }]\n\
                    [[phase]]\nname = 'reads'\nseconds = 1\n[[phase.job]]\nname = 'reads'\n\
                    work = 'read'\npattern = 'sequential'\nsize = '1M'\n";
        let plan = Plan::parse(text).unwrap();
        assert_eq!(again.as_run(plan).unwrap().repetitions, 2);
    }

    #[test]
    fn results_of_another_plan_and_bad_files_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let machine = machine("1", "6");
        let folder = create(place.path(), "a plan", &machine).unwrap();
        std::fs::write(place.path().join("raw/ssd-2.json"), "{").unwrap();
        assert!(error(create(place.path(), "another", &machine)).contains("another plan"));
        let files = [("a.fio".to_owned(), "[a]".to_owned())];
        let other = Folder::create(place.path(), "a plan", &files, &machine);
        assert!(error(other).contains("another plan"));
        let error = folder.outcome(&target(), 2).unwrap_err().to_string();
        assert!(error.contains("ssd-2.json: is no result"), "{error}");
        folder.save(&TargetResult { version: 99, ..result() }).unwrap();
        let error = folder.outcome(&target(), 2).unwrap_err().to_string();
        assert!(error.contains("is of version 99"), "{error}");
    }

    #[test]
    fn results_of_another_build_or_machine_are_refused_and_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = create(place.path(), "a plan", &machine("1", "6")).unwrap();
        folder.save(&result()).unwrap();
        let other = error(create(place.path(), "a plan", &machine("2", "6")));
        assert!(other.ends_with("made elsewhere (forebay: there 1, now 2)"), "{other}");
        let clock = Machine { clock: Some(Clock::Real), ..machine("1", "6") };
        let other = error(create(place.path(), "a plan", &clock));
        assert!(other.ends_with("(clock: there none, now real)"), "{other}");
        let more = Machine { memory_bytes: 9 << 30, ..machine("1", "7") };
        let other = error(create(place.path(), "a plan", &more));
        let expected = "(memory: there 8 GiB, now 9 GiB; kernel: there 6, now 7)";
        assert!(other.ends_with(expected), "{other}");
        assert_eq!(folder.machine().unwrap(), machine("1", "6"));
        let again = create(place.path(), "a plan", &machine("1", "6")).unwrap();
        assert_eq!(again.outcome(&target(), 2).unwrap(), Outcome::Measured(result()));
    }

    #[test]
    fn results_of_devices_on_another_disk_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let on = |path: &str, device: &str| {
            let devices = Some(DevicesFolder { path: path.into(), device: device.to_owned() });
            Machine { clock: Some(Clock::Real), devices, ..machine("1", "6") }
        };
        let folder = create(place.path(), "a plan", &on("/mnt", "8:1")).unwrap();
        folder.save(&result()).unwrap();
        create(place.path(), "a plan", &on("/mnt", "8:1")).unwrap();
        // Another folder, and another disk in the same one.
        for (path, device) in [("/srv", "8:1"), ("/mnt", "8:2")] {
            let refused = create(place.path(), "a plan", &on(path, device)).err().unwrap();
            let text = refused.to_string();
            let now = format!("(devices: there /mnt on device 8:1, now {path} on device {device})");
            assert!(text.ends_with(&now), "{text}");
            let is_said =
                matches!(refused, FolderError::OtherMachine { are_devices_elsewhere: true, .. });
            assert!(is_said, "{text}");
        }
        let differences =
            |path, device| on("/mnt", "8:1").differences(&on(path, device), Scope::TwoFolders);
        assert!(differences("/srv", "8:1").is_empty());
        assert_eq!(differences("/mnt", "8:2").len(), 1);
    }

    #[test]
    fn results_of_another_fio_are_refused_and_compared_with_a_word() {
        let place = tempfile::tempdir().unwrap();
        let with = |fio: Option<&str>| Machine { fio: fio.map(str::to_owned), ..machine("1", "6") };
        let folder = create(place.path(), "a plan", &with(Some("fio-3.33"))).unwrap();
        folder.save(&result()).unwrap();
        create(place.path(), "a plan", &with(Some("fio-3.33"))).unwrap();
        let other = error(create(place.path(), "a plan", &with(Some("fio-3.36"))));
        assert!(other.ends_with("(fio: there fio-3.33, now fio-3.36)"), "{other}");
        let other = error(create(place.path(), "a plan", &with(None)));
        assert!(other.ends_with("(fio: there fio-3.33, now not known)"), "{other}");
        let between = |there: Option<&str>, now: Option<&str>| {
            with(there).differences(&with(now), Scope::TwoFolders)
        };
        assert_eq!(between(Some("3"), Some("4")), ["fio: there 3, now 4"]);
        assert!(between(Some("3"), None).is_empty() && between(None, Some("3")).is_empty());
    }

    #[test]
    fn a_folder_that_does_not_say_where_devices_were_is_read_and_not_continued() {
        let place = tempfile::tempdir().unwrap();
        let devices = Some(DevicesFolder::examine(place.path()).unwrap());
        let now = Machine { clock: Some(Clock::Real), devices, ..machine("1", "6") };
        let folder = create(place.path(), "a plan", &now).unwrap();
        folder.save(&result()).unwrap();
        let mut of_old = serde_json::to_value(&now).unwrap();
        of_old.as_object_mut().unwrap().remove("devices").unwrap();
        folder.write(MACHINE, of_old.to_string().as_bytes()).unwrap();
        let of_old = folder.machine().unwrap();
        assert_eq!(of_old, Machine { devices: None, ..now.clone() });
        assert!(of_old.differences(&now, Scope::TwoFolders).is_empty());
        let error = error(create(place.path(), "a plan", &now));
        assert!(error.contains("devices: there not known, now /"), "{error}");
    }

    #[test]
    fn only_results_that_do_not_belong_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        let replace = |plan: &str, version: &str| {
            let machine = machine(version, "6");
            Folder::create_or_replace(place.path(), plan, &[], &machine).unwrap()
        };
        let folder = replace("a plan", "1");
        folder.save(&result()).unwrap();
        folder.save_failure(&target(), 3, "no device").unwrap();
        let measured = Outcome::Measured(result());
        assert_eq!(replace("a plan", "1").outcome(&target(), 2).unwrap(), measured);
        for (plan, version) in [("a plan", "2"), ("another", "2")] {
            let folder = replace(plan, version);
            assert_eq!(folder.outcome(&target(), 2).unwrap(), Outcome::Missing, "{plan}");
            assert_eq!(folder.outcome(&target(), 3).unwrap(), Outcome::Missing, "{plan}");
            // What comes now is of this run.
            folder.save(&result()).unwrap();
            assert_eq!(replace(plan, version).outcome(&target(), 2).unwrap(), measured);
        }
    }

    #[test]
    fn a_folder_in_which_nothing_was_measured_is_anybodys() {
        let place = tempfile::tempdir().unwrap();
        let folder = create(place.path(), "a plan", &machine("1", "6")).unwrap();
        folder.save_failure(&target(), 2, "no device").unwrap();
        let folder = create(place.path(), "another", &machine("2", "6")).unwrap();
        assert_eq!(folder.outcome(&target(), 2).unwrap(), Outcome::Missing);
        assert_eq!(folder.machine().unwrap().version, "2");
    }
}
