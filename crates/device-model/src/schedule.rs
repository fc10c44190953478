//! Completions whose time is known, earliest first; equal times in order of insertion.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use crate::request::{Completion, Token};

/// Completions to come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    /// Time, order of insertion, token.
    heap: BinaryHeap<Reverse<(u64, u64, Token)>>,
    inserted_count: u64,
}

impl Schedule {
    /// Has `token` complete at `at_ns`.
    pub(crate) fn insert(&mut self, at_ns: u64, token: Token) {
        self.heap.push(Reverse((at_ns, self.inserted_count, token)));
        self.inserted_count += 1;
    }

    /// The next completion if it is due at `now_ns`.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<Completion> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse((at_ns, _, token))| Completion { token, at_ns })
    }

    /// Time of the next completion.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }
}
