//! What the real daemon wrote, replayed: every prefix of it goes through recovery.
//!
//! The daemon serves volumes in several modes while clients write, flush, discard, and an operator
//! changes modes and drains; `--record-writes` writes down what it does. Then it is killed. Nothing
//! of the daemon is left to chance afterwards: the recording is replayed with the engine alone.
//!
//! A recording that showed a violation is kept, with the devices as they were before;
//! `FOREBAY_RECORDING=DIR` replays it instead of making another one.

mod alarm;
mod images;
mod judge;
mod load;
mod replay;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device_model::Random;
use forebay_engine::format::superblock::Geometry;
use forebay_engine::io::IoResult;
use forebay_engine::request::Durability;
use forebay_host::recording::{Entry, Operation, RecordingReader, Tail};
use forebay_sim::fuzz::machine::{Media, read_superblock};

use self::load::Load;
use self::replay::{Extent, Recording, Tally, Violation};
use crate::client::NbdClient;
use crate::support::{Scratch, rounds};

/// Sizes of the origins of `volume-0`, ..., and modes at the start. Small, so that all of it can be
/// read often.
const VOLUMES: [(u64, &str); 3] =
    [(6 << 20, "writeback"), (3 << 20, "writethrough"), (3 << 20, "writeback")];
/// The volume that stays in writethrough.
const WRITETHROUGH: usize = 1;
/// Less than the volumes have, so that segments must be reclaimed.
const CACHE_SIZE: &str = "8M";
const SEGMENT_SIZE: &str = "256K";
/// What the operator does to `volume-2`.
const COMMANDS: [&[&str]; 8] = [
    &["set", "volume-2", "cache_mode=writethrough"],
    &["set", "volume-2", "cache_mode=writeback"],
    &["drain", "volume-2"],
    &["set", "volume-2", "cache_mode=writearound"],
    &["set", "volume-2", "cache_mode=writeonly"],
    &["set", "volume-2", "cache_mode=passthrough"],
    &["invalidate", "volume-2"],
    &["set", "volume-2", "cache_mode=writeback"],
];
/// Answers between two commands, and after the last one.
const ANSWERS: u64 = 120;
/// How long they may take: far more than they do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Places of an ordinary run; a long one has them all.
const PLACES: usize = 100;
const RECORDING: &str = "writes.recording";

fn device_files(volumes: usize) -> impl Iterator<Item = String> {
    let origins = (0..volumes).map(|index| format!("origin-{index}.img"));
    std::iter::once("cache.img".to_owned()).chain(origins)
}

/// Formats and attaches; the origins are full of bytes that no client writes.
fn prepare(scratch: &Scratch, volumes: &[(u64, &str)]) {
    let format = ["format", "cache.img", "--size", CACHE_SIZE, "--segment-size", SEGMENT_SIZE];
    scratch.run(&format).expect(0);
    for (index, (bytes, mode)) in volumes.iter().enumerate() {
        let mut random = Random::new(index as u64);
        let words = (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes());
        let origin = format!("origin-{index}.img");
        fs::write(scratch.path(&origin), words.collect::<Vec<u8>>()).unwrap();
        let name = format!("volume-{index}");
        let attach = ["attach", "cache.img", &origin, "--name", &name, "--cache-mode", mode];
        scratch.run(&attach).expect(0);
    }
}

