//! Volumes as disks of virtual machines: a guest in miniature against the real binary.

mod peer;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::NbdClient;
use crate::fuse::has_fuse;
use crate::origin_stalls;
use crate::support::{Scratch, Server, rounds};
use peer::{
    DATA_BYTES_MAX, DISCARD, FEATURE_EVENT_INDEX, FLUSH, GET_ID, Guest, READ, SLOTS, WRITE,
    WRITE_ZEROES,
};

const OK: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// How long a guest may wait for an answer: far longer than a takeover.
const PATIENCE: Duration = Duration::from_secs(60);

fn served(scratch: &Scratch, mode: &str) -> (Server, PathBuf) {
    scratch.cache_with_volume(mode);
    (serve(scratch), scratch.path("disk.sock"))
}

fn serve(scratch: &Scratch) -> Server {
    scratch.serve_what(&["cache.img", "--vhost-user", "vol=disk.sock"])
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[track_caller]
fn assert_reads(guest: &mut Guest, sector: u64, expected: &[u8]) {
    guest.set_data(0, 0, &vec![0xcc; expected.len()]);
    assert_eq!(guest.request(READ, sector, expected.len() as u32), OK);
    assert!(guest.data(0, 0, expected.len()) == expected, "sector {sector}");
}

#[test]
fn a_guest_reads_and_writes_its_disk() {
    for features_unknown in [0, FEATURE_EVENT_INDEX] {
        let scratch = Scratch::new();
        let (server, socket) = served(&scratch, "writeback");
        assert!(server.uri.starts_with("vhost-user:/"), "{}", server.uri);
        let mut guest = Guest::new(1, features_unknown);
        guest.connect(&socket);
        let config = guest.config();
        assert_eq!(config[..8], (64u64 << 20 >> 9).to_le_bytes());
        assert_eq!(config[20..24], 512u32.to_le_bytes());
        let text: Vec<u8> = (0..DATA_BYTES_MAX).map(|byte| (byte / 7) as u8).collect();
        guest.set_data(0, 0, &text);
        assert_eq!(guest.request(WRITE, 9, text.len() as u32), OK);
        assert_eq!(guest.request(FLUSH, 0, 0), OK);
        assert_reads(&mut guest, 9, &text);
        assert_reads(&mut guest, 10, &text[512..1024]);
        guest.set_data(0, 0, &range(8, 16, 1));
        assert_eq!(guest.request(WRITE_ZEROES, 0, 16), OK);
        assert_reads(&mut guest, 8, &[0; 16 * 512]);
        assert_reads(&mut guest, 24, &text[15 * 512..]);
        guest.set_data(0, 0, &range(64, 64, 0));
        assert_eq!(guest.request(DISCARD, 0, 16), OK);
        assert_eq!(guest.request(GET_ID, 0, 20), OK);
        assert!(guest.data(0, 0, 20).starts_with(b"forebay-"));
        assert_eq!(server.terminate(), Some(0));
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_the_rest_goes_on() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writethrough");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    let end = (64u64 << 20) >> 9;
    assert_eq!(guest.request(READ, end, 512), FAILED);
    assert_eq!(guest.request(READ, end - 1, 1024), FAILED);
    assert_eq!(guest.request(READ, u64::MAX, 512), FAILED);
    assert_eq!(guest.request(WRITE, 0, 511), FAILED);
    assert_eq!(guest.request(77, 0, 512), UNSUPPORTED);
    guest.set_data(0, 0, &range(0, 8, 1));
    assert_eq!(guest.request(DISCARD, 0, 16), UNSUPPORTED);
    assert_eq!(guest.request(DISCARD, 0, 15), UNSUPPORTED);
    assert_eq!(guest.request(READ, end - 1, 512), OK);
    let log = server.log();
    assert_eq!(log.matches("outside of the volume").count(), 1, "{log}");
    assert_eq!(server.terminate(), Some(0));
}

/// A front end that asks again, which those with a channel for it are told to do, sees a new size;
/// requests go as far as that at once.
#[test]
fn a_disk_that_grows_takes_requests_up_to_its_new_end() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writeback");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    let (old_end, new_end) = ((64u64 << 20) >> 9, (80u64 << 20) >> 9);
    assert_eq!(guest.request(READ, old_end, 512), FAILED);
    let origin = std::fs::File::options().write(true).open(scratch.path("origin.img")).unwrap();
    origin.set_len(new_end << 9).unwrap();
    let resized = scratch.run(&["resize", "vol", "--json"]).expect(0).json();
    let client = &resized["clients"][0];
    assert!(client["client"].as_str().unwrap().ends_with("disk.sock"), "{resized}");
    // This one has no such channel.
    assert_eq!(client["sees_size"], "after_reconnect");
    assert_eq!(guest.config()[..8], new_end.to_le_bytes());
    guest.set_data(0, 0, &[5; 4096]);
    assert_eq!(guest.request(WRITE, old_end, 4096), OK);
    assert_eq!(guest.request(READ, new_end, 512), FAILED);
    server.kill();
    let server = serve(&scratch);
    guest.connect(&socket);
    assert_eq!(guest.config()[..8], new_end.to_le_bytes());
    assert_reads(&mut guest, old_end, &[5; 4096]);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn several_queues_have_many_requests_under_way() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writeback");
    let mut guest = Guest::new(3, 0);
    guest.connect(&socket);
    for queue in 0..3 {
        for slot in 0..SLOTS {
            guest.set_data(queue, slot, &[queue as u8 * 50 + slot as u8; 4096]);
            guest.submit(queue, slot, WRITE, sector_of(queue, slot), 4096);
        }
    }
    (0..3).for_each(|queue| guest.kick(queue));
    for queue in 0..3 {
        let ended = guest.wait(queue, SLOTS.into());
        assert!(ended.iter().all(|(_, status)| *status == OK));
    }
    for queue in 0..3 {
        for slot in 0..SLOTS {
            assert_reads(
                &mut guest,
                sector_of(queue, slot),
                &[queue as u8 * 50 + slot as u8; 4096],
            );
        }
    }
    assert_eq!(server.terminate(), Some(0));
}

fn sector_of(queue: usize, slot: u16) -> u64 {
    (queue as u64 * u64::from(SLOTS) + u64::from(slot)) * 8
}

/// Each round the server is killed with writes under way; they end once, at its successor.
#[test]
fn requests_in_flight_survive_the_death_of_the_server() {
    let scratch = Scratch::new();
    // Slow enough that a kill meets writes that have not ended.
    scratch.cache_with_volume_on("iops:200:origin.img", "writethrough");
    let socket = scratch.path("disk.sock");
    let mut guest = Guest::new(1, 0);
    let mut interrupted = 0;
    for round in 0..rounds(4, 40) as u8 {
        let server = serve(&scratch);
        guest.connect(&socket);
        for slot in 0..SLOTS {
            guest.set_data(0, slot, &[round.wrapping_mul(31).wrapping_add(slot as u8); 4096]);
            guest.submit(0, slot, WRITE, u64::from(slot) * 8, 4096);
        }
        guest.kick(0);
        let mut ended = guest.wait_for_some(0, usize::from(round % 4));
        server.kill();
        let server = serve(&scratch);
        interrupted += usize::from(SLOTS - guest.ended_count(0)) - ended.len();
        guest.connect(&socket);
        ended.extend(guest.wait(0, usize::from(SLOTS) - ended.len()));
        let mut slots: Vec<u16> = ended.iter().map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>(), "each once: {}", server.log());
        assert!(ended.iter().all(|(_, status)| *status == OK));
        for slot in 0..SLOTS {
            let expected = [round.wrapping_mul(31).wrapping_add(slot as u8); 4096];
            assert_reads(&mut guest, u64::from(slot) * 8, &expected);
        }
        assert!(guest.take_ended(0).is_empty());
        assert_eq!(server.terminate(), Some(0), "round {round}");
    }
    assert!(interrupted > 0, "no kill met a request");
}

