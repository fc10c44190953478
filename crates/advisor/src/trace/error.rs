//! What can be wrong with a trace.

use std::path::PathBuf;

use thiserror::Error;

use super::Format;

/// Characters of a line that an error quotes at most.
const QUOTED_CHARS_MAX: usize = 40;

/// Why a line, or a record of a binary trace, was not understood.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
#[non_exhaustive]
pub enum LineError {
    /// Another number of columns.
    #[error("has {found} columns where {expected} are expected")]
    Columns {
        /// How many there are.
        found: usize,
        /// How many the format has, in words.
        expected: &'static str,
    },
    /// A column that should be a number.
    #[error("{column} should be a number and is {found:?}")]
    Number {
        /// Name of the column.
        column: &'static str,
        /// Its beginning.
        found: String,
    },
    /// A column with a word that the format does not have.
    #[error("{column} should be {expected} and is {found:?}")]
    Word {
        /// Name of the column.
        column: &'static str,
        /// What may stand there.
        expected: &'static str,
        /// Its beginning.
        found: String,
    },
    /// Too long, or beyond what a device can have.
    #[error("is a request of {length_bytes} bytes at {offset_bytes}, which no device has")]
    Range {
        /// First byte.
        offset_bytes: u64,
        /// How many bytes.
        length_bytes: u64,
    },
    /// A number too large to convert.
    #[error("{column} is too large")]
    Overflow {
        /// Name of the column.
        column: &'static str,
    },
    /// A new device beyond the limit.
    #[error("names yet another device; {limit} are the limit")]
    Devices {
        /// How many there may be.
        limit: usize,
    },
    /// Not UTF-8.
    #[error("is no text")]
    NoText,
    /// Longer than any line of a trace.
    #[error("is longer than {limit} bytes")]
    TooLong {
        /// How long a line may be.
        limit: usize,
    },
    /// A binary record that does not begin as it should.
    #[error("does not begin with {expected:#010x}; {skipped_bytes} bytes were skipped")]
    Magic {
        /// What it should begin with.
        expected: u32,
        /// Bytes up to the next record.
        skipped_bytes: u64,
    },
    /// The file ends within the record.
    #[error("is cut off at the end of the file")]
    CutOff,
}

impl LineError {
    pub(crate) fn number(column: &'static str, found: &str) -> LineError {
        LineError::Number { column, found: quoted(found) }
    }

    pub(crate) fn word(column: &'static str, expected: &'static str, found: &str) -> LineError {
        LineError::Word { column, expected, found: quoted(found) }
    }
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

/// A line that was left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenLine {
    /// Number of the line from 1 on; of the record in a binary trace.
    pub line: u64,
    /// What is wrong with it.
    pub error: LineError,
}

/// The lines that were left out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BrokenLines {
    /// How many.
    pub count: u64,
    /// The first of them, at most [`BrokenLines::KEPT_MAX`].
    pub first: Vec<BrokenLine>,
}

impl BrokenLines {
    /// Broken lines of which the reason is kept.
    pub const KEPT_MAX: usize = 10;

    pub(crate) fn add(&mut self, line: u64, error: LineError) {
        self.count += 1;
        if self.first.len() < BrokenLines::KEPT_MAX {
            self.first.push(BrokenLine { line, error });
        }
    }
}

/// Why a trace cannot be read, or not on.
#[derive(Error, Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The format is none of those known.
    #[error(
        "{}: the format is not recognised; name it with --format ({})",
        path.display(), Format::ALL.map(Format::name).join(", ")
    )]
    Unrecognised {
        /// The file.
        path: PathBuf,
    },
    /// Most lines are broken: probably another format.
    #[error(
        "{}: {broken} of {lines} lines are not understood as {format}; line {} {}",
        path.display(), first.line, first.error
    )]
    MostlyBroken {
        /// The file.
        path: PathBuf,
        /// What it was read as.
        format: Format,
        /// Lines that were not understood.
        broken: u64,
        /// Lines so far.
        lines: u64,
        /// The first broken one.
        first: BrokenLine,
    },
    /// There is no request in it.
    #[error("{}: there is no request in it (read as {format})", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it was read as.
        format: Format,
    },
}
