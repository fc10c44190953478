//! Packages of the distribution, downloaded into a folder and not installed.
//!
//! apt works with lists, archives and, if that is wanted, a table of installed packages of its own
//! below the target folder, so this needs no root and changes no file of the system. The lists stay
//! there: to look whether they are still right is quick, to get them again is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::sources;

/// What packages need is downloaded with them unless it is installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Installed {
    /// What this machine has.
    AsIs,
    /// Nothing, so that everything comes that is needed.
    Nothing,
}

/// apt with a folder of its own.
pub(crate) struct Apt {
    folder: PathBuf,
    installed: Installed,
}

impl Apt {
    /// Gets the lists of the release and its backports, into a folder below `folder`.
    pub(crate) fn with_new_lists(folder: &Path, installed: Installed) -> anyhow::Result<Apt> {
        let codename = sources::codename()?;
        let apt = Apt { folder: folder.join("apt"), installed };
        // Archives of a download that was cut short.
        let _ = std::fs::remove_dir_all(apt.archives());
        for name in ["lists/partial", "archives/partial"] {
            let path = apt.folder.join(name);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot make {}", path.display()))?;
        }
        std::fs::write(apt.folder.join("private.list"), sources::private_list(&codename)?)
            .and_then(|()| std::fs::write(apt.folder.join("nothing"), ""))
            .context("cannot write a list")?;
        Apt::run(apt.command("apt-get").args(["-qq", "update"])).context("lists of packages")?;
        Ok(apt)
    }

    fn archives(&self) -> PathBuf {
        self.folder.join("archives")
    }

    /// A command of apt that works in the folder.
    pub(crate) fn command(&self, program: &str) -> Command {
        let option =
            |name: &str, path: &str| format!("{name}={}", self.folder.join(path).display());
        let mut command = Command::new(program);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command.args(["-o", &option("Dir::Etc::sourcelist", "private.list")]);
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null"]);
        command.args(["-o", &option("Dir::State::Lists", "lists")]);
        command.args(["-o", &option("Dir::Cache", "")]);
        if self.installed == Installed::Nothing {
            command.args(["-o", &option("Dir::State::status", "nothing")]);
        }
        // The folders are the caller's, whoever that is, and nobody else uses them.
        command.args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]);
        command
    }

    /// Runs `command`; what it says is only of interest if it fails.
    pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
        let output = command.output().context("cannot run apt")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Downloads packages and all that they need.
    pub(crate) fn download(&self, packages: &[&str], options: &[&str]) -> anyhow::Result<()> {
        let mut command = self.command("apt-get");
        command.args(["-qq", "-y", "install", "--download-only", "--no-install-recommends"]);
        Apt::run(command.args(options).args(packages))
            .with_context(|| format!("packages {packages:?}"))?;
        Ok(())
    }

    /// Downloads one package without what it needs.
    pub(crate) fn download_alone(&self, package: &str) -> anyhow::Result<()> {
        let mut command = self.command("apt-get");
        command.args(["-qq", "download", package]).current_dir(self.archives());
        Apt::run(&mut command).with_context(|| format!("package {package}"))?;
        Ok(())
    }

    /// Moves all that was downloaded to `target`, which is not there yet.
    pub(crate) fn finish(self, target: &Path) -> anyhow::Result<()> {
        std::fs::rename(self.archives(), target).context("cannot move the packages")
    }
}