/// Writes of a guest that never rests: one on each slot, each to a block of its own.
struct Writer {
    /// What is written last, for each slot.
    values: Vec<u8>,
    is_under_way: Vec<bool>,
    ended_count: u32,
    ended_last: Instant,
}

impl Writer {
    fn begin(guest: &mut Guest) -> Writer {
        let count = usize::from(SLOTS);
        let mut writer = Writer {
            values: vec![0; count],
            is_under_way: vec![false; count],
            ended_count: 0,
            ended_last: Instant::now(),
        };
        (0..SLOTS).for_each(|slot| writer.write(guest, slot));
        guest.kick(0);
        writer
    }

    fn write(&mut self, guest: &mut Guest, slot: u16) {
        let index = usize::from(slot);
        let value = self.values[index].wrapping_add(1);
        self.values[index] = value;
        self.is_under_way[index] = true;
        guest.set_data(0, slot, &[value; 4096]);
        guest.submit(0, slot, WRITE, sector_of(0, slot), 4096);
    }

    /// Takes what has ended. What ends twice is no longer under way.
    fn take_ended(&mut self, guest: &mut Guest) -> Vec<u16> {
        let ended = guest.take_ended(0);
        for (slot, status) in &ended {
            assert_eq!(*status, OK);
            let was_under_way = std::mem::take(&mut self.is_under_way[usize::from(*slot)]);
            assert!(was_under_way, "the request of slot {slot} ended twice");
        }
        if !ended.is_empty() {
            self.ended_last = Instant::now();
        }
        assert!(self.ended_last.elapsed() < PATIENCE, "nothing ends any more");
        self.ended_count += ended.len() as u32;
        ended.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Writes anew where something has ended.
    fn go_on(&mut self, guest: &mut Guest) {
        let ended = self.take_ended(guest);
        if ended.is_empty() {
            std::thread::yield_now();
            return;
        }
        ended.into_iter().for_each(|slot| self.write(guest, slot));
        guest.kick(0);
    }
}

/// How often the server has found requests that its predecessor took and did not answer.
fn done_again_count(server: &Server) -> usize {
    server.log().matches("requests are done again").count()
}

/// Each round the server is replaced while a guest writes without a rest. What was taken and not
/// answered is done again by the successor: each write ends once.
#[test]
fn requests_in_flight_survive_a_takeover() {
    let scratch = Scratch::new();
    let (mut server, socket) = served(&scratch, "writeback");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    let mut writer = Writer::begin(&mut guest);
    let mut again_count = 0;
    for round in 0..rounds(4, 40) {
        let enough = writer.ended_count + 10 * u32::from(SLOTS);
        while writer.ended_count < enough {
            writer.go_on(&mut guest);
        }
        // Writes have ended since it started its queue, so its log tells of that.
        again_count += done_again_count(&server);
        let is_over = AtomicBool::new(false);
        let successor = std::thread::scope(|scope| {
            scope.spawn(|| {
                let began = Instant::now();
                while !is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                    writer.go_on(&mut guest);
                }
            });
            // Here, since a server ends with the thread that started it.
            let options = ["--vhost-user", "vol=disk.sock"];
            let successor = scratch.take_over_at("client.nbd", &options);
            is_over.store(true, Ordering::Relaxed);
            successor
        });
        let predecessor = std::mem::replace(&mut server, successor);
        assert_eq!(predecessor.ended(), Some(0), "round {round}");
        // What it answered last.
        writer.go_on(&mut guest);
        guest.connect(&socket);
    }
    while writer.is_under_way.contains(&true) {
        writer.take_ended(&mut guest);
    }
    for slot in 0..SLOTS {
        assert_reads(&mut guest, sector_of(0, slot), &[writer.values[usize::from(slot)]; 4096]);
    }
    again_count += done_again_count(&server);
    assert!(again_count > 0, "no takeover met a request");
    assert_eq!(server.terminate(), Some(0));
}

