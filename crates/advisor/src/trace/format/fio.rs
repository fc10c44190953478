//! `fio`'s iolog, versions 2 and 3 (fio's manual, "Trace file format").
//!
//! Version 2: `file action`, or `file action offset length`; `wait` takes microseconds in place of
//! the offset. Version 3 has a time in front of each line.

use super::LineFormat;
use super::columns::{number, request, units};
use crate::trace::device::Devices;
use crate::trace::{LineError, Operation, Request};

const NS_PER_US: u64 = 1_000;
const HEADERS: [(&str, Version); 2] =
    [("fio version 2 iolog", Version::Two), ("fio version 3 iolog", Version::Three)];

#[derive(Clone, Copy, Default)]
enum Version {
    #[default]
    Two,
    Three,
}

/// Whether a file begins as an iolog does.
pub(crate) fn is_iolog(sample: &[u8]) -> bool {
    HEADERS.iter().any(|(header, _)| sample.starts_with(header.as_bytes()))
}

#[derive(Default)]
pub(super) struct Iolog {
    version: Version,
    /// Sum of the waits, in version 2.
    waited_ns: u64,
}

impl LineFormat for Iolog {
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError> {
        if let Some((_, version)) = HEADERS.iter().find(|(header, _)| *header == line.trim_end()) {
            // Logs are appended to: the next one has its own header and begins at zero.
            *self = Iolog { version: *version, waited_ns: 0 };
            return Ok(None);
        }
        let mut columns: Vec<&str> = line.split_ascii_whitespace().take(6).collect();
        let time_ns = match self.version {
            Version::Two => self.waited_ns,
            Version::Three if columns.is_empty() => 0,
            Version::Three => units("timestamp", columns.remove(0), NS_PER_US)?,
        };
        let (file, action, offset, length) = match columns[..] {
            [_, "add" | "open" | "close"] => return Ok(None),
            [file, action, offset, length] => (file, action, offset, length),
            _ => {
                return Err(LineError::Columns {
                    found: columns.len(),
                    expected: "file and action, or file, action, offset and length,",
                });
            }
        };
        let offset_bytes: u64 = number("offset", offset)?;
        let length_bytes: u64 = number("length", length)?;
        let operation = match action {
            "read" => Operation::Read,
            "write" => Operation::Write,
            "trim" => Operation::Discard,
            "sync" | "datasync" | "sync_file_range" => return Ok(None),
            "wait" => {
                let wait_ns = offset_bytes.saturating_mul(NS_PER_US);
                self.waited_ns = self.waited_ns.saturating_add(wait_ns);
                return Ok(None);
            }
            other => return Err(LineError::word("action", "an action of fio", other)),
        };
        request(Request {
            time_ns: Some(time_ns),
            device: devices.number(file)?,
            operation,
            offset_bytes,
            length_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> Vec<Request> {
        let mut iolog = Iolog::default();
        let mut devices = Devices::default();
        let read = |line| iolog.read(line, &mut devices).expect("whole");
        text.lines().filter_map(read).collect()
    }

    #[test]
    fn version_2_adds_up_its_waits() {
        let found = requests(
            "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb read 4096 512\n\
             /dev/sdb wait 250 0\n/dev/sdc write 0 8192\n/dev/sdb wait 100 0\n/dev/sdb sync 0 0\n\
             /dev/sdb trim 8192 4096\n/dev/sdb close\n",
        );
        let operations = [Operation::Read, Operation::Write, Operation::Discard];
        assert_eq!(found.iter().map(|r| r.operation).collect::<Vec<_>>(), operations);
        let times = [Some(0), Some(250_000), Some(350_000)];
        assert_eq!(found.iter().map(|r| r.time_ns).collect::<Vec<_>>(), times);
        assert_eq!(found.iter().map(|r| r.device).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!((found[1].offset_bytes, found[1].length_bytes), (0, 8192));
    }

    #[test]
    fn version_3_has_times() {
        let found = requests(
            "fio version 3 iolog\n0 /mnt/f add\n0 /mnt/f open\n13 /mnt/f write 12288 4096\n\
             1800 /mnt/f datasync 0 0\n1801 /mnt/f read 0 4096\n1900 /mnt/f close\n",
        );
        let times = [Some(13_000), Some(1_801_000)];
        assert_eq!(found.iter().map(|r| r.time_ns).collect::<Vec<_>>(), times);
    }

    #[test]
    fn other_lines_are_broken() {
        let mut iolog = Iolog::default();
        let mut devices = Devices::default();
        for line in ["", "/f", "/f jump 0 1", "/f read 0", "/f read x 1", "/f read 0 1 2"] {
            assert!(iolog.read(line, &mut devices).is_err(), "{line}");
        }
    }
}
