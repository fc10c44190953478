//! The project's own rules, each in a file of its own, over all files of the workspace.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::source::{Finding, Source};
use super::{dependencies, functions, licences, modules, tokens, tracked, words};
use crate::workspace::Workspace;

/// Folders that are not ours to judge.
const FOLDERS_LEFT_OUT: [&str; 2] = ["target", "vendor"];

/// All breaches of all rules, by file and line.
pub(crate) fn findings(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let root = workspace.root();
    let mut findings = Vec::new();
    let mut sources = Vec::new();
    for path in files(root)? {
        findings.extend(words::check_file_name(&path));
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(Source::read(root, path)?);
        }
    }
    for source in &sources {
        findings.extend(words::check_lines(source));
        findings.extend(tokens::check(source));
    }
    findings.extend(functions::check(&sources));
    findings.extend(modules::check(workspace, &sources));
    findings.extend(dependencies::check(workspace)?);
    findings.extend(licences::check(workspace)?);
    findings.extend(tracked::check(root)?);
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// All files below `root`, from there on, but for hidden ones and build output.
fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let context = || format!("cannot list {}", root.join(&folder).display());
        for entry in std::fs::read_dir(root.join(&folder)).with_context(context)? {
            let entry = entry.with_context(context)?;
            let name = entry.file_name();
            let is_left_out =
                |name: &str| name.starts_with('.') || FOLDERS_LEFT_OUT.contains(&name);
            if name.to_str().is_none_or(is_left_out) {
                continue;
            }
            let path = folder.join(&name);
            let file_type = entry.file_type().with_context(context)?;
            if file_type.is_dir() {
                folders.push(path);
            } else if file_type.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_at_any_depth_and_build_output_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for path in ["a/b/c.rs", "d.md", "target/debug/x.rs", ".git/config", "a/.hidden"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("created");
            std::fs::write(path, "").expect("written");
        }
        let found = files(folder.path()).expect("listed");
        assert_eq!(found, [PathBuf::from("a/b/c.rs"), PathBuf::from("d.md")]);
    }
}
