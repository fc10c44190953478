//! Device specifications as an operator writes them.
//!
//! | form | meaning |
//! |---|---|
//! | `PATH` | the file or block device as it is |
//! | `hdd:PATH` | behaves like a hard disk |
//! | `iops:N:PATH` | completes N transfers a second |
//! | `ssd:PATH` | behaves like a SATA SSD |
//! | `remote:MS:PATH` | is a round trip of MS milliseconds away |
//!
//! Any other word before a colon is part of the path. A path that begins with one of these words
//! and a colon is written with `./` before it.

use alloc::string::String;
use core::fmt;

use crate::device::Model;
use crate::fixed_rate::FixedRate;
use crate::hard_disk::HardDisk;
use crate::remote::Remote;
use crate::ssd::Ssd;
use crate::{MILLISECOND_NS, SECOND_NS};

/// Highest rate that `iops:N:` takes. Beyond it a transfer would take no time at all.
const RATE_MAX: u64 = SECOND_NS;
/// Longest round trip that `remote:MS:` takes: a minute, since more is a slip of the hand.
const ROUND_TRIP_MS_MAX: u64 = 60_000;

/// A path, and what the device behind it shall be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// How slow to make it; `None`: as fast as it is.
    pub model: Option<Model>,
    /// The file or block device.
    pub path: String,
}

/// What is wrong with a device specification.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpecError {
    /// No path.
    PathMissing {
        /// The specification.
        spec: String,
    },
    /// `iops:` or `remote:` without a second colon.
    NumberMissing {
        /// The specification.
        spec: String,
        /// How it is written.
        form: &'static str,
    },
    /// Not a number, or out of range.
    NumberInvalid {
        /// The specification.
        spec: String,
        /// What stands in place of the number.
        found: String,
        /// How it is written.
        form: &'static str,
        /// Largest number allowed; the smallest is 1.
        number_max: u64,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::PathMissing { spec } => {
                write!(f, "device {spec:?} names no path")
            }
            SpecError::NumberMissing { spec, form } => {
                write!(f, "device {spec:?} lacks a number; write {form}")
            }
            SpecError::NumberInvalid { spec, found, form, number_max } => write!(
                f,
                "device {spec:?}: {found:?} is no whole number from 1 to {number_max}; write {form}"
            ),
        }
    }
}

impl core::error::Error for SpecError {}

impl DeviceSpec {
    /// Reads a specification.
    ///
    /// # Errors
    ///
    /// If the path is empty, or the number of `iops:` or `remote:` is missing or out of range.
    pub fn parse(spec: &str) -> Result<DeviceSpec, SpecError> {
        let (model, path) = match spec.split_once(':') {
            Some(("hdd", path)) => (Some(Model::HardDisk(HardDisk::server_7200())), path),
            Some(("ssd", path)) => (Some(Model::Ssd(Ssd::sata_2017())), path),
            Some(("iops", rest)) => {
                let form = NumberForm { form: "iops:N:PATH", number_max: RATE_MAX };
                let (transfers_per_second, path) = form.split(spec, rest)?;
                let parameters = FixedRate { transfers_per_second, bytes_per_second: None };
                (Some(Model::FixedRate(parameters)), path)
            }
            Some(("remote", rest)) => {
                let form = NumberForm { form: "remote:MS:PATH", number_max: ROUND_TRIP_MS_MAX };
                let (round_trip_ms, path) = form.split(spec, rest)?;
                let remote = Remote::with_round_trip(round_trip_ms * MILLISECOND_NS);
                (Some(Model::Remote(remote)), path)
            }
            _ => (None, spec),
        };
        if path.is_empty() {
            return Err(SpecError::PathMissing { spec: String::from(spec) });
        }
        Ok(DeviceSpec { model, path: String::from(path) })
    }
}

impl core::str::FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<DeviceSpec, SpecError> {
        DeviceSpec::parse(spec)
    }
}

/// A form with a number between two colons.
struct NumberForm {
    form: &'static str,
    number_max: u64,
}

impl NumberForm {
    /// Splits `rest`, which follows the first colon of `spec`, into number and path.
    fn split<'a>(&self, spec: &str, rest: &'a str) -> Result<(u64, &'a str), SpecError> {
        let Some((number, path)) = rest.split_once(':') else {
            return Err(SpecError::NumberMissing { spec: String::from(spec), form: self.form });
        };
        match number.parse() {
            Ok(value) if (1..=self.number_max).contains(&value) => Ok((value, path)),
            _ => Err(SpecError::NumberInvalid {
                spec: String::from(spec),
                found: String::from(number),
                form: self.form,
                number_max: self.number_max,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn error(spec: &str) -> String {
        DeviceSpec::parse(spec).expect_err(spec).to_string()
    }

    #[test]
    fn a_plain_path_stays_as_it_is() {
        for path in ["/dev/sdb", "a:b", "./hdd:x", "/srv/iops:250", "hddx:/y"] {
            let expected = DeviceSpec { model: None, path: String::from(path) };
            assert_eq!(DeviceSpec::parse(path), Ok(expected));
        }
    }

    #[test]
    fn a_hard_disk_and_an_ssd_take_the_rest_as_the_path() {
        let spec = DeviceSpec::parse("hdd:/tmp/a:b").expect("valid");
        assert_eq!(spec.path, "/tmp/a:b");
        assert!(matches!(spec.model, Some(Model::HardDisk(_))));
        assert!(matches!("ssd:x".parse::<DeviceSpec>().expect("valid").model, Some(Model::Ssd(_))));
    }

    #[test]
    fn a_rate_and_a_round_trip_are_numbers_before_the_path() {
        let spec = DeviceSpec::parse("iops:250:/dev/shm/slow").expect("valid");
        let expected = FixedRate { transfers_per_second: 250, bytes_per_second: None };
        assert_eq!(spec.model, Some(Model::FixedRate(expected)));
        assert_eq!(spec.path, "/dev/shm/slow");
        let spec = DeviceSpec::parse("remote:5:x").expect("valid");
        assert!(matches!(spec.model, Some(Model::Remote(r)) if r.round_trip_ns == 5_000_000));
    }

    #[test]
    fn errors_name_the_object_and_the_remedy() {
        assert_eq!(error("hdd:"), r#"device "hdd:" names no path"#);
        assert_eq!(error(""), r#"device "" names no path"#);
        assert_eq!(error("iops:5:"), r#"device "iops:5:" names no path"#);
        assert_eq!(
            error("iops:/dev/sdb"),
            r#"device "iops:/dev/sdb" lacks a number; write iops:N:PATH"#
        );
        assert_eq!(
            error("iops:0:x"),
            r#"device "iops:0:x": "0" is no whole number from 1 to 1000000000; write iops:N:PATH"#
        );
        assert_eq!(
            error("remote:.5:"),
            r#"device "remote:.5:": ".5" is no whole number from 1 to 60000; write remote:MS:PATH"#
        );
    }
}
