//! forebay itself, through its command line, as anybody would.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::device_counts::admin_of_bare;
use super::place::{CachePlace, Place};
use super::server::{Ready, Server, output};
use super::{Ground, RealError};
use crate::plan::Forebay;
use crate::result::CacheCounts;

/// Name of the volume and of its export.
const VOLUME: &str = "bench";
/// Settings of the cache set; the others are of the volume.
const SET_KEYS: [&str; 6] = [
    "memory_max",
    "discard",
    "cache_write_budget",
    "policy",
    "dirty_soft_percent",
    "dirty_hard_percent",
];

/// A daemon with one volume.
pub(super) struct Daemon {
    server: Server,
    cache: PathBuf,
    /// Processor time of those that were killed or restarted.
    cpu_before_s: f64,
    /// What those had counted.
    counted_before: CacheCounts,
}

/// What `forebay status --json` prints, with the parts of a daemon's that are used.
#[derive(Deserialize)]
struct Report<T> {
    daemons: Vec<T>,
}

#[derive(Deserialize)]
struct Status {
    state: String,
    cache_set: CacheSet,
    exports: Vec<Export>,
}

#[derive(Deserialize)]
struct CacheSet {
    cached_bytes: u64,
    dirty_bytes: u64,
    counters: SetCounters,
}

#[derive(Deserialize)]
struct SetCounters {
    promoted_bytes: u64,
    relocated_bytes: u64,
    cache_written_bytes: u64,
}

#[derive(Deserialize)]
struct Export {
    volume: Volume,
}

#[derive(Deserialize)]
struct Volume {
    counters: VolumeCounters,
}

#[derive(Deserialize)]
struct VolumeCounters {
    read_hit_bytes: u64,
    read_miss_bytes: u64,
    write_bytes: u64,
}

/// The URI of an export behind a Unix socket.
pub(super) fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// The program to add arguments to, free of what the environment may say.
fn program(ground: &Ground<'_>) -> Command {
    let mut command = Command::new(ground.program);
    for variable in ["FOREBAY_ADMIN", "FOREBAY_LOG", "NOTIFY_SOCKET"] {
        command.env_remove(variable);
    }
    command
}

/// `forebay serve` to add arguments to.
fn server(ground: &Ground<'_>) -> Command {
    let mut command = program(ground);
    command.arg("serve");
    if ground.ends_daemons {
        command.arg("--exit-with-parent");
    }
    command
}

/// The status of the daemon with this admin socket.
pub(super) fn status_of<T: DeserializeOwned>(
    ground: &Ground<'_>,
    admin: &Path,
) -> Result<T, RealError> {
    let mut status = program(ground);
    status.args(["status", "--json", "--admin"]).arg(admin);
    parse_status(&output(&mut status)?)
}

/// The first daemon of a document.
pub(super) fn parse_status<T: DeserializeOwned>(text: &str) -> Result<T, RealError> {
    let report: Report<T> =
        serde_json::from_str(text).map_err(|error| RealError::Status(error.to_string()))?;
    let daemon = report.daemons.into_iter().next();
    daemon.ok_or_else(|| RealError::Status("no daemon".to_owned()))
}

/// Serves a device without a cache, by its name in the plan.
pub(super) fn serve_bare(
    ground: &Ground<'_>,
    device: &str,
    place: &Place,
) -> Result<(Server, String), RealError> {
    let socket = ground.sockets.join(format!("bare-{device}"));
    let mut command = server(ground);
    command.arg("--bare").arg(format!("{VOLUME}={}", place.spec));
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    command.arg("--admin").arg(admin_of_bare(ground, device));
    let log = ground.folder.join(format!("bare-{device}.log"));
    let server = Server::start(command, Ready::Socket(&socket), &log, ground.interrupt)?;
    Ok((server, uri(VOLUME, &socket)))
}

