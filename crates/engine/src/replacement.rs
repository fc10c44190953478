//! Replacement on the log: segments are the nodes of the policy's queues.
//!
//! What clients write and what is promoted stands in the small queue, in the order in which it was
//! appended. What reclaim keeps is appended to the stream of relocations, whose segments are the
//! main queue; so are promotions of blocks that the policy remembers. A policy with one queue has
//! all segments in it, in the order in which they were opened.
//!
//! A block's turn comes with that of its segment. What is kept costs a copy, so copies are bounded:
//! one for each two blocks that clients write or that are promoted. Who has been used and finds no
//! copy left is dropped like the rest.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::background::reclaim::Candidate;
use crate::engine::Engine;
use crate::format::checkpoint::{SegmentLine, SegmentUse, bit};
use crate::index::{Piece, Place};
use crate::log::append::NewEntry;
use crate::log::segments::{SegmentState, Stretch};
use crate::log::{PROMOTE_MARGIN_SEGMENTS, RESERVE_SEGMENTS, SPARE_SEGMENTS, Stream};
use crate::policy::{BlockKey, Hit, Lengths, OnHit, Policy, PolicyKind, Queue, Standing};
use crate::units::{CacheBlock, VolumeSlot};

/// Blocks that come to the log for each copy of a clean block that reclaim may make: so the cache
/// device is written at most 1.5 times for what is promoted.
const BLOCKS_PER_COPY: u64 = 2;
/// The part of the log that copies may be saved up for: a divisor.
const SAVED_COPIES_DIVISOR: u64 = 16;

/// The part by which what the log holds must change for the policy to hear of it: a divisor.
const RESIZE_DIVISOR: u64 = 32;

/// The policy, and what it is told about queues.
pub(crate) struct Replacement {
    pub(crate) policy: Box<dyn Policy + Send>,
    /// It tells new blocks from proven ones.
    has_small_queue: bool,
    cache_blocks: u64,
    /// Blocks that the policy counts with.
    policy_blocks: u64,
    /// Blocks appended to each queue. It begins with all that the log holds, so that what was found
    /// at the start lies deep.
    appended: [u64; 2],
    /// What copies of clean blocks are paid with: one for each block that came.
    tokens: u64,
}

impl Replacement {
    pub(crate) fn new(kind: PolicyKind, cache_blocks: u64) -> Replacement {
        let policy = kind.make(cache_blocks);
        Replacement {
            has_small_queue: policy.has_small_queue(),
            policy,
            cache_blocks,
            policy_blocks: cache_blocks,
            appended: [cache_blocks; 2],
            tokens: Replacement::tokens_max(cache_blocks),
        }
    }

    /// Another policy: what the old one knew of blocks is forgotten.
    pub(crate) fn change_policy(&mut self, kind: PolicyKind) {
        self.policy = kind.make(self.cache_blocks);
        self.has_small_queue = self.policy.has_small_queue();
        self.policy_blocks = self.cache_blocks;
    }

    /// Tells the policy what a full log holds: headers, dead blocks and dirty data leave less room
    /// than there are blocks. Small changes are none.
    fn note_held(&mut self, lengths: &Lengths) {
        let blocks = (lengths.small_blocks + lengths.main_blocks).max(1);
        if blocks.abs_diff(self.policy_blocks) > self.policy_blocks / RESIZE_DIVISOR {
            self.policy.resize(blocks);
            self.policy_blocks = blocks;
        }
    }

    fn tokens_max(cache_blocks: u64) -> u64 {
        cache_blocks / SAVED_COPIES_DIVISOR * BLOCKS_PER_COPY
    }

    /// Blocks appended to a queue so far.
    pub(crate) fn appended(&self, queue: Queue) -> u64 {
        self.appended[queue as usize]
    }

    /// Blocks with payload were appended to a segment of `queue`.
    fn on_appended(&mut self, queue: Queue, block_count: u32) {
        self.appended[queue as usize] += u64::from(block_count);
    }

    /// Blocks came that pay for copies.
    fn on_admitted(&mut self, block_count: u32) {
        let most = Replacement::tokens_max(self.cache_blocks);
        self.tokens = (self.tokens + u64::from(block_count)).min(most);
    }

    /// Clean blocks that may be copied now.
    pub(crate) fn copies(&self) -> u64 {
        self.tokens / BLOCKS_PER_COPY
    }

    /// As many as may be saved up.
    fn copies_max(&self) -> u64 {
        Replacement::tokens_max(self.cache_blocks) / BLOCKS_PER_COPY
    }

