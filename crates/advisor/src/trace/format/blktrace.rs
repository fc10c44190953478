//! What `blktrace` writes: `struct blk_io_trace` of `linux/blktrace_api.h`, 48 bytes in the byte
//! order of the machine that recorded it, each followed by its payload.
//!
//! As for `blkparse`, queued requests count, else issued, else completed ones.

use std::io::{BufRead, Read};

use super::columns::{SECTOR_BYTES, product, request};
use super::records::{read_record, read_up_to};
use super::{Record, RecordFormat};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

/// `BLK_IO_TRACE_MAGIC`, and in the last byte the version.
const MAGIC: u32 = 0x6561_7400 | 0x07;
/// `sizeof(struct blk_io_trace)`.
const RECORD_BYTES: usize = 48;

/// Low half of `action`.
const QUEUE: u32 = 1;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
/// Set beside the action when a cgroup id follows.
const FROM_CGROUP: u32 = 1 << 8;
/// Bits of the upper half of `action`.
const CATEGORY_SHIFT: u32 = 16;
const READ: u32 = 1 << 0;
const WRITE: u32 = 1 << 1;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Endian {
    Little,
    Big,
}

impl Endian {
    fn u16(self, bytes: &[u8; RECORD_BYTES], at: usize) -> u16 {
        let field = bytes[at..at + 2].try_into().expect("two bytes");
        match self {
            Endian::Little => u16::from_le_bytes(field),
            Endian::Big => u16::from_be_bytes(field),
        }
    }

    fn u32(self, bytes: &[u8; RECORD_BYTES], at: usize) -> u32 {
        let field = bytes[at..at + 4].try_into().expect("four bytes");
        match self {
            Endian::Little => u32::from_le_bytes(field),
            Endian::Big => u32::from_be_bytes(field),
        }
    }

    fn u64(self, bytes: &[u8; RECORD_BYTES], at: usize) -> u64 {
        let field = bytes[at..at + 8].try_into().expect("eight bytes");
        match self {
            Endian::Little => u64::from_le_bytes(field),
            Endian::Big => u64::from_be_bytes(field),
        }
    }

    fn has_magic(self, record: &[u8; RECORD_BYTES]) -> bool {
        self.u32(record, 0) == MAGIC
    }
}

/// Whether a file begins as blktrace's do.
pub(crate) fn is_blktrace(sample: &[u8]) -> bool {
    endian_of(sample).is_some()
}

fn endian_of(sample: &[u8]) -> Option<Endian> {
    let record = sample.first_chunk()?;
    [Endian::Little, Endian::Big].into_iter().find(|endian| endian.has_magic(record))
}

/// The fields that count.
struct Event {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    payload_bytes: u16,
}

impl Event {
    fn parse(bytes: &[u8; RECORD_BYTES], endian: Endian) -> Event {
        Event {
            time_ns: endian.u64(bytes, 8),
            sector: endian.u64(bytes, 16),
            bytes: endian.u32(bytes, 24),
            action: endian.u32(bytes, 28),
            device: endian.u32(bytes, 36),
            payload_bytes: endian.u16(bytes, 46),
        }
    }

    /// What happened, without the mark of a cgroup; none for notes.
    fn kind(&self) -> Option<u32> {
        let is_note = self.category() & NOTIFY != 0;
        (!is_note).then_some(self.action & 0xffff & !FROM_CGROUP)
    }

    fn category(&self) -> u32 {
        self.action >> CATEGORY_SHIFT
    }

    fn operation(&self) -> Option<Operation> {
        match self.category() {
            category if category & DISCARD != 0 => Some(Operation::Discard),
            category if category & WRITE != 0 => Some(Operation::Write),
            category if category & READ != 0 => Some(Operation::Read),
            _ => None,
        }
    }
}

pub(super) struct Blktrace {
    endian: Endian,
    /// What kind of event counts.
    kind: u32,
    /// A record that was read while looking for one.
    held: Option<[u8; RECORD_BYTES]>,
}

impl Blktrace {
    /// For a file that begins with `sample`.
    pub(super) fn new(sample: &[u8]) -> Blktrace {
        let endian = endian_of(sample).unwrap_or(Endian::Little);
        let mut kinds = Vec::new();
        let mut rest = sample;
        while let Some((record, after)) = rest.split_first_chunk::<RECORD_BYTES>() {
            let event = Event::parse(record, endian);
            kinds.extend(event.kind());
            rest = after.get(usize::from(event.payload_bytes)..).unwrap_or_default();
        }
        let kind = [QUEUE, ISSUE, COMPLETE].into_iter().find(|kind| kinds.contains(kind));
        Blktrace { endian, kind: kind.unwrap_or(QUEUE), held: None }
    }

    /// Goes on to the next record after one that does not begin as it should.
    fn skip_to_magic(
        &mut self,
        file: &mut dyn BufRead,
        mut record: [u8; RECORD_BYTES],
    ) -> std::io::Result<LineError> {
        let mut skipped_bytes = 0;
        loop {
            let mut next = [0];
            if read_up_to(file, &mut next)? == 0 {
                skipped_bytes += RECORD_BYTES as u64;
                return Ok(LineError::Magic { expected: MAGIC, skipped_bytes });
            }
            record.copy_within(1.., 0);
            record[RECORD_BYTES - 1] = next[0];
            skipped_bytes += 1;
            if self.endian.has_magic(&record) {
                self.held = Some(record);
                return Ok(LineError::Magic { expected: MAGIC, skipped_bytes });
            }
        }
    }
}

