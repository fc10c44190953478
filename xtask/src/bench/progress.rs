//! What a run has measured so far, kept in a file, so that one that was interrupted can go on.
//!
//! The file belongs to one state of the programs, one set of options and one machine: figures of
//! different ones are never mixed. What is kept is a whole repetition or more, so that what is
//! compared was measured in one go. The file goes away when a run has ended well.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::Machine;

/// Whether to go on where an earlier run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    Anew,
    Resume,
}

/// What figures must have in common to stand in one document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Identity {
    commit: String,
    /// Of the binaries, which a commit does not tell while files are edited.
    programs: String,
    options: String,
    machine: String,
}

impl Identity {
    /// Of a run on `machine` with `programs`, the product and ourselves.
    pub(super) fn of(
        machine: &Machine,
        programs: &[&Path],
        options: String,
    ) -> anyhow::Result<Identity> {
        let mut hasher = DefaultHasher::new();
        for path in programs {
            let bytes = std::fs::read(path);
            bytes.with_context(|| format!("cannot read {}", path.display()))?.hash(&mut hasher);
        }
        let Machine { commit, processor, cores, kernel, host, .. } = machine;
        Ok(Identity {
            commit: commit.clone(),
            programs: format!("{:016x}", hasher.finish()),
            options,
            machine: format!("{host}, {processor}, {cores} cores, Linux {kernel}"),
        })
    }

    /// What is different in `other`, each as `what: here, there`.
    fn differences(&self, other: &Identity) -> Vec<String> {
        let pairs = [
            ("commit", &self.commit, &other.commit),
            ("binaries", &self.programs, &other.programs),
            ("options", &self.options, &other.options),
            ("machine", &self.machine, &other.machine),
        ];
        let different = pairs.into_iter().filter(|(_, here, there)| here != there);
        different.map(|(what, here, there)| format!("{what}: now {here}, there {there}")).collect()
    }
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct State {
    identity: Identity,
    /// As it was when the run began.
    machine: Machine,
    /// How often the run was begun or taken up again.
    session_count: u32,
    /// What was measured, by its name.
    samples: BTreeMap<String, Value>,
}

/// The samples of a run, on their way to being complete.
pub(super) struct Progress {
    path: PathBuf,
    state: State,
    /// Held for as long as the run lasts.
    _lock: Lock,
}

struct Lock(File);

impl Drop for Lock {
    /// Closing the file would not do: a child that another thread starts has it open, too, from its
    /// fork to its exec, and with it the lock.
    fn drop(&mut self) {
        // Nobody is left to hear of a failure, and the end of the process frees it anyway.
        let _ = self.0.unlock();
    }
}

impl Progress {
    /// Begins a run that keeps its samples at `path`, or takes up the one that is kept there. One
    /// with another identity is refused.
    pub(super) fn begin(
        path: &Path,
        start: Start,
        identity: Identity,
        machine: &Machine,
    ) -> anyhow::Result<Progress> {
        let path = path.to_owned();
        let lock = lock(&path)?;
        let is_there = path.exists();
        if start == Start::Resume && is_there {
            let mut state = read(&path)?;
            let differences = identity.differences(&state.identity);
            if !differences.is_empty() {
                bail!(
                    "{} is of another run, which cannot be continued ({}); without --resume a new \
                     one begins",
                    path.display(),
                    differences.join("; ")
                );
            }
            state.session_count += 1;
            println!("resumed: {} samples of {}", state.samples.len(), path.display());
            return Ok(Progress { path, state, _lock: lock });
        }
        match start {
            Start::Resume => println!("nothing to resume at {}: a new run", path.display()),
            Start::Anew if is_there => println!("an interrupted run is dropped: no --resume"),
            Start::Anew => {}
        }
        let machine = machine.clone();
        let state = State { identity, machine, session_count: 1, samples: BTreeMap::new() };
        let progress = Progress { path, state, _lock: lock };
        progress.write()?;
        Ok(progress)
    }

    /// The machine as it was when the run began.
    pub(super) fn machine(&self) -> &Machine {
        &self.state.machine
    }

    pub(super) fn session_count(&self) -> u32 {
        self.state.session_count
    }

    /// The sample of that name, if it is kept; else it is measured, and kept from then on.
    pub(super) fn sample<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        measure: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if let Some(value) = self.state.samples.get(name)
            && let Ok(sample) = T::deserialize(value)
        {
            return Ok(sample);
        }
        let sample = measure()?;
        let value = serde_json::to_value(&sample).context("a sample is no JSON")?;
        self.state.samples.insert(name.to_owned(), value);
        self.write()?;
        Ok(sample)
    }

    /// What to say if the run ends here.
    pub(super) fn farewell(&self) -> String {
        format!(
            "the run is not complete; {} samples are kept in {}: the same command with --resume \
             goes on",
            self.state.samples.len(),
            self.path.display()
        )
    }