    /// Whether copies are better saved for what is used again and again.
    pub(crate) fn is_short_of_copies(&self) -> bool {
        self.has_small_queue && self.tokens < Replacement::tokens_max(self.cache_blocks) / 2
    }

    pub(crate) fn take_copies(&mut self, blocks: u64) {
        self.tokens -= blocks * BLOCKS_PER_COPY;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes()
    }
}

/// The queue whose segments a stream fills.
pub(crate) fn queue_of(stream: Stream) -> Queue {
    match stream {
        Stream::Client | Stream::Promote => Queue::Small,
        Stream::Relocate => Queue::Main,
    }
}

impl Engine {
    /// The queue of a segment, as the policy has it.
    pub(crate) fn queue_of_segment(&self, segment: u32) -> Queue {
        if self.replacement.has_small_queue {
            self.log.segments.stretch(segment).queue
        } else {
            Queue::Main
        }
    }

    /// Cached blocks as they are hit.
    fn hit_at(&self, position: CacheBlock, block_count: u32) -> Hit {
        let (id, block) = self.log.segments.locate(position);
        let queue = self.queue_of_segment(id);
        let stretch = self.log.segments.stretch(id);
        let now = self.replacement.appended(stretch.queue);
        // Several segments of a queue may fill up at a time: evenly, as far as is known.
        let (last, blocks) = match stretch.last_number {
            Some(last) => (last, stretch.blocks),
            None => (now, self.log.segments.get(id).used_blocks),
        };
        let first = stretch.first_number;
        let number = first + (last - first) * u64::from(block) / u64::from(blocks);
        Hit { position, block_count, queue, depth_blocks: now - number }
    }

    /// A client read or overwrote cached blocks. What is to be appended again waits for its turn: a
    /// copy for each hit would cost more than it is worth.
    pub(crate) fn note_use(&mut self, position: CacheBlock, block_count: u32) {
        let hit = self.hit_at(position, block_count);
        let (OnHit::Stay | OnHit::Append) = self.replacement.policy.on_hit(&hit);
    }

    /// The blocks of an entry are at `position` from now on, in the place of `losers`.
    pub(crate) fn note_placed(&mut self, new: &NewEntry, position: CacheBlock, losers: &[Piece]) {
        let (segment, _) = self.log.segments.locate(position);
        let queue = self.log.segments.stretch(segment).queue;
        let is_copy = losers.iter().any(|loser| loser.version == new.version);
        self.replacement.on_appended(queue, new.block_count);
        if !is_copy {
            self.replacement.on_admitted(new.block_count);
        }
        let standing = match new.standing {
            Some(standing) => standing,
            None if losers.iter().any(|loser| loser.place != Place::Absent) => Standing::New,
            None => self.standing_of_new(new.slot, new.start, new.block_count),
        };
        self.replacement.policy.on_placed(position, new.block_count, standing);
        if new.standing.is_some() {
            return;
        }
        for loser in losers {
            let Place::Data(from) = loser.place else { continue };
            let block_count = u32::try_from(loser.block_count).expect("data pieces are small");
            if !is_copy {
                self.note_use(from, block_count);
            }
            if self.replacement.policy.would_keep(from, block_count) {
                let offset = u32::try_from(loser.start - new.start).expect("within the entry");
                let to = CacheBlock(position.0 + offset);
                self.replacement.policy.on_placed(to, block_count, Standing::Proven);
            }
        }
    }

    /// A record that could not be written is written elsewhere, and its blocks with it.
    pub(crate) fn move_standing(&mut self, from: CacheBlock, to: CacheBlock, block_count: u32) {
        let policy = &mut self.replacement.policy;
        let standing = match policy.would_keep(from, block_count) {
            true => Standing::Proven,
            false => Standing::New,
        };
        policy.on_placed(to, block_count, standing);
    }

    /// What is known of blocks that are not cached and are about to be.
    pub(crate) fn standing_of_new(
        &mut self,
        slot: VolumeSlot,
        start: u64,
        block_count: u32,
    ) -> Standing {
        if !self.replacement.has_small_queue {
            return Standing::New;
        }
        let key = self.policy_key(slot, start);
        match self.replacement.policy.queue_of_new(key, block_count) {
            Queue::Small => Standing::New,
            Queue::Main => Standing::Proven,
        }
    }

    pub(crate) fn policy_key(&self, slot: VolumeSlot, block: u64) -> BlockKey {
        #[expect(clippy::cast_possible_truncation, reason = "goes into a hash")]
        let volume = self.volume(slot).id.0 as u32;
        BlockKey { volume, block }
    }

