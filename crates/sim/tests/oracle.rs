//! The oracle, fed by hand: what it must allow and what it must not.

use forebay_engine::request::Durability;
use forebay_sim::oracle::{History, Mismatch, Observed, Oracle, Run, Survives, WriteId, WriteKind};
use forebay_sim::stamp::Stamp;

const SECTORS: u32 = 64;

struct Case {
    oracle: Oracle,
    initial: WriteId,
}

impl Case {
    fn new(history: History) -> Case {
        let mut oracle = Oracle::new();
        let initial = oracle.add_volume(SECTORS, history);
        Case { oracle, initial }
    }

    fn submit(&mut self, kind: WriteKind) -> WriteId {
        self.oracle.submit_write(run(), kind, Durability::Completed)
    }

    fn write(&mut self) -> WriteId {
        let id = self.submit(WriteKind::Data);
        self.oracle.acknowledge_write(id);
        id
    }

    fn flush(&mut self) {
        let submitted = self.oracle.submit_flush();
        self.oracle.acknowledge_flush(0, submitted);
    }

    fn read(&mut self, content: Content) -> Result<(), Mismatch> {
        self.read_as(content, Observed::Once)
    }

    fn read_as(&mut self, content: Content, observed: Observed) -> Result<(), Mismatch> {
        let submitted = self.oracle.submit_read();
        self.oracle.end_read(submitted);
        self.oracle.check(run(), &bytes(content), submitted, observed)
    }
}

#[derive(Clone, Copy)]
enum Content {
    Of(WriteId),
    Zero,
    At(WriteId, u32),
}

fn run() -> Run {
    Run { volume: 0, first: 10, count: 1 }
}

fn bytes(content: Content) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    match content {
        Content::Zero => {}
        Content::Of(write) => {
            Stamp { write: write.0, volume: 0, sector: 10 }.fill(&mut bytes);
        }
        Content::At(write, sector) => {
            Stamp { write: write.0, volume: 0, sector }.fill(&mut bytes);
        }
    }
    bytes
}

fn kind(result: Result<(), Mismatch>) -> &'static str {
    result.expect_err("it is wrong").kind
}

#[test]
fn a_stale_read_is_found() {
    let mut case = Case::new(History::Pruned);
    let initial = case.initial;
    case.read(Content::Of(initial)).expect("nothing was written");
    let (old, new) = (case.write(), case.write());
    case.read(Content::Of(new)).expect("the last one");
    assert_eq!(kind(case.read(Content::Of(old))), "stale data");
    assert_eq!(kind(case.read(Content::Of(initial))), "stale data");
    assert_eq!(kind(case.read(Content::Zero)), "zeroes where there was data");
    assert_eq!(kind(case.read(Content::At(new, 11))), "data of another place");
    assert_eq!(kind(case.read(Content::Of(WriteId(99)))), "stale data, long overwritten");
}

#[test]
fn a_mixture_within_a_sector_is_found() {
    let mut case = Case::new(History::Pruned);
    let (old, new) = (case.write(), case.write());
    let mut mixed = bytes(Content::Of(old));
    mixed[256..].copy_from_slice(&bytes(Content::Of(new))[256..]);
    let submitted = case.oracle.submit_read();
    let result = case.oracle.check(run(), &mixed, submitted, Observed::Once);
    assert_eq!(kind(result), "rubbish or a mixture");
}

#[test]
fn a_write_under_way_and_a_failed_one_leave_old_or_new() {
    let mut case = Case::new(History::Pruned);
    let old = case.write();
    let new = case.submit(WriteKind::Data);
    case.read(Content::Of(old)).expect("old");
    case.read(Content::Of(new)).expect("new");
    case.oracle.fail_write(new);
    case.read(Content::Of(old)).expect("old");
    case.read(Content::Of(new)).expect("new");
    let last = case.write();
    case.read(Content::Of(last)).expect("the last one");
    assert!(case.read(Content::Of(new)).is_err());
}

#[test]
fn a_read_that_began_before_the_answer_may_find_old() {
    let mut case = Case::new(History::Pruned);
    let old = case.write();
    let submitted = case.oracle.submit_read();
    let new = case.write();
    for write in [old, new] {
        let bytes = bytes(Content::Of(write));
        case.oracle.check(run(), &bytes, submitted, Observed::Once).expect("either");
    }
}

#[test]
fn concurrent_writes_may_end_in_any_order() {
    let mut case = Case::new(History::Pruned);
    let (first, second) = (case.submit(WriteKind::Data), case.submit(WriteKind::Data));
    case.oracle.acknowledge_write(second);
    case.oracle.acknowledge_write(first);
    case.read(Content::Of(first)).expect("either");
    case.read(Content::Of(second)).expect("either");
}

