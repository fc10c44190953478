//! Reading a recording, entry by entry.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use forebay_engine::format::crc32c;

use super::entry::{BadField, BadFile, Header, check_file_header};
use super::{ENTRY_HEADER_BYTES, Entry, FILE_HEADER_BYTES, RecordingError, Tail};

/// The entries of a recording, in order. Ends after the last whole one, or after the first error.
pub struct RecordingReader {
    path: PathBuf,
    file: BufReader<File>,
    offset_bytes: u64,
    sequence: u64,
    devices: u32,
    exports: u32,
    /// Operations and requests that have begun and not ended.
    operations: HashSet<u64>,
    requests: HashSet<u64>,
    /// Known once the end is reached.
    tail: Option<Tail>,
    has_failed: bool,
}

impl RecordingReader {
    /// Opens a recording.
    ///
    /// # Errors
    /// If it cannot be opened, is none, or has another version.
    pub fn open(path: &Path) -> Result<RecordingReader, RecordingError> {
        let failed =
            |what| move |source| RecordingError::Io { path: path.to_owned(), what, source };
        let mut file = BufReader::new(File::open(path).map_err(failed("open"))?);
        let mut header = [0; FILE_HEADER_BYTES];
        let found = read_up_to(&mut file, &mut header).map_err(failed("read"))?;
        let corrupt = |bad: BadField| RecordingError::Corrupt {
            path: path.to_owned(),
            field: bad.field,
            offset_bytes: 0,
            expected: bad.expected,
            found: bad.found,
        };
        if found < header.len() {
            let (expected, found) = (header.len() as u64, found as u64);
            return Err(corrupt(BadField { field: "length of the file", expected, found }));
        }
        check_file_header(&header).map_err(|bad| match bad {
            BadFile::Field(field) => corrupt(field),
            BadFile::Version(found) => RecordingError::Version { path: path.to_owned(), found },
        })?;
        Ok(RecordingReader {
            path: path.to_owned(),
            file,
            offset_bytes: FILE_HEADER_BYTES as u64,
            sequence: 0,
            devices: 0,
            exports: 0,
            operations: HashSet::new(),
            requests: HashSet::new(),
            tail: None,
            has_failed: false,
        })
    }

    /// How the recording ends; `None` until its last entry was read, or after an error.
    #[must_use]
    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }

    fn read_entry(&mut self) -> Result<Option<Entry>, RecordingError> {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        let found = self.read(&mut bytes)?;
        if found < bytes.len() {
            self.end(found);
            return Ok(None);
        }
        let (header, payload_bytes, payload_crc) =
            Header::decode(&bytes, self.sequence).map_err(|bad| self.corrupt(bad))?;
        let mut payload = vec![0; payload_bytes as usize];
        let found = self.read(&mut payload)?;
        if found < payload.len() {
            self.end(bytes.len() + found);
            return Ok(None);
        }
        let (expected, found) = (payload_crc.into(), crc32c(&payload).0.into());
        if expected != found {
            let field = "checksum of a payload";
            return Err(self.corrupt(BadField { field, expected, found }));
        }
        let entry = header.entry(payload).map_err(|bad| self.corrupt(bad))?;
        self.check_references(&entry).map_err(|bad| self.corrupt(bad))?;
        self.offset_bytes += ENTRY_HEADER_BYTES as u64 + u64::from(payload_bytes);
        self.sequence += 1;
        Ok(Some(entry))
    }

    /// What an entry refers to came before it, and ends once.
    fn check_references(&mut self, entry: &Entry) -> Result<(), BadField> {
        let is_known = |field, count: u32, number: u32| match number < count {
            true => Ok(()),
            false => Err(BadField { field, expected: u64::from(number) + 1, found: count.into() }),
        };
        let is_open = |field, open: &mut HashSet<u64>, found: u64, expected: u64| {
            let was_open = open.remove(&found);
            if was_open { Ok(()) } else { Err(BadField { field, expected, found }) }
        };
        match entry {
            Entry::Device { .. } => self.devices += 1,
            Entry::Export { .. } => self.exports += 1,
            Entry::Begin { device, .. } => {
                is_known("count of devices", self.devices, *device)?;
                self.operations.insert(self.sequence);
            }
            Entry::Request { export, .. } => {
                is_known("count of exports", self.exports, *export)?;
                self.requests.insert(self.sequence);
            }
            Entry::End { begin, .. } => {
                is_open("ended operation", &mut self.operations, *begin, self.sequence)?;
            }
            Entry::Answer { request, .. } => {
                is_open("answered request", &mut self.requests, *request, self.sequence)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, found: usize) {
        let (offset_bytes, found_bytes) = (self.offset_bytes, found as u64);
        let torn = Tail::Torn { offset_bytes, found_bytes };
        self.tail = Some(if found == 0 { Tail::Whole } else { torn });
    }

    fn corrupt(&self, bad: BadField) -> RecordingError {
        RecordingError::Corrupt {
            path: self.path.clone(),
            field: bad.field,
            offset_bytes: self.offset_bytes,
            expected: bad.expected,
            found: bad.found,
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, RecordingError> {
        read_up_to(&mut self.file, bytes).map_err(|source| RecordingError::Io {
            path: self.path.clone(),
            what: "read",
            source,
        })
    }
}

impl Iterator for RecordingReader {
    type Item = Result<Entry, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.tail.is_some() || self.has_failed {
            return None;
        }
        let entry = self.read_entry().transpose();
        // What follows an error is not known to be an entry.
        self.has_failed = matches!(entry, Some(Err(_)));
        entry
    }
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(file: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