    /// Where promoted blocks go, and what is left to say of them: remembered ones to the main queue
    /// at once, if that leaves reclaim all that it counts on (rule 11).
    pub(crate) fn promotion_stream(
        &self,
        standing: Standing,
        block_count: u32,
    ) -> (Stream, Standing) {
        let kept = RESERVE_SEGMENTS + SPARE_SEGMENTS + PROMOTE_MARGIN_SEGMENTS;
        let has_room =
            self.log.segments.free_count() > kept && self.has_room_beside_drops(block_count);
        match standing {
            Standing::Proven if has_room => (Stream::Relocate, Standing::New),
            _ => (Stream::Promote, standing),
        }
    }

    /// Which blocks of a segment were used: bits of all its blocks, as checkpoints have them.
    pub(crate) fn references_of(&self, segment: u32) -> Vec<u64> {
        let blocks = self.log.segments.segment_blocks();
        let words = (0..blocks).step_by(u64::BITS as usize);
        let positions = words.map(|block| self.log.position(segment, block));
        positions.map(|position| self.replacement.policy.references(position)).collect()
    }

    /// What a checkpoint says of the use of a segment that was found. Of one that is younger than
    /// the checkpoint nothing is known: it has to prove itself.
    pub(crate) fn restore_use(&mut self, segment: u32, line: &SegmentLine) {
        let is_same = line.segment_use != SegmentUse::Free
            && line.generation == self.log.segments.get(segment).generation;
        *self.log.segments.stretch_mut(segment) = Stretch {
            queue: if is_same { line.queue } else { Queue::Small },
            ..Stretch::default()
        };
        let references = line.references.as_deref().filter(|_| is_same).unwrap_or_default();
        for (block, word) in (0u32..).step_by(u64::BITS as usize).zip(references) {
            let position = self.log.position(segment, block);
            self.replacement.policy.restore(position, *word);
        }
    }

    /// Clean blocks in each queue.
    fn lengths(&self) -> Lengths {
        let mut lengths = Lengths { small_blocks: 0, main_blocks: 0 };
        for (id, segment) in self.log.segments.iter() {
            if matches!(segment.state, SegmentState::Open | SegmentState::Closed) {
                let clean = segment.live - (segment.dirty - segment.retained);
                *self.length_of(&mut lengths, id) += u64::from(clean);
            }
        }
        lengths
    }

    fn length_of<'a>(&self, lengths: &'a mut Lengths, segment: u32) -> &'a mut u64 {
        match self.queue_of_segment(segment) {
            Queue::Small => &mut lengths.small_blocks,
            Queue::Main => &mut lengths.main_blocks,
        }
    }

    /// Clean blocks of a segment that were used, and would be copied.
    fn used_blocks(&self, segment: u32) -> u64 {
        let referenced = self.references_of(segment);
        let is_used = |block: &u32| {
            let position = self.log.position(segment, *block);
            bit(&referenced, *block) && self.log.segments.is_clean(position)
        };
        (0..self.log.segments.segment_blocks()).filter(is_used).count() as u64
    }

    /// The next segments whose turn it is, at most `wanted`. `clean` ones are those that could be
    /// reclaimed, in the order in which they were opened.
    pub(crate) fn next_victims(&mut self, clean: &[&Candidate], wanted: usize) -> Vec<u32> {
        let mut lengths = self.lengths();
        self.replacement.note_held(&lengths);
        let (mut small, mut main): (VecDeque<&Candidate>, VecDeque<&Candidate>) =
            clean.iter().partition(|c| self.queue_of_segment(c.id) == Queue::Small);
        let mut victims = Vec::new();
        let mut copies = self.replacement.copies();
        while victims.len() < wanted {
            // One that has nothing to give lets the other go ahead. So does the main queue while
            // copies for what is used of its next segment are still being saved: all of that would
            // go, where of the small queue most is used by nobody.
            let is_too_dear = |victim: &&Candidate| {
                copies < self.replacement.copies_max() && self.used_blocks(victim.id) > copies
            };
            let next = match self.replacement.policy.victim_queue(&lengths) {
                Queue::Main if small.is_empty() || !main.front().is_some_and(is_too_dear) => {
                    main.pop_front().or_else(|| small.pop_front())
                }
                _ => small.pop_front().or_else(|| main.pop_front()),
            };
            let Some(victim) = next else { break };
            copies = copies.saturating_sub(self.used_blocks(victim.id));
            let length = self.length_of(&mut lengths, victim.id);
            *length = length.saturating_sub(victim.live.into());
            victims.push(victim.id);
        }
        victims
    }
}
