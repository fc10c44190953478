//! Output of `biosnoop`, of bcc or of libbpf-tools: fixed columns under a header.
//!
//! Command names hold blanks, and options add columns at the right. So the time is taken from the
//! left, everything else counted from the right, as the header has it.

use super::LineFormat;
use super::columns::{NS_PER_SECOND, number, operation_of_letters, request, scaled, sectors};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

const TIME: &str = "TIME(s)";
/// Columns that count, in this order.
const NAMES: [&str; 4] = ["DISK", "T", "SECTOR", "BYTES"];

pub(super) struct Biosnoop {
    /// Columns to the right of each that counts.
    places_from_right: [usize; 4],
}

impl Default for Biosnoop {
    /// `TIME(s) COMM PID DISK T SECTOR BYTES LAT(ms)`.
    fn default() -> Biosnoop {
        Biosnoop { places_from_right: [4, 3, 2, 1] }
    }
}

impl LineFormat for Biosnoop {
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        if columns.first() == Some(&TIME) {
            return self.read_header(&columns).map(|()| None);
        }
        let column = |from_right: usize| columns.len().checked_sub(from_right + 1);
        let [Some(disk), Some(kind), Some(sector), Some(bytes)] =
            self.places_from_right.map(column)
        else {
            return Err(columns_missing(&columns));
        };
        // In front of the disk stand at least the time and the process id.
        if disk < 2 {
            return Err(columns_missing(&columns));
        }
        let time_ns = scaled("TIME(s)", columns[0], NS_PER_SECOND)?;
        let offset_bytes = sectors("SECTOR", columns[sector])?;
        let length_bytes = number("BYTES", columns[bytes])?;
        let operation: Operation = match operation_of_letters(columns[kind]) {
            Some(operation) => operation,
            None if length_bytes == 0 => return Ok(None),
            None => return Err(LineError::word("T", "R, W or D", columns[kind])),
        };
        request(Request {
            time_ns: Some(time_ns),
            device: devices.number(columns[disk])?,
            operation,
            offset_bytes,
            length_bytes,
        })
    }
}

impl Biosnoop {
    fn read_header(&mut self, columns: &[&str]) -> Result<(), LineError> {
        let place = |name: &str| columns.iter().rev().position(|column| *column == name);
        let [Some(disk), Some(kind), Some(sector), Some(bytes)] = NAMES.map(place) else {
            return Err(columns_missing(columns));
        };
        self.places_from_right = [disk, kind, sector, bytes];
        Ok(())
    }
}

fn columns_missing(columns: &[&str]) -> LineError {
    LineError::Columns { found: columns.len(), expected: "those of the header" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> Vec<Request> {
        let mut format = Biosnoop::default();
        let mut devices = Devices::default();
        let read = |line| format.read(line, &mut devices).expect("whole");
        text.lines().filter_map(read).collect()
    }

    #[test]
    fn columns_are_those_of_the_header() {
        let found = requests(
            "TIME(s)     COMM           PID     DISK      T SECTOR     BYTES  LAT(ms)\n\
             0.000004001 supervise      1950    xvda1     W 13092560   4096      0.74\n\
             1.022346001 Web Content    1956    sda       R 13115272   65536     0.98\n",
        );
        let expected = Request {
            time_ns: Some(4_001),
            device: 0,
            operation: Operation::Write,
            offset_bytes: 13_092_560 * 512,
            length_bytes: 4096,
        };
        assert_eq!(found[0], expected);
        assert_eq!((found[1].device, found[1].operation), (1, Operation::Read));
        let found = requests(
            "TIME(s)     COMM           PID     DISK    T    SECTOR     BYTES   QUE(ms) LAT(ms)\n\
             0.262361    kworker/0:1H   131     vda     WSM  5066688    4096      0.011   0.381\n\
             0.262400    jbd2/vda1-8    200     vda     FF   0          0         0.001   0.100\n\
             0.300000    fstrim         201     vda     D    1024       1048576   0.001   0.100\n",
        );
        assert_eq!(found.len(), 2, "the flush has no data");
        assert_eq!(found[0].operation, Operation::Write);
        assert_eq!((found[1].operation, found[1].length_bytes), (Operation::Discard, 1 << 20));
    }

    #[test]
    fn other_lines_are_broken() {
        let mut format = Biosnoop::default();
        let mut devices = Devices::default();
        for line in
            ["", "Lost 12 samples", "1.0 dd 7 sda X 8 4096 0.1", "1.0 dd 7 sda R x 4096 0.1"]
        {
            assert!(format.read(line, &mut devices).is_err(), "{line}");
        }
        assert!(format.read("TIME(s) COMM PID LAT(ms)", &mut devices).is_err());
    }
}