#[test]
fn process_death_keeps_what_was_acknowledged_and_a_power_cut_what_was_flushed() {
    for survives in [Survives::Acknowledged, Survives::Flushed] {
        let mut case = Case::new(History::Pruned);
        let flushed = case.write();
        case.flush();
        let acknowledged = case.write();
        let under_way = case.submit(WriteKind::Data);
        case.oracle.crash(survives);
        case.read(Content::Of(acknowledged)).expect("it survives");
        case.read(Content::Of(under_way)).expect("it may survive");
        let result = case.read(Content::Of(flushed));
        assert_eq!(result.is_ok(), survives == Survives::Flushed);
        let initial = case.initial;
        assert!(case.read(Content::Of(initial)).is_err());
    }
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut case = Case::new(History::Pruned);
    let before = case.write();
    let submitted = case.oracle.submit_flush();
    let during = case.write();
    case.oracle.acknowledge_flush(0, submitted);
    case.oracle.crash(Survives::Flushed);
    case.read(Content::Of(before)).expect("it was flushed");
    case.read(Content::Of(during)).expect("it may survive");
    let initial = case.initial;
    assert!(case.read(Content::Of(initial)).is_err());
}

#[test]
fn a_forced_write_is_flushed_by_itself_and_nothing_else() {
    let mut case = Case::new(History::Pruned);
    let forced = case.oracle.submit_write(run(), WriteKind::Data, Durability::ForcedUnitAccess);
    case.oracle.acknowledge_write(forced);
    case.write();
    case.oracle.crash(Survives::Flushed);
    case.read(Content::Of(forced)).expect("it was flushed");
    let initial = case.initial;
    assert!(case.read(Content::Of(initial)).is_err());
}

#[test]
fn after_a_failed_flush_a_later_one_proves_nothing() {
    let mut case = Case::new(History::Pruned);
    case.write();
    case.oracle.submit_flush();
    case.oracle.fail_flush(0);
    case.flush();
    case.oracle.crash(Survives::Flushed);
    let initial = case.initial;
    case.read(Content::Of(initial)).expect("the client was told");
}

#[test]
fn what_was_seen_after_recovery_stays() {
    for survives in [Survives::Acknowledged, Survives::Flushed] {
        let mut case = Case::new(History::Pruned);
        let old = case.write();
        let new = case.submit(WriteKind::Data);
        case.oracle.crash(Survives::Flushed);
        case.read_as(Content::Of(old), Observed::Settled).expect("it may survive");
        assert!(case.read(Content::Of(new)).is_err(), "it changed without a write");
        case.oracle.crash(survives);
        case.read(Content::Of(old)).expect("recovery made it durable");
        assert!(case.read(Content::Of(new)).is_err());
        let next = case.write();
        case.read(Content::Of(next)).expect("the last one");
        assert!(case.read(Content::Of(old)).is_err());
    }
}

#[test]
fn zeroes_are_exact_and_a_discard_allows_what_was_ever_there() {
    let mut case = Case::new(History::Pruned);
    let initial = case.initial;
    let data = case.write();
    let zeroes = case.submit(WriteKind::Zeroes);
    case.oracle.acknowledge_write(zeroes);
    case.read(Content::Zero).expect("zeroes");
    assert!(case.read(Content::Of(data)).is_err());
    let discard = case.submit(WriteKind::Discard);
    case.oracle.acknowledge_write(discard);
    for content in [Content::Zero, Content::Of(data), Content::Of(initial)] {
        case.read_as(content, Observed::Settled).expect("undefined, also later");
    }
    assert!(case.read(Content::At(data, 11)).is_err(), "never another place");
    let last = case.write();
    assert!(case.read(Content::Zero).is_err());
    case.read(Content::Of(last)).expect("defined again");
}

#[test]
fn long_histories_keep_what_a_power_cut_may_bring_back() {
    let mut case = Case::new(History::Pruned);
    let first = case.write();
    case.flush();
    let later: Vec<_> = (0..100).map(|_| case.write()).collect();
    case.oracle.crash(Survives::Flushed);
    case.read(Content::Of(first)).expect("flushed");
    for write in later {
        case.read(Content::Of(write)).expect("may survive");
    }
}

/// Two sectors, so that an order between them shows.
fn check_pair(case: &Case, left: WriteId, right: WriteId) -> Result<(), Mismatch> {
    case.oracle.check_crash_state(0, &mut |run, bytes| {
        for (sector, bytes) in (run.first..).zip(bytes.chunks_exact_mut(512)) {
            let write = match sector {
                10 => left,
                20 => right,
                _ => case.initial,
            };
            Stamp { write: write.0, volume: 0, sector }.fill(bytes);
        }
    })
}

#[test]
fn an_ordered_origin_alone_is_a_state_of_one_moment() {
    let mut case = Case::new(History::Whole);
    let right_run = Run { volume: 0, first: 20, count: 1 };
    let left = case.write();
    case.flush();
    let right = case.oracle.submit_write(right_run, WriteKind::Data, Durability::Completed);
    case.oracle.acknowledge_write(right);
    case.flush();
    let initial = case.initial;
    check_pair(&case, initial, initial).expect("before everything");
    check_pair(&case, left, initial).expect("between");
    check_pair(&case, left, right).expect("after everything");
    let error = check_pair(&case, initial, right).expect_err("the second without the first");
    assert_eq!(error.kind, "no crash state");
}
