//! `fsx`, the file system exerciser: no package of the distribution has it, the registry of crates
//! does. It is compiled once, below the target folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::supplies::Fetch;
use crate::{Outcome, process};

/// The crate that it is, and the program.
pub(crate) const NAME: &str = "fsx";
/// Another version makes other operations of the same seed.
const VERSION: &str = "0.3.2";

/// Makes sure that the exerciser is there, and returns the folder that it is in.
pub(crate) fn prepare(folder: &Path, fetch: Fetch) -> anyhow::Result<PathBuf> {
    let root = folder.join(format!("{NAME}-{VERSION}"));
    let programs = root.join("bin");
    if programs.join(NAME).is_file() {
        return Ok(programs);
    }
    ensure!(fetch == Fetch::IfMissing, "{NAME} in {}", programs.display());
    let build = root.join("build");
    let mut install = process::cargo();
    install.args(["install", "--quiet", "--locked", "--force", NAME, "--version", VERSION]);
    install.arg("--root").arg(&root).arg("--target-dir").arg(&build);
    if process::run(&mut install)? == Outcome::Failed {
        bail!("{NAME} {VERSION} of the registry of crates");
    }
    std::fs::remove_dir_all(&build).context("cannot remove what the compiler left")?;
    Ok(programs)
}