    /// The run is complete.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let context = || format!("cannot remove {}", self.path.display());
        std::fs::remove_file(&self.path).with_context(context)
    }

    /// Replaces the file as a whole, so that an interruption leaves the old or the new one.
    fn write(&self) -> anyhow::Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let new = self.path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&self.state)?).with_context(context)?;
        std::fs::rename(&new, &self.path).with_context(context)
    }
}

/// Two runs at a time would spoil each other's figures, and share a file.
fn lock(path: &Path) -> anyhow::Result<Lock> {
    let path = path.with_extension("lock");
    let context = || format!("cannot lock {}", path.display());
    let file = File::create(&path).with_context(context)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => bail!("another bench runs: {} is locked", path.display()),
        Err(TryLockError::Error(error)) => Err(error).with_context(context),
    }
}

fn read(path: &Path) -> anyhow::Result<State> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| {
        format!("{} is no state of this bench; without --resume a new one begins", path.display())
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn identity(commit: &str) -> Identity {
        Identity {
            commit: commit.to_owned(),
            programs: "p".to_owned(),
            options: "o".to_owned(),
            machine: "m".to_owned(),
        }
    }

    fn begin(folder: &TempDir, start: Start, commit: &str) -> anyhow::Result<Progress> {
        let machine = Machine { date: commit.to_owned(), ..Machine::default() };
        Progress::begin(&folder.path().join("state.json"), start, identity(commit), &machine)
    }

    fn folder() -> TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    fn not_again() -> anyhow::Result<f64> {
        panic!("it is kept")
    }

    #[test]
    fn a_sample_is_measured_once_and_outlives_the_run() {
        let folder = folder();
        let mut progress = begin(&folder, Start::Anew, "a").expect("begun");
        assert_eq!(progress.sample("x", || Ok(0.1)).expect("measured"), 0.1);
        assert!(progress.sample::<f64>("y", || bail!("interrupted")).is_err());
        drop(progress);
        let mut progress = begin(&folder, Start::Resume, "a").expect("resumed");
        assert_eq!(progress.sample("x", not_again).expect("kept"), 0.1);
        assert_eq!(progress.sample("y", || Ok(2.0)).expect("measured"), 2.0);
        assert_eq!((progress.session_count(), progress.machine().date.as_str()), (2, "a"));
        assert!(progress.farewell().contains("2 samples"), "{}", progress.farewell());
        progress.finish().expect("complete");
        let progress = begin(&folder, Start::Resume, "a").expect("nothing is there");
        assert_eq!(progress.session_count(), 1);
    }

    #[test]
    fn a_run_of_another_commit_is_refused_and_left_alone() {
        let folder = folder();
        let mut progress = begin(&folder, Start::Anew, "a").expect("begun");
        progress.sample("x", || Ok(0.1)).expect("measured");
        drop(progress);
        let error = begin(&folder, Start::Resume, "b").err().expect("another commit");
        assert!(error.to_string().contains("commit: now b, there a"), "{error}");
        let mut progress = begin(&folder, Start::Resume, "a").expect("resumed");
        assert_eq!(progress.sample("x", not_again).expect("kept"), 0.1);
    }

    #[test]
    fn a_run_that_ended_holds_nothing_though_a_child_has_the_file_open() {
        let folder = folder();
        let progress = begin(&folder, Start::Anew, "a").expect("begun");
        let as_in_a_child = progress._lock.0.try_clone().expect("another descriptor");
        drop(progress);
        begin(&folder, Start::Anew, "a").expect("begun anew");
        drop(as_in_a_child);
    }

    #[test]
    fn a_new_run_forgets_the_old_one() {
        let folder = folder();
        let mut progress = begin(&folder, Start::Anew, "a").expect("begun");
        progress.sample("x", || Ok(0.1)).expect("measured");
        let error = begin(&folder, Start::Anew, "a").err().expect("the first still runs");
        assert!(error.to_string().contains("another bench runs"), "{error}");
        drop(progress);
        let mut progress = begin(&folder, Start::Anew, "a").expect("begun anew");
        assert_eq!(progress.sample("x", || Ok(0.2)).expect("measured"), 0.2);
    }

    #[test]
    fn what_is_no_state_is_refused_and_what_does_not_fit_is_measured_again() {
        let folder = folder();
        let mut progress = begin(&folder, Start::Anew, "a").expect("begun");
        progress.sample("x", || Ok("text".to_owned())).expect("measured");
        assert_eq!(progress.sample("x", || Ok(0.2)).expect("measured again"), 0.2);
        drop(progress);
        std::fs::write(folder.path().join("state.json"), "{").expect("written");
        assert!(begin(&folder, Start::Resume, "a").is_err());
    }
}
