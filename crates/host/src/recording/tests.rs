//! What was recorded is read as it was, and nothing else is.

use std::path::Path;

use forebay_engine::io::{IoError, IoId, IoKind, Slices};
use forebay_engine::request::{RequestError, RequestKind};

use super::*;
use crate::buffer_pool::{BufferPool, Owner};
use crate::device::{Access, DeviceTable, IoOwner, OpenedDevice, Recorder, Surroundings};
use crate::device_spec::DeviceSpec;
use crate::frontend::{ClientReply, ClientRequest, Served};
use crate::ring::Ring;
use crate::shard::MemoryOptions;
use crate::shard::exports::{ExportFacts, ExportTable, Target};
use forebay_engine::payload::BufferRange;
use forebay_engine::units::{Time, VolumeSlot};

fn read(path: &Path) -> (Vec<Entry>, Option<Tail>, Option<RecordingError>) {
    let mut reader = RecordingReader::open(path).unwrap();
    let (mut entries, mut error) = (Vec::new(), None);
    for entry in reader.by_ref() {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(other) => error = Some(other),
        }
    }
    (entries, reader.tail(), error)
}

/// Which field of which entry is wrong.
fn wrong_field(path: &Path) -> (usize, &'static str) {
    let (entries, tail, error) = read(path);
    assert_eq!(tail, None);
    match error {
        Some(RecordingError::Corrupt { field, expected, found, .. }) => {
            assert_ne!(expected, found);
            (entries.len(), field)
        }
        other => panic!("{other:?}"),
    }
}

/// A device in memory or not, and what it is asked for, through the device table.
fn record_some(path: &Path, disk: &Path) {
    std::fs::write(disk, vec![0; 1 << 20]).unwrap();
    let recorder = Box::new(Recorder::create(path).unwrap());
    let options = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
    let mut pool = BufferPool::new(options).unwrap();
    let mut ring = Ring::new().unwrap();
    let mut devices = DeviceTable::new(u64::MAX, Some(recorder));
    let opened = OpenedDevice::open_bare(&DeviceSpec::plain(disk), Access::ReadWrite).unwrap();
    let device = devices.add(&mut ring, opened).unwrap();

    let buffer = pool.allocate_for(Owner::Clients, 8192).unwrap();
    let range = BufferRange { buffer, offset: 0, length: 8192 };
    pool.slice_mut(range).fill(7);
    let facts = ExportFacts {
        name: "vol".into(),
        device: String::new(),
        size_bytes: 1 << 20,
        logical_block_bytes: 512,
        optimal_io_bytes: 0,
        is_read_only: false,
        is_rotational: false,
        identity: 0,
    };
    let mut exports = ExportTable::new();
    let export = exports.add(facts.clone(), Target::Volume(VolumeSlot(0)), None).unwrap();
    let durability = Durability::ForcedUnitAccess;
    let (offset_bytes, length_bytes) = (4096 + 512, 512);
    let kind = RequestKind::Write { buffer, durability };
    let request = ClientRequest { number: 3, export, offset_bytes, length_bytes, kind };
    devices.recorder().unwrap().request(&pool, &request, &facts);

    let slices = Slices::Many(vec![range.slice(0, 512), range.slice(4096, 512)]);
    let kinds = [
        IoKind::Write { offset_bytes: 4096, slices: slices.clone() },
        IoKind::Read { offset_bytes: 0, slices },
        IoKind::WriteZeroes { offset_bytes: 0, length_bytes: 4096, may_unmap: true },
        IoKind::Discard { offset_bytes: 8192, length_bytes: 4096 },
        IoKind::Flush,
    ];
    for (id, kind) in (0..).zip(kinds) {
        let around = &mut Surroundings { ring: &mut ring, pool: &pool, now: Time(0) };
        devices.start(around, device, kind, IoOwner::Engine(IoId(id)));
        while !devices.has_finished() {
            ring.wait(None).unwrap();
            let mut completions = Vec::new();
            ring.take_completions(&mut completions);
            for completion in completions {
                let crate::ring::Token::Device(index) = completion.token else { panic!() };
                let around = &mut Surroundings { ring: &mut ring, pool: &pool, now: Time(0) };
                devices.handle_completion(around, index, completion.result);
            }
        }
        devices.swap_finished(&mut Vec::new());
    }
    let result = Err(RequestError::NoSpace);
    let reply = ClientReply { number: 3, result, served: Served::Origin };
    devices.recorder().unwrap().answer(&reply);
}

