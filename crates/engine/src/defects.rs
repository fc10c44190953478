//! Deliberate defects, for the test that the simulator finds them.
//!
//! Each leaves out one clause of the rules in `docs/durability.md`. They exist only if the crate is
//! built with the feature `planted-defects`; without it `has_defect` is the constant `false`, and
//! the compiler removes what depends on it. The host asserts [`ARE_PLANTED`] to be false, so no
//! server can be built with them.
//!
//! A defect is planted in the thread that runs the engine: what depends on it lies deep in tables
//! and locks that do not know the engine.

use alloc::vec::Vec;

use crate::engine::Engine;
use crate::index::Piece;
use crate::units::VolumeSlot;
use crate::volume::Homed;
use crate::wake::{Ended, Waiter};

/// Whether this build can have defects.
pub const ARE_PLANTED: bool = cfg!(feature = "planted-defects");

macro_rules! defects {
    ($($name:ident, $rule:literal, $text:literal;)*) => {
        /// A clause of the rules that is left out.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Defect { $(#[doc = $text] $name),* }

        impl Defect {
            /// All of them.
            pub const ALL: &[Defect] = &[$(Defect::$name),*];

            /// Those that no run of the simulator is known to find: too many rare things must meet.
            /// Scripted tests of the engine fail with each of them.
            pub const ELUSIVE: &[Defect] = &[
                Defect::VoidedCopyReturns,
                Defect::VoidCutKept,
                Defect::CutForgetsDrops,
                Defect::TableStartFirst,
                Defect::WaitAcrossFailedFlush,
                Defect::AnsweredWriteGoesOn,
                Defect::VoidsNotDurable,
            ];

            /// Its name in commands and tables.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Defect::$name => stringify!($name)),* }
            }

            /// The rule or promise that it breaks.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Defect::$name => $rule),* }
            }

            /// What the engine does wrong.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Defect::$name => $text),* }
            }
        }
    };
}

