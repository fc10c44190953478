//! What clients ask for: a random mixture whose weights are random themselves.
//!
//! Each seed switches kinds of operations, sizes and places on and off, so that some runs write
//! nothing but small overlapping pieces and others stream, and rare combinations are not drowned by
//! common ones.

use forebay_engine::request::Durability;
use forebay_engine::units::SECTOR_BYTES;

use crate::media::BLOCK_SECTORS;
use crate::oracle::Run;
use crate::random::Random;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes; has no range.
    Flush,
    /// Discards.
    Discard,
    /// Writes zeroes; the origin may deallocate.
    WriteZeroes,
    /// Writes zeroes; the origin must not deallocate.
    WriteZeroesAllocated,
    /// Prefetches.
    Prefetch,
}

impl OperationKind {
    const ALL: [OperationKind; 7] = [
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::Flush,
        OperationKind::Discard,
        OperationKind::WriteZeroes,
        OperationKind::WriteZeroesAllocated,
        OperationKind::Prefetch,
    ];

    /// For the trace.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::Flush => "flush",
            OperationKind::Discard => "discard",
            OperationKind::WriteZeroes => "write zeroes",
            OperationKind::WriteZeroesAllocated => "write zeroes (allocated)",
            OperationKind::Prefetch => "prefetch",
        }
    }

    /// Whether it changes its range.
    #[must_use]
    pub fn changes(self) -> bool {
        !matches!(self, OperationKind::Read | OperationKind::Flush | OperationKind::Prefetch)
    }
}

/// A request before it has an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Where; of no sectors for a flush.
    pub run: Run,
    /// What.
    pub kind: OperationKind,
    /// FUA or not.
    pub durability: Durability,
}

impl Operation {
    /// One without FUA.
    #[must_use]
    pub fn plain(run: Run, kind: OperationKind) -> Operation {
        Operation { run, kind, durability: Durability::Completed }
    }
}

/// Where a connection stays whose requests overlap.
const HAMMER_BYTES: u64 = 32 * 1024;

/// What all connections of a run have in common.
#[derive(Clone, Debug)]
pub struct Mixture {
    kinds: [u32; OperationKind::ALL.len()],
    forced_percent: u64,
    /// Sub-block, a few blocks, 64 KiB and more, up to 1 MiB, several MiB.
    sizes: [u32; 5],
    /// Anywhere, hot spot, in sequence, near the last one.
    places: [u32; 4],
    /// Share of requests that do not begin and end at blocks.
    unaligned_percent: u64,
    hot_bytes: u64,
    /// Where the hot spot of all connections is, in thousandths of a volume; or each has its own.
    hot_permille: Option<u64>,
    /// Share of connections with a role of their own.
    roles_percent: u64,
}

/// What a connection does with the mixture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// All of it.
    Any,
    /// One request behind the other, long ones, from one end to the other.
    Stream,
    /// Everything within a few blocks, so that requests overlap.
    Hammer,
}

impl Mixture {
    /// A mixture with random weights; `logical_bytes` is the smallest unit that clients may
    /// address.
    pub fn new(random: &mut Random) -> Mixture {
        let mut switch = |weight: u32, percent: u64| {
            if random.percent(percent) { weight * (1 + random.below(4) as u32) } else { 0 }
        };
        let write = switch(30, 95).max(1);
        let kinds = [
            switch(30, 90).max(1),
            write,
            switch(4, 80),
            switch(3, 40),
            switch(3, 50),
            switch(2, 30),
            switch(2, 30),
        ];
        let sizes =
            [switch(10, 60), switch(20, 90).max(1), switch(8, 60), switch(3, 40), switch(1, 15)];
        let places = [switch(10, 60), switch(20, 70), switch(10, 50), switch(10, 50).max(1)];
        Mixture {
            kinds,
            forced_percent: *random.pick(&[0, 0, 5, 30]),
            sizes,
            places,
            unaligned_percent: *random.pick(&[0, 10, 30, 80]),
            hot_bytes: random.between(16..=512) * 1024,
            hot_permille: random.percent(50).then(|| random.below(1000)),
            roles_percent: 20,
        }
    }

    /// The mixture of a connection.
    fn of(&self, role: Role) -> Mixture {
        let mixture = self.clone();
        match role {
            Role::Any => mixture,
            Role::Stream => {
                let (sizes, places) = ([0, 2, 4, 3, 0], [0, 0, 1, 0]);
                Mixture { sizes, places, unaligned_percent: 0, ..mixture }
            }
            Role::Hammer => {
                let (sizes, places) = ([4, 4, 1, 0, 0], [0, 1, 0, 0]);
                Mixture { sizes, places, hot_bytes: HAMMER_BYTES, ..mixture }
            }
        }
    }

    /// Only writes, reads and flushes of a few blocks, for sweeps.
    #[must_use]
    pub fn small() -> Mixture {
        Mixture {
            kinds: [20, 40, 6, 2, 3, 0, 1],
            forced_percent: 8,
            sizes: [2, 10, 2, 0, 0],
            places: [1, 4, 2, 2],
            unaligned_percent: 10,
            hot_bytes: 128 * 1024,
            hot_permille: None,
            roles_percent: 0,
        }
    }

