//! The replay finds what it is there to find: recordings in which something was left out, or comes
//! in another order, are violations.

use super::*;

/// Blocks that are written and flushed, one after the other.
const BLOCKS: u64 = 12;

const VOLUME: (u64, &str) = (256 << 10, "writeback");

/// One client that waits for each answer: writes, a flush after every third, then the kill.
fn record_in_order() -> Recording {
    let scratch = Scratch::new();
    prepare(&scratch, &[VOLUME]);
    let base = read_devices(device_files(1).map(|name| scratch.path(&name)));
    let server = scratch.serve_what(&["cache.img", "--record-writes", RECORDING]);
    let mut client = NbdClient::connect(&server.socket, "volume-0").unwrap();
    for block in 0..BLOCKS {
        client.write(block * 4096, &[block as u8 + 1; 4096]).unwrap();
        if block % 3 == 2 {
            client.flush().unwrap();
        }
    }
    server.kill();
    let (entries, _) = read_recording(&scratch.path(RECORDING));
    Recording { base, entries, writethrough: Vec::new() }
}

fn every_place(recording: &Recording) -> Result<Tally, Box<Violation>> {
    recording.replay(Extent { stride: 1, seed: 1 }).unwrap()
}

/// The entry of the operation on the cache device that brought this block into the log.
fn write_of(recording: &Recording, block: u64) -> usize {
    let content = [block as u8 + 1; 4096];
    let holds = |entry: &Entry| match entry {
        Entry::Begin { device: 0, operation: Operation::Write { data, .. } } => {
            data.chunks_exact(4096).any(|piece| piece == content)
        }
        _ => false,
    };
    recording.entries.iter().position(holds).expect("it was written to the log")
}

fn end_of(recording: &Recording, begin: usize) -> usize {
    let is_end =
        |entry: &Entry| matches!(entry, Entry::End { begin: other, .. } if *other == begin as u64);
    recording.entries.iter().position(is_end).expect("it has ended")
}

fn is_flush_of_cache(entry: &Entry) -> bool {
    matches!(entry, Entry::Begin { device: 0, operation: Operation::Flush })
}

/// The first answer behind an entry.
fn answer_after(recording: &Recording, index: usize) -> usize {
    let is_answer = |entry: &Entry| matches!(entry, Entry::Answer { .. });
    index + recording.entries[index..].iter().position(is_answer).expect("there is one")
}

/// An operation that does nothing takes the place of one, so that all others keep their numbers.
fn leave_out(recording: &mut Recording, begin: usize) {
    let Entry::Begin { operation, .. } = &mut recording.entries[begin] else {
        panic!("entry {begin} is no begin");
    };
    *operation = Operation::Discard { offset_bytes: 0, length_bytes: 0 };
}

#[track_caller]
fn assert_found(recording: &Recording, crashes: &[judge::Crash], what: &str) {
    let violation = every_place(recording).expect_err(what);
    println!("{what}: {violation:?}");
    assert!(crashes.contains(&violation.crash), "{what}: {violation:?}");
    assert!(violation.text.contains("volume 0"), "{what}: {violation:?}");
}

#[test]
fn changed_recordings_are_violations() {
    use judge::Crash::{Death, PowerCut};
    let recording = record_in_order();
    every_place(&recording).expect("nothing was changed");
    let again = || Recording {
        base: recording.base.clone(),
        entries: recording.entries.clone(),
        writethrough: Vec::new(),
    };

    let mut lost = again();
    let write = write_of(&lost, BLOCKS - 2);
    leave_out(&mut lost, write);
    assert_found(&lost, &[Death, PowerCut], "a flushed write that is lost");

    let mut unflushed = again();
    let flushes = unflushed.entries.iter().enumerate();
    let flushes = flushes.filter(|(_, entry)| is_flush_of_cache(entry)).map(|(index, _)| index);
    let behind = write_of(&unflushed, BLOCKS - 1);
    let after: Vec<usize> = flushes.filter(|flush| *flush > behind).collect();
    assert!(!after.is_empty(), "the last block was flushed");
    after.into_iter().for_each(|flush| leave_out(&mut unflushed, flush));
    assert_found(&unflushed, &[PowerCut], "a flush that is left out");

    let mut early = again();
    let end = end_of(&early, write_of(&early, 4));
    let answer = answer_after(&early, end);
    early.entries.swap(end, answer);
    assert_found(&early, &[Death], "a write that is answered before its record has ended");

    let mut early = again();
    let last = write_of(&early, BLOCKS - 1);
    let flush = last + early.entries[last..].iter().position(is_flush_of_cache).unwrap();
    let end = end_of(&early, flush);
    let answer = answer_after(&early, end);
    early.entries.swap(end, answer);
    assert_found(&early, &[PowerCut], "a flush that is answered before it has ended");

    let mut rotten = again();
    let write = write_of(&rotten, 1);
    if let Entry::Begin { operation: Operation::Write { data, .. }, .. } =
        &mut rotten.entries[write]
    {
        *data.last_mut().unwrap() ^= 1;
    }
    assert_found(&rotten, &[Death, PowerCut], "a bit that has flipped on its way");
}

#[test]
fn a_recording_of_failed_operations_is_refused() {
    let mut recording = record_in_order();
    let end = end_of(&recording, write_of(&recording, 0));
    let Entry::End { result, .. } = &mut recording.entries[end] else { panic!("an end") };
    let failed: IoResult = Err(forebay_engine::io::IoError::Media);
    *result = failed;
    let error = recording.replay(Extent { stride: usize::MAX, seed: 1 }).unwrap_err();
    assert!(error.contains("failed"), "{error}");
}
