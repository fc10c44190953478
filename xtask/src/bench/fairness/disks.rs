//! Hits over vhost-user: two virtual machines in miniature, each with a disk of its own of one set,
//! since a volume has one writable front end. All of it lies in RAM, so that what the two compete
//! for is the thread that serves them.

use std::path::Path;

use super::{HIT_BYTES, SECONDS, SIZES, Sample, Work, answered};
use crate::bench::fio::{self, Figures, Job};
use crate::bench::forebay::{self, Order, Set, VOLUME};
use crate::bench::slow::Bench;
use crate::bench::vhost_user::client::{self, Client};

/// Both together have what clients of one volume read.
pub(in super::super) const VOLUME_BYTES: u64 = HIT_BYTES / 2;
/// Bytes that the RAM file system must have room for, beside what else is there.
const RAM_BYTES: u64 = SIZES.cache_bytes / 4 * 5 + 2 * VOLUME_BYTES;
const OTHER_VOLUME: &str = "other";

/// Bytes that the RAM file system must have room for, for all that is done there.
pub(in super::super) fn ram_bytes() -> u64 {
    SIZES.ram_bytes() + RAM_BYTES
}

/// Both at once, on a set that is made anew and holds both volumes whole.
pub(super) fn sample(bench: Bench<'_>, client: &Client) -> anyhow::Result<Sample> {
    let Bench { program, ram, .. } = bench;
    let cache = ram.path("disks.img");
    let origin = ram.file("one.img", VOLUME_BYTES)?;
    let (bytes, order) = (SIZES.cache_bytes, Order::Coalescing);
    let set = Set { cache: &cache, origin: &origin, bytes, order };
    program.make_set(set)?;
    program.attach(set, OTHER_VOLUME, &ram.file("other.img", VOLUME_BYTES)?)?;
    let daemon = program.serve(&cache, ram)?;
    for volume in [VOLUME, OTHER_VOLUME] {
        let uri = forebay::uri(volume, &daemon.socket);
        fio::run_over_nbd(&Work::HitsOverVhostUser.fill(), &uri, ram.folder())?;
    }
    daemon.server.stop()?;
    let sockets = [ram.path("one.sock"), ram.path("other.sock")];
    let disks = [(VOLUME, &*sockets[0]), (OTHER_VOLUME, &*sockets[1])];
    let daemon = program.serve_vhost_user(&cache, ram, &disks)?;
    program.reset_counters(&daemon)?;
    let clients = both(client, [&sockets[0], &sockets[1]])?;
    let [hits, all] = answered(program, &daemon)?;
    daemon.server.kill()?;
    Ok(Sample { clients, hit_ratio: hits as f64 / all.max(1) as f64 })
}

/// Runs two clients at once, each at a socket of its own.
fn both(client: &Client, sockets: [&Path; 2]) -> anyhow::Result<[Figures; 2]> {
    let Job { depth, .. } = Work::HitsOverVhostUser.job(SECONDS);
    let run = |socket| client::run(client.over_vhost_user(socket, depth, SECONDS));
    let [one, other] = sockets;
    let (one, other) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| run(other));
        (run(one), beside.join().expect("it does not panic"))
    });
    Ok([one?.into(), other?.into()])
}
