//! What happened: the last few hundred events of a run, or all of them.
//!
//! Notes are plain values and become text only when somebody reads them, so that tracing costs next
//! to nothing in the runs that find nothing. Every note goes into the hash of the run
//! (`event_hash.rs`), whatever is kept of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use forebay_engine::io::{Io, IoError, IoKind};

use crate::event_hash::EventHash;

/// Events kept when not all are wanted.
const RING_EVENTS: usize = 400;

/// How much of a run is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TraceMode {
    /// The last events.
    #[default]
    Ring,
    /// All events.
    Full,
    /// All requests and origin operations that touch a block, and what is not about blocks.
    Watch {
        /// Index of the volume.
        volume: usize,
        /// Block of the volume.
        block: u64,
    },
}

/// Bytes of a volume or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    Request {
        id: u64,
        volume: usize,
        what: &'static str,
        span: Span,
        write: u32,
    },
    Reply {
        id: u64,
        volume: usize,
        span: Span,
        is_ok: bool,
    },
    /// `crc` is that of what is written, 0 for what brings no content.
    Io {
        id: u64,
        device: DeviceName,
        what: &'static str,
        span: Span,
        crc: u32,
    },
    IoEnd {
        id: u64,
        device: DeviceName,
        span: Option<Span>,
        error: Option<IoError>,
    },
    Text(String),
}

/// The cache device, or the origin of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum DeviceName {
    Cache,
    Origin(usize),
}

impl DeviceName {
    /// 0 for the cache device; then the origins.
    fn number(self) -> u64 {
        match self {
            DeviceName::Cache => 0,
            DeviceName::Origin(volume) => 1 + volume as u64,
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cache => write!(f, "cache"),
            DeviceName::Origin(volume) => write!(f, "origin {volume}"),
        }
    }
}

impl fmt::Display for Span {
    /// In blocks, and in sectors beside them where needed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sectors, count) = (self.offset / 512, self.length / 512);
        if sectors % 8 == 0 && count % 8 == 0 {
            return write!(f, "block {}+{}", sectors / 8, count / 8);
        }
        write!(f, "sector {sectors}+{count} (block {})", sectors / 8)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Request { id, volume, what, span, write } => {
                write!(f, "request {id}: {what} volume {volume} {span}")?;
                if *write > 0 { write!(f, " is write {write}") } else { Ok(()) }
            }
            Note::Reply { id, volume, is_ok, .. } => {
                let result = if *is_ok { "ok" } else { "failed" };
                write!(f, "reply {id}: volume {volume} {result}")
            }
            Note::Io { id, device, what, span, crc } => {
                write!(f, "  io {id}: {what} {device} {span}")?;
                if *what == "write" { write!(f, " crc {crc:08x}") } else { Ok(()) }
            }
            Note::IoEnd { id, device, error, .. } => match error {
                None => write!(f, "  io {id} of {device} done"),
                Some(error) => write!(f, "  io {id} of {device} FAILED: {error:?}"),
            },
            Note::Text(text) => write!(f, "{text}"),
        }
    }
}

impl Note {
    /// Takes the note into the hash: everything of it, in a fixed order.
    fn hash(&self, hash: &mut EventHash) {
        let span_numbers = |span: &Span| [span.offset, span.length];
        match self {
            Note::Request { id, volume, what, span, write } => {
                hash.numbers(&[1, *id, *volume as u64, u64::from(*write)]);
                hash.numbers(&span_numbers(span));
                hash.text(what);
            }
            Note::Reply { id, volume, span, is_ok } => {
                hash.numbers(&[2, *id, *volume as u64, u64::from(*is_ok)]);
                hash.numbers(&span_numbers(span));
            }
            Note::Io { id, device, what, span, crc } => {
                hash.numbers(&[3, *id, device.number(), u64::from(*crc)]);
                hash.numbers(&span_numbers(span));
                hash.text(what);
            }
            Note::IoEnd { id, device, span, error } => {
                let error = error.map_or(0, |error| 1 + error as u64);
                hash.numbers(&[4, *id, device.number(), error]);
                hash.numbers(&span.as_ref().map_or([u64::MAX; 2], span_numbers));
            }
            Note::Text(text) => {
                hash.numbers(&[5]);
                hash.text(text);
            }
        }
    }

    fn touches(&self, watched: usize, block: u64) -> bool {
        let covers =
            |span: &Span| span.offset / 4096 <= block && block * 4096 < span.offset + span.length;
        match self {
            Note::Request { volume, span, what, .. } => {
                *volume == watched && (covers(span) || *what == "flush")
            }
            Note::Reply { volume, span, .. } => *volume == watched && covers(span),
            Note::Io { device, span, what, .. } => {
                *device == DeviceName::Origin(watched) && (covers(span) || *what == "flush")
            }
            Note::IoEnd { device, span, error, .. } => {
                let is_covered = span.as_ref().is_some_and(covers);
                *device == DeviceName::Origin(watched) && is_covered || error.is_some()
            }
            Note::Text(_) => true,
        }
    }
}

/// The events of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    mode: TraceMode,
    notes: VecDeque<(u64, Note)>,
    pub(crate) now: u64,
    pub(crate) life: u32,
    pub(crate) count: u64,
    /// Over all events, kept or not.
    pub(crate) hash: EventHash,
}

/// Shared, since it must outlive a panic of the engine.
pub(crate) type SharedTrace = Rc<RefCell<Trace>>;

impl Trace {
    pub(crate) fn new(mode: TraceMode) -> SharedTrace {
        Rc::new(RefCell::new(Trace { mode, ..Trace::default() }))
    }

    pub(crate) fn push(&mut self, note: Note) {
        self.count += 1;
        self.hash.numbers(&[self.now]);
        note.hash(&mut self.hash);
        match self.mode {
            TraceMode::Full => {}
            TraceMode::Watch { volume, block } if !note.touches(volume, block) => return,
            TraceMode::Watch { .. } => {}
            TraceMode::Ring => {
                if self.notes.len() == RING_EVENTS {
                    self.notes.pop_front();
                }
            }
        }
        self.notes.push_back((self.now, note));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.notes.iter().map(|(time, note)| format!("{} {note}", milliseconds(*time))).collect()
    }
}

/// Virtual time for people.
pub(crate) fn milliseconds(nanoseconds: u64) -> String {
    format!("{:>9}.{:03} ms", nanoseconds / 1_000_000, nanoseconds / 1_000 % 1_000)
}

/// What an operation does, and where.
pub(crate) fn describe_io(io: &Io) -> (&'static str, Span) {
    let (offset, length) = io.kind.extent_bytes();
    let what = match io.kind {
        IoKind::Read { .. } => "read",
        IoKind::Write { .. } => "write",
        IoKind::Flush => "flush",
        IoKind::Discard { .. } => "discard",
        IoKind::WriteZeroes { .. } => "write zeroes",
    };
    (what, Span { offset, length })
}
