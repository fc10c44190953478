//! CloudPhysics' virtual disks: comma-separated, with a header that names the columns.
//!
//! `time` counts whole seconds, `op` is the operation code of the SCSI command in hexadecimal,
//! `size` is in bytes, `lbn` in sectors of 512 bytes.

use super::LineFormat;
use super::columns::{NS_PER_SECOND, number, product, request, sectors};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

/// Columns that count, in this order.
const NAMES: [&str; 4] = ["time", "op", "size", "lbn"];
/// Columns of a line that are looked at.
const COLUMNS_MAX: usize = 16;

pub(super) struct Cloudphysics {
    /// Where each of the columns stands.
    places: [usize; 4],
}

impl Default for Cloudphysics {
    fn default() -> Cloudphysics {
        Cloudphysics { places: [1, 2, 3, 4] }
    }
}

impl LineFormat for Cloudphysics {
    fn read(&mut self, line: &str, _: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.split(',').map(str::trim).take(COLUMNS_MAX).collect();
        if let [Some(time), Some(op), Some(size), Some(lbn)] =
            NAMES.map(|name| columns.iter().position(|column| *column == name))
        {
            self.places = [time, op, size, lbn];
            return Ok(None);
        }
        let [Some(time), Some(op), Some(size), Some(lbn)] =
            self.places.map(|place| columns.get(place).copied())
        else {
            return Err(LineError::Columns {
                found: columns.len(),
                expected: "as many as in the header",
            });
        };
        let code = u8::from_str_radix(op.trim_start_matches("0x"), 16)
            .map_err(|_| LineError::number("op", op))?;
        let seconds: u64 = number("time", time)?;
        let Some(operation) = operation(code) else { return Ok(None) };
        request(Request {
            time_ns: Some(product("time", seconds, NS_PER_SECOND)?),
            device: 0,
            operation,
            offset_bytes: sectors("lbn", lbn)?,
            length_bytes: number("size", size)?,
        })
    }
}

/// What a SCSI command does (SBC-4, table of commands); none for those without data of the disk.
fn operation(code: u8) -> Option<Operation> {
    match code {
        // READ (6), (10), (12), (16).
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Operation::Read),
        // WRITE (6), (10), (12), (16); WRITE AND VERIFY (10), (12), (16); WRITE SAME (10), (16).
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 => Some(Operation::Write),
        // UNMAP.
        0x42 => Some(Operation::Discard),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_the_header() {
        let mut format = Cloudphysics::default();
        let mut devices = Devices::default();
        assert_eq!(format.read("version,time,op,size,lbn", &mut devices), Ok(None));
        let first = format.read("1,5633898,2a,512,42932745", &mut devices).expect("whole");
        let expected = Request {
            time_ns: Some(5_633_898_000_000_000),
            device: 0,
            operation: Operation::Write,
            offset_bytes: 42_932_745 * 512,
            length_bytes: 512,
        };
        assert_eq!(first, Some(expected));
        assert_eq!(format.read("lbn,size,op,time", &mut devices), Ok(None));
        let second = format.read("42932745,512,2a,5633898", &mut devices).expect("whole");
        assert_eq!(second, Some(expected));
    }

    #[test]
    fn commands_without_data_are_left_out_and_other_lines_are_broken() {
        let mut format = Cloudphysics::default();
        let mut devices = Devices::default();
        assert_eq!(format.read("1,5,35,0,0", &mut devices), Ok(None), "SYNCHRONIZE CACHE");
        for line in ["1,5,2a,512", "1,5,xx,512,7", "1,5,2a,-1,7", "1,y,2a,512,7"] {
            assert!(format.read(line, &mut devices).is_err(), "{line}");
        }
    }
}
