//! What reclaim keeps though the policy would not: pinned blocks, and those of volumes that have no
//! more than their `share_min`.
//!
//! They are appended again like dirty ones, from the reserve if need be. A segment of which most is
//! kept is not copied: it gives little room for its copies. It goes to the end of the queue as it
//! is, and one that is full of pinned blocks is not looked at again before pins change or it loses
//! blocks. So what is pinned costs copies once, until it lies together.
//!
//! Reclaim always makes progress. The bound on what may be kept leaves segments of others to choose
//! from, unless dirty data holds these: then writeback is urged, and nothing is given up as long as
//! that can help. When it cannot, segments are copied that are less than full, so that what is kept
//! lies closer. When that gains nothing either, reclaim rests with the free segments that there
//! are, until more was appended. Only if writes wait and nothing is about to become free, what is
//! kept for shares goes, and if that is not enough what is pinned.

use alloc::vec::Vec;

use super::{Candidate, REST_MS};
use crate::background::segment_entries::SegmentRange;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::index::{Piece, Place};
use crate::log::DROPS_OF_ROUND;
use crate::log::segments::SegmentState;
use crate::policy::Queue;
use crate::units::{CacheBlock, VolumeSlot};

/// A segment of which at most one of so many blocks would be gained is not copied.
const GAIN_DIVISOR: u32 = 4;
/// The same while room is short and nothing else gives any.
const STRICT_GAIN_DIVISOR: u32 = 8;
/// Rounds in a row without gain after which each run that is kept counts with a header of its own.
const VAIN_ROUNDS_EXACT: u32 = 4;
/// Rounds in a row without gain, while writes wait for room, after which shares are not kept: with
/// the least gain of a round a segment has become free by then.
const VAIN_ROUNDS_SHARES: u32 = STRICT_GAIN_DIVISOR + VAIN_ROUNDS_EXACT;
/// The same for pins.
const VAIN_ROUNDS_PINS: u32 = 2 * VAIN_ROUNDS_SHARES;
/// Milliseconds until what is kept is looked at again after a lap without gain, if nothing was
/// appended meanwhile: an administrator may have lowered a share, a discard may have left holes.
const LAP_REST_MS: u64 = 10_000;

/// What a round keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum KeepLevel {
    /// What is dirty, and what the policy keeps.
    #[default]
    Nothing,
    /// Pinned blocks, too.
    Pins,
    /// And what belongs to smallest shares.
    Shares,
}

/// Why a clean block is appended again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// The policy keeps it if there is room.
    Wanted,
    /// It is pinned, or of a smallest share: its segment stays if there is no room.
    Firm,
}

/// A volume with a smallest share, in one round.
#[derive(Clone, Copy, Debug)]
struct RoundShare {
    slot: VolumeSlot,
    /// Blocks beyond the share when the round chose.
    excess_blocks: u64,
    /// Of these, not given to the choice yet.
    left_blocks: u64,
    dropped_blocks: u64,
}

/// What reclaim remembers of what is kept.
#[derive(Default)]
pub(crate) struct Keeper {
    pub(crate) level: KeepLevel,
    shares: Vec<RoundShare>,
    /// Raised when pins change: what segments say of themselves is void.
    pins_version: u64,
    /// The same when the round chose what it keeps.
    round_version: u64,
    /// Raised when what segments say of themselves is void: with pins, and with the measure of what
    /// is full.
    hint_epoch: u64,
    /// Victims that are still to be measured strictly.
    strict_left: u32,
    /// That was done already since reclaim last dropped anything.
    was_strict: bool,
    /// A lap: each clean segment has its turn once, also where others stand in front of it whose
    /// turn would come again.
    lap: u64,
    /// Segments that went to the end of the queue as they are, in this lap.
    requeued: u32,
    /// Something was dropped in this lap.
    has_dropped: bool,
    vain_rounds: u32,
    /// Bytes appended for others, and segments free or about to be, when the last round began.
    last: (u64, u32),
    /// Bytes appended for others when reclaim went to rest since it keeps too much.
    rests_since: Option<u64>,
}

impl Keeper {
    fn begin_lap(&mut self) {
        self.lap += 1;
        self.requeued = 0;
        self.has_dropped = false;
    }

    pub(super) fn is_resting(&self) -> bool {
        self.rests_since.is_some()
    }
}

/// What is kept of a segment.
#[derive(Clone, Copy, Default)]
struct HeldBlocks {
    pinned: u32,
    shared: u32,
    /// Each takes a header at worst.
    runs: u32,
}

