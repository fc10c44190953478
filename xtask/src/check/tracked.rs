//! Source files that git does not know: what builds here would not build from a clone.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::source::Finding;

/// Files that matter to a build.
const PATTERNS: [&str; 2] = ["*.rs", "*.toml"];

/// Findings below `root`; none where it is no work tree of git, such as an unpacked archive.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    if !root.join(".git").exists() {
        return Ok(Vec::new());
    }
    let mut command = Command::new("git");
    command.args(["ls-files", "--others", "--exclude-standard", "-z", "--"]).args(PATTERNS);
    let output = command.current_dir(root).output().context("cannot run git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git ls-files failed: {}", error.trim());
    let names = String::from_utf8_lossy(&output.stdout);
    let finding = |name: &str| Finding {
        path: name.into(),
        line: 0,
        message: "is not known to git; add it, or a clone does not have it".to_owned(),
    };
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(finding).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        let status = Command::new("git").args(arguments).current_dir(root).status();
        assert!(status.expect("git runs").success(), "{arguments:?}");
    }

    #[test]
    fn a_source_file_that_was_not_added_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let write = |name: &str| std::fs::write(root.join(name), "").expect("written");
        for name in ["added.rs", "new.rs", "ignored.rs", "notes.txt"] {
            write(name);
        }
        std::fs::write(root.join(".gitignore"), "ignored.rs\n").expect("written");
        assert_eq!(check(root).expect("no work tree"), []);
        git(root, &["init", "--quiet"]);
        git(root, &["add", "added.rs"]);
        let found = check(root).expect("a work tree");
        assert_eq!(
            found.iter().map(|f| f.path.as_path()).collect::<Vec<_>>(),
            [Path::new("new.rs")]
        );
        git(root, &["add", "new.rs"]);
        assert_eq!(check(root).expect("a work tree"), []);
    }
}
