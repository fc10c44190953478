//! The example `front_end_load` of the product: how it is built and run, and what it prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::bench::{fio, interrupt};
use crate::build::Build;
use crate::workspace::Workspace;
use crate::{Outcome, process};

const EXAMPLE: &str = "front_end_load";

/// The program: a copy that no later build changes.
pub(in super::super) struct Client(PathBuf);

/// What it prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct Figures {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    p999_us: f64,
    /// CPU time of the client.
    pub(super) cpu_seconds: f64,
    /// Notifications by the client, and how often it slept until one of the server; of vhost-user.
    pub(super) kicks: u64,
    pub(super) calls: u64,
}

impl Figures {
    /// A value of each request.
    pub(super) fn per_request(&self, value: f64) -> f64 {
        value / self.requests as f64
    }

    pub(super) fn cpu_us(&self) -> f64 {
        self.per_request(self.cpu_seconds * 1e6)
    }
}

impl From<Figures> for fio::Figures {
    fn from(figures: Figures) -> fio::Figures {
        let Figures { requests, seconds, mean_us, p50_us, p99_us, p999_us, .. } = figures;
        let latency = fio::Percentiles { p50_us, p99_us, p999_us };
        let iops = requests as f64 / seconds;
        fio::Figures { requests, seconds, iops, mean_us, latency, flush_latency: None }
    }
}

#[cfg(test)]
impl Figures {
    /// Of two seconds, one of them on a processor; every second request comes with a kick.
    pub(super) fn of(requests: u64) -> Figures {
        let (seconds, mean_us, cpu_seconds) = (2.0, 1.0, 1.0);
        let (p50_us, p99_us, p999_us) = (1.0, 2.0, 3.0);
        let (kicks, calls) = (requests / 2, requests / 4);
        Figures { requests, seconds, mean_us, p50_us, p99_us, p999_us, cpu_seconds, kicks, calls }
    }
}

impl Client {
    /// Builds it with optimization, and keeps a copy.
    pub(in super::super) fn build(workspace: &Workspace, build: &Build) -> anyhow::Result<Client> {
        let mut command = process::cargo();
        command.args(["build", "--release", "--locked", "--package=forebay-cli"]);
        command.arg(format!("--example={EXAMPLE}"));
        if process::run(command.current_dir(workspace.root()))? == Outcome::Failed {
            bail!("the client does not build");
        }
        let target = workspace.metadata.target_directory.as_std_path();
        build.keep(&target.join("release/examples").join(EXAMPLE)).map(Client)
    }

    pub(in super::super) fn path(&self) -> &Path {
        &self.0
    }

    /// The command that keeps so many requests under way; where to is missing.
    pub(in super::super) fn command(&self, depth: u32, seconds: u64) -> Command {
        let mut command = Command::new(&self.0);
        command.arg("--depth").arg(depth.to_string());
        command.arg("--seconds").arg(seconds.to_string());
        command
    }

    /// The same over vhost-user; it reads if nothing is added.
    pub(in super::super) fn over_vhost_user(
        &self,
        socket: &Path,
        depth: u32,
        seconds: u64,
    ) -> Command {
        let mut command = self.command(depth, seconds);
        command.arg("--vhost-user").arg(socket);
        command
    }
}

/// Runs such a command.
pub(in super::super) fn run(mut command: Command) -> anyhow::Result<Figures> {
    let text = interrupt::capture(&mut command)?;
    serde_json::from_str(&text).context("the client prints what is not understood")
}
