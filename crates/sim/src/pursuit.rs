//! Clients that go where the engine is just giving something up.
//!
//! The index may forget a copy only when the drop of its segment is durable. An engine that forgets
//! sooner is caught by nobody but a client who writes just there, around the log, before the drop
//! is durable, and only if the next life is asked for that block before it drops the segment once
//! more. Chance does not come there. In a run with a pursuit clients learn of every drop record
//! when it is submitted, or when it has ended, and some of their requests go to the blocks that the
//! dropped segment holds. The next life is asked for these blocks before anything else, while it
//! still recovers.

use std::collections::BTreeMap;

use forebay_engine::format::record::EntryKind;
use forebay_engine::io::Io;

use crate::client::Owner;
use crate::media::BLOCK_SECTORS;
use crate::oracle::{Observed, Run};
use crate::random::Random;
use crate::silent::first_block_of;
use crate::stamp::{self, Found};
use crate::workload::{Operation, OperationKind};
use crate::world::World;

/// Blocks that are known to be given up and were not gone for yet; of more the oldest are left
/// alone.
const QUARRY_MAX: usize = 64;
/// Blocks that the next life is asked for; of more the oldest are left to the check.
const WRITTEN_MAX: usize = 256;
/// Of a segment at most so many are chosen.
const OF_SEGMENT_MAX: usize = 24;
/// Share of drops of which clients learn when they have ended, in percent; of the others they learn
/// at their begin.
const AT_END_PERCENT: u64 = 30;
/// Share of the requests that write, in percent; the others read, which brings the block back.
const WRITE_PERCENT: u64 = 80;
/// Share of the answers to these writes after which the life of a strike ends, in percent.
const CRASH_PERCENT: u64 = 30;
/// It ends after fewer operations than this.
const OPERATIONS_TO_CRASH: u64 = 4;

/// What clients go for.
pub(crate) struct Pursuit {
    random: Random,
    /// Blocks of segments that are being dropped.
    quarry: Vec<Run>,
    /// The same, for when this operation has ended.
    held_back: BTreeMap<u64, Vec<Run>>,
    /// Blocks that were written to, in this life or, until it is asked for them, the one before.
    written: Vec<Run>,
}

impl Pursuit {
    pub(crate) fn new(random: Random) -> Pursuit {
        let (quarry, written) = (Vec::new(), Vec::new());
        Pursuit { random, quarry, held_back: BTreeMap::new(), written }
    }
}

impl World<'_> {
    /// Looks whether an operation of the cache device drops segments, and learns what they hold.
    pub(crate) fn watch_for_quarry(&mut self, io: &Io) {
        if self.config.pursuit_percent == 0 {
            return;
        }
        let Some(header) = self.record_of(io) else { return };
        for entry in &header.entries {
            let EntryKind::Drop { segment, .. } = entry.kind else { continue };
            let mut blocks = self.blocks_in(segment);
            self.say(format!("segment {segment} is dropped, with {} blocks", blocks.len()));
            let Pursuit { random, held_back, quarry, .. } = &mut self.pursuit;
            random.shuffle(&mut blocks);
            blocks.truncate(OF_SEGMENT_MAX);
            if random.percent(AT_END_PERCENT) {
                held_back.entry(io.id.0).or_default().extend(blocks);
            } else {
                quarry.extend(blocks);
                keep_newest(quarry, QUARRY_MAX);
            }
        }
    }

    /// An operation of the cache device has ended.
    pub(crate) fn on_drop_end(&mut self, id: u64) {
        let Pursuit { quarry, held_back, .. } = &mut self.pursuit;
        if let Some(blocks) = held_back.remove(&id) {
            quarry.extend(blocks);
            keep_newest(quarry, QUARRY_MAX);
        }
    }

    /// The blocks of volumes of which a segment holds what was last written.
    fn blocks_in(&self, segment: u32) -> Vec<Run> {
        let geometry = &self.config.geometry;
        let first = first_block_of(geometry, segment);
        let mut sector = [0; 512];
        let mut blocks = Vec::new();
        for block in first..first + geometry.segment_blocks() {
            self.cache.media().read(block * BLOCK_SECTORS, &mut sector);
            let Found::Stamp(stamp) = stamp::read(&sector) else { continue };
            let volume = usize::from(stamp.volume);
            if self.oracle.is_newest(volume, stamp.sector, stamp.write) {
                let first = stamp.sector / BLOCK_SECTORS * BLOCK_SECTORS;
                let count = BLOCK_SECTORS.min(self.sectors(volume) - first);
                blocks.push(Run { volume, first, count });
            }
        }
        blocks
    }

    /// Perhaps a request for something that is being given up.
    pub(crate) fn pursue(&mut self) -> Option<Operation> {
        let Pursuit { random, quarry, written, .. } = &mut self.pursuit;
        if quarry.is_empty() || !random.percent(self.config.pursuit_percent) {
            return None;
        }
        self.stats.pursuits += 1;
        let run = quarry.swap_remove(random.index(quarry.len()));
        let kind = if random.percent(WRITE_PERCENT) {
            written.push(run);
            keep_newest(written, WRITTEN_MAX);
            OperationKind::Write
        } else {
            OperationKind::Read
        };
        Some(Operation::plain(run, kind))
    }

    /// A write is answered: after a strike that may be the moment for the crash.
    pub(crate) fn on_write_answered(&mut self, run: Run) {
        let Pursuit { random, written, .. } = &mut self.pursuit;
        if self.life.is_struck && written.contains(&run) && random.percent(CRASH_PERCENT) {
            let crash = self.life.ios + random.below(OPERATIONS_TO_CRASH);
            let planned = &mut self.life.crash_after_ios;
            *planned = Some(planned.map_or(crash, |planned| planned.min(crash)));
        }
    }

    /// Asks for what the life before has gone for.
    pub(crate) fn read_quarry(&mut self) {
        self.pursuit.quarry.clear();
        self.pursuit.held_back.clear();
        for run in std::mem::take(&mut self.pursuit.written) {
            if self.volumes[run.volume].is_served() {
                let read = Operation::plain(run, OperationKind::Read);
                self.issue(read, Owner::Checker(Observed::Settled));
            }
        }
    }
}

fn keep_newest(runs: &mut Vec<Run>, count_max: usize) {
    runs.drain(..runs.len().saturating_sub(count_max));
}
