//! Requests of a file, one by one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::device::Devices;
use super::format::{Parser, Record};
use super::recognise::recognise;
use super::source::{LINE_BYTES_MAX, Line, Source, read_line};
use super::{BrokenLines, Format, LineError, Request, TraceError};

/// Broken lines without any request after which the rest is not read if the file looks like one of
/// another format. Any other file is judged at its end, when it is known whether most is broken.
const BROKEN_IN_FRONT_MAX: u64 = 1_000;

/// How a trace is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Its format; `None`: recognised.
    pub format: Option<Format>,
    /// Bytes that a block or object stands for, in formats that number them and say no size
    /// (`lirs`, `oracle-general`).
    pub object_bytes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { format: None, object_bytes: 4096 }
    }
}

/// The requests of one trace, in the order of the file.
pub struct TraceReader {
    path: PathBuf,
    source: Source,
    format: Format,
    parser: Parser,
    devices: Devices,
    line: Vec<u8>,
    /// Lines, or records, that were read.
    line_count: u64,
    request_count: u64,
    broken: BrokenLines,
    is_done: bool,
}

impl TraceReader {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its format is not recognised.
    ///
    /// # Panics
    ///
    /// If an object is to have no bytes.
    pub fn open(path: &Path, options: &Options) -> Result<TraceReader, TraceError> {
        assert!(options.object_bytes > 0);
        let source = Source::open(path)
            .map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        let format = options
            .format
            .or_else(|| recognise(&source.sample))
            .ok_or_else(|| TraceError::Unrecognised { path: path.to_owned() })?;
        Ok(TraceReader {
            path: path.to_owned(),
            format,
            parser: Parser::new(format, &source.sample, u64::from(options.object_bytes)),
            source,
            devices: Devices::default(),
            line: Vec::new(),
            line_count: 0,
            request_count: 0,
            broken: BrokenLines::default(),
            is_done: false,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format it is read as.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Size of the file, compressed as it is.
    pub fn file_bytes(&self) -> u64 {
        self.source.file_bytes
    }

    /// Bytes of the file that were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.source.read_bytes()
    }

    /// Lines that were left out so far.
    pub fn broken(&self) -> &BrokenLines {
        &self.broken
    }

    /// The name of a device that a request was for; none if the format has no names.
    pub(super) fn device_name(&self, number: u32) -> Option<&str> {
        self.devices.name(number)
    }

    /// The next line or record; `None` at the end.
    fn read(&mut self) -> std::io::Result<Option<Result<Option<Request>, LineError>>> {
        let bytes = &mut *self.source.bytes;
        let parser = match &mut self.parser {
            Parser::Lines(parser) => parser,
            Parser::Records(parser) => {
                return Ok(match parser.read(bytes, &mut self.devices)? {
                    Record::Found(record) => Some(record),
                    Record::End => None,
                });
            }
        };
        let line = match read_line(bytes, &mut self.line)? {
            Line::End => return Ok(None),
            Line::TooLong => return Ok(Some(Err(LineError::TooLong { limit: LINE_BYTES_MAX }))),
            Line::Whole => std::str::from_utf8(&self.line).map_err(|_| LineError::NoText),
        };
        Ok(Some(line.and_then(|line| {
            if line.trim().is_empty() { Ok(None) } else { parser.read(line, &mut self.devices) }
        })))
    }

    /// Whether most lines are broken.
    fn judge(&self) -> Result<(), TraceError> {
        if 2 * self.broken.count <= self.line_count {
            return Ok(());
        }
        Err(TraceError::MostlyBroken {
            path: self.path.clone(),
            format: self.format,
            broken: self.broken.count,
            lines: self.line_count,
            first: self.broken.first[0].clone(),
        })
    }

    fn end(&mut self) -> Option<Result<Request, TraceError>> {
        self.is_done = true;
        if let Err(error) = self.judge() {
            return Some(Err(error));
        }
        let (path, format) = (self.path.clone(), self.format);
        (self.request_count == 0).then_some(Err(TraceError::Empty { path, format }))
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Result<Request, TraceError>> {
        while !self.is_done {
            let found = match self.read() {
                Ok(Some(found)) => found,
                Ok(None) => return self.end(),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    // A compressed file that ends early: what was read is good.
                    self.broken.add(self.line_count + 1, LineError::CutOff);
                    self.line_count += 1;
                    return self.end();
                }
                Err(source) => {
                    self.is_done = true;
                    return Some(Err(TraceError::Read { path: self.path.clone(), source }));
                }
            };
            self.line_count += 1;
            match found {
                Ok(Some(request)) => {
                    self.request_count += 1;
                    return Some(Ok(request));
                }
                Ok(None) => {}
                Err(error) => {
                    self.broken.add(self.line_count, error);
                    if self.request_count == 0
                        && self.broken.count == BROKEN_IN_FRONT_MAX
                        && recognise(&self.source.sample).is_some_and(|other| other != self.format)
                    {
                        return self.end();
                    }
                }
            }
        }
        None
    }
}