impl HeldBlocks {
    /// Log that copies of so many blocks take. Most of them share records; how many do is known
    /// only afterwards.
    fn log_blocks(self, blocks: u32, vain_rounds: u32) -> u32 {
        match blocks {
            0 => 0,
            _ if vain_rounds < VAIN_ROUNDS_EXACT => blocks + self.runs / 2,
            _ => blocks + self.runs,
        }
    }
}

impl Engine {
    /// Pins have changed.
    pub(crate) fn on_pins_changed(&mut self) {
        self.reclaim.keeper.pins_version += 1;
        self.reclaim.keeper.hint_epoch += 1;
    }

    /// Whether a round is under way that chose before pins changed.
    pub(crate) fn is_round_unaware_of_pins(&self) -> bool {
        let keeper = &self.reclaim.keeper;
        !self.reclaim.is_idle() && keeper.round_version != keeper.pins_version
    }

    /// Whether a closed segment is full of pinned blocks, as far as is known.
    pub(super) fn is_held_whole(&self, segment: u32) -> bool {
        let state = self.log.segments.get(segment);
        let epoch = self.reclaim.keeper.hint_epoch + 1;
        state.held_whole_as_of == epoch && state.live >= self.held_limit() / 2
    }

    /// Blocks of a segment that take so much log again that it is not worth it.
    fn held_limit(&self) -> u32 {
        let blocks = self.log.segments.segment_blocks();
        let is_strict = self.reclaim.keeper.strict_left > 0;
        blocks - blocks / if is_strict { STRICT_GAIN_DIVISOR } else { GAIN_DIVISOR }
    }

    /// So many clean segments are measured strictly from now on, unless that was done in vain.
    /// Answers whether it begins.
    pub(super) fn packs_closer(&mut self, clean_segments: usize) -> bool {
        let keeper = &mut self.reclaim.keeper;
        if keeper.was_strict || clean_segments == 0 {
            return false;
        }
        keeper.was_strict = true;
        keeper.strict_left = u32::try_from(clean_segments).expect("of a segment table") + 1;
        keeper.hint_epoch += 1;
        keeper.begin_lap();
        true
    }

    /// Victims have been measured.
    fn note_measured(&mut self, victims: usize) {
        let keeper = &mut self.reclaim.keeper;
        let before = keeper.strict_left;
        keeper.strict_left = before.saturating_sub(u32::try_from(victims).expect("VICTIMS_MAX"));
        if before > 0 && keeper.strict_left == 0 {
            keeper.hint_epoch += 1;
        }
    }

