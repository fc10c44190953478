//! Writing the superblock: one place, flush, the other place, flush.
//!
//! At every moment one of the two places is whole: an update begins with the place that recovery
//! did not read, which an earlier crash or rot may have damaged, and goes to the other one only
//! when the first is durable. (Recovery flushes the device before its first update, so what it read
//! is durable, too.) A change counts as durable when both have it, so that damage to one place
//! later never brings an older generation back.

use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::format::superblock::SUPERBLOCK_BYTES;
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::payload::{BufferRange, Payload};
use crate::wake::{Ended, Waiter};

/// Which of the two writes of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    First,
    Second,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    WriteFirst,
    Writing {
        turn: Turn,
    },
    Written {
        turn: Turn,
    },
    Flushing {
        turn: Turn,
    },
    WriteSecond,
}

#[derive(Default)]
pub(crate) struct SuperblockWriter {
    state: State,
    /// Bytes being written.
    image: Vec<u8>,
    /// Waiters for what is being written.
    current: Vec<Waiter>,
    /// Waiters for a change made since.
    next: Vec<Waiter>,
}

impl SuperblockWriter {
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle && self.next.is_empty()
    }
}

impl Engine {
    /// Makes the superblock as it is now durable, then wakes `waiter`.
    pub(crate) fn write_superblock(&mut self, waiter: Waiter) {
        self.superblock_writer.next.push(waiter);
    }

    pub(crate) fn advance_superblock(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            let writer = &mut self.superblock_writer;
            let waiters: Vec<Waiter> =
                writer.current.drain(..).chain(writer.next.drain(..)).collect();
            for waiter in waiters {
                self.wake(waiter, Ended::Failed);
            }
            return;
        }
        if self.superblock_writer.state == State::Idle && !self.superblock_writer.next.is_empty() {
            self.superblock.serial += 1;
            self.superblock_writer.image = self.superblock.encode();
            self.superblock_writer.current = core::mem::take(&mut self.superblock_writer.next);
            self.superblock_writer.state = State::WriteFirst;
        }
        match self.superblock_writer.state {
            State::WriteFirst => self.submit_superblock(Turn::First, payload),
            State::WriteSecond => self.submit_superblock(Turn::Second, payload),
            State::Written { turn } => {
                self.superblock_writer.state = State::Flushing { turn };
                self.join_cache_flush_unless(Defect::TableNotFlushed, Waiter::Superblock);
            }
            State::Idle | State::Writing { .. } | State::Flushing { .. } => {}
        }
    }

    fn submit_superblock(&mut self, turn: Turn, payload: &mut dyn Payload) {
        let Some(buffer) = payload.allocate(SUPERBLOCK_BYTES) else {
            self.wait_for_memory();
            return;
        };
        let length = SUPERBLOCK_BYTES as u32;
        let range = BufferRange { buffer, offset: 0, length };
        payload.metadata_mut(range).copy_from_slice(&self.superblock_writer.image);
        let [first, second] = if has_defect(Defect::TableStartFirst) {
            [0, self.superblock.geometry.copy_offset]
        } else {
            self.superblock.write_order()
        };
        let offset_bytes = if turn == Turn::First { first } else { second };
        self.superblock_writer.state = State::Writing { turn };
        self.set_counters.metadata_bytes += u64::from(length);
        let kind = IoKind::Write { offset_bytes, slices: Slices::One(range) };
        self.submit(Device::Cache, kind, IoPurpose::Superblock { buffer });
    }

    pub(crate) fn on_superblock_written(&mut self, result: IoResult) {
        let State::Writing { turn } = self.superblock_writer.state else { unreachable!() };
        if result.is_err() {
            self.count_write_failure();
            self.superblock_writer.state =
                if turn == Turn::Second { State::WriteSecond } else { State::WriteFirst };
            return;
        }
        self.superblock_writer.state = State::Written { turn };
    }

    pub(crate) fn on_superblock_flushed(&mut self, ended: Ended) {
        if ended == Ended::Failed {
            return;
        }
        let State::Flushing { turn } = self.superblock_writer.state else { unreachable!() };
        if turn == Turn::First {
            self.superblock_writer.state = State::WriteSecond;
            return;
        }
        self.superblock_writer.state = State::Idle;
        for waiter in core::mem::take(&mut self.superblock_writer.current) {
            self.wake(waiter, Ended::Well);
        }
    }
}
