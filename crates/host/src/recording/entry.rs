//! Entries as bytes.

use forebay_engine::format::crc32c;
use forebay_engine::io::{IoError, IoResult};
use forebay_engine::request::{Durability, RequestError};

use super::{
    DeviceRole, ENTRY_HEADER_BYTES, Entry, FILE_HEADER_BYTES, Operation, PAYLOAD_BYTES_MAX,
    RECORDING_VERSION,
};

const MAGIC: [u8; 8] = *b"FBYWRITE";
/// Details of an operation.
const MAY_UNMAP: u8 = 1;
const FORCED_UNIT_ACCESS: u8 = 2;

/// A field that is not as it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadField {
    pub(crate) field: &'static str,
    pub(crate) expected: u64,
    pub(crate) found: u64,
}

/// What is wrong with the header of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadFile {
    Field(BadField),
    Version(u32),
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Device = 1,
    Export = 2,
    BeginWrite = 3,
    BeginWriteZeroes = 4,
    BeginDiscard = 5,
    BeginFlush = 6,
    End = 7,
    RequestWrite = 8,
    RequestWriteZeroes = 9,
    RequestDiscard = 10,
    RequestFlush = 11,
    Answer = 12,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Device,
        Kind::Export,
        Kind::BeginWrite,
        Kind::BeginWriteZeroes,
        Kind::BeginDiscard,
        Kind::BeginFlush,
        Kind::End,
        Kind::RequestWrite,
        Kind::RequestWriteZeroes,
        Kind::RequestDiscard,
        Kind::RequestFlush,
        Kind::Answer,
    ];
}

/// The one byte whose meaning depends on the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Detail(u8);

impl Detail {
    pub(crate) const NONE: Detail = Detail(0);

    pub(crate) fn of_role(role: DeviceRole) -> Detail {
        Detail(match role {
            DeviceRole::Cache => 0,
            DeviceRole::Origin => 1,
            DeviceRole::Bare => 2,
        })
    }

    pub(crate) fn of_io(result: IoResult) -> Detail {
        Detail(match result {
            Ok(()) => 0,
            Err(IoError::Media) => 1,
            Err(IoError::NoSpace) => 2,
            Err(IoError::Gone) => 3,
            Err(IoError::TimedOut) => 4,
            Err(IoError::Transient) => 5,
        })
    }

    pub(crate) fn of_answer(result: Result<(), RequestError>) -> Detail {
        Detail(match result {
            Ok(()) => 0,
            Err(RequestError::Io) => 1,
            Err(RequestError::NoSpace) => 2,
            Err(RequestError::Shutdown) => 3,
            Err(RequestError::ReadOnly) => 4,
        })
    }

    #[must_use]
    pub(crate) fn and_may_unmap(self) -> Detail {
        Detail(self.0 | MAY_UNMAP)
    }

    pub(crate) fn of_durability(durability: Durability) -> Detail {
        match durability {
            Durability::Completed => Detail::NONE,
            Durability::ForcedUnitAccess => Detail(FORCED_UNIT_ACCESS),
        }
    }

    fn role(self) -> Result<DeviceRole, BadField> {
        match self.0 {
            0 => Ok(DeviceRole::Cache),
            1 => Ok(DeviceRole::Origin),
            2 => Ok(DeviceRole::Bare),
            found => Err(BadField { field: "role", expected: 2, found: found.into() }),
        }
    }

    fn io(self) -> Result<IoResult, BadField> {
        match self.0 {
            0 => Ok(Ok(())),
            1 => Ok(Err(IoError::Media)),
            2 => Ok(Err(IoError::NoSpace)),
            3 => Ok(Err(IoError::Gone)),
            4 => Ok(Err(IoError::TimedOut)),
            5 => Ok(Err(IoError::Transient)),
            found => Err(BadField { field: "result", expected: 4, found: found.into() }),
        }
    }

    fn answer(self) -> Result<Result<(), RequestError>, BadField> {
        match self.0 {
            0 => Ok(Ok(())),
            1 => Ok(Err(RequestError::Io)),
            2 => Ok(Err(RequestError::NoSpace)),
            3 => Ok(Err(RequestError::Shutdown)),
            4 => Ok(Err(RequestError::ReadOnly)),
            found => Err(BadField { field: "answer", expected: 4, found: found.into() }),
        }
    }

    /// Whether a range may be deallocated, and the durability of a request.
    fn flags(self) -> Result<(bool, Durability), BadField> {
        let known = MAY_UNMAP | FORCED_UNIT_ACCESS;
        if self.0 & !known != 0 {
            let (expected, found) = (known.into(), self.0.into());
            return Err(BadField { field: "flags", expected, found });
        }
        let durability = if self.0 & FORCED_UNIT_ACCESS == 0 {
            Durability::Completed
        } else {
            Durability::ForcedUnitAccess
        };
        Ok((self.0 & MAY_UNMAP != 0, durability))
    }
}

/// The header of the file.
pub(crate) fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut bytes = [0; FILE_HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&RECORDING_VERSION.to_le_bytes());
    let crc = crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.0.to_le_bytes());
    bytes
}

pub(super) fn check_file_header(bytes: &[u8; FILE_HEADER_BYTES]) -> Result<(), BadFile> {
    let (magic, expected) = (number(bytes, 0, 8), u64::from_le_bytes(MAGIC));
    if magic != expected {
        return Err(BadFile::Field(BadField { field: "magic", expected, found: magic }));
    }
    let (found, expected) = (number(bytes, 12, 4), u64::from(crc32c(&bytes[..12]).0));
    if found != expected {
        return Err(BadFile::Field(BadField { field: "checksum", expected, found }));
    }
    match number(bytes, 8, 4) as u32 {
        RECORDING_VERSION => Ok(()),
        other => Err(BadFile::Version(other)),
    }
}