/// The server stops in good order with requests in the ring, which wait for its successor.
#[test]
fn a_stop_leaves_in_the_ring_what_it_did_not_take() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writeback");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert_eq!(server.terminate(), Some(0));
    guest.set_data(0, 3, &[7; 512]);
    guest.submit(0, 3, WRITE, 5, 512);
    guest.kick(0);
    let server = serve(&scratch);
    guest.connect(&socket);
    assert_eq!(guest.wait(0, 1), [(3, OK)]);
    assert_reads(&mut guest, 5, &[7; 512]);
    assert_eq!(server.terminate(), Some(0));
}

/// The log is full of dirty data and the origin fails when the server stops: writes that wait for
/// room are not failed, but done by the successor.
#[test]
fn a_stop_leaves_writes_that_wait_for_room_to_the_next_server() {
    const BYTES: u32 = 64 << 10;
    if !has_fuse("a_stop_leaves_writes_that_wait_for_room_to_the_next_server") {
        return;
    }
    let scratch = Scratch::new();
    let origin = origin_stalls::volume(&scratch);
    let server = serve(&scratch);
    origin.begin_to_fail();
    let socket = scratch.path("disk.sock");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    // What each slot writes, from the first chunk of the disk to the last but one.
    let mut chunks: Vec<u64> = vec![0; SLOTS.into()];
    let (mut next, mut ended_last) = (0, Instant::now());
    let mut free: Vec<u16> = (0..SLOTS).collect();
    while ended_last.elapsed() < Duration::from_millis(200) {
        for slot in std::mem::take(&mut free) {
            chunks[usize::from(slot)] = next;
            guest.set_data(0, slot, &[next as u8; BYTES as usize]);
            guest.submit(0, slot, WRITE, next * u64::from(BYTES) / 512, BYTES);
            next += 1;
            ended_last = Instant::now();
        }
        guest.kick(0);
        for (slot, status) in guest.take_ended(0) {
            assert_eq!(status, OK);
            free.push(slot);
        }
        assert!(next < 1000, "the log is never full");
    }
    assert_eq!(server.terminate(), Some(0));
    let ended = guest.take_ended(0);
    assert!(ended.iter().all(|(_, status)| *status == OK), "{ended:?}");
    let waiting = usize::from(SLOTS) - ended.len();
    assert!(waiting > 0, "nothing waited for room");
    origin.end_to_fail();
    let server = serve(&scratch);
    guest.connect(&socket);
    assert!(guest.wait(0, waiting).iter().all(|(_, status)| *status == OK));
    for chunk in chunks {
        let expected = [chunk as u8; BYTES as usize];
        assert_reads(&mut guest, chunk * u64::from(BYTES) / 512, &expected);
    }
    assert_eq!(server.terminate(), Some(0));
}

