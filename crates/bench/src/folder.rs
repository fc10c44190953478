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

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, PlanError, Target};
use crate::result::{TargetResult, VERSION};

const PLAN: &str = "plan.toml";
const MACHINE: &str = "machine.json";
const RAW: &str = "raw";

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

/// Where results were made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Version of forebay.
    pub version: String,
    /// When the run began, or went on last: seconds since 1970 in Greenwich.
    pub unix_time_s: u64,
    /// Model of the processors, and how many.
    pub processors: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's name and version.
    pub kernel: String,
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
    /// Makes a folder for a plan, or goes on with one that has results of the same plan. `files`
    /// are those that lie beside the plan, by name, with their texts.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or has results of another plan.
    pub fn create(
        path: &Path,
        plan_text: &str,
        files: &[(String, String)],
        machine: &Machine,
    ) -> Result<Folder, FolderError> {
        let folder = Folder { path: path.to_owned() };
        let raw = path.join(RAW);
        std::fs::create_dir_all(&raw).map_err(|source| FolderError::File { path: raw, source })?;
        // The plan comes last: whoever finds it finds its files.
        let files = files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let all: Vec<(&str, &str)> = files.chain([(PLAN, plan_text)]).collect();
        let is_new = folder.read(PLAN)?.is_none();
        for (name, text) in all {
            if is_new {
                folder.write(name, text.as_bytes())?;
            } else if folder.read(name)?.as_deref() != Some(text) {
                return Err(FolderError::OtherPlan(path.to_owned()));
            }
        }
        folder.write(MACHINE, &json(machine))?;
        Ok(folder)
    }

    /// Opens a folder that has results.
    ///
    /// # Errors
    ///
    /// If it has none that this version can read.
    pub fn open(path: &Path) -> Result<(Folder, Plan, Machine), FolderError> {
        let folder = Folder { path: path.to_owned() };
        let mut plan = Plan::read(&path.join(PLAN))?;
        // It may have been run more often than it says.
        while folder.has_repetition(&plan, plan.repetitions + 1)? {
            plan.repetitions += 1;
        }
        let machine = folder.machine()?;
        Ok((folder, plan, machine))
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
        if let Some(result) = self.read_json::<TargetResult>(&format!("{name}.json"))? {
            if result.version != VERSION {
                let path = self.path.join(format!("{name}.json"));
                let what = format!("is of version {}, not {VERSION}", result.version);
                return Err(FolderError::Content { path, what });
            }
            return Ok(Outcome::Measured(result));
        }
        let failed = self.read(&format!("{name}.failed"))?;
        Ok(failed.map_or(Outcome::Missing, |why| Outcome::Failed(why.trim_end().to_owned())))
    }

    /// Keeps a result.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn save(&self, result: &TargetResult) -> Result<(), FolderError> {
        let name = format!("{RAW}/{}-{}", result.target, result.repetition);
        self.write(&format!("{name}.json"), &json(result))?;
        let path = self.path.join(format!("{name}.failed"));
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
        let name = format!("{RAW}/{}-{repetition}.failed", target.name);
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
    use crate::plan::Clock;

    fn target() -> Target {
        let (name, title, device) = ("ssd".to_owned(), None, Some("ssd".to_owned()));
        Target { name, title, device, forebay: None, nbd: None, command: Vec::new() }
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

    #[test]
    fn a_run_goes_on_where_it_was_and_what_failed_is_tried_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results");
        let folder = Folder::create(&path, "a plan", &[], &Machine::default()).unwrap();
        assert_eq!(folder.outcome(&target(), 2).unwrap(), Outcome::Missing);
        folder.save_failure(&target(), 2, "no device").unwrap();
        let again = Folder::create(&path, "a plan", &[], &Machine::default()).unwrap();
        let failed = Outcome::Failed("no device".to_owned());
        assert_eq!(again.outcome(&target(), 2).unwrap(), failed);
        again.save(&result()).unwrap();
        assert_eq!(again.outcome(&target(), 2).unwrap(), Outcome::Measured(result()));
        assert!(!path.join("raw/ssd-2.failed").exists());
        assert_eq!(again.outcome(&target(), 1).unwrap(), Outcome::Missing);
    }

    #[test]
    fn results_of_another_plan_and_bad_files_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::create(place.path(), "a plan", &[], &Machine::default()).unwrap();
        let other =
            Folder::create(place.path(), "another", &[], &Machine::default()).err().unwrap();
        assert!(other.to_string().contains("another plan"));
        std::fs::write(place.path().join("raw/ssd-2.json"), "{").unwrap();
        let files = [("a.fio".to_owned(), "[a]".to_owned())];
        let other = Folder::create(place.path(), "a plan", &files, &Machine::default());
        assert!(other.err().unwrap().to_string().contains("another plan"));
        let error = folder.outcome(&target(), 2).unwrap_err().to_string();
        assert!(error.contains("ssd-2.json: is no result"), "{error}");
        folder.save(&TargetResult { version: 99, ..result() }).unwrap();
        let error = folder.outcome(&target(), 2).unwrap_err().to_string();
        assert!(error.contains("is of version 99"), "{error}");
    }
}
