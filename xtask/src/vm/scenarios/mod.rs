//! What is tried in guests. A scenario is a file here, its disks, and a script in `xtask/vm`.

mod boot;
mod fsx;
mod nbd;
mod nbd_kill;
mod power_cut;
mod record;
mod takeover;
mod ublk;
mod up;
mod vhost_user;

use super::disk::{Disk, Speed};
use super::stage::Stage;

/// One scenario.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What it shows, for `--list`.
    pub(crate) about: &'static str,
    pub(crate) system: System,
    pub(crate) disks: &'static [Disk],
    /// Boots guests and has them run scripts, which say what they find. An error counts as a
    /// failure of the scenario.
    pub(crate) run: fn(&mut Stage<'_>) -> anyhow::Result<()>,
}

/// What a guest of a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum System {
    /// The first file system alone, with busybox.
    Busybox,
    /// The same with tools of the kernel's caches.
    KernelCaches,
    /// The same with perf, and with names of functions in the program under test.
    Profiled,
    /// A small system of the distribution with systemd, on a disk of its own that outlives boots.
    Systemd,
}

/// All scenarios, in the order in which they run.
pub(crate) const ALL: &[Scenario] = &[
    nbd::SCENARIO,
    nbd_kill::SCENARIO,
    power_cut::SCENARIO,
    ublk::SCENARIO,
    takeover::SCENARIO,
    fsx::SCENARIO,
    record::SCENARIO,
    up::SCENARIO,
    vhost_user::SCENARIO,
    boot::SCENARIO,
];

/// A cache device that holds all that a scenario writes.
const CACHE: Disk = Disk { name: "cache", bytes: 256 << 20, speed: Speed::Memory };
/// An origin that is slow enough to leave dirty data on the cache device, and fast enough that a
/// drain takes seconds.
const ORIGIN: Disk = Disk {
    name: "origin",
    bytes: 512 << 20,
    speed: Speed::Throttled { requests_per_second: 500, bytes_per_second: 150_000_000 },
};
