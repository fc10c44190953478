//! DiskSim's ASCII format: `arrival_time device first_sector sectors type`.
//!
//! DiskSim itself writes milliseconds with a fraction and flags in hexadecimal of which bit 0 is
//! set for reads; MQSim, whose samples are widely used, writes whole nanoseconds and 0 or 1. Both
//! are understood: a point tells them apart.

use super::LineFormat;
use super::columns::{number, request, scaled, sectors};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

const NS_PER_MS: u64 = 1_000_000;

pub(super) struct Disksim;

impl LineFormat for Disksim {
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.split_ascii_whitespace().take(6).collect();
        let [time, device, start, count, flags] = columns[..] else {
            return Err(LineError::Columns { found: columns.len(), expected: "5" });
        };
        let time_ns = if time.contains('.') {
            scaled("arrival time", time, NS_PER_MS)?
        } else {
            number("arrival time", time)?
        };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16)
            .map_err(|_| LineError::number("type", flags))?;
        number::<u32>("device", device)?;
        request(Request {
            time_ns: Some(time_ns),
            device: devices.number(device)?,
            operation: if flags & 1 == 1 { Operation::Read } else { Operation::Write },
            offset_bytes: sectors("first sector", start)?,
            length_bytes: sectors("sectors", count)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_time_are_understood() {
        let mut devices = Devices::default();
        let mut read = |line: &str| Disksim.read(line, &mut devices).expect("whole");
        let expected = Request {
            time_ns: Some(938_513_000),
            device: 0,
            operation: Operation::Write,
            offset_bytes: 264_719_034 * 512,
            length_bytes: 16 * 512,
        };
        assert_eq!(read("938513000 4 264719034 16 0"), Some(expected));
        assert_eq!(read("938.513 4 264719034 16 0"), Some(expected));
        let other = read("938.6 3 264719034 16 1").expect("a request");
        assert_eq!((other.device, other.operation), (1, Operation::Read));
    }

    #[test]
    fn other_lines_are_broken() {
        let mut devices = Devices::default();
        for line in ["1 2 3 4", "1 2 3 4 0 6", "x 1 2 3 0", "1 sda 2 3 0", "1 2 3 4 R"] {
            assert!(Disksim.read(line, &mut devices).is_err(), "{line}");
        }
    }
}
