//! What a run has behind it, so that one that was interrupted can go on.
//!
//! A part that passed is written down with the tree of git that it was built from. Only a run that
//! neither ended nor failed leaves a record: a failure removes it, so that nobody repeats a part
//! until it passes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::Tally;

/// What a run shall do with what an interrupted one has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Earlier {
    /// Go on with it.
    Resumed,
    /// Begin anew.
    Dropped,
}

/// Parts that passed, in a file.
pub(super) struct Record {
    path: PathBuf,
    /// `None`: nothing is written down.
    content: Option<Content>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    /// Of which all was built.
    tree: String,
    parts: BTreeMap<String, Tally>,
}

impl Record {
    /// Of a run that cannot be resumed.
    pub(super) fn none() -> Record {
        Record { path: PathBuf::new(), content: None }
    }

    /// The record at `path` of a run of the source in `root`. What is not committed has no name,
    /// so a run with that leaves no record.
    pub(super) fn open(path: PathBuf, root: &Path, earlier: Earlier) -> anyhow::Result<Record> {
        let tree = committed_tree(root);
        if earlier == Earlier::Resumed && tree.is_none() {
            bail!("a run can be resumed only if git knows all of the source; commit the changes");
        }
        let left = match earlier {
            Earlier::Resumed => read(&path)?.filter(|content| Some(&content.tree) == tree.as_ref()),
            Earlier::Dropped => None,
        };
        if left.is_none() {
            // What it tells of is no longer what is built.
            remove(&path)?;
            if earlier == Earlier::Resumed {
                println!("no run of this source was interrupted: all parts are run");
            }
        }
        let new = || tree.map(|tree| Content { tree, parts: BTreeMap::new() });
        Ok(Record { path, content: left.or_else(new) })
    }

    /// What `run` finds, or what it found in the run that is resumed.
    pub(super) fn part(
        &mut self,
        name: &str,
        run: impl FnOnce() -> anyhow::Result<Tally>,
    ) -> anyhow::Result<Tally> {
        if let Some(tally) = self.content.as_ref().and_then(|content| content.parts.get(name)) {
            println!("\n{name}: {} passed before the run was interrupted", tally.passed_count());
            return Ok(tally.clone());
        }
        let tally = run()?;
        if tally.failed_count > 0 {
            self.remove()?;
        } else if let Some(content) = &mut self.content {
            content.parts.insert(name.to_owned(), tally.clone());
            self.write()?;
        }
        Ok(tally)
    }

    /// The run has ended, or failed: there is nothing to go on with.
    pub(super) fn remove(&mut self) -> anyhow::Result<()> {
        if self.content.take().is_some() { remove(&self.path) } else { Ok(()) }
    }

    /// Whole or not at all: a run may be interrupted at any moment.
    fn write(&self) -> anyhow::Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let folder = self.path.parent().with_context(context)?;
        std::fs::create_dir_all(folder).with_context(context)?;
        let file = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
        serde_json::to_writer(&file, &self.content).with_context(context)?;
        file.persist(&self.path).with_context(context)?;
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<Option<Content>> {
    if !path.exists() {
        return Ok(None);
    }
    let context = || format!("cannot read {}; remove it to begin anew", path.display());
    let text = std::fs::read_to_string(path).with_context(context)?;
    serde_json::from_str(&text).with_context(context).map(Some)
}

fn remove(path: &Path) -> anyhow::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

/// Name of the source in `root`; `None` if some of it is not committed, or without git.
fn committed_tree(root: &Path) -> Option<String> {
    let ask = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_clean = ask(&["status", "--porcelain"])?.is_empty();
    if is_clean { ask(&["rev-parse", "HEAD^{tree}"]) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    fn git(root: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]);
        let outcome = process::run(command.args(arguments).current_dir(root)).unwrap();
        assert_eq!(outcome, crate::Outcome::Passed);
    }

    /// A repository with all committed, and where its record is.
    fn repository() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        git(root.path(), &["init", "--quiet"]);
        std::fs::write(root.path().join(".gitignore"), "target\n").unwrap();
        git(root.path(), &["add", "."]);
        git(root.path(), &["commit", "--quiet", "-m", "first"]);
        let path = root.path().join("target/record.json");
        (root, path)
    }

    fn passed(ok_count: usize) -> anyhow::Result<Tally> {
        Ok(Tally { ok_count, ..Tally::default() })
    }

    /// What the parts `a` and `b` come to, which pass if they are run: `a` once and `b` twice.
    fn counts(record: &mut Record) -> [usize; 2] {
        [("a", 1), ("b", 2)].map(|(name, count)| {
            record.part(name, || passed(count)).expect("it is run or known").ok_count
        })
    }

    #[test]
    fn what_passed_of_the_same_source_is_not_run_again() {
        let (root, path) = repository();
        let open = |earlier| Record::open(path.clone(), root.path(), earlier).unwrap();
        open(Earlier::Dropped).part("a", || passed(7)).unwrap();
        assert_eq!(counts(&mut open(Earlier::Resumed)), [7, 2]);
        // `b` is known now as well.
        assert!(open(Earlier::Resumed).part("b", || bail!("run again")).is_ok());
        assert_eq!(counts(&mut open(Earlier::Dropped)), [1, 2]);
    }

    #[test]
    fn another_source_begins_anew_and_one_without_a_name_is_not_resumed() {
        let (root, path) = repository();
        let open = |earlier| Record::open(path.clone(), root.path(), earlier);
        open(Earlier::Dropped).unwrap().part("a", || passed(7)).unwrap();
        std::fs::write(root.path().join("new"), "").unwrap();
        let error = open(Earlier::Resumed).err().expect("something is not committed");
        assert!(error.to_string().contains("commit the changes"), "{error}");
        git(root.path(), &["add", "."]);
        git(root.path(), &["commit", "--quiet", "-m", "second"]);
        assert_eq!(counts(&mut open(Earlier::Resumed).unwrap()), [1, 2]);
    }

    #[test]
    fn a_run_that_failed_or_ended_leaves_nothing() {
        let (root, path) = repository();
        let open = |earlier| Record::open(path.clone(), root.path(), earlier).unwrap();
        let mut record = open(Earlier::Dropped);
        record.part("a", || passed(7)).unwrap();
        let failed = || Ok(Tally { failed_count: 1, ..Tally::default() });
        record.part("b", failed).unwrap();
        record.part("c", || passed(1)).unwrap();
        assert!(!path.exists());
        let mut record = open(Earlier::Dropped);
        record.part("a", || passed(7)).unwrap();
        assert!(path.exists());
        record.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_run_that_begins_anew_drops_what_an_earlier_one_left() {
        let (root, path) = repository();
        let open = || Record::open(path.clone(), root.path(), Earlier::Dropped).unwrap();
        open().part("a", || passed(7)).unwrap();
        assert!(path.exists());
        open();
        assert!(!path.exists());
    }
}
