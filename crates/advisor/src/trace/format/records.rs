//! Records of binary formats, as they are read from a file.

use std::io::BufRead;

use super::Record;
use crate::trace::LineError;

/// The next `N` bytes, or what to make of the end of the file.
pub(super) fn read_record<const N: usize>(
    file: &mut dyn BufRead,
) -> std::io::Result<Result<[u8; N], Record>> {
    let mut record = [0; N];
    let filled = read_up_to(file, &mut record)?;
    Ok(match filled {
        0 => Err(Record::End),
        _ if filled < N => Err(Record::Found(Err(LineError::CutOff))),
        _ => Ok(record),
    })
}

/// Fills `buffer` as far as the file goes, and says how far.
pub(super) fn read_up_to(file: &mut dyn BufRead, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
