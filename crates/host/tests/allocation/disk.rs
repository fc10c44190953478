//! A whole shard: devices, engine and the front end of virtual machines, whose thread is counted. A
//! guest in miniature reads what is cached.
//!
//! Deliberately not counted: the guest, which is no part of the product, and how lists grow. A list
//! of the shard keeps the room for the most that it had at once, so before anything is counted more
//! is under way at once than later.

#[path = "../../../cli/tests/cli/vhost_user/peer.rs"]
#[allow(dead_code, reason = "each test target uses its part of the guest")]
mod peer;
#[path = "../harness/mod.rs"]
mod server;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_host::offline::{FormatOptions, create_cache_file, format};
use forebay_host::set::{OpenedSet, SetOptions};
use forebay_host::{
    AdminCommand, DeviceSpec, Shard, ShardHandle, ShardOptions, Signatures, VhostUserOptions,
};

use peer::{Guest, READ, SLOTS};
use server::{RawClient, Server, filled_file};

use super::{ALLOCATIONS, COUNTS};

const CACHE_BYTES: u64 = 64 << 20;
/// All of the origin is read again and again.
const ORIGIN_BYTES: usize = 4 << 20;
const PIECE_BYTES: usize = 64 << 10;
const SECTOR_BYTES: u64 = 512;
/// Rounds of as many requests as the queue has room for, before anything is counted.
const ROUNDS_BEFORE: u64 = 100;
/// Rounds of this many requests, later.
const ROUNDS: u64 = 2_000;
const DEPTH: u16 = 4;
/// Lengths of requests, one after the other.
const LENGTHS: [u64; 3] = [4096, 16_384, 32_768];

/// A set with a volume that is cached as a whole, and clean.
fn cached_set(directory: &Path) -> (OpenedSet, Vec<u8>) {
    let (cache, origin) = (directory.join("cache"), directory.join("origin"));
    create_cache_file(&cache, CACHE_BYTES, &mut |_| {}).unwrap();
    let content = filled_file(&origin, ORIGIN_BYTES);
    let options = FormatOptions {
        label: "test".into(),
        segment_bytes: None,
        signatures: Signatures::Respect,
        set_id: [0x5e; 16],
    };
    let cache = DeviceSpec::plain(&cache);
    format(&cache, &options).unwrap();
    let open = || OpenedSet::open(&cache, &SetOptions { state_directory: directory.join("state") });
    let server = Server::start(directory, Some(open().unwrap()), Vec::new());
    server.handle.serving_wait().unwrap();
    let attach = AdminCommand::Attach {
        name: "home".into(),
        origin: DeviceSpec::plain(&origin),
        mode: CacheMode::Writethrough,
        order: WritebackOrder::Coalescing,
        logical_block_bytes: 512,
        settings: Box::default(),
    };
    server.handle.command_wait(attach).unwrap();
    let mut client = RawClient::connect(&server.socket, "home");
    // In no order, so that no stream is seen that would bypass the cache.
    let pieces = ORIGIN_BYTES / PIECE_BYTES;
    for piece in 0..pieces {
        let offset = piece * 7 % pieces * PIECE_BYTES;
        client.write(offset as u64, &content[offset..][..PIECE_BYTES]).unwrap();
    }
    drop(client);
    server.stop().unwrap();
    (open().unwrap(), content)
}

/// Bytes of hits and of misses.
fn answered(handle: &ShardHandle) -> (u64, u64) {
    let status = handle.status_wait().unwrap();
    let counters = &status.exports[0].volume.as_ref().unwrap().counters;
    (counters.read_hit_bytes, counters.read_miss_bytes)
}

/// Reads with so many slots at once, the next time when all have ended. Returns the sum of bytes.
fn read_rounds(guest: &mut Guest, slots: u16, rounds: u64) -> u64 {
    let mut bytes = 0;
    for round in 0..rounds {
        for slot in 0..slots {
            let request = round * u64::from(slots) + u64::from(slot);
            let length = LENGTHS[(request % 3) as usize];
            let offset = request * 40_503 * 4096 % (ORIGIN_BYTES as u64 - length) / 4096 * 4096;
            guest.submit(0, slot, READ, offset / SECTOR_BYTES, length as u32);
            bytes += length;
        }
        guest.kick(0);
        let ended = guest.wait_for_some(0, slots.into());
        assert!(ended.iter().all(|(_, status)| *status == 0));
    }
    bytes
}

#[test]
fn a_hit_of_a_virtual_machine_allocates_nothing() {
    static OF_SHARD: AtomicU64 = AtomicU64::new(0);
    let directory = tempfile::tempdir().unwrap();
    let (set, content) = cached_set(directory.path());
    let socket = directory.path().join("disk.sock");
    let disk = VhostUserOptions { name: "home".into(), path: socket.clone() };
    let options = ShardOptions { vhost_user: vec![disk], ..ShardOptions::default() };
    let shard = Shard::new(options, Some(set), Vec::new()).unwrap();
    let handle = shard.handle();
    let thread = std::thread::spawn(move || {
        ALLOCATIONS.set(Some(&OF_SHARD));
        COUNTS.set(true);
        shard.run()
    });
    handle.serving_wait().unwrap();
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    read_rounds(&mut guest, SLOTS, ROUNDS_BEFORE);
    let before = answered(&handle);
    let allocations_before = OF_SHARD.load(Ordering::Relaxed);
    assert!(allocations_before > 0, "a shard that starts allocates, so this counts nothing");
    let bytes = read_rounds(&mut guest, DEPTH, ROUNDS);
    let allocations = OF_SHARD.load(Ordering::Relaxed) - allocations_before;
    assert_eq!(answered(&handle), (before.0 + bytes, before.1), "all were hits");
    assert_eq!(allocations, 0, "in {} requests", ROUNDS * u64::from(DEPTH));
    assert_eq!(guest.request(READ, 8, 4096), 0);
    assert!(guest.data(0, 0, 4096) == content[4096..8192]);
    drop(guest);
    handle.command_wait(AdminCommand::Stop).unwrap();
    thread.join().unwrap().unwrap();
}
