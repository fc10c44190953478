//! Is the alarm connected? Each deliberate defect of the engine is found by ordinary runs.
//!
//! With `FOREBAY_TEST_LONG=1` also those that are found rarely, and all with other seeds, too. What
//! no run is known to find makes a scripted test of the engine fail, see `docs/testing.md`.

use forebay_engine::defects::Defect::{self, *};
use forebay_sim::planted::{Finding, Search, search_all};

/// What takes so many runs, or runs that hang, is left to the long test.
const RARE: u64 = 60_000;

/// Runs within which defects must be found: at least ten times as many as in the table of
/// `docs/testing.md`.
const BOUNDS: [(u64, &[Defect]); 5] = [
    (
        500,
        &[
            LateCompletionWins,
            RelocationTakesNewVersion,
            RelocationBecomesClean,
            TombstoneRemovedEarly,
            AnswerBeforeEarlierRecord,
            FuaAsPlainWrite,
            InvalidationLostAtRecovery,
            NoInvalidation,
            UnpromotedLeavesCopy,
            CleanWhenWritten,
            HomedFlushUnderWayCounts,
            ReuseBeforeCheckpoint,
            BlankNeverDirty,
            BlankOverNewer,
            TornRecordTaken,
            EntryLostAtRecovery,
            CleanLostAtRecovery,
            ServedBeforeCheckpoint,
            NotDrainedAtRecovery,
            RangeLockLeftOut,
            MergesShareBlocks,
            OutdatedCopiesBelieved,
            DirtyBeforeMark,
            GenerationNotRaised,
            TableNotFlushed,
            FingerprintsIgnored,
            RetryNeverComes,
            FlushSkipsOrigin,
            EndWithoutOriginFlush,
            LeavingWithoutDrain,
            NoReserve,
            SupersededNotRetained,
            AroundInOrder,
            DiscardNotDurable,
            PinsForgotten,
            PinNotDurable,
            ShareMinIgnored,
            ShareMaxIgnored,
            GrowNotDurable,
            SuccessorDoesNotWait,
        ],
    ),
    (
        2_000,
        &[
            ReaderJoinsOverwrittenMiss,
            SwitchDoesNotWait,
            BlankNotRelocated,
            DurableMarkTooFar,
            CopyFromCompletion,
            ThroughBeforeRecord,
            CutBeforeRecords,
            ReuseByEarlierCheckpoint,
            OriginNotFlushedAtRecovery,
            PromotionIgnoresWrite,
            ChecksumNotCompared,
            FlushSkipsCache,
            FlushUnderWayCounts,
            InvalidationNotAwaited,
            CheckpointOverNewest,
            FailedWriteIgnored,
            CheckpointWithoutLastFlush,
            ReuseBeforeDiscard,
            MissDuringWriteShared,
            DiscardForgetsFirst,
            MovedUnderWindow,
            EpochFlushSkipped,
            GrownTailBelieved,
        ],
    ),
    (
        8_000,
        &[
            EpochsMixed,
            DirtyRepairedFromOrigin,
            CancelForgets,
            ReuseUnderReaders,
            DropsNotBelieved,
            RewriteNamesNothing,
            ForgottenBeforeDrop,
            MissingRecordsAccepted,
            LaterRecordWins,
            FailedFlushForgotten,
            LostWritesNotSought,
            PromotionOfUnflushed,
            FlushEndsNoEpoch,
            FuaEndsNoEpoch,
        ],
    ),
    (
        25_000,
        &[
            DropBeforeSuperseders,
            CheckpointWithoutFirstFlush,
            FailedFlushIgnored,
            PacedUnderPressure,
            GapsNotLocked,
            WriteAheadSkipped,
        ],
    ),
    (
        RARE,
        &[
            BitsOfLaterMoment,
            ForgottenWithoutDrop,
            AroundDirtyCopy,
            AroundFlushUnderWayCounts,
            FailedFlushMakesClean,
            HomedAcrossFailedFlush,
            NextEpochBeforeMark,
            MarksNotBelieved,
            MovedIntoNewEpoch,
        ],
    ),
];

/// Those that take longest come first, so that no core is idle at the end.
fn find_all(seed: u64, bounds: &[(u64, &[Defect])]) -> Vec<Finding> {
    let mut searches = Vec::new();
    for (runs_max, defects) in bounds.iter().rev() {
        let search = Search { seeds: seed..=seed + runs_max - 1, finds: 1 };
        searches.extend(defects.iter().map(|defect| (*defect, search.clone())));
    }
    search_all(&searches, |finding| println!("{finding}"))
}

#[test]
fn every_defect_has_a_bound() {
    for defect in Defect::ALL {
        let bounds = BOUNDS.iter().filter(|(_, defects)| defects.contains(defect)).count();
        let is_elusive = Defect::ELUSIVE.contains(defect);
        assert_eq!(bounds, usize::from(!is_elusive), "{}", defect.name());
    }
}

#[test]
fn every_defect_is_found() {
    let is_long = std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1");
    let seeds: &[u64] = if is_long { &[1, 1_000_000] } else { &[1] };
    let in_all_tests = BOUNDS.partition_point(|(bound, _)| *bound < RARE);
    let bounds = if is_long { &BOUNDS[..] } else { &BOUNDS[..in_all_tests] };
    for seed in seeds {
        let findings = find_all(*seed, bounds);
        let missed: Vec<String> = findings
            .iter()
            .filter(|finding| finding.first.is_none())
            .map(ToString::to_string)
            .collect();
        let runs: u64 = findings.iter().map(|finding| finding.runs).sum();
        println!("{} defects in {runs} runs", findings.len());
        assert!(missed.is_empty(), "from seed {seed}: {missed:?}");
    }
}
