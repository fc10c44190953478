//! What clients may see: for each sector of each volume the writes that could be its content.
//!
//! Moments are counted, not timed: each event gets the next number. A value is allowed for a read
//! if its write was submitted before the reply, and no write that was acknowledged before the read
//! was submitted came wholly after it. From this one rule follow the others:
//!
//! - a write under way, and one that failed, leaves old or new;
//! - after process death nothing acknowledged may be missing; after a power cut, what was
//!   acknowledged but not flushed counts as failed;
//! - FLUSH covers what was acknowledged before it was submitted, FUA covers its own request; a
//!   FLUSH or FUA that failed takes what was acknowledged and not flushed by then out of the
//!   promise;
//! - a discard allows zeroes and every earlier value until the next write;
//! - what the check reads counts as written at that moment, so that a block which changes later
//!   without a write is found; and as flushed, if nobody wrote to it since the last crash.

use std::collections::BTreeSet;

use forebay_engine::request::Durability;
use forebay_engine::units::SECTOR_BYTES;

use crate::media::NEVER;
use crate::stamp::{self, Found};

/// Content of a sector of zeroes, as a value; others are numbers of writes.
pub(crate) const ZERO: u32 = 0;
/// Content after a discard.
const UNDEFINED: u32 = u32::MAX;
/// A history longer than this is pruned.
const HISTORY_KEPT: usize = 4;

/// Names a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WriteId(pub u32);

/// What a write does to its sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// Stamps them with its number.
    Data,
    /// Makes them zero.
    Zeroes,
    /// Makes them undefined.
    Discard,
    /// None: what a read found after recovery.
    Recovered,
}

/// A run of sectors of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Index of the volume.
    pub volume: usize,
    /// First sector.
    pub first: u32,
    /// Number of sectors.
    pub count: u32,
}

/// How a volume's history is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum History {
    /// As far as reads need it.
    Pruned,
    /// All of it, for [`Oracle::check_crash_state`].
    Whole,
}

/// What a check does with the value it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observed {
    /// Nothing.
    Once,
    /// From now on it is the only value allowed, as if it had been written then; and flushed, if
    /// nobody wrote to it since the last crash, since recovery makes durable what it found.
    Settled,
}

/// What is left after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survives {
    /// What was acknowledged.
    Acknowledged,
    /// What was flushed.
    Flushed,
}

/// How far what a sector holds can be relied upon.
enum Age {
    /// Nobody wrote to it in this life: recovery made it durable.
    Old,
    /// It was written in this life, and every write succeeded.
    Young,
    /// A write has failed, or overlaps the read in time.
    Uncertain,
}

/// A sector that has a content it must not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// What is wrong, without numbers.
    pub kind: &'static str,
    /// The sector.
    pub sector: u32,
    /// What was found, and what was allowed and why.
    pub text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Write {
    volume: usize,
    kind: WriteKind,
    first: u32,
    count: u32,
    pub(crate) submitted: u64,
    /// From here on it has no more effect: acknowledged, failed, or the process died.
    pub(crate) done: u64,
    /// Whether it must be there.
    pub(crate) acknowledged: bool,
    pub(crate) flushed: u64,
    durability: Durability,
}

/// A possible content of a sector: the write, and what it left there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) write: u32,
    pub(crate) value: u32,
    /// It may be missing, see [`Oracle::forgive`].
    pub(crate) is_forgiven: bool,
}

impl Version {
    fn new(write: u32, value: u32) -> Version {
        Version { write, value, is_forgiven: false }
    }
}

pub(crate) struct VolumeHistory {
    /// The write that stands for what was there before.
    pub(crate) initial: u32,
    pub(crate) sectors: Vec<Vec<Version>>,
    /// Acknowledged writes that no flush covered yet.
    unflushed: Vec<u32>,
    /// When a flush or FUA completed.
    pub(crate) flush_points: Vec<u64>,
    history: History,
    /// Blocks of eight sectors that were ever written.
    touched: Vec<bool>,
}

