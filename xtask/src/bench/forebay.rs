//! The product, driven through its command line as anybody would.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::ground::Ground;
use super::interrupt;
use super::server::{Ready, Server};
use crate::build::Build;
use crate::process;
use crate::workspace::Workspace;

/// Name of the volume and of its export.
pub(super) const VOLUME: &str = "bench";

/// In which order dirty data goes home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Coalescing,
    Ordered,
}

impl Order {
    pub(super) const ALL: [Order; 2] = [Order::Coalescing, Order::Ordered];

    /// As `forebay attach` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Coalescing => "coalescing",
            Order::Ordered => "ordered",
        }
    }
}

/// A cache set to make.
#[derive(Clone, Copy)]
pub(super) struct Set<'a> {
    /// The file that is the cache device.
    pub(super) cache: &'a Path,
    /// As `forebay attach` takes it.
    pub(super) origin: &'a Path,
    /// Size of the cache file.
    pub(super) bytes: u64,
    pub(super) order: Order,
}

/// The released binary: a copy that no later build changes.
pub(super) struct Program(PathBuf);

/// A daemon with one volume.
pub(super) struct Daemon {
    pub(super) server: Server,
    pub(super) uri: String,
    pub(super) socket: PathBuf,
    admin: PathBuf,
}

/// The parts of `forebay status --json` that are used.
#[derive(Deserialize)]
struct Report {
    daemons: Vec<Status>,
}

/// State of a daemon.
#[derive(Clone, Deserialize)]
pub(super) struct Status {
    pub(super) cache_set: CacheSet,
    exports: Vec<Export>,
}

#[derive(Clone, Deserialize)]
pub(super) struct CacheSet {
    pub(super) cached_bytes: u64,
    pub(super) dirty_bytes: u64,
    pub(super) occupancy: f64,
    pub(super) memory_bytes: u64,
    pub(super) recovery_ms: u64,
    pub(super) recovery_cpu_ms: f64,
    pub(super) client_flush_count: u64,
    pub(super) counters: SetCounters,
}

#[derive(Clone, Deserialize)]
pub(super) struct SetCounters {
    pub(super) record_count: u64,
    pub(super) client_bytes: u64,
    pub(super) promoted_bytes: u64,
    pub(super) relocated_bytes: u64,
    pub(super) cache_written_bytes: u64,
    pub(super) cache_flush_count: u64,
    pub(super) space_wait_count: u64,
}

#[derive(Clone, Deserialize)]
struct Export {
    volume: Volume,
}

#[derive(Clone, Deserialize)]
pub(super) struct Volume {
    pub(super) cached_extent_count: u64,
    /// Absent if nothing was read.
    pub(super) hit_ratio_requests: Option<f64>,
    pub(super) counters: VolumeCounters,
}

#[derive(Clone, Deserialize)]
pub(super) struct VolumeCounters {
    pub(super) read_hit_bytes: u64,
    pub(super) read_miss_bytes: u64,
    pub(super) writeback_block_count: u64,
    /// Writes of the origin.
    pub(super) writeback_io_count: u64,
    /// Reads of the origin, for what lies between dirty blocks.
    pub(super) writeback_read_io_count: u64,
}

impl Status {
    pub(super) fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.exports.iter().map(|export| &export.volume)
    }

    /// The one volume.
    pub(super) fn volume(&self) -> anyhow::Result<&Volume> {
        self.volumes().next().context("the status names no export")
    }
}

/// The URI of an export behind a Unix socket.
pub(super) fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

