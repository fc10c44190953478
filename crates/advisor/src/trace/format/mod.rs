//! The formats, one file each.
//!
//! A text format reads one line at a time ([`LineFormat`]), a binary one records
//! ([`RecordFormat`]). Both say what a request is, or why the line is broken, and nothing else:
//! files, compression and counting are the reader's part.

mod arc;
mod biosnoop;
mod blkparse;
mod blktrace;
mod cloudphysics;
mod columns;
mod disksim;
mod fio;
mod lirs;
mod msr;
mod oracle_general;
mod records;

use std::io::BufRead;

use super::device::Devices;
use super::{LineError, Request};

pub(crate) use blktrace::is_blktrace;
pub(crate) use fio::is_iolog;
pub(crate) use oracle_general::is_oracle_general;

/// How a trace is written down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// The text of the ARC paper's traces: first block of 512 bytes, number of blocks, and one or
    /// two columns without meaning. All are reads.
    Arc,
    /// Output of `biosnoop` of bcc or libbpf-tools.
    Biosnoop,
    /// Output of `blkparse` in its default form.
    Blkparse,
    /// What `blktrace` writes.
    Blktrace,
    /// Comma-separated, with a header: version, time in seconds, SCSI operation code in
    /// hexadecimal, size in bytes, logical block number.
    Cloudphysics,
    /// DiskSim's ASCII format: arrival time, device, first sector, sectors, type.
    Disksim,
    /// `fio` iolog, version 2 or 3.
    Fio,
    /// One block number a line, as in the traces of the LIRS paper. All are reads.
    Lirs,
    /// MSR Cambridge: comma-separated, times as Windows counts them.
    Msr,
    /// libCacheSim's binary records of 24 bytes. All are reads.
    OracleGeneral,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 10] = [
        Format::Arc,
        Format::Biosnoop,
        Format::Blkparse,
        Format::Blktrace,
        Format::Cloudphysics,
        Format::Disksim,
        Format::Fio,
        Format::Lirs,
        Format::Msr,
        Format::OracleGeneral,
    ];

    /// The name that users give.
    pub fn name(self) -> &'static str {
        match self {
            Format::Arc => "arc",
            Format::Biosnoop => "biosnoop",
            Format::Blkparse => "blkparse",
            Format::Blktrace => "blktrace",
            Format::Cloudphysics => "cloudphysics",
            Format::Disksim => "disksim",
            Format::Fio => "fio",
            Format::Lirs => "lirs",
            Format::Msr => "msr",
            Format::OracleGeneral => "oracle-general",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A text format.
pub(crate) trait LineFormat {
    /// What `line` says; `None` for lines without a request that belong to the format.
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError>;
}

/// A binary format.
pub(crate) trait RecordFormat {
    /// The next record, `None` for one without a request. The outer error is the file's, the inner
    /// one the record's, after which reading goes on.
    fn read(&mut self, file: &mut dyn BufRead, devices: &mut Devices) -> std::io::Result<Record>;
}

/// What a binary format found.
pub(crate) enum Record {
    /// A record.
    Found(Result<Option<Request>, LineError>),
    /// The end of the file.
    End,
}

/// What reads a format.
pub(crate) enum Parser {
    Lines(Box<dyn LineFormat>),
    Records(Box<dyn RecordFormat>),
}

impl Parser {
    /// For a file that begins with `sample`. `object_bytes` is what one block number stands for in
    /// formats that have no sizes.
    pub(crate) fn new(format: Format, sample: &[u8], object_bytes: u64) -> Parser {
        match format {
            Format::Arc => Parser::Lines(Box::new(arc::Arc)),
            Format::Biosnoop => Parser::Lines(Box::new(biosnoop::Biosnoop::default())),
            Format::Blkparse => Parser::Lines(Box::new(blkparse::Blkparse::new(sample))),
            Format::Blktrace => Parser::Records(Box::new(blktrace::Blktrace::new(sample))),
            Format::Cloudphysics => Parser::Lines(Box::new(cloudphysics::Cloudphysics::default())),
            Format::Disksim => Parser::Lines(Box::new(disksim::Disksim)),
            Format::Fio => Parser::Lines(Box::new(fio::Iolog::default())),
            Format::Lirs => Parser::Lines(Box::new(lirs::Lirs { object_bytes })),
            Format::Msr => Parser::Lines(Box::new(msr::Msr)),
            Format::OracleGeneral => {
                Parser::Records(Box::new(oracle_general::OracleGeneral { object_bytes }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_name_of_its_own() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
        assert_eq!(Format::from_name("pcap"), None);
    }
}