impl Daemon {
    /// Makes an empty cache in front of a device, and serves it.
    pub(super) fn begin(
        ground: &Ground<'_>,
        forebay: &Forebay,
        cache: &CachePlace,
        origin: &Place,
    ) -> Result<Daemon, RealError> {
        let mut format = program(ground);
        format.arg("format").arg(&cache.path);
        match cache.new_bytes {
            Some(bytes) => format.arg("--size").arg(bytes.to_string()),
            None => format.arg("--force"),
        };
        output(&mut format)?;
        let mut attach = program(ground);
        attach.arg("attach").arg(&cache.path).arg(&origin.spec);
        attach.args(["--name", VOLUME, "--cache-mode", forebay.mode.name()]);
        // Names no daemon, so that one that runs elsewhere is left alone.
        attach.arg("--admin").arg(ground.sockets.join("none"));
        output(&mut attach)?;
        let daemon = Daemon {
            server: serve(ground, &cache.path)?,
            cache: cache.path.clone(),
            cpu_before_s: 0.0,
            counted_before: CacheCounts::default(),
        };
        wait_until_it_serves(ground)?;
        for (key, value) in &forebay.set {
            let mut set = program(ground);
            set.arg("set").arg("--admin").arg(admin(ground));
            if !SET_KEYS.contains(&key.as_str()) {
                set.arg(VOLUME);
            }
            output(set.arg(format!("{key}={value}")))?;
        }
        Ok(daemon)
    }

    /// Where clients find it.
    pub(super) fn uri(ground: &Ground<'_>) -> String {
        uri(VOLUME, &socket(ground))
    }

    /// Ends it, as a crash would with `how` [`Server::kill`], and serves again.
    pub(super) fn again(
        self,
        ground: &Ground<'_>,
        how: fn(Server) -> Result<(), RealError>,
    ) -> Result<Daemon, RealError> {
        let counted_before = self.counts(ground)?;
        let cpu_before_s = self.cpu_s()?;
        let Daemon { server, cache, .. } = self;
        how(server)?;
        let server = serve(ground, &cache)?;
        let daemon = Daemon { server, cache, cpu_before_s, counted_before };
        wait_until_it_serves(ground)?;
        Ok(daemon)
    }

    /// Ends it in order.
    pub(super) fn end(self) -> Result<(), RealError> {
        self.server.stop()
    }

    /// An error if it has ended.
    pub(super) fn check(&mut self) -> Result<(), RealError> {
        self.server.check()
    }

    /// Processor time so far, in seconds.
    pub(super) fn cpu_s(&self) -> Result<f64, RealError> {
        Ok(self.cpu_before_s + self.server.cpu_s()?)
    }

    /// What it did so far, and holds now.
    pub(super) fn counts(&self, ground: &Ground<'_>) -> Result<CacheCounts, RealError> {
        let Status { cache_set, exports, .. } = status_of(ground, &admin(ground))?;
        let export = exports.first().ok_or_else(|| RealError::Status("no export".to_owned()))?;
        let volume = &export.volume.counters;
        let before = self.counted_before;
        Ok(CacheCounts {
            read_hit_bytes: before.read_hit_bytes + volume.read_hit_bytes,
            read_miss_bytes: before.read_miss_bytes + volume.read_miss_bytes,
            write_bytes: before.write_bytes + volume.write_bytes,
            promoted_bytes: before.promoted_bytes + cache_set.counters.promoted_bytes,
            relocated_bytes: before.relocated_bytes + cache_set.counters.relocated_bytes,
            cache_written_bytes: before.cache_written_bytes
                + cache_set.counters.cache_written_bytes,
            cached_bytes: cache_set.cached_bytes,
            dirty_bytes: cache_set.dirty_bytes,
        })
    }
}

/// It takes connections before it has recovered.
fn wait_until_it_serves(ground: &Ground<'_>) -> Result<(), RealError> {
    while status_of::<Status>(ground, &admin(ground))?.state != "serving" {
        ground.interrupt.check()?;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

fn serve(ground: &Ground<'_>, cache: &Path) -> Result<Server, RealError> {
    let socket = socket(ground);
    let mut command = server(ground);
    command.arg(cache);
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    command.arg("--admin").arg(admin(ground));
    command.arg("--state-dir").arg(ground.folder.join("state"));
    let log = ground.folder.join("forebay.log");
    Server::start(command, Ready::Socket(&socket), &log, ground.interrupt)
}

/// Its admin socket.
pub(super) fn admin(ground: &Ground<'_>) -> PathBuf {
    ground.sockets.join("admin")
}

fn socket(ground: &Ground<'_>) -> PathBuf {
    ground.sockets.join("nbd")
}
