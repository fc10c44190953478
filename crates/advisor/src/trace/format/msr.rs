//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Times count 100 ns from 1601, offsets and sizes are bytes (D. Narayanan, A. Donnelly,
//! A. Rowstron: Write Off-Loading, FAST 2008; the archive's own README).

use super::LineFormat;
use super::columns::{number, product, request};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

/// Nanoseconds of a unit of Windows' file time.
const TICK_NS: u64 = 100;
/// 100 ns ticks from 1601 to 1970, which leaves nanoseconds that fit.
const TICKS_TO_1970: u64 = 116_444_736_000_000_000;

pub(super) struct Msr;

impl LineFormat for Msr {
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.trim_end().split(',').take(8).collect();
        let [time, host, disk, operation, offset, size, response] = columns[..] else {
            return Err(LineError::Columns { found: columns.len(), expected: "7" });
        };
        if time == "Timestamp" {
            return Ok(None);
        }
        let ticks: u64 = number("Timestamp", time)?;
        let time_ns = product("Timestamp", ticks.saturating_sub(TICKS_TO_1970), TICK_NS)?;
        let operation = match operation {
            "Read" => Operation::Read,
            "Write" => Operation::Write,
            other => return Err(LineError::word("Type", "Read or Write", other)),
        };
        number::<u64>("ResponseTime", response)?;
        number::<u32>("DiskNumber", disk)?;
        request(Request {
            time_ns: Some(time_ns),
            device: devices.number(&format!("{host}.{disk}"))?,
            operation,
            offset_bytes: number("Offset", offset)?,
            length_bytes: number("Size", size)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_request() {
        let mut devices = Devices::default();
        let line = "128166372003061629,hm,0,Read,383496192,32768,413\r";
        let found = Msr.read(line, &mut devices).expect("whole").expect("a request");
        // 2007-02-22, 17:00:00 UTC and a little.
        assert_eq!(found.time_ns, Some(1_172_163_600_306_162_900));
        assert_eq!(found.operation, Operation::Read);
        assert_eq!((found.offset_bytes, found.length_bytes), (383_496_192, 32_768));
        let line = "128166372003061639,hm,1,Write,512,512,413";
        let found = Msr.read(line, &mut devices).expect("whole").expect("a request");
        assert_eq!((found.device, found.operation), (1, Operation::Write));
    }

    #[test]
    fn a_header_is_no_request_and_other_lines_are_broken() {
        let mut devices = Devices::default();
        let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
        assert_eq!(Msr.read(header, &mut devices), Ok(None));
        for line in [
            "128166372003061629,hm,0,Read,383496192,32768",
            "128166372003061629,hm,0,Trim,383496192,32768,413",
            "128166372003061629,hm,0,Read,-1,32768,413",
            "128166372003061629,hm,0,Read,1,2,3,4",
        ] {
            assert!(Msr.read(line, &mut devices).is_err(), "{line}");
        }
    }
}