/// The entries that [`record_some`] makes.
fn expected(disk: &Path) -> Vec<Entry> {
    let begin = |operation| Entry::Begin { device: 0, operation };
    let end = |begin| Entry::End { begin, result: Ok(()) };
    vec![
        Entry::Device {
            role: DeviceRole::Bare,
            size_bytes: 1 << 20,
            spec: disk.display().to_string(),
        },
        Entry::Export { size_bytes: 1 << 20, name: "vol".into() },
        Entry::Request {
            export: 0,
            operation: Operation::Write { offset_bytes: 4096 + 512, data: vec![7; 512] },
            durability: Durability::ForcedUnitAccess,
        },
        begin(Operation::Write { offset_bytes: 4096, data: vec![7; 1024] }),
        end(3),
        begin(Operation::WriteZeroes { offset_bytes: 0, length_bytes: 4096, may_unmap: true }),
        end(5),
        begin(Operation::Discard { offset_bytes: 8192, length_bytes: 4096 }),
        end(7),
        begin(Operation::Flush),
        end(9),
        Entry::Answer { request: 2, result: Err(RequestError::NoSpace) },
    ]
}

#[test]
fn what_happens_is_recorded_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (path, disk) = (directory.path().join("recording"), directory.path().join("disk"));
    record_some(&path, &disk);
    let (entries, tail, error) = read(&path);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(entries, expected(&disk));
    assert_eq!(tail, Some(Tail::Whole));
    // No recording takes the place of another one.
    let again = Recorder::create(&path).unwrap_err().to_string();
    assert!(again.contains("recording"), "{again}");
}

#[test]
fn a_torn_tail_is_named_and_what_is_before_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let (path, disk) = (directory.path().join("recording"), directory.path().join("disk"));
    record_some(&path, &disk);
    let (bytes, all) = (std::fs::read(&path).unwrap(), expected(&disk));
    let mut whole_count = 0;
    for length in FILE_HEADER_BYTES..=bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let (entries, tail, error) = read(&path);
        assert!(error.is_none(), "{length}: {error:?}");
        assert_eq!(entries, all[..entries.len()], "{length}");
        match tail {
            Some(Tail::Whole) => whole_count += 1,
            Some(Tail::Torn { offset_bytes, found_bytes }) => {
                assert_eq!(offset_bytes + found_bytes, length as u64);
            }
            None => panic!("the end was reached"),
        }
    }
    assert_eq!(whole_count, all.len() + 1);
}

#[test]
fn bad_headers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recording");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        RecordingReader::open(&path).err().expect("it is refused").to_string()
    };
    let good = file_header();
    assert!(refusal(&good[..15]).contains("length of the file"));
    assert!(refusal(&[0; 64]).contains("magic"));
    let mut bytes = good;
    bytes[8] ^= 2;
    assert!(refusal(&bytes).contains("checksum"));
    let crc = forebay_engine::format::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.0.to_le_bytes());
    let text = refusal(&bytes);
    assert!(text.contains("version 3") && text.contains("version 1"), "{text}");
    assert!(RecordingReader::open(&directory.path().join("nothing")).is_err());
}

#[test]
fn bytes_that_changed_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, disk) = (directory.path().join("recording"), directory.path().join("disk"));
    record_some(&path, &disk);
    let bytes = std::fs::read(&path).unwrap();
    for at in FILE_HEADER_BYTES..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        wrong_field(&path);
    }
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recording");
    let field = |headers: &[(Header, &[u8])]| {
        let mut bytes = file_header().to_vec();
        for (sequence, (header, payload)) in (0..).zip(headers) {
            bytes.extend_from_slice(&header.encode(sequence, payload));
            bytes.extend_from_slice(payload);
        }
        std::fs::write(&path, bytes).unwrap();
        let (good, field) = wrong_field(&path);
        assert_eq!(good, headers.len() - 1);
        field
    };
    let of = Header::new;
    let device = (of(Kind::Device), &b"disk"[..]);
    let flush = (of(Kind::BeginFlush), &b""[..]);
    let end = (Header { ends: 1, ..of(Kind::End) }, &b""[..]);
    assert_eq!(field(&[(of(Kind::BeginFlush), b"")]), "count of devices");
    assert_eq!(field(&[device, (of(Kind::RequestFlush), b"")]), "count of exports");
    assert_eq!(field(&[device, flush, end, end]), "ended operation");
    assert_eq!(field(&[device, flush, (of(Kind::Answer), b"")]), "answered request");
    assert_eq!(field(&[device, (of(Kind::BeginFlush), b"x")]), "length of a payload");
    assert_eq!(field(&[device, (of(Kind::BeginWrite), b"x")]), "length of a payload");
    assert_eq!(field(&[(of(Kind::Device), b"\xff")]), "text");
    let failed = Detail::of_io(Err(IoError::TimedOut));
    assert_eq!(field(&[(Header { detail: failed, ..device.0 }, b"disk")]), "role");
    let flags = Header { detail: failed, ..flush.0 };
    assert_eq!(field(&[device, (flags, b"")]), "flags");
}
