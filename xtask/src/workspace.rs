//! What cargo knows of the workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cargo_metadata::{Metadata, MetadataCommand, Package};

use crate::{Outcome, process};

/// The workspace with its resolved dependencies.
pub(crate) struct Workspace {
    pub(crate) metadata: Metadata,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> anyhow::Result<Workspace> {
        let target = host_target()?;
        let metadata = MetadataCommand::new()
            .other_options(vec!["--locked".into(), "--filter-platform".into(), target])
            .exec()
            .context("cannot read the workspace; is Cargo.lock up to date?")?;
        Ok(Workspace { metadata })
    }

    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// Builds the program with optimization, and returns where it is.
    pub(crate) fn build_forebay(&self) -> anyhow::Result<PathBuf> {
        let mut command = process::cargo();
        command.args(["build", "--release", "--locked", "--package=forebay-cli", "--bin=forebay"]);
        if process::run(command.current_dir(self.root()))? == Outcome::Failed {
            bail!("forebay does not build");
        }
        Ok(self.metadata.target_directory.as_std_path().join("release/forebay"))
    }

    /// The packages of this repository, in the order of their names.
    pub(crate) fn members(&self) -> Vec<&Package> {
        let mut members = self.metadata.workspace_packages();
        members.sort_by(|left, right| left.name.cmp(&right.name));
        members
    }

    /// The manifest of `package`, from the root on.
    pub(crate) fn path_of(&self, package: &Package) -> PathBuf {
        let path = package.manifest_path.as_std_path();
        path.strip_prefix(self.root()).unwrap_or(path).to_owned()
    }
}

/// The triple of this machine: dependencies of other platforms need not be downloaded.
fn host_target() -> anyhow::Result<String> {
    let output = std::process::Command::new("rustc")
        .arg("-vV")
        .output()
        .context("cannot run rustc; install it with rustup")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
