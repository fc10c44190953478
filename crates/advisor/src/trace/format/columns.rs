//! Columns of a line, and the numbers in them.

use std::str::FromStr;

use crate::trace::{LENGTH_BYTES_MAX, LineError, Operation, Request};

pub(super) const NS_PER_SECOND: u64 = 1_000_000_000;
/// Bytes of a sector, the unit of most formats.
pub(super) const SECTOR_BYTES: u64 = 512;
/// End of the largest device: file offsets have 63 bits.
const DEVICE_BYTES_MAX: u64 = i64::MAX as u64;

/// A whole number.
pub(super) fn number<N: FromStr>(column: &'static str, text: &str) -> Result<N, LineError> {
    text.parse().map_err(|_| LineError::number(column, text))
}

/// A whole number of units, each of which is so much.
pub(super) fn units(column: &'static str, text: &str, unit: u64) -> Result<u64, LineError> {
    product(column, number(column, text)?, unit)
}

pub(super) fn product(column: &'static str, count: u64, unit: u64) -> Result<u64, LineError> {
    count.checked_mul(unit).ok_or(LineError::Overflow { column })
}

/// A number of sectors, in bytes.
pub(super) fn sectors(column: &'static str, text: &str) -> Result<u64, LineError> {
    units(column, text, SECTOR_BYTES)
}

/// A decimal fraction such as `12.000345`, times `scale`; digits beyond that are cut off.
///
/// Floating point would lose nanoseconds in times that count from 1970.
pub(super) fn scaled(column: &'static str, text: &str, scale: u64) -> Result<u64, LineError> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut value = units(column, whole, scale)?;
    let mut unit = scale;
    for digit in fraction.chars() {
        let digit = digit.to_digit(10).ok_or_else(|| LineError::number(column, text))?;
        unit /= 10;
        value = value.checked_add(unit * u64::from(digit)).ok_or(LineError::Overflow { column })?;
    }
    Ok(value)
}

/// A request, if a device can have it; none if it has no bytes.
pub(super) fn request(request: Request) -> Result<Option<Request>, LineError> {
    let Request { offset_bytes, length_bytes, .. } = request;
    let end = offset_bytes.checked_add(length_bytes);
    if length_bytes > LENGTH_BYTES_MAX || end.is_none_or(|end| end > DEVICE_BYTES_MAX) {
        return Err(LineError::Range { offset_bytes, length_bytes });
    }
    Ok(Some(request).filter(|request| request.length_bytes > 0))
}

/// Operation in the letters that the kernel's tracing uses for a request ("WS", "RM", "FF"): the
/// first of D, W, R that stands there; none for a flush without data or an unknown one.
pub(super) fn operation_of_letters(letters: &str) -> Option<Operation> {
    [('D', Operation::Discard), ('W', Operation::Write), ('R', Operation::Read)]
        .into_iter()
        .find(|(letter, _)| letters.contains(*letter))
        .map(|(_, operation)| operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact() {
        assert_eq!(
            scaled("time", "1700000000.123456789", 1_000_000_000),
            Ok(1_700_000_000_123_456_789)
        );
        assert_eq!(scaled("time", "3", 1_000), Ok(3_000));
        assert_eq!(scaled("time", "0.5", 1_000), Ok(500));
        assert_eq!(scaled("time", "0.123456", 1_000), Ok(123), "beyond the scale");
        assert!(scaled("time", "1.2x", 1_000).is_err());
        assert!(scaled("time", ".5", 1_000).is_err());
        assert!(scaled("time", "18446744073709551615", 10).is_err());
    }

    #[test]
    fn what_no_device_has_is_refused() {
        let base = Request {
            time_ns: None,
            device: 0,
            operation: Operation::Read,
            offset_bytes: 0,
            length_bytes: 512,
        };
        assert_eq!(request(base), Ok(Some(base)));
        assert_eq!(request(Request { length_bytes: 0, ..base }), Ok(None));
        assert!(request(Request { length_bytes: LENGTH_BYTES_MAX + 1, ..base }).is_err());
        assert!(request(Request { offset_bytes: u64::MAX, ..base }).is_err());
        assert!(request(Request { offset_bytes: DEVICE_BYTES_MAX, ..base }).is_err());
    }

    #[test]
    fn letters_name_the_operation() {
        assert_eq!(operation_of_letters("R"), Some(Operation::Read));
        assert_eq!(operation_of_letters("RAM"), Some(Operation::Read));
        assert_eq!(operation_of_letters("WFSM"), Some(Operation::Write));
        assert_eq!(operation_of_letters("DS"), Some(Operation::Discard));
        assert_eq!(operation_of_letters("FN"), None);
    }
}
