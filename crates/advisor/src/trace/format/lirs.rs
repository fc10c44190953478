//! One block number a line; lines with an asterisk divide phases and mean nothing here.

use super::LineFormat;
use super::columns::{request, units};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

pub(super) struct Lirs {
    /// Bytes that a block number stands for.
    pub(super) object_bytes: u64,
}

impl LineFormat for Lirs {
    fn read(&mut self, line: &str, _: &mut Devices) -> Result<Option<Request>, LineError> {
        let line = line.trim();
        if line.contains('*') {
            return Ok(None);
        }
        request(Request {
            time_ns: None,
            device: 0,
            operation: Operation::Read,
            offset_bytes: units("block number", line, self.object_bytes)?,
            length_bytes: self.object_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_block() {
        let mut lirs = Lirs { object_bytes: 4096 };
        let mut devices = Devices::default();
        let found = lirs.read("7", &mut devices).expect("a number").expect("a request");
        assert_eq!((found.offset_bytes, found.length_bytes), (7 * 4096, 4096));
        assert_eq!(lirs.read("*", &mut devices), Ok(None));
        assert!(lirs.read("7 8", &mut devices).is_err());
        assert!(lirs.read("18446744073709551615", &mut devices).is_err());
    }
}
