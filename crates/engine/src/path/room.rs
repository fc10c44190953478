//! Room in the log for writes of clients: who gets it, in which order.
//!
//! A write that finds no room lets go of its lock (rule 9) and waits its turn. When segments become
//! free, writes get a claim in the order in which they came to wait, as far as the room goes, and
//! start over. Taking the lock again may last, and until then nobody else takes what they claim.
//! Without claims each new segment would go to writes that hold their locks already, and a write of
//! blocks that many others write might never have lock and room at the same time.
//!
//! A claim is no promise: it counts blocks, and how they fit into segments depends on what else is
//! appended. Who finds no room in spite of it waits again, in its old place.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::engine::Engine;
use crate::log::Stream;
use crate::path::write::{UnitKind, UnitState};
use crate::payload::Payload;
use crate::range_lock::LockOwner;
use crate::request::RequestError;
use crate::slab::Key;
use crate::units::VolumeSlot;
use crate::wake::{Ended, Waiter};

/// Place in the queue of writes that wait for room; lower ones were there first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

/// Who waits for room in the log.
#[derive(Debug, Default)]
pub(crate) struct RoomQueue {
    /// Units without room, in order.
    waiting: BTreeMap<Ticket, Key>,
    next_ticket: u64,
    /// Blocks, headers included, that units claim which start over.
    claimed_blocks: u32,
    /// Units that wait for something else: room beside drops, or fewer pieces of zeroes.
    others: VecDeque<Key>,
    /// Some of these wait for blank records to go home, not for a segment.
    waits_for_blanks: bool,
}

impl RoomQueue {
    fn take_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = Key> {
        self.waiting.values().chain(&self.others).copied()
    }
}

impl Engine {
    /// Whether the unit can be appended now. If not, it lets go of its lock and starts over when
    /// there is room.
    pub(crate) fn has_unit_room(&mut self, key: Key, payload: &mut dyn Payload) -> bool {
        let unit = self.units[key];
        if self.is_cache_failed() {
            self.end_unit(key, Err(RequestError::Io), payload);
            return false;
        }
        let has_piece_room = match unit.kind {
            UnitKind::Data { .. } => {
                self.may_cut_blanks(unit.slot, unit.start, unit.start + unit.block_count)
            }
            _ => self.has_blank_room(),
        };
        if !has_piece_room {
            self.wait_for_blank_room(key);
            return false;
        }
        let blocks = unit.log_blocks();
        let has_room = if unit.claimed_blocks > 0 {
            self.has_room(Stream::Client, blocks - 1)
        } else {
            self.room.waiting.is_empty() && self.has_room_beside_claims(blocks)
        };
        if !has_room {
            let ticket = unit.ticket.unwrap_or_else(|| self.room.take_ticket());
            self.units[key].ticket = Some(ticket);
            self.room.waiting.insert(ticket, key);
            self.begin_wait(key);
        }
        has_room
    }

    /// Lets the unit wait until a segment becomes free, though not in turn: it needs less room than
    /// other writes, or room of another kind.
    pub(crate) fn wait_for_a_segment(&mut self, key: Key) {
        self.room.others.push_back(key);
        self.begin_wait(key);
    }

    /// Lets the unit wait until there are fewer pieces of zeroes and discards.
    pub(crate) fn wait_for_blank_room(&mut self, key: Key) {
        self.room.waits_for_blanks = true;
        self.wait_for_a_segment(key);
    }

    fn begin_wait(&mut self, key: Key) {
        self.set_counters.space_waits += 1;
        self.units[key].state = UnitState::Room;
        self.unlock(self.units[key].slot, LockOwner::Unit(key));
        self.settle_claim(key);
        if self.reclaim.is_resting() {
            self.go_on();
        }
    }

    /// Whether so many blocks have room beside those that are claimed.
    fn has_room_beside_claims(&self, blocks: u32) -> bool {
        let claimed = self.room.claimed_blocks;
        if claimed == 0 {
            return self.has_room(Stream::Client, blocks - 1);
        }
        self.client_room() >= claimed + blocks
    }

    /// What the unit claimed is appended, or not needed any more: others may go on.
    pub(crate) fn settle_claim(&mut self, key: Key) {
        let claimed = core::mem::take(&mut self.units[key].claimed_blocks);
        if claimed > 0 {
            self.room.claimed_blocks -= claimed;
            self.wake_room_waiters();
        }
    }

    /// Writes get claims, in order, as far as the room goes.
    fn wake_room_waiters(&mut self) {
        while let Some((ticket, key)) = self.room.waiting.first_key_value() {
            let (ticket, key) = (*ticket, *key);
            let blocks = self.units[key].log_blocks();
            if !self.has_room_beside_claims(blocks) {
                return;
            }
            self.room.waiting.remove(&ticket);
            self.units[key].claimed_blocks = blocks;
            self.room.claimed_blocks += blocks;
            self.wake(Waiter::Unit(key), Ended::Well);
        }
    }

    fn wake_others(&mut self, ended: Ended) {
        self.room.waits_for_blanks = false;
        for key in core::mem::take(&mut self.room.others) {
            self.wake(Waiter::Unit(key), ended);
        }
    }

    /// A segment is free: who waits for one goes on.
    pub(crate) fn on_segment_free(&mut self) {
        self.wake_others(Ended::Well);
        self.wake_room_waiters();
    }

    /// Writes that wait until there are fewer pieces go on.
    pub(crate) fn wake_blank_waiters(&mut self) {
        if self.room.waits_for_blanks && self.has_blank_room() {
            self.wake_others(Ended::Well);
        }
    }

    /// Nobody brings room for what the volume is to write any more.
    pub(crate) fn fail_room_waiters_of(&mut self, slot: VolumeSlot) {
        let mut failed = Vec::new();
        let mut stays = |key: &Key| {
            let is_of_it = self.units[*key].slot == slot;
            failed.extend(is_of_it.then_some(*key));
            !is_of_it
        };
        self.room.waiting.retain(|_, key| stays(key));
        self.room.others.retain(|key| stays(key));
        for key in failed {
            self.wake(Waiter::Unit(key), Ended::Failed);
        }
    }

    /// There will be no room any more.
    pub(crate) fn fail_room_waiters(&mut self) {
        for key in core::mem::take(&mut self.room.waiting).into_values() {
            self.wake(Waiter::Unit(key), Ended::Failed);
        }
        self.wake_others(Ended::Failed);
    }
}
