//! Seeded fuzzers for everything that reads the bytes of a cache device.
//!
//! A [`Target`] is a name and a function that makes one case of a seed. What every target holds: no
//! panic; no endless loop (rounds are counted); no allocation beyond a bound, whatever a length or
//! a count says; an error names two different numbers, what was expected and what was found; what
//! parses writes back as the same bytes. `device` has the promises about content, at its top.
//!
//! Damage comes in two kinds. Bytes that change while the checksum stays are what a disk may do;
//! bytes that change with the checksum made good again are what no disk does, and reach the code
//! behind it.
//!
//! A run stops at the first bad case; its seed alone repeats it.

pub mod bytes;
mod checkpoint;
pub mod damage;
mod device;
pub mod flips;
pub mod image;
mod ledger;
pub mod machine;
mod record;
mod summary;
mod superblock;

use std::collections::BTreeMap;
use std::fmt;

use forebay_engine::error::Corrupt;
use peak_alloc::PeakAlloc;

use crate::caught::catch_panic;
use crate::payload::release_left;
use crate::random::Random;

/// Most bytes that one case may allocate beyond what there was before. A device of a case has at
/// most 8 MiB and is held a few times over; tests run beside each other in one process. What a
/// forged count asks for is far beyond it.
pub const CASE_BYTES_MAX: usize = 512 << 20;

/// A fuzzer.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As on the command line.
    pub name: &'static str,
    /// What it damages and what must hold.
    pub about: &'static str,
    /// Cases of an ordinary test run, a few seconds of work.
    pub test_cases: u64,
    /// What so many cases come across, by the names that go into [`Reached`]: a fuzzer that stops
    /// reaching things is of no use, and nobody would notice.
    pub must_reach: &'static [&'static str],
    /// One case.
    pub case: fn(&mut Random, &mut Reached) -> Result<(), String>,
}

/// All targets.
pub const TARGETS: [Target; 5] =
    [superblock::TARGET, record::TARGET, summary::TARGET, checkpoint::TARGET, device::TARGET];

/// What cases came across, and how often.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    /// Counts something.
    pub fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Adds what others came across.
    pub fn add(&mut self, other: &Reached) {
        for (what, count) in other.iter() {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// How often it was counted.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// All of it, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(what, count)| (*what, *count))
    }
}

/// The first bad case of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadCase {
    /// Name of the target.
    pub target: &'static str,
    /// Seed of the case.
    pub seed: u64,
    /// What was wrong.
    pub text: String,
}

impl fmt::Display for BadCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadCase { target, seed, text } = self;
        write!(f, "{target}, seed {seed}: {text}\n  again: cargo xtask fuzz {target} {seed}")
    }
}

/// The target of a name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

impl Target {
    /// Runs the cases of seeds `seed` to `seed + cases - 1`.
    ///
    /// # Errors
    /// The first bad case.
    pub fn run(&self, seed: u64, cases: u64) -> Result<Reached, BadCase> {
        let mut reached = Reached::default();
        for seed in (0..cases).map(|index| seed.wrapping_add(index)) {
            // A case has to account for all memory of its own.
            release_left();
            let before = PeakAlloc.current_usage();
            PeakAlloc.reset_peak_usage();
            let result = catch_panic(|| (self.case)(&mut Random::new(seed), &mut reached));
            let used = PeakAlloc.peak_usage().saturating_sub(before);
            let text = match result {
                Ok(Ok(())) if used <= CASE_BYTES_MAX => continue,
                Ok(Ok(())) => format!("{used} bytes were allocated, at most {CASE_BYTES_MAX} may"),
                Ok(Err(text)) => text,
                Err(panic) => format!("panic at {}: {}", panic.place, panic.text),
            };
            return Err(BadCase { target: self.name, seed, text });
        }
        Ok(reached)
    }

    /// What of [`Target::must_reach`] was not reached.
    #[must_use]
    pub fn not_reached(&self, reached: &Reached) -> Vec<&'static str> {
        let all = self.must_reach.iter().copied();
        all.filter(|what| reached.count(what) == 0).collect()
    }
}

/// Judges what a parser made of `bytes`; `write` is its inverse.
fn judge<T>(
    parsed: Result<T, Corrupt>,
    bytes: &[u8],
    write: impl FnOnce(&T) -> Vec<u8>,
    reached: &mut Reached,
) -> Result<(), String> {
    match parsed {
        Err(corrupt) if corrupt.expected == corrupt.found => {
            Err(format!("the message says that it found what it expected: {corrupt}"))
        }
        Err(corrupt) => {
            reached.note(corrupt.field);
            Ok(())
        }
        Ok(value) => {
            reached.note("whole");
            let written = write(&value);
            let differs = written.iter().zip(bytes).position(|(a, b)| a != b);
            if written.len() != bytes.len() {
                return Err(format!("{} bytes become {}", bytes.len(), written.len()));
            }
            match differs {
                Some(at) => Err(format!(
                    "byte {at} is read as {:#x} and written back as {:#x}",
                    bytes[at], written[at]
                )),
                None => Ok(()),
            }
        }
    }
}