fn number(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let mut value = [0; 8];
    value[..length].copy_from_slice(&bytes[offset..offset + length]);
    u64::from_le_bytes(value)
}

/// An entry without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) detail: Detail,
    /// Number of the device or export.
    pub(crate) object: u32,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    /// Sequence number of what is ended or answered.
    pub(crate) ends: u64,
}

impl Header {
    /// A header with nothing but its kind.
    pub(crate) fn new(kind: Kind) -> Header {
        let (object, offset_bytes, length_bytes, ends) = (0, 0, 0, 0);
        Header { kind, detail: Detail::NONE, object, offset_bytes, length_bytes, ends }
    }

    /// The header of the entry with this number, in front of this payload.
    pub(crate) fn encode(&self, sequence: u64, payload: &[u8]) -> [u8; ENTRY_HEADER_BYTES] {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        bytes[4] = self.kind as u8;
        bytes[5] = self.detail.0;
        bytes[8..12].copy_from_slice(&self.object.to_le_bytes());
        bytes[12..16].copy_from_slice(&crc32c(payload).0.to_le_bytes());
        bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.ends.to_le_bytes());
        let payload_bytes = u32::try_from(payload.len()).expect("a payload is bounded");
        assert!(payload_bytes <= PAYLOAD_BYTES_MAX);
        bytes[48..52].copy_from_slice(&payload_bytes.to_le_bytes());
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.0.to_le_bytes());
        bytes
    }

    /// Reads the header of entry `sequence`. Returns length and checksum of the payload, too.
    pub(super) fn decode(
        bytes: &[u8; ENTRY_HEADER_BYTES],
        sequence: u64,
    ) -> Result<(Header, u32, u32), BadField> {
        let expect = |field, expected: u64, found: u64| match expected == found {
            true => Ok(()),
            false => Err(BadField { field, expected, found }),
        };
        expect("checksum of an entry", crc32c(&bytes[4..]).0.into(), number(bytes, 0, 4))?;
        expect("sequence number", sequence, number(bytes, 16, 8))?;
        expect("reserved field", 0, number(bytes, 6, 2))?;
        expect("reserved field", 0, number(bytes, 52, 4))?;
        let payload_bytes = number(bytes, 48, 4) as u32;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            let (expected, found) = (PAYLOAD_BYTES_MAX.into(), payload_bytes.into());
            return Err(BadField { field: "length of a payload", expected, found });
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[4]).ok_or(BadField {
            field: "kind of an entry",
            expected: Kind::Answer as u64,
            found: bytes[4].into(),
        })?;
        let header = Header {
            kind,
            detail: Detail(bytes[5]),
            object: number(bytes, 8, 4) as u32,
            offset_bytes: number(bytes, 24, 8),
            length_bytes: number(bytes, 32, 8),
            ends: number(bytes, 40, 8),
        };
        Ok((header, payload_bytes, number(bytes, 12, 4) as u32))
    }

    /// The entry, with its payload.
    pub(super) fn entry(&self, payload: Vec<u8>) -> Result<Entry, BadField> {
        let (size_bytes, object) = (self.length_bytes, self.object);
        if !matches!(self.kind, Kind::BeginWrite | Kind::RequestWrite | Kind::Device | Kind::Export)
            && !payload.is_empty()
        {
            let found = payload.len() as u64;
            return Err(BadField { field: "length of a payload", expected: 0, found });
        }
        Ok(match self.kind {
            Kind::Device => {
                Entry::Device { role: self.detail.role()?, size_bytes, spec: text(payload)? }
            }
            Kind::Export => Entry::Export { size_bytes, name: text(payload)? },
            Kind::BeginWrite | Kind::BeginWriteZeroes | Kind::BeginDiscard | Kind::BeginFlush => {
                Entry::Begin { device: object, operation: self.operation(payload)? }
            }
            Kind::End => Entry::End { begin: self.ends, result: self.detail.io()? },
            Kind::RequestWrite
            | Kind::RequestWriteZeroes
            | Kind::RequestDiscard
            | Kind::RequestFlush => {
                let durability = self.detail.flags()?.1;
                Entry::Request { export: object, operation: self.operation(payload)?, durability }
            }
            Kind::Answer => Entry::Answer { request: self.ends, result: self.detail.answer()? },
        })
    }

    fn operation(&self, data: Vec<u8>) -> Result<Operation, BadField> {
        let (offset_bytes, length_bytes) = (self.offset_bytes, self.length_bytes);
        let may_unmap = self.detail.flags()?.0;
        Ok(match self.kind {
            Kind::BeginWrite | Kind::RequestWrite => {
                let found = data.len() as u64;
                if found != length_bytes {
                    let (field, expected) = ("length of a payload", length_bytes);
                    return Err(BadField { field, expected, found });
                }
                Operation::Write { offset_bytes, data }
            }
            Kind::BeginWriteZeroes | Kind::RequestWriteZeroes => {
                Operation::WriteZeroes { offset_bytes, length_bytes, may_unmap }
            }
            Kind::BeginDiscard | Kind::RequestDiscard => {
                Operation::Discard { offset_bytes, length_bytes }
            }
            _ => Operation::Flush,
        })
    }
}

fn text(bytes: Vec<u8>) -> Result<String, BadField> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let found = error.as_bytes()[at].into();
        BadField { field: "text", expected: b' '.into(), found }
    })
}
