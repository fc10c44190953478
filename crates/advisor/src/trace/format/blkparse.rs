//! Output of `blkparse` in its default form:
//! `major,minor cpu sequence time pid action letters sector + sectors [process]`.
//!
//! One request passes several actions. Those queued (`Q`) are what the block layer was asked for;
//! a trace that was recorded without them counts those issued (`D`), else those completed (`C`).
//! The summary at the end is not part of the trace.

use super::LineFormat;
use super::columns::{NS_PER_SECOND, operation_of_letters, request, scaled, sectors};
use crate::trace::device::Devices;
use crate::trace::{LineError, Request};

/// Actions that count, the first one that there is.
const ACTIONS: [&str; 3] = ["Q", "D", "C"];

pub(super) struct Blkparse {
    action: &'static str,
    is_in_summary: bool,
}

impl Blkparse {
    /// For a file that begins with `sample`.
    pub(super) fn new(sample: &[u8]) -> Blkparse {
        let text = String::from_utf8_lossy(sample);
        let has = |action: &&&str| {
            text.lines().any(|line| {
                let mut columns = line.split_ascii_whitespace();
                is_device(columns.next().unwrap_or_default()) && columns.nth(4) == Some(action)
            })
        };
        Blkparse { action: ACTIONS.iter().find(has).unwrap_or(&ACTIONS[0]), is_in_summary: false }
    }
}

/// Whether this is `major,minor`.
fn is_device(text: &str) -> bool {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    text.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

impl LineFormat for Blkparse {
    fn read(&mut self, line: &str, devices: &mut Devices) -> Result<Option<Request>, LineError> {
        let columns: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
        let device = columns.first().copied().unwrap_or_default();
        // "CPU0 (8,0):", and "Total (8,0):" where there was one processor.
        if matches!(device, "Total") || device.starts_with("CPU") {
            self.is_in_summary = true;
        }
        if self.is_in_summary {
            return Ok(None);
        }
        if !is_device(device) {
            return Err(LineError::word("device", "major,minor", device));
        }
        let [_, _, _, time, _, action, ref rest @ ..] = columns[..] else {
            return Err(LineError::Columns { found: columns.len(), expected: "6 or more" });
        };
        let time_ns = scaled("time", time, NS_PER_SECOND)?;
        if action != self.action {
            return Ok(None);
        }
        let [letters, sector, "+", count, ..] = *rest else {
            // A flush has no sectors.
            return match rest.first() {
                Some(letters) if operation_of_letters(letters).is_none() => Ok(None),
                _ if rest.get(1).is_none_or(|word| word.starts_with('[')) => Ok(None),
                _ => Err(LineError::word("range", "sector + sectors", &rest.join(" "))),
            };
        };
        let offset_bytes = sectors("sector", sector)?;
        let length_bytes = sectors("sectors", count)?;
        let Some(operation) = operation_of_letters(letters) else { return Ok(None) };
        request(Request {
            time_ns: Some(time_ns),
            device: devices.number(device)?,
            operation,
            offset_bytes,
            length_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Operation;

    const SAMPLE: &str = "  \
          8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n  \
          8,0    3        2     0.000001829   697  P   R [kjournald]\n  \
          8,0    3        3     0.000002197   697  Q   W 223490 + 8 [kjournald]\n  \
          8,0    3        4     0.000003197   697  D   W 223490 + 16 [kjournald]\n  \
          8,0    0        0     0.000010000     0  m   N cfq697 insert_request\n  \
          8,16   1       12     1.500000000   700  Q  RA 0 + 256 [dd]\n  \
          8,0    1       13     1.600000000   700  Q FWS [jbd2/sda1-8]\n  \
          8,0    1       14     1.700000000   700  Q  DS 2048 + 2048 [fstrim]\n\
        CPU0 (8,0):\n Reads Queued:           0,        0KiB\n\
        Total (8,0):\nThroughput (R/W): 0KiB/s / 0KiB/s\n";

    fn requests(sample: &str) -> Vec<Request> {
        let mut format = Blkparse::new(sample.as_bytes());
        let mut devices = Devices::default();
        let read = |line| format.read(line, &mut devices).expect("whole");
        sample.lines().filter_map(read).collect()
    }

    #[test]
    fn queued_requests_count() {
        let found = requests(SAMPLE);
        let expected = Request {
            time_ns: Some(2_197),
            device: 0,
            operation: Operation::Write,
            offset_bytes: 223_490 * 512,
            length_bytes: 4096,
        };
        assert_eq!(found[0], expected);
        assert_eq!(found.len(), 3);
        assert_eq!((found[1].device, found[1].operation), (1, Operation::Read));
        assert_eq!(found[2].operation, Operation::Discard);
    }

    #[test]
    fn issued_ones_do_where_none_is_queued() {
        let sample: String =
            SAMPLE.lines().filter(|l| !l.contains(" Q ")).collect::<Vec<_>>().join("\n");
        let found = requests(&sample);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].length_bytes, 16 * 512);
    }

    #[test]
    fn other_lines_are_broken() {
        let mut format = Blkparse::new(SAMPLE.as_bytes());
        let mut devices = Devices::default();
        for line in
            ["", "8,0 3 1", "x,0 3 3 0.1 697 Q W 1 + 8 [a]", "8,0 3 3 0.1 697 Q W x + 8 [a]"]
        {
            assert!(format.read(line, &mut devices).is_err(), "{line}");
        }
    }
}
