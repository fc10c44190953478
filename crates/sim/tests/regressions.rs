//! Seeds that once failed.
//!
//! A seed does the same only as long as the code that makes its world stays as it is, so none of
//! these is certain to come across its old defect again; what reproduces a defect for certain is a
//! scripted test in `crates/engine/tests/rules`. As a corpus they cost little, and each sentence
//! says what such runs have found.

use forebay_sim::run::run_with;
use forebay_sim::under_test::launch_engine;
use forebay_sim::{Plan, RunOptions, TraceMode};

/// Seeds, each with symptom and cause.
const SEEDS: &[(u64, &str)] = &[
    (
        1_795_967_947_744_867,
        "a takeover was given up and another began before the first one's checkpoint was durable: \
         the engine took that for the one it waited for, and was silent with a record half built",
    ),
    (
        9_224_270_012_717_801_460,
        "the record of a discard was written again, and took along a newer copy whose place was as \
         far behind its header as its block within the discard",
    ),
    (
        1_795_789_458_789_287,
        "the newest checkpoint could not be read, and the older one had a segment as empty that \
         was used again since: what was written last was not found, and old data was served",
    ),
    (
        1_795_789_261_196_483,
        "an idle mark was due at once, again and again, while a record waited for more of what \
         reclaim keeps",
    ),
    (
        9_224_269_874_456_503_009,
        "the simulator let an origin fail that an earlier life had found in conflict with dirty \
         data, so nobody could compare it",
    ),
    (
        9_224_269_854_161_758_952,
        "the simulator kept a grown size from the table of a cache device that came back and \
         failed again, when the engine without it went on",
    ),
    (
        9_224_269_820_237_839_655,
        "the simulator had a volume grown by a successor that read, and nobody answered when that \
         was given up",
    ),
    (
        4_000_469,
        "the simulator held what a predecessor had in its cache against that of its successor, \
         which was dead by then and had nothing",
    ),
    (
        1623,
        "where writeback could not help, pinned blocks were given up for segments that nobody \
         waited for",
    ),
    (
        1010,
        "an engine was replaced that had lost a block of an ordered volume to a bad cache device, \
         and the simulator judged the origin as if none was lost",
    ),
    (
        554,
        "a share was refused for a block that two shares make together: that is right, and the \
         simulator rounded each for itself",
    ),
    (
        18_522_726,
        "a volume that recovery did not serve, since its origin could not be flushed, was served \
         from that origin when the cache device failed",
    ),
    (
        18_507_715,
        "segments full of what is kept came again before others had their turn, and smallest \
         shares were given up in vain",
    ),
    (18_304_627, "smallest shares were given up for free segments that nobody waited for"),
    (
        17_990_834,
        "each block of a transfer of writeback was read by itself, since the read of the gaps \
         between them had failed: that is right, and the simulator took it for too much I/O",
    ),
    (
        897_704_211_892_075,
        "reads that were answered since their origin stalled were still under way: that is right, \
         and the simulator took it for too much I/O",
    ),
    (
        860_000_598,
        "the oldest segments held nothing but blocks that their origins refused, and younger ones \
         never came into a window",
    ),
    (
        897_703_729_282_317,
        "a detach ended well as the cache device failed, and told that its origin was released: \
         that is right, and the simulator expected otherwise",
    ),
    (
        1152,
        "a write without room took its lock again each time that there was some, and came too late \
         for minutes",
    ),
    (
        257,
        "a cache device that went during an attach was not taken back: the engine waited for a \
         mark of the new volume",
    ),
    (
        1049,
        "a stop waited for ever for writes without room, while the log was full of dirty data of a \
         volume that was not served",
    ),
    (
        9_224_269_700_793_665_444,
        "zeroes that had been written home came back into the index: the record that voided them \
         completed before the one that had moved them, with the same version",
    ),
    (
        1_795_328_793_952_432,
        "a FUA write was answered though an origin flush that failed had lost a part of it: it \
         waited for the next flush, which went well",
    ),
    (
        9_224_269_701_767_543_532,
        "neither superblock was whole: the copy was torn by a device that went away, and the next \
         start wrote the other one first and was cut short, too",
    ),
    (
        1_795_330_172_366_068,
        "each block of each read that had failed was read again from a cache device that was gone",
    ),
    (
        897_664_898_901_043,
        "a discard of less than a block was answered before the mark of dirty data was saved: that \
         is right, and the simulator expected otherwise",
    ),
    (
        897_664_898_901_103,
        "the head of an origin could not be read, so it was not found changed: the simulator \
         expected too much, and the engine kept the fingerprint of before",
    ),
    (
        1_795_336_949_955_351,
        "zeroes of a record that the device had lost were demanded, and nobody can know of such a \
         record: a fault of the simulator",
    ),
    (
        1_000_382,
        "a device was refused as one with a lost checkpoint: reclaim had dropped segments before \
         the first checkpoint of its life",
    ),
    (
        1_700_533,
        "writeback of a discard compared itself with the wrong record: another one had its place",
    ),
    (
        208_651,
        "acknowledged data was voided: the simulated host kept its mark of a detached volume for \
         the next volume",
    ),
    (
        700_615,
        "a change of the volume table was held for certain though recovery had not flushed it yet",
    ),
    (
        700_639,
        "a detach was never answered: an attach had taken its slot before the detach had ended",
    ),
    (
        902_658,
        "a drain ended with the wrong error, since a rotten dirty block paused writeback as a \
         failed origin does",
    ),
    (
        7_765_016,
        "a write was clean though the origin had lost it: its record completed after a flush that \
         failed, and the next flush covered it",
    ),
    (
        7_781_889,
        "copies came back that the index had forgotten: a checkpoint cut between a drop record and \
         its end kept the segment",
    ),
    (
        1_795_344_309_276,
        "the copies of a volume without an origin were voided, since it was marked as served \
         without its cache",
    ),
    (
        1_795_344_931_004_646,
        "writeback went round and round while the origin's flush failed, and a stop never ended",
    ),
    (
        1_795_347_067_000_329,
        "a detach landed in the device's cache only, and the host forgot that the volume had been \
         served without its cache",
    ),
    (
        4_742,
        "a stop was taken for a flush of a volume that was not served, since its origin had failed",
    ),
    (
        9_224_269_711_882_630_062,
        "a stop never ended: it asked for a flush again and again while two origins failed in turn",
    ),
    (
        1_795_347_770_506_921,
        "writes that waited in a log held by a volume that is not served were taken for a lock-up",
    ),
    (
        1_795_348_118,
        "a writethrough volume showed what its origin did not have: a block that could not be read \
         kept others of its extent from going home",
    ),
    (
        897_708_087_368_185,
        "a volume that was given up ended once more with each record that the cache device had \
         failed under",
    ),
    (
        4_120,
        "a request to a volume that was being given up was refused, and then the cache device \
         failed: nothing explained the refusal any more",
    ),
    (
        1_003_922,
        "a write beside a misdirected one was taken to have mended what that one overwrote later",
    ),
    (
        897_727_201_307_163,
        "a volume that had left ordered writeback was judged by its order, since it was once to be \
         given up in order, before a crash that it outlasted",
    ),
    (
        727_694,
        "a drain in order did not end: without the summary of their segment, zeroes and discards \
         were planned in pieces, and never counted as home",
    ),
    (
        897_731_213_043_706,
        "a write that got its lock after the cache device had failed waited for room in its log",
    ),
    (
        897_788_475_914_596,
        "a dirty copy that could not be read excused the order of an origin, and was forgotten \
         with the predecessor of a takeover, which had counted it",
    ),
    (
        897_788_475_914_485,
        "what a write had landed that failed for a predecessor was cached by its successor, and \
         was never durable, though that had flushed the origin before",
    ),
    (
        5_964,
        "a checkpoint went astray over a record just before a takeover, and what the successor \
         could not know of was not forgiven",
    ),
    (
        700_019_621,
        "what a write had landed that failed while the cache device was gone was cached when that \
         was back, and was never durable",
    ),
];

#[test]
fn seeds_that_once_failed_pass() {
    for &(seed, found) in SEEDS {
        for long in [false, true] {
            let options = RunOptions { long, trace: TraceMode::Ring, plan: Plan::default() };
            let outcome = run_with(seed, options, &launch_engine);
            assert!(outcome.failure.is_none(), "once: {found}; now: {outcome}");
        }
    }
}