/// Clients of NBD want more memory than there is, all the time; what is freed is not always theirs.
#[test]
fn a_guest_gets_memory_in_turn_with_clients_of_nbd() {
    const READ_BYTES: usize = 32 << 20;
    /// Two more than there is memory for.
    const CLIENTS: usize = 6;
    let scratch = Scratch::new();
    scratch.file("disk.img", 64 << 20);
    scratch.file("slow.img", READ_BYTES as u64);
    let bare = ["--bare", "vol=disk.img", "--bare", "slow=iops:4:slow.img"];
    let what = [&bare[..], &["--vhost-user", "vol=disk.sock"]].concat();
    let server = scratch.serve_what(&what);
    let mut guest = Guest::new(1, 0);
    guest.connect(&scratch.path("disk.sock"));
    let (is_over, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = NbdClient::connect(&server.socket, "slow").unwrap();
                let mut data = vec![0; READ_BYTES];
                let began = Instant::now();
                while !is_over.load(Ordering::Relaxed) && began.elapsed() < 2 * PATIENCE {
                    client.read(0, &mut data).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while reads.load(Ordering::Relaxed) < CLIENTS {
            std::thread::sleep(Duration::from_millis(10));
        }
        for _ in 0..3 {
            assert_reads(&mut guest, 0, &[0; 4096]);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_front_end_that_says_nothing_gives_way() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writeback");
    let silent = UnixStream::connect(&socket).unwrap();
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert!(server.log().contains("it says nothing"), "{}", server.log());
    drop(silent);
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_front_end_that_vanishes_makes_room_for_the_next() {
    let scratch = Scratch::new();
    scratch.cache_with_volume_on("iops:100:origin.img", "writethrough");
    let server = serve(&scratch);
    let socket = scratch.path("disk.sock");
    for round in 0..3u8 {
        let mut guest = Guest::new(1, 0);
        guest.connect(&socket);
        for slot in 0..SLOTS {
            guest.set_data(0, slot, &[round; 4096]);
            guest.submit(0, slot, WRITE, u64::from(slot) * 8, 4096);
        }
        guest.kick(0);
        guest.wait_for_some(0, 1);
        drop(guest);
    }
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    assert_reads(&mut guest, u64::from(SLOTS) * 8, &[0; 4096]);
    // While one is connected, another one is sent away.
    let second = vhost::vhost_user::Frontend::connect(&socket, 1).unwrap();
    assert!(vhost::VhostBackend::get_features(&second).is_err());
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert!(server.log().contains("a second front end was refused"), "{}", server.log());
    assert_eq!(server.terminate(), Some(0));
}

/// A ring is stopped and started again, as by a guest that reboots, and memory is shared anew.
#[test]
fn a_ring_stops_after_its_requests_and_starts_anew() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writethrough");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    for slot in 0..SLOTS {
        guest.submit(0, slot, WRITE, u64::from(slot) * 8, 4096);
    }
    guest.kick(0);
    let mut count = guest.wait_for_some(0, 1).len();
    let base = guest.stop(0);
    count += guest.take_ended(0).len();
    assert_eq!(usize::from(base), count, "all that were taken have ended");
    guest.restart(0, base);
    guest.kick(0);
    guest.wait_for_some(0, usize::from(SLOTS) - count);
    let front = guest.front_end.take().unwrap();
    guest.share_memory(&front);
    guest.front_end = Some(front);
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_volume_has_one_front_end_that_may_write() {
    let scratch = Scratch::new();
    let (server, _) = served(&scratch, "writeback");
    let refused = crate::client::NbdClient::connect(&server.socket, "vol");
    assert!(refused.is_err());
    scratch.run(&["detach", "vol"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
}

/// Detaches the volume as soon as the server has heard that its machine has gone.
fn detach_when_left(scratch: &Scratch) {
    let deadline = Instant::now() + PATIENCE;
    while scratch.run(&["detach", "vol"]).code != Some(0) {
        assert!(Instant::now() < deadline, "a machine is still connected");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The next volume takes the slot of the one that is gone, and no machine may come to it that was
/// given the other one's socket.
#[test]
fn a_volume_that_is_detached_takes_its_socket_along() {
    let scratch = Scratch::new();
    let (server, socket) = served(&scratch, "writeback");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    guest.set_data(0, 0, &[7; 4096]);
    assert_eq!(guest.request(WRITE, 0, 4096), OK);
    scratch.run(&["detach", "vol"]).expect(3);
    guest.front_end = None;
    detach_when_left(&scratch);
    scratch.file("other.img", 16 << 20);
    scratch.run(&["attach", "cache.img", "other.img", "--name", "other"]).expect(0);
    assert!(UnixStream::connect(&socket).is_err());
    assert_eq!(server.terminate(), Some(0));
}

/// While what is dirty goes home, which may take hours, no machine can have the volume.
#[test]
fn a_volume_that_is_being_detached_takes_no_machine() {
    let scratch = Scratch::new();
    scratch.cache_with_volume_on("iops:50:origin.img", "writeback");
    let server = serve(&scratch);
    let socket = scratch.path("disk.sock");
    let mut guest = Guest::new(1, 0);
    guest.connect(&socket);
    for sector in (0..200).map(|index| index * 512) {
        assert_eq!(guest.request(WRITE, sector, 4096), OK);
    }
    drop(guest);
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| detach_when_left(&scratch));
        std::thread::sleep(Duration::from_millis(1500));
        let front = vhost::vhost_user::Frontend::connect(&socket, 1).unwrap();
        let features = vhost::VhostBackend::get_features(&front);
        assert!(!detach.is_finished(), "nothing is left to be written home");
        assert!(features.is_err());
        detach.join().unwrap();
    });
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_cannot_be_served_is_told() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let serve = |arguments: &[&str]| {
        let mut all = vec!["serve", "cache.img", "--state-dir", "state"];
        all.extend_from_slice(arguments);
        scratch.run(&all)
    };
    serve(&["--vhost-user", "other=a.sock"]).expect(4).says("names are: vol");
    serve(&["--vhost-user", "vol=a.sock", "--vhost-user", "vol=b.sock"])
        .expect(2)
        .says("one writable front end at a time");
    serve(&["--vhost-user", "vol=a.sock", "--vhost-user", "other=./a.sock"])
        .expect(2)
        .says("`vol` and `other` cannot both be served at a.sock");
    serve(&["--vhost-user", "vol"]).expect(2).says("write NAME=PATH");
    serve(&["--vhost-user", "vol=origin.img"]).expect(3).says("no socket");
}
