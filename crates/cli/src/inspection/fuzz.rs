//! `check` over damaged devices: those of the simulator's fuzzer, with and without good checksums.
//!
//! It never panics, it names what it finds, and it finds whatever makes recovery refuse: an
//! operator who is told that a device has no damage can serve it.

use forebay_sim::fuzz::damage::damage;
use forebay_sim::fuzz::image::Image;
use forebay_sim::fuzz::machine::{Halt, Machine};
use forebay_sim::random::Random;

use super::{CacheDevice, Locking, Severity, inspect};

/// Runs in a few seconds.
const CASES: u64 = 60;
/// Cases of a long run for each case of an ordinary one.
const LONG_FACTOR: u64 = 20;

/// How one case ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ended {
    Unusable,
    Damaged,
    Good,
}

/// Says which case it was, however it ends.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: cargo xtask fuzz check {}", self.0);
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

fn case(seed: u64) -> Ended {
    let mut random = Random::new(seed);
    let image = Image::new(&mut random.fork()).expect("the engine is sound");
    let other = Image::new(&mut random.fork()).expect("the engine is sound").media.cache;
    let damaged = damage(&image, &other, &mut random);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &damaged.media.cache).unwrap();
    let ended = look(file.path());
    let unchanged = std::fs::read(file.path()).unwrap() == damaged.media.cache;
    assert!(unchanged, "an inspection wrote to its device");
    if let Err(Halt::Refused(text)) = Machine::start(damaged.media, random.fork()) {
        assert_ne!(ended, Ended::Good, "recovery refuses: {text}; {:?}", damaged.done);
    }
    if damaged.kinds == ["nothing"] {
        assert_eq!(ended, Ended::Good, "{:?}", image.end);
    }
    ended
}

fn look(path: &std::path::Path) -> Ended {
    let opened = CacheDevice::open(path, Locking::Required);
    let inspection = match opened.and_then(|device| inspect(&device, &mut |_, _| {})) {
        Ok(inspection) => inspection,
        Err(failure) => {
            let text = failure.to_string();
            assert!(text.contains(&path.display().to_string()), "`{text}` names no device");
            return Ended::Unusable;
        }
    };
    let findings = &inspection.findings;
    for finding in &findings.list {
        assert_ne!(finding.expected, finding.found, "{finding}");
    }
    let damage = findings.list.iter().filter(|finding| finding.severity == Severity::Damage);
    assert!(damage.count() as u64 <= findings.damage_count);
    if findings.damage_count > 0 { Ended::Damaged } else { Ended::Good }
}

#[test]
fn check() {
    let is_long = std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1");
    let replayed = number_from("FOREBAY_FUZZ_SEED");
    let cases = CASES * if is_long { LONG_FACTOR } else { 1 };
    let seeds = replayed.map_or(0..cases, |seed| seed..seed + 1);
    let mut reached = std::collections::BTreeSet::new();
    for seed in seeds {
        let replay = Replay(seed);
        reached.insert(case(seed));
        drop(replay);
    }
    if replayed.is_none() {
        assert_eq!(reached.len(), 3, "only {reached:?}");
    }
}
