//! Programs as they were built once, for as long as something is measured with them.
//!
//! They are copies in a folder of their own: a build of other sources, which may come at any time,
//! changes nothing of what is executed. The folder goes away with this.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use crate::workspace::Workspace;

/// The folder with the copies.
pub(crate) struct Build(TempDir);

impl Build {
    /// Without a program yet, in the build folder, from which programs can be executed.
    pub(crate) fn begin(workspace: &Workspace) -> anyhow::Result<Build> {
        Build::begin_in(workspace.metadata.target_directory.as_std_path())
    }

    fn begin_in(parent: &Path) -> anyhow::Result<Build> {
        let folder = tempfile::Builder::new().prefix("measured-").tempdir_in(parent);
        let folder = folder.with_context(|| format!("cannot write to {}", parent.display()))?;
        Ok(Build(folder))
    }

    /// Builds `forebay` with optimization, and returns where the copy is.
    pub(crate) fn forebay(&self, workspace: &Workspace) -> anyhow::Result<PathBuf> {
        self.keep(&workspace.build_forebay()?)
    }

    /// Copies a program, which keeps its name, and returns where the copy is.
    pub(crate) fn keep(&self, program: &Path) -> anyhow::Result<PathBuf> {
        let name = program.file_name().context("a program has a name")?;
        let copy = self.0.path().join(name);
        std::fs::copy(program, &copy)
            .with_context(|| format!("cannot copy {}", program.display()))?;
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_later_build_changes_nothing() {
        let target = tempfile::tempdir().expect("a folder");
        let program = target.path().join("forebay");
        std::fs::write(&program, "first").expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("ours");
        let build = Build::begin_in(target.path()).expect("a folder");
        let copy = build.keep(&program).expect("copied");
        // In place, and by another file.
        std::fs::write(&program, "second").expect("written");
        std::fs::remove_file(&program).expect("removed");
        std::fs::write(&program, "third").expect("written");
        assert_eq!(std::fs::read(&copy).expect("it is there"), b"first");
        assert_eq!(copy.file_name(), program.file_name());
        let mode = copy.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        drop(build);
        assert!(!copy.exists());
    }
}
