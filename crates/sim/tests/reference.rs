//! The judge itself: a right engine passes, and each fault of a wrong one is found.

use forebay_sim::RunOptions;
use forebay_sim::hunt::{Catch, hunt};
use forebay_sim::reference::{Fault, Reference};
use forebay_sim::run::run_with;
use forebay_sim::sweep::{Effort, Sweep, sweep};

/// Runs within which every fault must be found.
const CANARY_RUNS: u64 = 120;

fn kinds(caught: &Catch) -> Vec<&str> {
    caught.kinds.keys().map(String::as_str).collect()
}

#[test]
fn a_right_engine_passes() {
    let caught = hunt(1..=400, RunOptions::default(), &Reference::launcher(Fault::None));
    for kind in caught.kinds.values() {
        println!("{}", kind.shortest);
    }
    assert_eq!(caught.bad_runs, 0);
    // The runs are worth something only if they reach these.
    for what in ["crashes", "failed I/Os", "failed requests", "commands"] {
        assert!(caught.totals[what] > 100, "too few {what}: {}", caught.totals[what]);
    }
}

#[test]
fn a_right_engine_passes_sweeps() {
    for kind in Sweep::ALL {
        let effort = Effort { stride: 7, choices_max: 4 };
        let runs_of = |seed| {
            let swept = sweep(seed, kind, effort, &Reference::launcher(Fault::None), &mut |_| {});
            swept.unwrap_or_else(|outcome| panic!("{outcome}")).runs
        };
        let runs: u64 = (3..=6).map(runs_of).sum();
        // The pass-through engine uses the cache device for its superblock only.
        let is_of_cache = matches!(kind, Sweep::FailCacheIo | Sweep::BreakCache | Sweep::LoseCache);
        assert!(runs > if is_of_cache { 4 } else { 10 }, "{kind:?}: {runs} runs");
    }
}

#[test]
fn every_fault_is_found() {
    for fault in Fault::ALL {
        let caught = hunt(1..=CANARY_RUNS, RunOptions::default(), &Reference::launcher(fault));
        println!("{fault:?}: {} of {CANARY_RUNS} runs, {:?}", caught.bad_runs, kinds(&caught));
        assert!(caught.bad_runs > 0, "{fault:?} was not found");
        let expected = match fault {
            Fault::LosesReply => "stuck",
            Fault::AnswersTwice => "second",
            Fault::LeaksBuffer => "buffers are held",
            Fault::ForgetsTable => "volume table",
            Fault::SpinsAwake => "endless",
            Fault::ServesStale => "stale",
            Fault::SkipsFlush | Fault::IgnoresForced => "power cut",
            Fault::AnswersEarly | Fault::TakesNoLock | Fault::DropsTail | Fault::HidesErrors => "",
            Fault::None | Fault::Dawdles => unreachable!("not in the list"),
        };
        let is_named = kinds(&caught).iter().any(|kind| kind.contains(expected));
        assert!(is_named, "{fault:?} was found as something else: {:?}", kinds(&caught));
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let options = RunOptions { trace: forebay_sim::TraceMode::Full, ..RunOptions::default() };
    for seed in 1..20 {
        let first = run_with(seed, options, &Reference::launcher(Fault::TakesNoLock));
        let second = run_with(seed, options, &Reference::launcher(Fault::TakesNoLock));
        assert!(first == second, "seed {seed} gave two different runs");
        assert!(first.events > 0);
    }
}

#[test]
fn a_failure_says_how_to_see_it_again() {
    let caught = hunt(1..=30, RunOptions::default(), &Reference::launcher(Fault::SpinsAwake));
    let kind = caught.kinds.values().next().expect("it is found");
    let text = kind.shortest.to_string();
    let seed = kind.shortest.seed;
    assert!(text.contains(&format!("forebay-sim run --seed {seed} --trace")), "{text}");
    assert!(text.contains("in life"), "{text}");
    assert!(!kind.shortest.trace.is_empty());
}

#[test]
fn a_run_without_end_is_a_hang_that_names_every_request() {
    let outcome = (1..20).find_map(|seed| {
        let outcome = run_with(seed, RunOptions::default(), &Reference::launcher(Fault::Dawdles));
        let violation = outcome.failure?.violation;
        assert!(violation.kind.starts_with("hang"), "{violation:?}");
        // Others begin while all clients rest, or in the check of a life.
        violation.text.contains(" of connection ").then_some(violation)
    });
    let violation = outcome.expect("a seed with requests under way");
    let number = |word: &str| {
        let before = violation.text.split(word).next().unwrap();
        before.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let lines: Vec<&str> = violation.text.lines().map(str::trim).collect();
    let requests = lines.iter().filter(|line| line.starts_with("request ")).count();
    assert_eq!(requests, number(" requests"), "{}", violation.text);
    let of_connection =
        |line: &&&str| line.starts_with("request ") && line.contains(" of connection ");
    let first = lines.iter().find(of_connection).unwrap();
    for word in ["since", "ms"] {
        assert!(first.contains(word), "{first}");
    }
    let commands = lines.iter().filter(|line| line.starts_with("command ")).count();
    assert_eq!(commands, number(" commands"), "{}", violation.text);
}

#[test]
fn a_stuck_run_names_operations_and_what_the_engine_says() {
    let caught = hunt(1..=30, RunOptions::default(), &Reference::launcher(Fault::LosesReply));
    let (_, kind) = caught.kinds.iter().find(|(name, _)| name.starts_with("stuck")).unwrap();
    let text = kind.shortest.failure.as_ref().unwrap().violation.text.clone();
    assert!(text.contains(" requests, "), "{text}");
    assert!(text.lines().any(|line| line.trim().starts_with("request ")), "{text}");
}

#[test]
fn sweeps_find_what_their_crash_or_failure_shows() {
    let effort = Effort { stride: 3, choices_max: 8 };
    let pairs = [
        (Sweep::CutPower, Fault::SkipsFlush),
        (Sweep::CutPower, Fault::IgnoresForced),
        (Sweep::Kill, Fault::AnswersEarly),
        (Sweep::FailOriginIo, Fault::HidesErrors),
        (Sweep::FailThenCutPower, Fault::SkipsFlush),
    ];
    for (kind, fault) in pairs {
        let launcher = Reference::launcher(fault);
        let mut seeds = 1..10;
        let found = seeds.find_map(|seed| sweep(seed, kind, effort, &launcher, &mut |_| {}).err());
        let outcome = found.unwrap_or_else(|| panic!("{kind:?} does not find {fault:?}"));
        // What was found is found again by the command that is printed.
        assert_eq!(run_with(outcome.seed, outcome.options, &launcher).failure, outcome.failure);
        println!("{fault:?}: {}", outcome.replay_command());
    }
}
