//! Which of the writes that are not durable survive a crash that a sweep makes.
//!
//! A *unit* is one block of one write: unfinished when the process dies; unfinished or not flushed
//! when the power goes. With at most [`UNITS_MAX`] units every subset of them is a choice, with
//! more of them but no more writes than that every subset of whole writes, and else there are
//! [`SAMPLES`] samples. What is torn within a block, and rubbish, is left to runs by chance.

use std::collections::BTreeSet;

use crate::random::Random;
use crate::trace::DeviceName;

/// Most units, or writes, of which every subset is tried: 64 subsets.
pub const UNITS_MAX: usize = 6;
/// Choices where there are more: none survives, all survive, and others by chance.
pub const SAMPLES: u64 = 32;

/// One block of one write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Unit {
    pub(crate) device: DeviceName,
    /// Number of the operation.
    pub(crate) writer: u64,
    pub(crate) block: u32,
}

/// How many choices there are for these units.
pub(crate) fn choices(units: &[Unit]) -> u64 {
    match (units.len(), writes(units).len()) {
        (units, _) if units <= UNITS_MAX => 1 << units,
        (_, writes) if writes <= UNITS_MAX => 1 << writes,
        _ => SAMPLES,
    }
}

/// The units that survive by the choice of this number, of which there are [`choices`].
pub(crate) fn choose(units: &[Unit], choice: u64) -> BTreeSet<Unit> {
    let writes = writes(units);
    let mut random = Random::new(choice);
    let percent = *random.pick(&[10, 50, 90]);
    let survives = |(index, unit): (usize, &Unit)| {
        if units.len() <= UNITS_MAX {
            choice >> index & 1 == 1
        } else if writes.len() <= UNITS_MAX {
            let write = writes.iter().position(|write| *write == (unit.device, unit.writer));
            choice >> write.expect("it is of one of them") & 1 == 1
        } else {
            match choice {
                0 => false,
                1 => true,
                _ => random.percent(percent),
            }
        }
    };
    let mut survives = survives;
    units.iter().enumerate().filter(|unit| survives(*unit)).map(|(_, unit)| *unit).collect()
}

/// The writes that the units are of, in order.
fn writes(units: &[Unit]) -> Vec<(DeviceName, u64)> {
    let writes: BTreeSet<_> = units.iter().map(|unit| (unit.device, unit.writer)).collect();
    writes.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(writes: u64, blocks: u32) -> Vec<Unit> {
        let all = (0..writes).flat_map(|writer| (0..blocks).map(move |block| (writer, block)));
        all.map(|(writer, block)| Unit { device: DeviceName::Cache, writer, block }).collect()
    }

    fn subsets(units: &[Unit]) -> BTreeSet<BTreeSet<Unit>> {
        (0..choices(units)).map(|choice| choose(units, choice)).collect()
    }

    #[test]
    fn of_few_units_every_subset_is_chosen() {
        assert_eq!(choices(&[]), 1);
        for (writes, blocks) in [(1, 1), (2, 3), (6, 1), (1, 6)] {
            let units = units(writes, blocks);
            assert_eq!(subsets(&units).len(), 1 << units.len());
        }
    }

    #[test]
    fn of_few_writes_every_subset_of_whole_writes_is_chosen() {
        let units = units(5, 4);
        let subsets = subsets(&units);
        assert_eq!(subsets.len(), 32);
        assert!(subsets.iter().all(|subset| subset.len() % 4 == 0));
    }

    #[test]
    fn of_many_there_are_samples_with_none_and_all_among_them() {
        let units = units(20, 2);
        let subsets = subsets(&units);
        assert_eq!(choices(&units), SAMPLES);
        assert!(subsets.len() > SAMPLES as usize / 2);
        assert!(subsets.iter().any(BTreeSet::is_empty));
        assert!(subsets.iter().any(|subset| subset.len() == units.len()));
    }
}
