//! The bytes of a trace: a file, decompressed where it is compressed.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// Beginning of a gzip member (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Beginning of a zstd frame (RFC 8878).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that recognition sees.
const SAMPLE_BYTES: u64 = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// Longest line that is read; what is longer is no line of a trace.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// A trace that was opened, and how it begins.
pub(super) struct Source {
    pub(super) bytes: Box<dyn BufRead + Send>,
    pub(super) sample: Vec<u8>,
    /// Bytes of the file, compressed as it is, and those that were read.
    pub(super) file_bytes: u64,
    read_bytes: Arc<AtomicU64>,
}

/// Counts what is read from a file.
struct Counted {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Source {
    pub(super) fn open(path: &Path) -> std::io::Result<Source> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let read_bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, read_bytes: Arc::clone(&read_bytes) };
        let mut file = BufReader::with_capacity(BUFFER_BYTES, counted);
        let beginning = file.fill_buf()?;
        let mut bytes: Box<dyn Read + Send> = if beginning.starts_with(&GZIP_MAGIC) {
            Box::new(MultiGzDecoder::new(file))
        } else if beginning.starts_with(&ZSTD_MAGIC) {
            Box::new(zstd::Decoder::with_buffer(file)?)
        } else {
            Box::new(file)
        };
        let mut sample = Vec::new();
        let end = bytes.by_ref().take(SAMPLE_BYTES).read_to_end(&mut sample);
        // An error so near the beginning is met again behind what could be read.
        let rest = Cursor::new(sample.clone()).chain(Failing(end.err())).chain(bytes);
        let bytes = Box::new(BufReader::with_capacity(BUFFER_BYTES, rest));
        Ok(Source { bytes, sample, file_bytes, read_bytes })
    }

    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// Has no bytes, and fails once if it holds an error.
struct Failing(Option<std::io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// What [`read_line`] found.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Line {
    Whole,
    /// Longer than [`LINE_BYTES_MAX`]; the rest of it was skipped.
    TooLong,
    End,
}

/// Reads the next line into `line`, without its end.
pub(super) fn read_line(bytes: &mut dyn BufRead, line: &mut Vec<u8>) -> std::io::Result<Line> {
    line.clear();
    let limit = LINE_BYTES_MAX as u64 + 1;
    if bytes.take(limit).read_until(b'\n', line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Whole);
    }
    if line.len() <= LINE_BYTES_MAX {
        return Ok(Line::Whole);
    }
    while line.last() != Some(&b'\n') {
        line.clear();
        if bytes.take(limit).read_until(b'\n', line)? == 0 {
            break;
        }
    }
    Ok(Line::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_the_file_or_with_a_line_feed() {
        let mut rest: &[u8] = b"one\n\ntwo";
        let mut line = Vec::new();
        for expected in [&b"one"[..], b"", b"two"] {
            assert_eq!(read_line(&mut rest, &mut line).expect("in memory"), Line::Whole);
            assert_eq!(line, expected);
        }
        assert_eq!(read_line(&mut rest, &mut line).expect("in memory"), Line::End);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_whole() {
        for length in [LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 3 * LINE_BYTES_MAX] {
            let text = format!("{}\nnext\n", "x".repeat(length));
            let mut rest = text.as_bytes();
            let mut line = Vec::new();
            let found = read_line(&mut rest, &mut line).expect("in memory");
            assert_eq!(found == Line::Whole, length == LINE_BYTES_MAX, "{length}");
            assert_eq!(read_line(&mut rest, &mut line).expect("in memory"), Line::Whole);
            assert_eq!(line, b"next");
        }
    }
}
