//! The hash of a run: 64-bit FNV-1a over all its events, in their order.
//!
//! Two runs with equal hashes did the same at the same virtual times, and wrote the same bytes. The
//! hash depends on nothing but the events: no seed of the process, no address, no word size. It
//! guards against nobody's intent, so a short and plain function will do.

use std::fmt;

/// Offset basis of 64-bit FNV-1a.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Prime of 64-bit FNV.
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// A hash that grows; shown as sixteen hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventHash(u64);

impl Default for EventHash {
    fn default() -> EventHash {
        EventHash(BASIS)
    }
}

impl EventHash {
    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
    }

    /// Takes in numbers of eight bytes, little-endian.
    pub fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().flat_map(|number| number.to_le_bytes()).for_each(|byte| self.byte(byte));
    }

    /// Takes in a text, its length first.
    pub fn text(&mut self, text: &str) {
        self.numbers(&[text.len() as u64]);
        text.bytes().for_each(|byte| self.byte(byte));
    }

    /// Takes in another hash.
    pub fn add(&mut self, other: EventHash) {
        self.numbers(&[other.0]);
    }
}

impl fmt::Display for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        let mut hash = EventHash::default();
        assert_eq!(hash.to_string(), "cbf29ce484222325");
        // From the test vectors of the authors of FNV.
        "foobar".bytes().for_each(|byte| hash.byte(byte));
        assert_eq!(hash.to_string(), "85944171f73967e8");
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let (mut a, mut b) = (EventHash::default(), EventHash::default());
        a.text("ab");
        a.text("c");
        b.text("a");
        b.text("bc");
        assert_ne!(a, b);
    }
}