/// The judge of all content.
pub struct Oracle {
    moment: u64,
    /// Index zero is not a write.
    pub(crate) writes: Vec<Write>,
    pub(crate) volumes: Vec<VolumeHistory>,
    /// When the last life ended.
    last_crash: u64,
    /// Moments at which reads under way were submitted.
    reads: BTreeSet<u64>,
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle::new()
    }
}

impl Oracle {
    /// Knows no volumes yet.
    #[must_use]
    pub fn new() -> Oracle {
        let nothing = Write {
            volume: usize::MAX,
            kind: WriteKind::Recovered,
            first: 0,
            count: 0,
            submitted: 0,
            done: 0,
            acknowledged: false,
            flushed: NEVER,
            durability: Durability::Completed,
        };
        let (volumes, reads) = (Vec::new(), BTreeSet::new());
        Oracle { moment: 1, writes: vec![nothing], volumes, last_crash: 0, reads }
    }

    /// Adds a volume of so many sectors, all stamped with the write that is returned.
    pub fn add_volume(&mut self, sectors: u32, history: History) -> WriteId {
        let run = Run { volume: self.volumes.len(), first: 0, count: sectors };
        let initial = self.push(run, WriteKind::Data, 0);
        let write = &mut self.writes[initial as usize];
        (write.done, write.acknowledged, write.flushed) = (0, true, 0);
        self.volumes.push(VolumeHistory {
            initial,
            sectors: vec![Vec::new(); sectors as usize],
            unflushed: Vec::new(),
            flush_points: Vec::new(),
            history,
            touched: vec![false; sectors.div_ceil(8) as usize],
        });
        WriteId(initial)
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn push(&mut self, run: Run, kind: WriteKind, submitted: u64) -> u32 {
        self.writes.push(Write {
            volume: run.volume,
            kind,
            first: run.first,
            count: run.count,
            submitted,
            done: NEVER,
            acknowledged: false,
            flushed: NEVER,
            durability: Durability::Completed,
        });
        self.writes.len() as u32 - 1
    }

    /// A client submits a write.
    pub fn submit_write(&mut self, run: Run, kind: WriteKind, durability: Durability) -> WriteId {
        let submitted = self.tick();
        let id = self.push(run, kind, submitted);
        self.writes[id as usize].durability = durability;
        let value = match kind {
            WriteKind::Data => id,
            WriteKind::Zeroes => ZERO,
            WriteKind::Discard => UNDEFINED,
            WriteKind::Recovered => unreachable!("not a client's"),
        };
        for sector in run.first..run.first + run.count {
            self.prune(run.volume, sector);
            self.append(run.volume, sector, Version::new(id, value));
        }
        WriteId(id)
    }

    fn append(&mut self, volume: usize, sector: u32, version: Version) {
        let volume = &mut self.volumes[volume];
        volume.touched[sector as usize / 8] = true;
        let versions = &mut volume.sectors[sector as usize];
        let is_settled = self.writes[version.write as usize].kind == WriteKind::Recovered;
        if versions.is_empty() && !is_settled {
            versions.push(Version::new(volume.initial, volume.initial));
        }
        versions.push(version);
    }

    /// Forgets what no read, not even one under way, and no recovery may find any more.
    fn prune(&mut self, volume: usize, sector: u32) {
        let history = &mut self.volumes[volume];
        let versions = &mut history.sectors[sector as usize];
        if history.history == History::Whole || versions.len() < HISTORY_KEPT {
            return;
        }
        let oldest_read = self.reads.first().copied().unwrap_or(NEVER);
        let writes = &self.writes;
        let latest = versions
            .iter()
            .map(|version| &writes[version.write as usize])
            .filter(|w| w.flushed != NEVER && w.acknowledged && w.done < oldest_read)
            .map(|write| write.submitted)
            .max();
        let Some(latest) = latest else { return };
        versions.retain(|version| writes[version.write as usize].done >= latest);
    }

    /// The client was told that a write succeeded.
    pub fn acknowledge_write(&mut self, id: WriteId) {
        let now = self.tick();
        let write = &mut self.writes[id.0 as usize];
        assert_eq!(write.done, NEVER);
        (write.done, write.acknowledged) = (now, true);
        if write.durability == Durability::ForcedUnitAccess {
            write.flushed = now;
            self.volumes[write.volume].flush_points.push(now);
        } else {
            self.volumes[write.volume].unflushed.push(id.0);
        }
    }

    /// The client was told that a write failed.
    pub fn fail_write(&mut self, id: WriteId) {
        let now = self.tick();
        let write = &mut self.writes[id.0 as usize];
        assert_eq!(write.done, NEVER);
        write.done = now;
        if write.durability == Durability::ForcedUnitAccess {
            // It may have been the flush that failed, and that took others with it.
            let volume = write.volume;
            self.volumes[volume].unflushed.clear();
        }
    }

    /// A client submits a FLUSH; the moment names it.
    pub fn submit_flush(&mut self) -> u64 {
        self.tick()
    }

    /// The client was told that a FLUSH succeeded.
    pub fn acknowledge_flush(&mut self, volume: usize, submitted: u64) {
        let now = self.tick();
        let volume = &mut self.volumes[volume];
        let writes = &mut self.writes;
        volume.unflushed.retain(|id| {
            let write = &mut writes[*id as usize];
            if write.done < submitted {
                write.flushed = now;
            }
            write.done >= submitted
        });
        volume.flush_points.push(now);
    }

    /// The client was told that a FLUSH failed.
    pub fn fail_flush(&mut self, volume: usize) {
        self.tick();
        self.volumes[volume].unflushed.clear();
    }

    /// A client submits a read; the moment names it.
    pub fn submit_read(&mut self) -> u64 {
        let now = self.tick();
        self.reads.insert(now);
        now
    }

    /// A read ended, well or not.
    pub fn end_read(&mut self, submitted: u64) {
        self.reads.remove(&submitted);
    }

    /// Checks what a read found that was submitted at that moment.
    ///
    /// # Errors
    /// The first sector that is wrong.
    pub fn check(
        &mut self,
        run: Run,
        bytes: &[u8],
        submitted: u64,
        observed: Observed,
    ) -> Result<(), Mismatch> {
        assert_eq!(bytes.len(), run.count as usize * SECTOR_BYTES);
        let now = self.tick();
        let (mut old, mut young) = (Vec::new(), Vec::new());
        for (sector, bytes) in (run.first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let found = stamp::read(bytes);
            let volume = &self.volumes[run.volume];
            let versions = &volume.sectors[sector as usize];
            let value = match found {
                Found::Zero => ZERO,
                Found::Stamp(stamp)
                    if stamp.volume as usize == run.volume && stamp.sector == sector =>
                {
                    stamp.write
                }
                _ => return Err(self.mismatch(run.volume, sector, found, submitted)),
            };
            if versions.is_empty() {
                if value != volume.initial {
                    return Err(self.mismatch(run.volume, sector, found, submitted));
                }
                continue;
            }
            let is_undefined = self.is_allowed(versions, UNDEFINED, submitted);
            let is_good = self.is_allowed(versions, value, submitted)
                || is_undefined && self.was_ever(run.volume, sector, value);
            if !is_good {
                return Err(self.mismatch(run.volume, sector, found, submitted));
            }
            if observed == Observed::Settled && !is_undefined {
                match self.age(versions, submitted) {
                    Age::Uncertain => {}
                    Age::Young => young.push((sector, value)),
                    Age::Old => old.push((sector, value)),
                }
            }
        }
        self.settle(run, now, &old, &young);
        Ok(())
    }

    /// How sure it is that what a read found that was submitted at that moment is there to stay.
    fn age(&self, versions: &[Version], submitted: u64) -> Age {
        let mut age = Age::Old;
        for version in versions {
            let write = &self.writes[version.write as usize];
            if write.done > submitted || version.is_forgiven {
                return Age::Uncertain;
            }
            if write.submitted > self.last_crash && write.kind != WriteKind::Recovered {
                age = if write.acknowledged { Age::Young } else { return Age::Uncertain };
            }
        }
        age
    }

    /// Makes the values that were found the only ones allowed.
    fn settle(&mut self, run: Run, now: u64, old: &[(u32, u32)], young: &[(u32, u32)]) {
        if !old.is_empty() {
            let write = self.push_recovered(run, now);
            self.writes[write as usize].flushed = now;
            for (sector, value) in old {
                if self.volumes[run.volume].history == History::Pruned {
                    self.volumes[run.volume].sectors[*sector as usize].clear();
                }
                self.append(run.volume, *sector, Version::new(write, *value));
            }
            self.volumes[run.volume].flush_points.push(now);
        }
        if !young.is_empty() {
            let write = self.push_recovered(run, now);
            for (sector, value) in young {
                // No flush covers it: what it found is as durable as the write that it found.
                self.append(run.volume, *sector, Version::new(write, *value));
            }
        }
        self.tick();
    }

    /// Whatever was before: a volume begins with this content, and it is durable.
    pub fn start_from(&mut self, run: Run, bytes: &[u8]) {
        let now = self.tick();
        let mut values = Vec::new();
        for (sector, bytes) in (run.first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            match stamp::read(bytes) {
                Found::Stamp(stamp) => values.push((sector, stamp.write)),
                Found::Zero => values.push((sector, ZERO)),
                // What was there before any write is judged when it is read.
                Found::Other => {}
            }
        }
        self.settle(run, now, &values, &[]);
    }

    fn push_recovered(&mut self, run: Run, now: u64) -> u32 {
        let id = self.push(run, WriteKind::Recovered, now);
        let write = &mut self.writes[id as usize];
        (write.done, write.acknowledged) = (now, true);
        id
    }

    fn is_allowed(&self, versions: &[Version], value: u32, submitted: u64) -> bool {
        versions.iter().rev().any(|version| {
            version.value == value
                && !self.is_superseded(versions, &self.writes[version.write as usize], submitted)
        })
    }

    fn is_superseded(&self, versions: &[Version], write: &Write, submitted: u64) -> bool {
        versions.iter().rev().any(|later| {
            let is_forgiven = later.is_forgiven;
            let later = &self.writes[later.write as usize];
            !is_forgiven
                && later.acknowledged
                && later.done < submitted
                && later.submitted > write.done
        })
    }

    /// Whether nothing was submitted for a sector since the write of this value.
    #[must_use]
    pub fn is_newest(&self, volume: usize, sector: u32, value: u32) -> bool {
        let volume = &self.volumes[volume];
        let newest = volume.sectors[sector as usize].last();
        newest.map_or(volume.initial, |version| version.value) == value
    }

    /// Whether a sector could have had this value at any time.
    fn was_ever(&self, volume: usize, sector: u32, value: u32) -> bool {
        value == ZERO
            || self.writes.get(value as usize).is_some_and(|write| {
                write.volume == volume
                    && write.kind == WriteKind::Data
                    && (write.first..write.first + write.count).contains(&sector)
            })
    }

    fn mismatch(&self, volume: usize, sector: u32, found: Found, submitted: u64) -> Mismatch {
        let versions = &self.volumes[volume].sectors[sector as usize];
        let kind = match found {
            Found::Other => "rubbish or a mixture",
            Found::Stamp(stamp) if stamp.volume as usize != volume => "data of another volume",
            Found::Stamp(stamp) if stamp.sector != sector => "data of another place",
            Found::Zero => "zeroes where there was data",
            Found::Stamp(stamp) if versions.iter().any(|v| v.value == stamp.write) => "stale data",
            Found::Stamp(_) => "stale data, long overwritten",
        };
        let mut allowed = Vec::new();
        for version in versions {
            let write = &self.writes[version.write as usize];
            if !self.is_superseded(versions, write, submitted) {
                allowed.push(describe(version, write));
            }
        }
        if versions.is_empty() {
            allowed.push(format!("initial data (write {})", self.volumes[volume].initial));
        }
        let since = if submitted == NEVER { String::new() } else { format!(" at #{submitted}") };
        let text = format!("found {found}{since}, allowed: {}", allowed.join(" or "));
        Mismatch { kind, sector, text }
    }

    /// Something that no flush covered is lost in `run`: from now on it may be missing. Returns
    /// whether there was such a write, acknowledged or still under way.
    pub fn lose(&mut self, run: Run) -> bool {
        let mut found = false;
        for sector in run.first..run.first + run.count {
            for version in &self.volumes[run.volume].sectors[sector as usize] {
                let write = &mut self.writes[version.write as usize];
                if write.flushed == NEVER {
                    found = true;
                    write.acknowledged = false;
                }
            }
        }
        found
    }

    /// The record of a write is gone and nobody can know. Of the versions of a sector that had not
    /// been answered at `moment`, those with this value, or all, may be missing from now on.
    pub fn forgive(&mut self, volume: usize, sector: u32, value: Option<u32>, moment: u64) {
        let writes = &self.writes;
        for version in &mut self.volumes[volume].sectors[sector as usize] {
            let is_meant = value.is_none_or(|value| version.value == value);
            version.is_forgiven |= is_meant && writes[version.write as usize].done >= moment;
        }
    }

    /// A crash: what was under way is over, and what does not survive need not be there.
    pub fn crash(&mut self, survives: Survives) {
        let now = self.tick();
        for write in &mut self.writes[1..] {
            write.done = write.done.min(now);
            if survives == Survives::Flushed && write.flushed == NEVER {
                write.acknowledged = false;
            }
        }
        if survives == Survives::Flushed {
            self.volumes.iter_mut().for_each(|volume| volume.unflushed.clear());
        }
        self.reads.clear();
        self.last_crash = now;
    }

    /// Runs of blocks that were ever written, in sectors, each at most `sectors_max` long.
    #[must_use]
    pub fn touched(&self, volume: usize, sectors_max: u32) -> Vec<Run> {
        let history = &self.volumes[volume];
        let total = history.sectors.len() as u32;
        let mut runs: Vec<Run> = Vec::new();
        for block in (0u32..).zip(&history.touched).filter(|(_, on)| **on).map(|(block, _)| block) {
            let first = block * 8;
            let count = 8.min(total - first);
            match runs.last_mut() {
                Some(run) if run.first + run.count == first && run.count + count <= sectors_max => {
                    run.count += count;
                }
                _ => runs.push(Run { volume, first, count }),
            }
        }
        runs
    }

    /// Sectors of a volume.
    #[must_use]
    pub fn sectors(&self, volume: usize) -> u32 {
        self.volumes[volume].sectors.len() as u32
    }

    /// Whether a write could have left this in a sector: what an origin may be written with.
    #[must_use]
    pub fn is_of_clients(&self, volume: usize, sector: u32, bytes: &[u8]) -> bool {
        match stamp::read(bytes) {
            Found::Zero => true,
            Found::Stamp(stamp) => {
                stamp.volume as usize == volume
                    && stamp.sector == sector
                    && self.was_ever(volume, sector, stamp.write)
            }
            Found::Other => false,
        }
    }
}

fn describe(version: &Version, write: &Write) -> String {
    let what = match (write.kind, version.value) {
        (WriteKind::Recovered, ZERO) => "zeroes, seen after recovery".to_string(),
        (WriteKind::Recovered, value) => format!("write {value}, seen after recovery"),
        (WriteKind::Zeroes, _) => format!("zeroes (write {})", version.write),
        (WriteKind::Discard, _) => format!("anything (discard {})", version.write),
        (WriteKind::Data, value) => format!("write {value}"),
    };
    let state = match (write.done, write.flushed, write.acknowledged) {
        (NEVER, _, _) => "under way".to_string(),
        (done, NEVER, true) => format!("acknowledged #{done}"),
        (_, flushed, true) => format!("flushed #{flushed}"),
        (done, _, false) => format!("not promised, over #{done}"),
    };
    format!("{what} [submitted #{}, {state}]", write.submitted)
}