impl RecordFormat for Blktrace {
    fn read(&mut self, file: &mut dyn BufRead, devices: &mut Devices) -> std::io::Result<Record> {
        let record = match self.held.take() {
            Some(record) => record,
            None => match read_record(file)? {
                Ok(record) => record,
                Err(end) => return Ok(end),
            },
        };
        if !self.endian.has_magic(&record) {
            return Ok(Record::Found(Err(self.skip_to_magic(file, record)?)));
        }
        let event = Event::parse(&record, self.endian);
        let payload_bytes = u64::from(event.payload_bytes);
        std::io::copy(&mut Read::take(file, payload_bytes), &mut std::io::sink())?;
        Ok(Record::Found(self.request_of(&event, devices)))
    }
}

impl Blktrace {
    fn request_of(
        &self,
        event: &Event,
        devices: &mut Devices,
    ) -> Result<Option<Request>, LineError> {
        if event.kind() != Some(self.kind) {
            return Ok(None);
        }
        let Some(operation) = event.operation() else { return Ok(None) };
        request(Request {
            time_ns: Some(event.time_ns),
            device: devices.number(&event.device.to_string())?,
            operation,
            offset_bytes: product("sector", event.sector, SECTOR_BYTES)?,
            length_bytes: u64::from(event.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fields {
        action: u32,
        sector: u64,
        bytes: u32,
        payload: &'static [u8],
    }

    fn record(fields: &Fields, endian: Endian) -> Vec<u8> {
        let mut record = Vec::new();
        let mut put = |field: &[u8]| match endian {
            Endian::Little => record.extend(field),
            Endian::Big => record.extend(field.iter().rev()),
        };
        put(&MAGIC.to_le_bytes());
        put(&0u32.to_le_bytes());
        put(&5_000u64.to_le_bytes());
        put(&fields.sector.to_le_bytes());
        put(&fields.bytes.to_le_bytes());
        put(&fields.action.to_le_bytes());
        for word in [697u32, 8 << 20, 0] {
            put(&word.to_le_bytes());
        }
        put(&0u16.to_le_bytes());
        let payload_bytes = u16::try_from(fields.payload.len()).expect("short");
        put(&payload_bytes.to_le_bytes());
        record.extend(fields.payload);
        record
    }

    fn little(fields: &[Fields]) -> Vec<u8> {
        fields.iter().flat_map(|fields| record(fields, Endian::Little)).collect()
    }

    fn events() -> [Fields; 6] {
        let note = (NOTIFY << CATEGORY_SHIFT) | 2;
        let queue = |category: u32| ((category | (1 << 4)) << CATEGORY_SHIFT) | QUEUE;
        let issue = |category: u32| ((category | (1 << 6)) << CATEGORY_SHIFT) | ISSUE;
        let write = queue(WRITE) | FROM_CGROUP;
        [
            Fields { action: note, sector: 0, bytes: 0, payload: b"cfq note" },
            Fields { action: write, sector: 16, bytes: 4096, payload: &[0; 8] },
            Fields { action: issue(WRITE), sector: 16, bytes: 8192, payload: &[] },
            Fields { action: queue(READ), sector: 0, bytes: 65_536, payload: &[] },
            Fields { action: queue(WRITE | DISCARD), sector: 1, bytes: 512, payload: &[] },
            Fields { action: queue(WRITE), sector: 0, bytes: 0, payload: &[] },
        ]
    }

    fn read_all(file: &[u8]) -> Vec<Result<Request, LineError>> {
        assert!(is_blktrace(file));
        let mut format = Blktrace::new(file);
        let mut devices = Devices::default();
        let mut rest = file;
        let mut found = Vec::new();
        while let Record::Found(record) = format.read(&mut rest, &mut devices).expect("in memory") {
            found.extend(record.transpose());
        }
        found
    }

    #[test]
    fn queued_requests_count_in_either_byte_order() {
        for endian in [Endian::Little, Endian::Big] {
            let file: Vec<u8> = events().iter().flat_map(|event| record(event, endian)).collect();
            let found: Vec<Request> =
                read_all(&file).into_iter().map(|r| r.expect("whole")).collect();
            let expected = Request {
                time_ns: Some(5_000),
                device: 0,
                operation: Operation::Write,
                offset_bytes: 16 * 512,
                length_bytes: 4096,
            };
            assert_eq!(found[0], expected);
            let operations = [Operation::Write, Operation::Read, Operation::Discard];
            assert_eq!(found.iter().map(|r| r.operation).collect::<Vec<_>>(), operations);
        }
    }

    #[test]
    fn issued_requests_count_where_none_was_queued() {
        let file = little(&events()[2..3]);
        let found = read_all(&file);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].as_ref().map(|r| r.length_bytes), Ok(8192));
    }

    #[test]
    fn garbage_between_records_costs_no_others() {
        let mut file = little(&events()[1..2]);
        file.extend([0xaa; 100]);
        file.extend(little(&events()[3..4]));
        let found = read_all(&file);
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], Err(LineError::Magic { expected: MAGIC, skipped_bytes: 100 }));
        assert!(found[2].is_ok());
    }

    #[test]
    fn a_file_may_end_anywhere() {
        let file = little(&events());
        for length in RECORD_BYTES..file.len() {
            let found = read_all(&file[..length]);
            let broken = found.iter().filter(|record| record.is_err()).count();
            assert!(broken <= 1, "cut at {length}: {found:?}");
        }
    }
}
