//! Whole files: compressed, broken, cut off, and taken for something else.

use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_advisor::trace::{
    Format, LineError, MergedReader, Options, Request, TraceError, TraceReader,
};

const LINES: usize = 60_000;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("a temporary directory"))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }
}

/// An ARC trace of 8-block reads, one behind the other.
fn text() -> Vec<u8> {
    (0..LINES).flat_map(|line| format!("{} 8 0\n", line * 8).into_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("a level");
    encoder.include_checksum(true).expect("a setting");
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn open(path: &Path) -> TraceReader {
    TraceReader::open(path, &Options::default()).expect("it opens")
}

/// All requests, and the reader when it is done.
fn read(path: &Path) -> (Vec<Request>, TraceReader) {
    let mut reader = open(path);
    let requests = reader.by_ref().map(|request| request.expect("whole")).collect();
    (requests, reader)
}

/// What ends the trace.
fn end(path: &Path) -> TraceError {
    open(path).find_map(Result::err).expect("it does not end well")
}

#[test]
fn compression_makes_no_difference() {
    let scratch = Scratch::new();
    let text = text();
    let halves = text.split_at(text.len() / 3);
    let (plain, reader) = read(&scratch.file("plain", &text));
    assert_eq!(reader.format(), Format::Arc);
    assert_eq!(plain.len(), LINES);
    assert_eq!(plain[3].offset_bytes, 3 * 4096);
    for (name, bytes) in [
        ("gzip", gzip(&text)),
        ("zstd", zstd(&text)),
        ("two gzip members", [gzip(halves.0), gzip(halves.1)].concat()),
        ("two zstd frames", [zstd(halves.0), zstd(halves.1)].concat()),
    ] {
        let (requests, reader) = read(&scratch.file(name, &bytes));
        assert_eq!(requests, plain, "{name}");
        assert_eq!(reader.file_bytes(), bytes.len() as u64);
        assert_eq!(reader.read_bytes(), bytes.len() as u64, "{name} was read to its end");
        assert_eq!(reader.broken().count, 0);
    }
}

#[test]
fn a_compressed_file_that_was_cut_off_counts_as_far_as_it_goes() {
    let scratch = Scratch::new();
    for (name, bytes) in [("gzip", gzip(&text())), ("zstd", zstd(&text()))] {
        let half = bytes.len() / 2;
        let (requests, reader) = read(&scratch.file(name, &bytes[..half]));
        assert!(!requests.is_empty() && requests.len() < LINES, "{name}");
        let last = reader.broken().first.last().expect("a broken line");
        assert_eq!(last.error, LineError::CutOff, "{name}");
    }
}

#[test]
fn a_damaged_compressed_file_is_an_error() {
    let scratch = Scratch::new();
    for (name, mut bytes) in [("gzip", gzip(&text())), ("zstd", zstd(&text()))] {
        // In the checksum at the end, of either.
        let at = bytes.len() - if name == "gzip" { 6 } else { 2 };
        bytes[at] ^= 0xff;
        let path = scratch.file(name, &bytes);
        assert!(matches!(end(&path), TraceError::Read { .. }), "{name}");
    }
}

#[test]
fn broken_lines_are_named_and_left_out() {
    let scratch = Scratch::new();
    let mut bytes = text();
    bytes.extend(b"\n1 2\n1 x 0\n\xff\xfe\n8 8 0\n");
    bytes.extend(vec![b'9'; 100_000]);
    bytes.extend(b"\n8 8 0");
    let (requests, reader) = read(&scratch.file("broken", &bytes));
    assert_eq!(requests.len(), LINES + 2);
    let broken = reader.broken();
    let lines: Vec<u64> = broken.first.iter().map(|line| line.line - LINES as u64).collect();
    assert_eq!(lines, [2, 3, 4, 6]);
    assert_eq!(broken.count, 4);
    assert_eq!(broken.first[2].error, LineError::NoText);
}

#[test]
fn mostly_broken_is_an_error() {
    let scratch = Scratch::new();
    let mostly = [text(), b"nonsense\n".repeat(LINES + 1)].concat();
    let error = end(&scratch.file("mostly", &mostly));
    let TraceError::MostlyBroken { broken, lines, .. } = &error else { panic!("{error}") };
    assert_eq!((*broken, *lines), (LINES as u64 + 1, 2 * LINES as u64 + 1));
    assert!(error.to_string().contains(&format!("line {}", LINES + 1)), "{error}");
    let half = [text(), b"nonsense\n".repeat(LINES)].concat();
    let (requests, reader) = read(&scratch.file("half", &half));
    assert_eq!((requests.len(), reader.broken().count), (LINES, LINES as u64));
}

#[test]
fn many_broken_lines_in_front_do_not_hide_what_follows() {
    let scratch = Scratch::new();
    let path = scratch.file("front", &[b"nonsense\n".repeat(2_000), text()].concat());
    assert!(matches!(
        TraceReader::open(&path, &Options::default()),
        Err(TraceError::Unrecognised { .. })
    ));
    let options = Options { format: Some(Format::Arc), ..Options::default() };
    let mut reader = TraceReader::open(&path, &options).expect("it opens");
    let requests: Result<Vec<Request>, TraceError> = reader.by_ref().collect();
    assert_eq!(requests.expect("most of it is whole").len(), LINES);
    assert_eq!(reader.broken().count, 2_000);
}

#[test]
fn another_format_is_noticed_early() {
    let scratch = Scratch::new();
    let path = scratch.file("arc", &text());
    let options = Options { format: Some(Format::Msr), ..Options::default() };
    let mut reader = TraceReader::open(&path, &options).expect("it opens");
    let error = reader.find_map(Result::err).expect("no MSR trace");
    assert!(matches!(error, TraceError::MostlyBroken { lines: 1_000, .. }), "{error}");
    assert!(reader.next().is_none(), "that was the end");
}

#[test]
fn what_is_no_trace_is_refused_with_the_formats_there_are() {
    let scratch = Scratch::new();
    for (name, bytes) in [("empty", &b""[..]), ("prose", b"It was\na dark night.\n")] {
        let path = scratch.file(name, bytes);
        let error = TraceReader::open(&path, &Options::default()).err().expect("no trace");
        assert!(matches!(error, TraceError::Unrecognised { .. }));
        assert!(error.to_string().contains("blktrace"), "{error}");
    }
    let missing = scratch.0.path().join("missing");
    let error = TraceReader::open(&missing, &Options::default()).err().expect("no file");
    assert!(error.to_string().contains("missing"), "{error}");
    let options = Options { format: Some(Format::Lirs), ..Options::default() };
    let path = scratch.file("nothing", b"*\n*\n");
    let error = TraceReader::open(&path, &options).expect("it opens").find_map(Result::err);
    assert!(matches!(error, Some(TraceError::Empty { .. })));
}

#[test]
fn files_of_one_recording_are_merged_by_time() {
    let scratch = Scratch::new();
    let msr = |device: u32, times: [u64; 3]| {
        let base = 128_166_372_000_000_000;
        let line = |time| format!("{},hm,{device},Read,{},512,1\n", base + time, time * 512);
        times.map(line).concat()
    };
    let merge = |files: &[PathBuf]| {
        let reader = MergedReader::open(files, &Options::default()).expect("they open");
        let found = reader.map(|request| request.expect("whole"));
        found.map(|request| (request.offset_bytes / 512, request.device)).collect::<Vec<_>>()
    };
    let files = [
        scratch.file("one", msr(7, [10, 40, 50]).as_bytes()),
        scratch.file("idle", b""),
        scratch.file("two", msr(3, [20, 30, 60]).as_bytes()),
        scratch.file("same", msr(7, [25, 26, 27]).as_bytes()),
    ];
    let expected =
        [(10, 0), (20, 1), (25, 0), (26, 0), (27, 0), (30, 1), (40, 0), (50, 0), (60, 1)];
    assert_eq!(merge(&files), expected);
    // Without times one file comes behind the other.
    let files = [scratch.file("a", b"5 1 0\n6 1 0\n"), scratch.file("b", b"1 1 0\n2 1 0\n")];
    assert_eq!(merge(&files), [(5, 0), (6, 0), (1, 0), (2, 0)]);
    let nothing = [scratch.file("c", b""), scratch.file("d", b"")];
    let error = MergedReader::open(&nothing, &Options::default()).err().expect("nothing there");
    assert!(matches!(error, TraceError::Unrecognised { .. }), "{error}");
}