fn read_devices(files: impl Iterator<Item = PathBuf>) -> Media {
    let mut all = files
        .map(|path| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    Media { cache: all.next().unwrap(), origins: all.collect(), written: Vec::new() }
}

fn wait_for(answered: &AtomicU64, wanted: u64) {
    let started = Instant::now();
    while answered.load(Ordering::Relaxed) < wanted {
        assert!(started.elapsed() < PATIENCE, "{wanted} requests take more than {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Where a copy of each device is as it was before.
fn bases(directory: &Path) -> impl Iterator<Item = PathBuf> {
    device_files(VOLUMES.len()).map(|name| directory.join(format!("base-{name}")))
}

/// The daemon at work, until it is killed. Leaves the recording, and copies of the devices as they
/// were before.
fn record(scratch: &Scratch) {
    prepare(scratch, &VOLUMES);
    for (name, base) in device_files(VOLUMES.len()).zip(bases(&scratch.path(""))) {
        fs::copy(scratch.path(&name), base).unwrap();
    }
    let server = scratch.serve_what(&["cache.img", "--record-writes", RECORDING]);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        for (seed, volume) in (1..).zip([0, 0, 1, 2]) {
            let client = NbdClient::connect(&server.socket, &format!("volume-{volume}")).unwrap();
            let answered = &answered;
            scope.spawn(move || Load::new(client, seed).run(answered));
        }
        for (command, turn) in COMMANDS.iter().zip(1..) {
            wait_for(&answered, turn * ANSWERS);
            scratch.run(command).expect(0);
        }
        wait_for(&answered, answered.load(Ordering::Relaxed) + ANSWERS);
        server.kill();
    });
}

fn read_recording(path: &Path) -> (Vec<Entry>, Tail) {
    let mut reader = RecordingReader::open(path).unwrap();
    let entries = reader.by_ref().map(|entry| entry.unwrap()).collect();
    (entries, reader.tail().unwrap())
}

/// Asserts that the recording has what the replay is for.
fn assert_rich(recording: &Recording) {
    let Geometry { checkpoint_offset, segments_offset, copy_offset, .. } =
        read_superblock(&recording.base.cache).unwrap().geometry;
    let mut checkpoints = 0;
    let mut rewritten = 0;
    let mut seen = std::collections::HashSet::new();
    let mut requests = [0; 5];
    for entry in &recording.entries {
        match entry {
            Entry::Begin { device: 0, operation: Operation::Write { offset_bytes, .. } } => {
                if (checkpoint_offset..segments_offset).contains(offset_bytes) {
                    checkpoints += 1;
                } else if (segments_offset..copy_offset).contains(offset_bytes)
                    && !seen.insert(*offset_bytes)
                {
                    rewritten += 1;
                }
            }
            Entry::Request { operation, durability, .. } => {
                requests[match operation {
                    Operation::Write { .. } => 0,
                    Operation::WriteZeroes { .. } => 1,
                    Operation::Discard { .. } => 2,
                    Operation::Flush => 3,
                }] += 1;
                requests[4] += u32::from(*durability == Durability::ForcedUnitAccess);
            }
            _ => {}
        }
    }
    println!("{checkpoints} checkpoints, {rewritten} log places written again, {requests:?}");
    // One is written at the start, and several between.
    assert!(checkpoints >= 5, "{checkpoints} checkpoints");
    assert!(rewritten >= 5, "no segment was used again: {rewritten}");
    assert!(requests.iter().all(|count| *count >= 10), "{requests:?}");
}

/// Keeps what is needed to see a violation again, and tells of it.
fn fail(directory: &Path, violation: &Violation) -> ! {
    let kept = std::env::temp_dir().join(format!("forebay-recording-{}", std::process::id()));
    fs::create_dir_all(&kept).unwrap();
    for (from, to) in bases(directory).zip(bases(&kept)) {
        fs::copy(from, to).unwrap();
    }
    fs::copy(directory.join(RECORDING), kept.join(RECORDING)).unwrap();
    let Violation { entries, crash, fate, text } = violation;
    panic!(
        "after {entries} entries, {crash:?}, {fate:?} of what was under way: {text}\n  again: \
         FOREBAY_RECORDING={} FOREBAY_TEST_LONG=1 cargo test -p forebay-cli --test cli recorded",
        kept.display()
    );
}

fn replay(directory: &Path, recording: &Recording) -> Tally {
    let places = recording.place_count();
    let stride = if rounds(0, 1) == 1 { 1 } else { places.div_ceil(PLACES) };
    let tally = match recording.replay(Extent { stride, seed: 1 }) {
        Ok(Ok(tally)) => tally,
        Ok(Err(violation)) => fail(directory, &violation),
        Err(error) => panic!("the recording cannot be replayed: {error}"),
    };
    println!("{} entries, {places} places: {tally:?}", recording.entries.len());
    tally
}

#[test]
fn a_recording_is_made_in_a_new_file() {
    let scratch = Scratch::new();
    scratch.file("disk", 1 << 20);
    let nbd = format!("unix:{}", scratch.path("client.nbd").display());
    let serve = ["serve", "--bare", "vol=disk", "--nbd", &nbd, "--record-writes", "disk"];
    scratch.run(&serve).expect(1).says("--record-writes names a new file");
    let server = scratch.serve_what(&["--bare", "vol=disk", "--record-writes", RECORDING]);
    let mut client = server.client();
    client.write(4096, &[7; 512]).unwrap();
    client.flush().unwrap();
    drop(client);
    assert_eq!(server.terminate(), Some(0));
    let (entries, tail) = read_recording(&scratch.path(RECORDING));
    assert_eq!(tail, Tail::Whole);
    let write = Operation::Write { offset_bytes: 4096, data: vec![7; 512] };
    let count = |wanted: &Operation| {
        let (mut requests, mut begins) = (0, 0);
        for entry in &entries {
            match entry {
                Entry::Request { operation, .. } if operation == wanted => requests += 1,
                Entry::Begin { operation, .. } if operation == wanted => begins += 1,
                _ => {}
            }
        }
        (requests, begins)
    };
    assert_eq!((count(&write), count(&Operation::Flush)), ((1, 1), (1, 1)));
}

#[test]
fn every_prefix_of_what_was_written_recovers() {
    let scratch = Scratch::new();
    let kept = std::env::var_os("FOREBAY_RECORDING").map(PathBuf::from);
    let directory = kept.clone().unwrap_or_else(|| scratch.path(""));
    if kept.is_none() {
        record(&scratch);
    }
    let (entries, tail) = read_recording(&directory.join(RECORDING));
    println!("the recording ends {tail:?}");
    let base = read_devices(bases(&directory));
    let recording = Recording { base, entries, writethrough: vec![WRITETHROUGH] };
    if kept.is_none() {
        assert_rich(&recording);
        // Nothing was written that is not in it.
        let files = device_files(VOLUMES.len()).map(|name| scratch.path(&name));
        recording.compare(&read_devices(files)).unwrap();
    }
    let tally = replay(&directory, &recording);
    assert!(tally.deaths > tally.places, "nothing was under way anywhere: {tally:?}");
    assert!(tally.power_cuts > tally.places, "everything was durable everywhere: {tally:?}");
}