impl Program {
    /// Builds it with optimization, and keeps a copy.
    pub(super) fn build(workspace: &Workspace, build: &Build) -> anyhow::Result<Program> {
        build.forebay(workspace).map(Program)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The command to add arguments to, free of what the environment may say.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        for variable in ["FOREBAY_ADMIN", "FOREBAY_LOG", "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        command
    }

    /// Makes a cache set with a volume in writeback mode. A file that is not there is made and
    /// written in full; one that is there is used again.
    pub(super) fn make_set(&self, set: Set<'_>) -> anyhow::Result<()> {
        let Set { cache, origin, bytes, .. } = set;
        let mut format = self.command();
        format.arg("format").arg(cache);
        if cache.exists() {
            format.arg("--force");
        } else {
            format.arg("--size").arg(bytes.to_string());
        }
        interrupt::capture(&mut format)?;
        self.attach(set, VOLUME, origin)
    }

    /// Adds a volume in writeback mode to a set that is not served.
    pub(super) fn attach(&self, set: Set<'_>, name: &str, origin: &Path) -> anyhow::Result<()> {
        let Set { cache, order, .. } = set;
        let mut attach = self.command();
        attach.arg("attach").arg(cache).arg(origin);
        attach.args(["--name", name, "--cache-mode", "writeback"]);
        attach.args(["--writeback-order", order.name()]);
        // Names no daemon, so that one that runs elsewhere is left alone.
        attach.arg("--admin").arg(cache.with_extension("no-daemon"));
        interrupt::capture(&mut attach)?;
        Ok(())
    }

    /// Serves the volume of `cache`, a file in the folder of `ground`.
    pub(super) fn serve(&self, cache: &Path, ground: &Ground) -> anyhow::Result<Daemon> {
        let socket = ground.path("forebay.nbd");
        // One that an earlier server left.
        let _ = std::fs::remove_file(&socket);
        self.serve_with(cache, ground, &[], "forebay.log")
    }

    /// The same, with volumes as disks of virtual machines, each at a socket, and not over NBD.
    pub(super) fn serve_vhost_user(
        &self,
        cache: &Path,
        ground: &Ground,
        disks: &[(&str, &Path)],
    ) -> anyhow::Result<Daemon> {
        let option = |(name, socket): &(&str, &Path)| {
            ["--vhost-user".to_owned(), format!("{name}={}", socket.display())]
        };
        let options: Vec<String> = disks.iter().flat_map(option).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.serve_with(cache, ground, &options, "forebay-disk.log")
    }

    /// Replaces the daemon that serves it. `round` names its log.
    pub(super) fn take_over(
        &self,
        cache: &Path,
        ground: &Ground,
        round: u32,
    ) -> anyhow::Result<Daemon> {
        self.serve_with(cache, ground, &["--takeover"], &format!("forebay-{round}.log"))
    }

    fn serve_with(
        &self,
        cache: &Path,
        ground: &Ground,
        options: &[&str],
        log: &str,
    ) -> anyhow::Result<Daemon> {
        let (socket, admin) = (ground.path("forebay.nbd"), ground.path("forebay.admin"));
        let mut command = self.command();
        command.arg("serve").arg(cache);
        command.arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.arg("--admin").arg(&admin).arg("--state-dir").arg(ground.path("state"));
        command.arg("--exit-with-parent").args(options);
        let server = Server::start(command, &socket, &ground.path(log), Ready::Line)?;
        Ok(Daemon { server, uri: uri(VOLUME, &socket), socket, admin })
    }

    /// Serves `device` without a cache at `socket`; its messages go to `log`.
    pub(super) fn serve_bare(
        &self,
        device: &str,
        socket: &Path,
        log: &Path,
    ) -> anyhow::Result<Server> {
        let mut command = self.command();
        command.args(["serve", "--exit-with-parent", "--bare", &format!("{VOLUME}={device}")]);
        command.arg("--nbd").arg(format!("unix:{}", socket.display()));
        Server::start(command, socket, log, Ready::Line)
    }

    /// What a daemon knows of itself.
    pub(super) fn status(&self, daemon: &Daemon) -> anyhow::Result<Status> {
        let mut command = self.command();
        command.args(["status", "--json", "--admin"]).arg(&daemon.admin);
        let text = interrupt::capture(&mut command)?;
        let report: Report =
            serde_json::from_str(&text).context("forebay status prints what is not understood")?;
        report.daemons.into_iter().next().context("forebay status names no daemon")
    }

    /// Sets its counters to zero.
    pub(super) fn reset_counters(&self, daemon: &Daemon) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(["status", "--reset", "--admin"]).arg(&daemon.admin);
        interrupt::capture(&mut command).map(|_| ())
    }

    /// Writes everything home.
    pub(super) fn drain(&self, daemon: &Daemon) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(["drain", VOLUME, "--admin"]).arg(&daemon.admin);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = interrupt::wait_for(&mut command)?;
        if !status.success() {
            bail!("{}: {status}", process::describe(&command));
        }
        Ok(())
    }

    /// Changes a setting of the volume.
    pub(super) fn set(&self, daemon: &Daemon, setting: &str) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(["set", VOLUME, setting, "--admin"]).arg(&daemon.admin);
        interrupt::capture(&mut command).map(|_| ())
    }
}