    /// Mostly writes, long ones among them, half of them to one place: what is there is overwritten
    /// before it is written home, what is elsewhere fills the cache.
    pub fn tight(random: &mut Random) -> Mixture {
        Mixture {
            kinds: [20, 40, *random.pick(&[1, 6]), 1, 2, 0, 0],
            forced_percent: *random.pick(&[0, 5]),
            sizes: [2, 10, 10, 6, 0],
            places: [12, 20, 4, 4],
            hot_bytes: random.between(128..=1024) * 1024,
            hot_permille: Some(random.below(1000)),
            ..Mixture::small()
        }
    }

    /// The same with many flushes and FUA writes.
    #[must_use]
    pub fn with_flushes(mut self) -> Mixture {
        let sum: u32 = self.kinds.iter().sum();
        self.kinds[OperationKind::Flush as usize] = sum / 4 + 1;
        self.forced_percent = self.forced_percent.max(10);
        self
    }

    /// The same with longer requests, for sweeps that are to reach reclaim.
    #[must_use]
    pub fn busy() -> Mixture {
        Mixture { sizes: [2, 6, 6, 3, 0], ..Mixture::small() }
    }
}

/// A volume as a connection sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Index of the volume.
    pub volume: usize,
    /// Its size.
    pub sectors: u32,
    /// Smallest unit, in sectors: 1 or 8.
    pub unit_sectors: u32,
}

/// One connection's position in its work.
#[derive(Clone, Debug)]
pub struct Pattern {
    mixture: Mixture,
    target: Target,
    hot_first: u32,
    next: u32,
    last: u32,
}

impl Pattern {
    /// A connection that works on `target`.
    pub fn new(mixture: &Mixture, target: Target, random: &mut Random) -> Pattern {
        let role = if random.percent(mixture.roles_percent) {
            *random.pick(&[Role::Stream, Role::Hammer])
        } else {
            Role::Any
        };
        let own = random.below(1000);
        let permille = mixture.hot_permille.unwrap_or(own);
        let hot_first = (u64::from(target.sectors) * permille / 1000) as u32;
        let next = random.below(u64::from(target.sectors)) as u32;
        Pattern { mixture: mixture.of(role), target, hot_first, next, last: hot_first }
    }

    /// The volume worked on.
    #[must_use]
    pub fn volume(&self) -> usize {
        self.target.volume
    }

    /// The volume has another size from now on.
    pub fn resize(&mut self, sectors: u32) {
        self.target.sectors = sectors;
    }

    /// The next request.
    pub fn next(&mut self, random: &mut Random) -> Operation {
        let kind = OperationKind::ALL[random.weighted(&self.mixture.kinds)];
        let volume = self.target.volume;
        if kind == OperationKind::Flush {
            let run = Run { volume, first: 0, count: 0 };
            return Operation::plain(run, kind);
        }
        let run = self.place(random);
        let is_forced = kind.changes() && random.percent(self.mixture.forced_percent);
        let durability =
            if is_forced { Durability::ForcedUnitAccess } else { Durability::Completed };
        Operation { run, kind, durability }
    }

    fn place(&mut self, random: &mut Random) -> Run {
        let Target { volume, sectors: total, unit_sectors } = self.target;
        let is_aligned =
            unit_sectors == BLOCK_SECTORS || !random.percent(self.mixture.unaligned_percent);
        let unit = if is_aligned { BLOCK_SECTORS } else { unit_sectors };
        let mut count = self.size(random).div_ceil(unit) * unit;
        let anchor = match random.weighted(&self.mixture.places) {
            0 => random.below(u64::from(total)) as u32,
            1 => {
                let hot_sectors = self.mixture.hot_bytes / SECTOR_BYTES as u64;
                (self.hot_first + random.below(hot_sectors) as u32) % total
            }
            2 => self.next,
            _ => {
                let near = random.below(u64::from(4 * count) + 1) as u32;
                (self.last + near).saturating_sub(2 * count) % total
            }
        };
        let first = if anchor < total { anchor / unit * unit } else { 0 };
        count = count.min(total - first);
        self.last = first;
        self.next = if first + count < total { first + count } else { 0 };
        Run { volume, first, count }
    }

    fn size(&mut self, random: &mut Random) -> u32 {
        let sectors = match random.weighted(&self.mixture.sizes) {
            0 => random.between(1..=16),
            1 => 8 * random.between(1..=8),
            2 => 8 * random.between(8..=48),
            3 => 8 * random.between(48..=256),
            _ => 8 * random.between(256..=1024),
        };
        sectors as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_lie_within_the_volume_and_keep_to_its_unit() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let unit_sectors = *random.pick(&[1, 8]);
            let sectors = 2048 + unit_sectors * 3;
            let target = Target { volume: 0, sectors, unit_sectors };
            let mixture = Mixture::new(&mut random);
            let mut pattern = Pattern::new(&mixture, target, &mut random);
            for _ in 0..200 {
                let Operation { run, kind, .. } = pattern.next(&mut random);
                assert!(run.first + run.count <= sectors);
                assert_eq!((run.first % unit_sectors, run.count % unit_sectors), (0, 0));
                assert_eq!(run.count == 0, kind == OperationKind::Flush);
            }
        }
    }
}