defects! {
    LaterRecordWins, "rule 1",
        "recovery takes the later record of a block, not the higher version";
    LateCompletionWins, "rule 1",
        "the record that completes last wins, not the higher version";
    RelocationTakesNewVersion, "rule 1",
        "a relocation takes a new version and does not look whether its copy is still the newest";
    RelocationBecomesClean, "rule 1",
        "a relocated dirty block is clean";
    VoidedCopyReturns, "rule 1",
        "a copy that completes after its invalidation takes its place";
    TombstoneRemovedEarly, "rule 1",
        "an invalidation is forgotten when it is complete, before older records are";
    AnswerBeforeEarlierRecord, "rule 2",
        "a record is complete when it is written, whatever became of earlier ones of its segment";
    FuaAsPlainWrite, "rule 2",
        "a FUA write is answered without a flush";
    FlushUnderWayCounts, "rule 2",
        "a device flush that is under way counts for who asks for one";
    FailedWriteIgnored, "rule 2",
        "a record counts as written though its write failed";
    VoidCutKept, "rule 2",
        "a checkpoint is not cut again after a record up to its cut had to be written elsewhere";
    RewriteNamesNothing, "rule 2",
        "a record that is written again does not name the numbers that it replaces";
    DurableMarkTooFar, "rule 2",
        "\"durable through\" in headers is what is complete";
    ForgottenWithoutDrop, "rule 3",
        "reclaim forgets without a drop record";
    DropBeforeSuperseders, "rule 3",
        "a drop does not wait until what supersedes blocks of its segment is durable";
    ForgottenBeforeDrop, "rule 3",
        "the index forgets when a drop is written, not when it is durable";
    DropsNotBelieved, "rule 3",
        "recovery overlooks drops";
    CopyFromCompletion, "rule 3",
        "a write around the log overlooks copies whose record is not complete";
    InvalidationLostAtRecovery, "rule 3",
        "recovery overlooks invalidations";
    VoidsNotDurable, "rule 3",
        "an invalidation is forgotten before it is durable";
    NoInvalidation, "rule 4",
        "a write around the log does not invalidate copies";
    InvalidationNotAwaited, "rule 4",
        "a write around the log does not wait until the invalidation is durable";
    AroundDirtyCopy, "rule 4",
        "a write goes around a dirty copy";
    UnpromotedLeavesCopy, "rule 4",
        "a write through that is not promoted leaves older copies where they are";
    PromotionOfUnflushed, "rule 4",
        "what was written around the log is promoted before an origin flush";
    AroundFlushUnderWayCounts, "rule 4",
        "an origin flush that was under way when the write ended counts for promotion";
    WriteAheadSkipped, "rule 5",
        "writeback does not wait until records are durable";
    ThroughBeforeRecord, "rule 5",
        "a write through over a copy goes to the origin before its record is durable";
    CleanWhenWritten, "rule 5",
        "blocks are clean when they are written home, without an origin flush";
    HomedFlushUnderWayCounts, "rule 5",
        "an origin flush that was under way when blocks were written home makes them clean";
    HomedAcrossFailedFlush, "rule 5",
        "blocks whose write home began before an origin flush that failed are clean after the next";
    FailedFlushMakesClean, "rule 5",
        "a failed origin flush makes blocks clean as a good one does";
    CutBeforeRecords, "rule 6",
        "a checkpoint does not wait for the records up to its cut";
    CheckpointWithoutFirstFlush, "rule 6",
        "a checkpoint is written before the records up to its cut are durable";
    CheckpointWithoutLastFlush, "rule 6",
        "a checkpoint counts as durable when it is written";
    CheckpointOverNewest, "rule 6",
        "a checkpoint is written over the newest one";
    BitsOfLaterMoment, "rule 6",
        "a checkpoint has the bits of the moment when it is written, not of the cut";
    CutForgetsDrops, "rule 6",
        "a checkpoint describes segments whose drops are under way as they were before";
    ReuseBeforeCheckpoint, "rule 6",
        "a reclaimed segment is used again before a checkpoint says so";
    ReuseByEarlierCheckpoint, "rule 6",
        "a reclaimed segment is used again after a checkpoint that was cut before its drop";
    ReuseUnderReaders, "rule 6",
        "a segment is used again while reads from it are under way";
    ReuseBeforeDiscard, "rule 6",
        "a segment is used again before its discard has ended";
    BlankNeverDirty, "rule 7",
        "zeroes and discards are not dirty";
    BlankNotRelocated, "rule 7",
        "reclaim forgets dirty zeroes and discards";
    BlankOverNewer, "rule 7",
        "zeroes and discards are written home over newer blocks";
    MissingRecordsAccepted, "rule 8",
        "recovery serves though durable records are missing";
    TornRecordTaken, "rule 8",
        "recovery takes records with bad payload";
    EntryLostAtRecovery, "rule 8",
        "recovery overlooks the first entry of a record that has several";
    CleanLostAtRecovery, "rule 8",
        "recovery overlooks clean data behind the checkpoint";
    OriginNotFlushedAtRecovery, "rule 8",
        "recovery does not flush the origins";
    ServedBeforeCheckpoint, "rule 8",
        "recovery serves without a checkpoint of its own";
    NotDrainedAtRecovery, "rule 8",
        "recovery leaves dirty data of writethrough and writearound volumes where it is";
    RangeLockLeftOut, "rule 9",
        "range locks exclude nobody";
    GapsNotLocked, "rule 9",
        "a region that goes home whole locks its first dirty blocks alone";
    MergesShareBlocks, "rule 9",
        "writes of part of a block do not exclude other writers of the block";
    ReaderJoinsOverwrittenMiss, "rule 9",
        "a reader joins an origin read that began before a write";
    PromotionIgnoresWrite, "rule 9",
        "an origin read is promoted though a write came while it was under way";
    MissDuringWriteShared, "rule 9",
        "an origin read that begins while a write is under way is joined and promoted";
    OutdatedCopiesBelieved, "rule 10",
        "copies count though their volume was served without its cache";
    DirtyBeforeMark, "rule 10",
        "dirty writes do not wait for the host state file";
    SwitchDoesNotWait, "rule 10",
        "a change of mode does not wait for the requests of the old mode";
    GenerationNotRaised, "rule 10",
        "passthrough, invalidate and detach do not raise the generation";
    TableNotFlushed, "rule 10",
        "the volume table is not flushed";
    TableStartFirst, "rule 10",
        "an update of the volume table begins with the same place always";
    FingerprintsIgnored, "rule 10",
        "recovery does not compare the heads of origins with what it knows of them";
    NoReserve, "rule 11",
        "client writes take the reserve and the spare segments";
    SuccessorDoesNotWait, "takeover",
        "an engine that takes over writes before its predecessor has given up";
    DirtyRepairedFromOrigin, "rule 12",
        "a dirty block with a bad checksum is read from the origin";
    ChecksumNotCompared, "promise",
        "checksums are not compared";
    RetryNeverComes, "promise",
        "what failed at an origin is not tried again when its time has come";
    AnsweredWriteGoesOn, "rule 9",
        "a write whose client was told that it failed begins all the same";
    FlushSkipsOrigin, "promise",
        "a flush does not flush the origin";
    FlushSkipsCache, "promise",
        "a flush does not flush the cache device";
    FailedFlushForgotten, "promise",
        "after a failed flush of the origin later ones end well";
    WaitAcrossFailedFlush, "promise",
        "a flush of the origin answers also those who waited across one that failed";
    LostWritesNotSought, "promise",
        "what a cache device lost that was gone and is back is not looked for";
    FailedFlushIgnored, "promise",
        "a failed flush of the cache device counts as a good one";
    EndWithoutOriginFlush, "promise",
        "stop, drain and detach do not flush the origin";
    SupersededNotRetained, "promise 4",
        "what is superseded in a later flush epoch is not kept for the origin";
    EpochsMixed, "promise 4",
        "all flush epochs of a window are written home together";
    NextEpochBeforeMark, "promise 4",
        "the next flush epoch goes home before it is durable that the last one is";
    MarksNotBelieved, "promise 4",
        "recovery writes flush epochs home that were drained already";
    FlushEndsNoEpoch, "promise 4",
        "a flush does not end the flush epoch";
    FuaEndsNoEpoch, "promise 4",
        "a write with forced unit access does not end the flush epoch";
    MovedIntoNewEpoch, "promise 4",
        "a dirty block that is moved belongs to the flush epoch under way";
    MovedUnderWindow, "promise 4",
        "reclaim moves dirty blocks while a flush epoch with them goes home";
    EpochFlushSkipped, "promise 4",
        "a flush epoch counts as drained when it is written";
    AroundInOrder, "promise 4",
        "a write of an ordered volume goes around a full log";
    PacedUnderPressure, "rule 11",
        "a full log waits as long for the next transfer as the rate asked for while it was not";
    CancelForgets, "promise 5",
        "a command that is cancelled takes for clean what it was to bring home";
    DiscardNotDurable, "rule 10",
        "a volume that is given up is gone before the volume table says so";
    DiscardForgetsFirst, "rule 10",
        "the dirty data of a volume is given up before the volume table is durable";
    PinsForgotten, "pins",
        "reclaim drops pinned blocks as it drops others";
    PinNotDurable, "pins",
        "a pinned range is answered for before the volume table has it";
    GrowNotDurable, "rule 10",
        "a volume is longer before the volume table says so durably";
    GrownTailBelieved, "rule 10",
        "copies of a last block that its volume cut short count though it grew";
    ShareMinIgnored, "shares",
        "reclaim drops blocks of a volume that has no more than its smallest share";
    ShareMaxIgnored, "shares",
        "a volume that has its largest share of the cache goes on promoting";
    LeavingWithoutDrain, "promise",
        "a volume leaves writeback with dirty data";
}

