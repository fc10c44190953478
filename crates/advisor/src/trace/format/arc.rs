//! Traces of the ARC paper (N. Megiddo, D. S. Modha, FAST 2003).
//!
//! `start_block number_of_blocks ignored [request_number]`, blocks of 512 bytes.

use super::LineFormat;
use super::columns::{number, request, sectors};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

pub(super) struct Arc;

impl LineFormat for Arc {
    fn read(&mut self, line: &str, _: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
        let (start, count, rest) = match columns[..] {
            [start, count, ignored] => (start, count, [ignored, "0"]),
            [start, count, ignored, line] => (start, count, [ignored, line]),
            _ => return Err(LineError::Columns { found: columns.len(), expected: "3 or 4" }),
        };
        for column in rest {
            number::<u64>("ignored column", column)?;
        }
        request(Request {
            time_ns: None,
            device: 0,
            operation: Operation::Read,
            offset_bytes: sectors("first block", start)?,
            length_bytes: sectors("number of blocks", count)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Request>, LineError> {
        Arc.read(line, &mut Devices::default())
    }

    #[test]
    fn a_line_is_a_read_of_512_byte_blocks() {
        let expected = Request {
            time_ns: None,
            device: 0,
            operation: Operation::Read,
            offset_bytes: 3_050_771 * 512,
            length_bytes: 25 * 512,
        };
        assert_eq!(read("3050771 25 0"), Ok(Some(expected)));
        assert_eq!(read("3050771 25 0 17"), Ok(Some(expected)));
    }

    #[test]
    fn other_lines_are_broken() {
        for line in ["1 2", "1 2 3 4 5", "1 x 0", "-1 2 0", "1 2 y", "36893488147419103232 1 0"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