    /// Of clean segments, those whose turn has not come in this lap. A lap in which something was
    /// dropped is followed by another one.
    pub(super) fn left_in_lap<'a>(&mut self, clean: &[&'a Candidate]) -> Vec<&'a Candidate> {
        let lap = self.reclaim.keeper.lap + 1;
        let is_left = |c: &&&Candidate| self.log.segments.get(c.id).passed_in_lap != lap;
        let left: Vec<&Candidate> = clean.iter().filter(is_left).copied().collect();
        if left.is_empty() && self.reclaim.keeper.has_dropped {
            self.reclaim.keeper.begin_lap();
            return clean.to_vec();
        }
        left
    }

    /// Whether rounds gain nothing for what they keep, with so many clean segments left in this
    /// lap: all of them went to the end of the queue, or copies took what they gave.
    pub(super) fn is_keeping_vain(&self, left_in_lap: usize) -> bool {
        let keeper = &self.reclaim.keeper;
        let has_lapped = left_in_lap == 0 && keeper.requeued > 0;
        has_lapped || keeper.vain_rounds >= VAIN_ROUNDS_SHARES
    }

    /// Whether something must go now: writes wait for room and none is about to come, or memory is
    /// short.
    pub(super) fn is_room_exhausted(&self) -> bool {
        let do_writes_wait = self.room.units().next().is_some();
        do_writes_wait && self.dropped_count() == 0 || self.excess_memory_bytes() > 0
    }

    /// Bytes that the log took for clients.
    fn bytes_for_clients(&self) -> u64 {
        self.set_counters.client_bytes + self.set_counters.promoted_bytes
    }

    /// Whether no round is to begin, since the last ones gained nothing and nothing must go: room
    /// is to come from writeback, or there is enough for now.
    pub(super) fn rests_with_what_it_keeps(&mut self) -> bool {
        if self.can_writeback_help() {
            self.writeback.is_urgent = true;
            self.reclaim.rests_until = self.now.after_ms(REST_MS);
        } else if self.reclaim.keeper.was_strict && !self.is_room_exhausted() {
            self.reclaim.rests_until = self.now.after_ms(LAP_REST_MS);
            self.reclaim.keeper.rests_since = Some(self.bytes_for_clients());
        } else {
            return false;
        }
        self.reclaim.keeper.begin_lap();
        self.reclaim.keeper.vain_rounds = 0;
        true
    }

    /// Whether a rest ends early: a segment was appended since, or something must go.
    pub(super) fn ends_rest(&mut self) -> bool {
        let Some(since) = self.reclaim.keeper.rests_since else { return false };
        let segment_bytes = self.superblock.geometry.segment_bytes;
        let ends = self.bytes_for_clients() >= since + segment_bytes
            || self.is_room_exhausted()
            || self.reclaim.rests_until <= self.now;
        if ends {
            self.reclaim.keeper.rests_since = None;
            self.reclaim.rests_until = self.now;
        }
        ends
    }

    /// A round begins, which had so many clean segments left in this lap.
    pub(super) fn begin_keeping(&mut self, left_in_lap: usize) {
        let is_vain = self.is_keeping_vain(left_in_lap);
        let must_give = is_vain && self.is_room_exhausted();
        let appended = self.bytes_for_clients();
        let room = self.log.segments.free_count() + self.dropped_count();
        let is_degraded = self.is_degraded();
        let keeper = &mut self.reclaim.keeper;
        keeper.level = if is_degraded || must_give && keeper.vain_rounds >= VAIN_ROUNDS_PINS {
            KeepLevel::Nothing
        } else if must_give {
            KeepLevel::Pins
        } else {
            KeepLevel::Shares
        };
        if is_vain {
            keeper.begin_lap();
        }
        let has_gained = appended != keeper.last.0 || room > keeper.last.1;
        keeper.vain_rounds = if has_gained { 0 } else { keeper.vain_rounds + 1 };
        keeper.last = (appended, room);
    }

    /// Counts what each volume may lose in this round.
    fn count_shares(&mut self) {
        let mut shares = core::mem::take(&mut self.reclaim.keeper.shares);
        shares.clear();
        for slot in self.slots() {
            let volume = self.volume(slot);
            let percent = volume.settings.share_min_percent;
            let least = self.superblock.geometry.share_blocks(percent.into());
            if percent > 0 {
                let excess_blocks = volume.index.complete.data_block_count().saturating_sub(least);
                let left_blocks = excess_blocks;
                shares.push(RoundShare { slot, excess_blocks, left_blocks, dropped_blocks: 0 });
            }
        }
        self.reclaim.keeper.shares = shares;
    }

    /// The victims are loaded: lets those go that give no room, or whose copies have none.
    pub(super) fn spare_held_victims(&mut self) {
        self.count_shares();
        self.reclaim.keeper.round_version = self.reclaim.keeper.pins_version;
        let has_pins = self.slots().any(|slot| !self.superblock.pins(slot).is_empty());
        if !has_pins && self.reclaim.keeper.shares.is_empty() {
            return;
        }
        let vain_rounds = self.reclaim.keeper.vain_rounds;
        let mut room = self.relocation_room().saturating_sub(DROPS_OF_ROUND);
        let victims = core::mem::take(&mut self.reclaim.victims);
        let measured = victims.len();
        for victim in victims {
            let held = self.held_blocks(victim.segment, &victim.ranges);
            let state = self.log.segments.get(victim.segment);
            let is_clean = state.dirty == 0;
            let blocks = held.pinned + held.shared;
            let cost = if blocks == 0 { 0 } else { blocks + held.runs + state.dirty + 2 };
            if is_clean && held.log_blocks(blocks, vain_rounds) >= self.held_limit() {
                self.requeue(victim.segment, held);
            } else if cost > room {
                self.log.segments.get_mut(victim.segment).state = SegmentState::Closed;
            } else {
                room -= cost;
                self.reclaim.victims.push(victim);
            }
        }
        self.note_measured(measured);
    }

    /// The segment waits for its turn again, as if all of it had been appended now.
    fn requeue(&mut self, segment: u32, held: HeldBlocks) {
        let keeper = &self.reclaim.keeper;
        let is_pinned = held.log_blocks(held.pinned, keeper.vain_rounds) >= self.held_limit();
        let (epoch, lap) = (keeper.hint_epoch + 1, keeper.lap + 1);
        let order = self.log.next_open_order;
        self.log.next_open_order += 1;
        self.reclaim.keeper.requeued += 1;
        // Whatever it was: in the main queue it does not count against what is new.
        let number = self.replacement.appended(Queue::Main);
        let state = self.log.segments.get_mut(segment);
        state.state = SegmentState::Closed;
        state.queue_order = order;
        state.passed_in_lap = lap;
        if is_pinned {
            state.held_whole_as_of = epoch;
        }
        let stretch = self.log.segments.stretch_mut(segment);
        stretch.queue = Queue::Main;
        (stretch.first_number, stretch.last_number) = (number, Some(number));
    }

    /// What of a victim would be kept in this round.
    fn held_blocks(&self, segment: u32, ranges: &[SegmentRange]) -> HeldBlocks {
        let mut held = HeldBlocks::default();
        let mut left: Vec<(VolumeSlot, u64)> = Vec::new();
        for share in &self.reclaim.keeper.shares {
            left.push((share.slot, share.left_blocks));
        }
        for (slot, piece) in self.pieces_in_segment(segment, ranges) {
            let Place::Data(position) = piece.place else { continue };
            let mut was_held = false;
            for (block, at) in (piece.start..piece.end()).zip(position.0..) {
                let at = CacheBlock(at);
                let is_clean = self.log.segments.is_live(at) && !self.log.segments.is_dirty(at);
                let mut is_held = false;
                if is_clean && self.is_pinned_in_round(slot, block) {
                    held.pinned += 1;
                    is_held = true;
                } else if is_clean && self.reclaim.keeper.level == KeepLevel::Shares {
                    let share = left.iter_mut().find(|share| share.0 == slot);
                    is_held = share.is_some_and(|share| {
                        let is_in_share = share.1 == 0;
                        share.1 = share.1.saturating_sub(1);
                        is_in_share
                    });
                    held.shared += u32::from(is_held);
                }
                held.runs += u32::from(is_held && !was_held);
                was_held = is_held;
            }
        }
        held
    }

    fn is_pinned_in_round(&self, slot: VolumeSlot, block: u64) -> bool {
        self.reclaim.keeper.level >= KeepLevel::Pins
            && self.superblock.pins(slot).has(block)
            && !has_defect(Defect::PinsForgotten)
    }

    /// Whether a clean block is kept whatever the policy says, for being pinned.
    pub(super) fn holds_pinned(&mut self, slot: VolumeSlot, block: u64) -> bool {
        let is_pinned = self.is_pinned_in_round(slot, block);
        if is_pinned {
            self.volume_mut(slot).counters.pinned_kept_blocks += 1;
        }
        is_pinned
    }

    /// Whether what the volume loses in this round is counted.
    pub(super) fn has_smallest_share(&self, slot: VolumeSlot) -> bool {
        self.reclaim.keeper.shares.iter().any(|share| share.slot == slot)
    }

    /// Whether a clean block that nobody else keeps belongs to the smallest share of its volume.
    pub(super) fn holds_share(&mut self, slot: VolumeSlot) -> bool {
        let keeper = &mut self.reclaim.keeper;
        let share = keeper.shares.iter_mut().find(|share| share.slot == slot);
        let Some(share) = share else { return false };
        if share.left_blocks > 0 {
            share.left_blocks -= 1;
            return false;
        }
        if keeper.level < KeepLevel::Shares || has_defect(Defect::ShareMinIgnored) {
            return false;
        }
        self.volume_mut(slot).counters.share_kept_blocks += 1;
        true
    }

    /// The index is about to forget a piece: counts what of it should have been kept. Apart from
    /// the choice, so that a choice that is wrong shows.
    pub(super) fn count_forgotten(&mut self, slot: VolumeSlot, piece: &Piece) {
        let Place::Data(position) = piece.place else { return };
        self.reclaim.keeper.has_dropped = true;
        self.reclaim.keeper.was_strict = false;
        let has_pins = !self.superblock.pins(slot).is_empty() && !self.is_round_unaware_of_pins();
        let share = self.reclaim.keeper.shares.iter().position(|share| share.slot == slot);
        if !has_pins && share.is_none() {
            return;
        }
        let (mut live, mut pinned) = (0, 0);
        for (block, at) in (piece.start..piece.end()).zip(position.0..) {
            if self.log.segments.is_live(CacheBlock(at)) {
                live += 1;
                pinned += u64::from(has_pins && self.superblock.pins(slot).has(block));
            }
        }
        self.volume_mut(slot).counters.pinned_dropped_blocks += pinned;
        if let Some(share) = share {
            self.reclaim.keeper.shares[share].dropped_blocks += live;
        }
    }

    /// A round has ended.
    pub(super) fn end_keeping(&mut self) {
        for share in core::mem::take(&mut self.reclaim.keeper.shares) {
            let excess = share.dropped_blocks.saturating_sub(share.excess_blocks);
            if let Some(Some(volume)) = self.volumes.get_mut(usize::from(share.slot.0)) {
                volume.counters.share_dropped_blocks += excess;
            }
        }
    }
}
