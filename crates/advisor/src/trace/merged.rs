//! Several files that were recorded together, as one trace.

use std::collections::HashMap;
use std::path::PathBuf;

use super::device::Devices;
use super::{Options, Request, TraceError, TraceReader};

/// A file, and the request of it that comes next.
struct Part {
    reader: TraceReader,
    head: Option<Request>,
    /// Numbers of its devices among those of all files.
    numbers: HashMap<u32, u32>,
}

/// The requests of several files in the order of their times, such as the files that `blktrace`
/// writes for each processor. Requests without times come in the order of the files.
///
/// A device that several files name is one; so is the device of all files that name none.
pub struct MergedReader {
    parts: Vec<Part>,
    devices: Devices,
}

impl MergedReader {
    /// Opens the files, of which there must be at least one. Those without a request count only if
    /// all are so: a processor may have been idle.
    ///
    /// # Errors
    ///
    /// A file cannot be read or recognised, or no file has a request.
    pub fn open(paths: &[PathBuf], options: &Options) -> Result<MergedReader, TraceError> {
        assert!(!paths.is_empty());
        let mut parts = Vec::new();
        let mut empty = None;
        for path in paths {
            match Part::open(path, options) {
                Ok(part) => parts.push(part),
                Err(error) if is_empty(&error) => empty = empty.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        match empty {
            Some(error) if parts.is_empty() => Err(error),
            _ => Ok(MergedReader { parts, devices: Devices::default() }),
        }
    }

    /// The files that have requests.
    pub fn readers(&self) -> impl Iterator<Item = &TraceReader> {
        self.parts.iter().map(|part| &part.reader)
    }

    /// Size of these files, compressed as they are.
    pub fn file_bytes(&self) -> u64 {
        self.readers().map(TraceReader::file_bytes).sum()
    }

    /// Bytes of them that were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.readers().map(TraceReader::read_bytes).sum()
    }
}

/// Whether a file has nothing in it, rather than something else than a trace.
fn is_empty(error: &TraceError) -> bool {
    match error {
        TraceError::Empty { .. } => true,
        TraceError::Unrecognised { path } => path.metadata().is_ok_and(|found| found.len() == 0),
        _ => false,
    }
}

impl Part {
    fn open(path: &std::path::Path, options: &Options) -> Result<Part, TraceError> {
        let mut reader = TraceReader::open(path, options)?;
        let head = reader.next().transpose()?;
        Ok(Part { reader, head, numbers: HashMap::new() })
    }
}

impl Iterator for MergedReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Result<Request, TraceError>> {
        let waiting = self.parts.iter_mut().filter(|part| part.head.is_some());
        let part = waiting.min_by_key(|part| part.head.and_then(|head| head.time_ns))?;
        let mut request = part.head.take()?;
        match part.reader.next().transpose() {
            Ok(head) => part.head = head,
            Err(error) => return Some(Err(error)),
        }
        request.device = match part.numbers.get(&request.device) {
            Some(number) => *number,
            None => {
                let name = part.reader.device_name(request.device).unwrap_or_default();
                // As many devices in all as one file may have; beyond that they fall together.
                let number = self.devices.number(name).unwrap_or(0);
                part.numbers.insert(request.device, number);
                number
            }
        };
        Some(Ok(request))
    }
}
