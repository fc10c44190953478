//! Crashes at chosen moments: soon after the engine has written something of which the order
//! counts.
//!
//! A crash that chance puts among requests seldom meets the milliseconds between a drop record and
//! the checkpoint that follows at once, or those between the two writes of a superblock. A life
//! with a strike ends some operations after the Nth write of a kind. In most of them the device is
//! slow with such writes from there on, so that clients have the time to do what would be wrong a
//! little too early. After a strike the next life often has another one of the same kind: what one
//! crash left half done, the next one interrupts.

use forebay_engine::format::record::{EntryKind, RecordHeader};
use forebay_engine::io::{Io, IoKind};
use forebay_engine::units::BLOCK_BYTES;

use crate::random::Random;
use crate::silent::{WriteClass, classify};
use crate::world::World;

/// Share of delayed writes among those that may be, in percent.
const LATE_PERCENT: u64 = 60;
const MILLISECOND: u64 = 1_000_000;

/// A write of the cache device that orders others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Landmark {
    Superblock,
    Checkpoint,
    /// A record with a drop.
    Drop,
    /// A record with an invalidation.
    Invalidation,
}

/// When a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Strike {
    landmark: Landmark,
    /// Which of these writes, counted from zero over the life.
    nth: u64,
    /// How much later than otherwise landmarks end from then on.
    late_ns: u64,
    /// Operations from that write to the crash.
    distance: u64,
}

impl Strike {
    /// A strike of a life; `before` is that of the life before.
    pub(crate) fn new(random: &mut Random, before: Option<Strike>) -> Strike {
        let landmarks =
            [Landmark::Superblock, Landmark::Checkpoint, Landmark::Drop, Landmark::Invalidation];
        let landmark = match before {
            Some(before) if random.percent(80) => before.landmark,
            _ => *random.pick(&landmarks),
        };
        let nth_max = match landmark {
            Landmark::Superblock => 4,
            Landmark::Checkpoint => 6,
            Landmark::Drop => *random.pick(&[2, 16]),
            Landmark::Invalidation => *random.pick(&[4, 40]),
        };
        let late_ns = *random.pick(&[0, 5, 50, 500]) * MILLISECOND;
        let distance_max =
            if late_ns == 0 { *random.pick(&[2, 8, 40]) } else { *random.pick(&[8, 40, 300]) };
        Strike {
            landmark,
            nth: random.below(nth_max),
            late_ns,
            distance: random.below(distance_max),
        }
    }

    /// One at a drop or checkpoint that is late, and so far from the crash that clients who go for
    /// what was dropped are answered before it.
    pub(crate) fn of_pursuit(random: &mut Random) -> Strike {
        let nth_max = *random.pick(&[2, 40]);
        Strike {
            landmark: *random.pick(&[Landmark::Drop, Landmark::Drop, Landmark::Checkpoint]),
            nth: random.below(nth_max),
            late_ns: *random.pick(&[50, 500]) * MILLISECOND,
            distance: random.between(100..=500),
        }
    }
}

impl World<'_> {
    /// Looks whether an operation of the cache device is what the strike of the life waits for.
    pub(crate) fn watch_for_strike(&mut self, io: &Io) {
        let Some(mut strike) = self.life.strike else { return };
        let Some(landmark) = self.landmark(io) else { return };
        if !self.life.is_struck {
            if landmark != strike.landmark {
                return;
            }
            if strike.nth > 0 {
                strike.nth -= 1;
                self.life.strike = Some(strike);
                return;
            }
            self.say(format!("a strike: {strike:?}"));
            self.stats.strikes += 1;
            self.life.is_struck = true;
            self.life.crash_after_ios = Some(self.life.ios + strike.distance);
        }
        if self.random.percent(LATE_PERCENT) {
            self.cache.delay_next(strike.late_ns);
        }
    }

    fn landmark(&self, io: &Io) -> Option<Landmark> {
        let header = match self.classify_write(io)? {
            (WriteClass::Checkpoint, _) => return Some(Landmark::Checkpoint),
            (WriteClass::Superblock, _) => return Some(Landmark::Superblock),
            (WriteClass::Record | WriteClass::Summary, header) => header?,
        };
        let has = |is_it: fn(&EntryKind) -> bool| header.entries.iter().any(|e| is_it(&e.kind));
        if has(|kind| matches!(kind, EntryKind::Drop { .. })) {
            return Some(Landmark::Drop);
        }
        has(|kind| *kind == EntryKind::Invalidate).then_some(Landmark::Invalidation)
    }

    /// The header of the record that an operation of the cache device writes.
    pub(crate) fn record_of(&self, io: &Io) -> Option<RecordHeader> {
        self.classify_write(io)?.1
    }

    fn classify_write(&self, io: &Io) -> Option<(WriteClass, Option<RecordHeader>)> {
        let IoKind::Write { offset_bytes, slices } = &io.kind else { return None };
        let first = (*offset_bytes / BLOCK_BYTES as u64) as u32;
        let bytes = self.pool.bytes(slices.as_slice()[0]);
        Some(classify(&self.config.geometry, first, &bytes[..BLOCK_BYTES]))
    }
}
