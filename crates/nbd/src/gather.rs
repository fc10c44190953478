//! Collects the fixed part of a message from a stream that may be cut anywhere.
//!
//! Invariant: what is held belongs to one message, and is gone once `take` has yielded it. It holds
//! no message longer than `CAPACITY`.

/// The longest fixed part: a request header.
const CAPACITY: usize = 28;

/// Bytes of a message that is not complete yet.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    bytes: [u8; CAPACITY],
    filled: usize,
}

impl Gather {
    pub(crate) fn new() -> Gather {
        Gather { bytes: [0; CAPACITY], filled: 0 }
    }

    /// Moves bytes from the front of `input` until `wanted` are held, and then yields them once.
    pub(crate) fn take(&mut self, wanted: usize, input: &mut &[u8]) -> Option<&[u8]> {
        if !self.fill(wanted, input) {
            return None;
        }
        self.filled = 0;
        Some(&self.bytes[..wanted])
    }

    /// Like `take`, but keeps the bytes: a later call with a larger `wanted` yields them again.
    pub(crate) fn peek(&mut self, wanted: usize, input: &mut &[u8]) -> Option<&[u8]> {
        if self.fill(wanted, input) { Some(&self.bytes[..wanted]) } else { None }
    }

    fn fill(&mut self, wanted: usize, input: &mut &[u8]) -> bool {
        assert!(wanted <= CAPACITY);
        let missing = wanted.saturating_sub(self.filled).min(input.len());
        let (head, tail) = input.split_at(missing);
        self.bytes[self.filled..self.filled + missing].copy_from_slice(head);
        self.filled += missing;
        *input = tail;
        self.filled >= wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_when_complete_and_leaves_the_rest() {
        let mut gather = Gather::new();
        let mut input: &[u8] = &[1, 2];
        assert_eq!(gather.take(3, &mut input), None);
        assert!(input.is_empty());
        let mut input: &[u8] = &[3, 4];
        assert_eq!(gather.take(3, &mut input), Some(&[1, 2, 3][..]));
        assert_eq!(input, &[4]);
    }

    #[test]
    fn peek_keeps_what_take_yields() {
        let mut gather = Gather::new();
        let mut input: &[u8] = &[1, 2, 3];
        assert_eq!(gather.peek(2, &mut input), Some(&[1, 2][..]));
        assert_eq!(gather.take(3, &mut input), Some(&[1, 2, 3][..]));
        assert!(input.is_empty());
    }
}