/// Whether the defect is planted in this thread: never, without the feature.
#[cfg(not(feature = "planted-defects"))]
#[inline(always)]
pub(crate) const fn has_defect(_defect: Defect) -> bool {
    false
}

#[cfg(feature = "planted-defects")]
pub(crate) use planted::has_defect;
#[cfg(feature = "planted-defects")]
pub use planted::plant;

#[cfg(feature = "planted-defects")]
mod planted {
    extern crate std;

    use core::cell::Cell;

    use super::Defect;

    std::thread_local! {
        static PLANTED: Cell<Option<Defect>> = const { Cell::new(None) };
    }

    /// Plants a defect in all engines that this thread runs from now on, or none.
    pub fn plant(defect: Option<Defect>) {
        PLANTED.set(defect);
    }

    pub(crate) fn has_defect(defect: Defect) -> bool {
        PLANTED.get() == Some(defect)
    }
}

impl Engine {
    /// All dirty data of the volume counts as clean.
    pub(crate) fn forget_what_is_dirty(&mut self, slot: VolumeSlot) {
        let pieces: Vec<Piece> = self.volume(slot).index.complete.all_pieces().collect();
        for Piece { start, block_count, version, .. } in pieces {
            self.mark_clean(slot, &Homed { start, block_count, version, needs: 0 });
        }
    }

    /// Registers for the next flush of the cache device that begins; with the defect, `waiter` goes
    /// on without one.
    pub(crate) fn join_cache_flush_unless(&mut self, defect: Defect, waiter: Waiter) {
        if has_defect(defect) {
            self.wake(waiter, Ended::Well);
        } else {
            self.join_cache_flush(waiter);
        }
    }
}
