//! Devices that a trace names, as numbers.

use std::collections::HashMap;

use super::LineError;

/// Most devices of one trace: a bound for files that name a new one in each line.
const DEVICES_MAX: usize = 65_536;

/// Numbers from 0 on in the order of first appearance.
#[derive(Default)]
pub(crate) struct Devices {
    numbers: HashMap<String, u32>,
}

impl Devices {
    /// The number of the device of this name.
    pub(crate) fn number(&mut self, name: &str) -> Result<u32, LineError> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = u32::try_from(self.numbers.len()).expect("they are few");
        if self.numbers.len() == DEVICES_MAX {
            return Err(LineError::Devices { limit: DEVICES_MAX });
        }
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// The name of a device; none if the format has no names.
    pub(crate) fn name(&self, number: u32) -> Option<&str> {
        self.numbers.iter().find(|(_, known)| **known == number).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_as_they_appear() {
        let mut devices = Devices::default();
        let numbers = ["sdb", "sda", "sdb"].map(|name| devices.number(name).expect("few"));
        assert_eq!(numbers, [0, 1, 0]);
    }

    #[test]
    fn no_more_devices_than_the_limit() {
        let mut devices = Devices::default();
        for number in 0..DEVICES_MAX {
            devices.number(&number.to_string()).expect("below the limit");
        }
        assert!(matches!(devices.number("one more"), Err(LineError::Devices { .. })));
        assert_eq!(devices.number("7"), Ok(7));
    }
}
