//! libCacheSim's binary format: records of 24 bytes, little-endian, packed: time in seconds (u32),
//! object (u64), size (u32), request that asks for the object next (i64, -1 if none).
//!
//! An object is one block, whatever its size: the traces number objects, and say nothing of where
//! they lie. Objects beyond 2^63 bytes are folded into that range.

use std::io::BufRead;

use super::columns::{NS_PER_SECOND, request};
use super::records::read_record;
use super::{Record, RecordFormat};
use crate::trace::device::Devices;
use crate::trace::{Operation, Request};

const RECORD_BYTES: usize = 24;
/// Records that recognition looks at.
const SAMPLE_RECORDS: usize = 256;

struct Fields {
    seconds: u32,
    object: u64,
    size: u32,
    next: i64,
}

impl Fields {
    fn parse(record: &[u8; RECORD_BYTES]) -> Fields {
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight"));
        Fields { seconds: word(0), object: long(4), size: word(12), next: long(16).cast_signed() }
    }
}

/// Whether a file that begins with `sample` can be one: times do not run backwards, objects have
/// sizes, and the next request for an object comes later.
pub(crate) fn is_oracle_general(sample: &[u8]) -> bool {
    let (records, _) = sample.as_chunks::<RECORD_BYTES>();
    let mut last_seconds = 0;
    let is_plausible = |(index, record): (usize, &[u8; RECORD_BYTES])| {
        let fields = Fields::parse(record);
        let is_later = fields.next == -1
            || fields.next == i64::MAX
            || u64::try_from(fields.next).is_ok_and(|next| next > index as u64);
        let is_ordered = fields.seconds >= last_seconds;
        last_seconds = fields.seconds;
        is_ordered && fields.size > 0 && is_later
    };
    !records.is_empty() && records.iter().take(SAMPLE_RECORDS).enumerate().all(is_plausible)
}

pub(super) struct OracleGeneral {
    /// Bytes that an object stands for.
    pub(super) object_bytes: u64,
}

impl RecordFormat for OracleGeneral {
    fn read(&mut self, file: &mut dyn BufRead, _: &mut Devices) -> std::io::Result<Record> {
        let record = match read_record(file)? {
            Ok(record) => record,
            Err(end) => return Ok(end),
        };
        let fields = Fields::parse(&record);
        let objects_max = i64::MAX as u64 / self.object_bytes;
        Ok(Record::Found(request(Request {
            time_ns: Some(u64::from(fields.seconds) * NS_PER_SECOND),
            device: 0,
            operation: Operation::Read,
            offset_bytes: fields.object % objects_max * self.object_bytes,
            length_bytes: self.object_bytes,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::LineError;

    fn record(seconds: u32, object: u64, size: u32, next: i64) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(seconds.to_le_bytes());
        record.extend(object.to_le_bytes());
        record.extend(size.to_le_bytes());
        record.extend(next.to_le_bytes());
        record
    }

    #[test]
    fn a_record_is_a_block() {
        let file: Vec<u8> =
            [record(3, 7, 512, 1), record(4, 7, 512, -1), record(4, u64::MAX, 1, -1)].concat();
        assert!(is_oracle_general(&file));
        let mut format = OracleGeneral { object_bytes: 4096 };
        let mut rest = &file[..70];
        let mut devices = Devices::default();
        let mut next = || match format.read(&mut rest, &mut devices).expect("in memory") {
            Record::Found(record) => Some(record),
            Record::End => None,
        };
        let first = next().expect("a record").expect("whole").expect("a request");
        assert_eq!((first.time_ns, first.offset_bytes), (Some(3_000_000_000), 7 * 4096));
        assert_eq!(first.length_bytes, 4096);
        assert!(next().expect("a record").is_ok());
        assert_eq!(next(), Some(Err(LineError::CutOff)));
        assert_eq!(next(), None);
    }

    #[test]
    fn other_files_are_not_taken_for_it() {
        assert!(!is_oracle_general(b""));
        assert!(!is_oracle_general(&[0; 240]), "without sizes");
        assert!(!is_oracle_general(&[record(3, 7, 512, 0), record(4, 7, 512, -1)].concat()));
        assert!(!is_oracle_general(&[record(5, 7, 1, 1), record(4, 7, 1, -1)].concat()));
        let noise: Vec<u8> =
            (0..=255).cycle().map(|byte: u8| byte.wrapping_mul(167)).take(480).collect();
        assert!(!is_oracle_general(&noise));
    }
}
