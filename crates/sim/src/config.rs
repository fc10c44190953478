//! A run's world, made of its seed: devices, volumes, clients, administrators, faults.

use forebay_engine::CACHE_TIMEOUT_MS;
use forebay_engine::format::superblock::{Geometry, GeometryError, SEGMENT_BYTES_MIN};
use forebay_engine::io::IoError;
use forebay_engine::options::{
    CacheMode, DIRTY_SECONDS_MAX, SequentialPolicy, SetSettings, VolumeSettings, WritebackOrder,
};
use forebay_engine::policy::PolicyKind;
use forebay_engine::units::BLOCK_BYTES;

use crate::device::{
    AtomicUnit, BadKind, BadRange, Burst, Decay, DeviceOptions, FaultRates, Fresh, Gone, Outage,
    OutageKind, Pace, PowerStyle, Speed, WriteCache,
};
use crate::growing::lengthen;
use crate::payload::PoolLimits;
use crate::random::Random;
use crate::run::RunOptions;
use crate::silent::{Silent, SilentFault, WriteClass};
use crate::workload::Mixture;

const SEQUENTIAL_POLICIES: [SequentialPolicy; 4] = [
    SequentialPolicy::Full,
    SequentialPolicy::Full,
    SequentialPolicy::Always,
    SequentialPolicy::Never,
];
/// Share of writeback volumes whose origin alone must be a crash state at any moment.
const ORDERED_PERCENT: u64 = 30;
/// Share of runs with a write that goes wrong silently.
const SILENT_PERCENT: u64 = 8;
/// Share of runs in which nearly everything happens while segments are reclaimed.
const TIGHT_PERCENT: u64 = 12;
/// Share of these whose clients go where segments are dropped.
const PURSUIT_PERCENT: u64 = 60;
/// Share of the other tight runs whose origins are away for a while.
const ABSENCE_PERCENT: u64 = 60;
/// Share of runs that are not tight in which flushes of origins fail again and again.
const FAILING_FLUSHES_PERCENT: u64 = 8;
/// Most failures of an origin in a life of such a run.
const FAILING_FLUSHES_MAX: u32 = 200;
/// Share of runs without silent faults in which origins stall or cannot be reached for a while.
const OUTAGES_PERCENT: u64 = 10;
/// How long they do, in milliseconds: on both sides of the limits that requests have.
const OUTAGES_MS: [u64; 10] =
    [200, 900, 1_100, 4_500, 5_500, 12_000, 27_000, 29_900, 31_000, 90_000];
/// Share of runs whose devices are as fast as models of real ones.
const MODELS_PERCENT: u64 = 33;
/// Share of runs with troubles beside what else their worlds have.
const TROUBLED_PERCENT: u64 = 20;
/// Tells the troubles' source of chance from the others.
const BESIDE: u64 = 0x7402_B1E5;
/// The same of how often ranges are pinned.
const PINS: u64 = 0x0091_4155;
/// The same for the growth of volumes.
const GROWTH: u64 = 0x6C6F_6E67;
/// Smallest and largest shares, in percent of the cache.
const SHARES: [(u8, u8); 10] = [
    (0, 100),
    (0, 100),
    (0, 100),
    (0, 100),
    (5, 100),
    (15, 100),
    (30, 60),
    (0, 30),
    (0, 5),
    (5, 5),
];
/// Where a detach stands among the weights of an administrator.
const DETACH: usize = 3;
/// See [`Config::missing_percent`].
const MISSING_PERCENT: u64 = 3;
/// Commands for a thousand requests of an administrator who is always about.
const BUSY_PERMILLE: u64 = 80;
/// Operations of an origin with a head.
const ROTATIONAL: Speed =
    Speed { base_ns: MILLISECOND, spread_ns: 8 * MILLISECOND, block_ns: 20 * MICROSECOND };
/// Operations of an origin without.
const NOT_ROTATIONAL: Speed =
    Speed { base_ns: 50 * MICROSECOND, spread_ns: MILLISECOND, block_ns: 2 * MICROSECOND };
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// Longest pauses between two requests; the last leaves time for what is done in idle hours.
const THINK_NS: [u64; 5] =
    [0, 100 * MICROSECOND, 5 * MILLISECOND, 100 * MILLISECOND, 10_000 * MILLISECOND];

/// What happens to durable blocks of the cache device between lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Rot {
    /// Nothing.
    None,
    /// Client data rots.
    Payload,
    /// Anything but the superblocks rots; recovery may refuse the device.
    Anything,
}

/// A volume of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeConfig {
    /// Size of the volume at the start. The origin may have more.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// Mode at the start.
    pub mode: CacheMode,
    /// Order of writeback.
    pub order: WritebackOrder,
    /// Settings at the start.
    pub settings: VolumeSettings,
    /// The origin.
    pub origin: DeviceOptions,
    /// Whether the engine is told that the origin is rotational.
    pub is_rotational: bool,
    /// Preferred I/O size, as the engine is told.
    pub optimal_io_bytes: u32,
}

impl VolumeConfig {
    /// Blocks of the volume; the last one may be partial.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }
}

/// Failures of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultConfig {
    /// Of the cache device.
    pub cache: FaultRates,
    /// Of each origin.
    pub origin: FaultRates,
    /// Probability in percent that a life has them.
    pub lives_percent: u64,
}

/// How often an administrator does what, in weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdministratorConfig {
    /// Commands for a thousand requests.
    pub permille: u64,
    /// Mode switch, drain, invalidate, detach, volume settings, set settings.
    pub weights: [u32; 6],
    /// Commands that are cancelled, in percent.
    pub cancel_percent: u64,
}

/// Everything that a seed decides beforehand.
#[derive(Clone, Debug)]
pub struct Config {
    /// Layout of the cache device.
    pub geometry: Geometry,
    /// The cache device.
    pub cache: DeviceOptions,
    /// Whether the engine is told that discards profit.
    pub supports_discard: bool,
    /// Settings of the set.
    pub settings: SetSettings,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
    /// Lives before the last one.
    pub lives: u32,
    /// Share of lives that end soon after a write that orders others, in percent.
    pub strikes_percent: u64,
    /// Share of requests that go where the engine is giving something up, in percent.
    pub pursuit_percent: u64,
    /// Requests of a life.
    pub requests: u64,
    /// Requests of an undisturbed life before the one that a sweep strikes; without any there is
    /// no such life.
    pub history_requests: u64,
    /// What a power cut leaves.
    pub power: PowerStyle,
    /// Share of crashes that are power cuts, in percent.
    pub power_percent: u64,
    /// Failures.
    pub faults: FaultConfig,
    /// Decay.
    pub rot: Rot,
    /// A write of the cache device that goes wrong silently; such a run has no other faults.
    pub silent: Option<SilentFault>,
    /// The engine's share of buffers.
    pub pool: PoolLimits,
    /// What clients do.
    pub mixture: Mixture,
    /// Connections.
    pub connections: u64,
    /// Most requests that a connection has under way.
    pub depth_max: u64,
    /// Longest pause between two requests of a connection.
    pub think_ns: u64,
    /// Events this close together may come in any order, and share one round of polls.
    pub batch_ns: u64,
    /// What administrators do.
    pub administrator: AdministratorConfig,
    /// Longest time until the host state file is saved.
    pub host_save_ns: u64,
    /// How long requests wait for a cache device that is gone.
    pub cache_timeout_ms: u64,
    /// Share of starts, but for the first and the last, at which an origin cannot be opened.
    pub missing_percent: u64,
    /// Changes of pinned ranges for a thousand requests.
    pub pins_permille: u64,
    /// Changes of the size of a volume for a thousand requests.
    pub growth_permille: u64,
}

impl Config {
    /// The world of a seed.
    pub fn new(random: &mut Random, options: &RunOptions) -> Config {
        if !options.plan.is_seeded() {
            return Config::for_sweep(random);
        }
        let is_tight = random.percent(TIGHT_PERCENT);
        let segments = if is_tight { 25 } else { *random.pick(&[25, 26, 30, 40, 64]) };
        let geometry = geometry(segments);
        let is_modelled = random.percent(MODELS_PERCENT);
        let times = if is_modelled { TimesOf::Models } else { TimesOf::Chance };
        let count = *random.pick(&[1, 1, 2, 3]);
        let volumes: Vec<_> = (0..count).map(|_| volume(random, times)).collect();
        let scale = if options.long { 6 } else { 1 };
        let lives = if options.long { random.between(1..=6) } else { random.between(0..=3) };
        let requests_max = *random.pick(&[100, 300, 1000]);
        let silent = random.percent(SILENT_PERCENT).then(|| silent_fault(random, lives.max(1)));
        let lives = if silent.is_some() { lives.max(1) } else { lives };
        let has_loud = silent.is_none();
        let mut config = Config {
            cache: cache_device(random, &geometry, times),
            geometry,
            supports_discard: random.percent(70),
            settings: set_settings(random),
            volumes,
            lives: lives as u32,
            strikes_percent: 20,
            pursuit_percent: 0,
            requests: random.between(30..=requests_max) * scale,
            history_requests: 0,
            power: power_style(random),
            power_percent: *random.pick(&[0, 60, 60, 100]),
            faults: if has_loud { faults(random) } else { FaultConfig::default() },
            silent,
            rot: if has_loud && random.percent(10) {
                *random.pick(&[Rot::Payload, Rot::Payload, Rot::Anything])
            } else {
                Rot::None
            },
            pool: PoolLimits {
                engine_bytes_max: *random.pick(&[8, 16, 64, 256]) * MIB,
                refusal_permille: *random.pick(&[0, 0, 0, 5, 50]),
            },
            mixture: Mixture::new(random),
            connections: random.between(1..=6),
            depth_max: *random.pick(&[1, 4, 16, 64]),
            think_ns: *random.pick(&THINK_NS),
            batch_ns: *random.pick(&[0, 0, 20 * MICROSECOND, MILLISECOND]),
            administrator: administrator(random),
            host_save_ns: *random.pick(&[MICROSECOND, 10 * MILLISECOND, 500 * MILLISECOND]),
            cache_timeout_ms: *random.pick(&[CACHE_TIMEOUT_MS, CACHE_TIMEOUT_MS, 0, 100]),
            missing_percent: MISSING_PERCENT,
            pins_permille: 0,
            growth_permille: 0,
        };
        if is_tight {
            config = config.tight(random);
        }
        config.pins_permille = *Random::new(random.clone().bits() ^ PINS).pick(&[0, 0, 5, 30]);
        config.grow(&mut Random::new(random.clone().bits() ^ GROWTH));
        // Drawn beside the rest, so that a world without such troubles stays as it is.
        let mut beside = Random::new(random.clone().bits() ^ BESIDE);
        if is_tight {
            config.trouble_tight(&mut beside);
        } else if has_loud {
            config.trouble(&mut beside);
        }
        config
    }

    /// In some worlds origins are longer than their volumes, which grow.
    fn grow(&mut self, random: &mut Random) {
        self.growth_permille = *random.pick(&[0, 0, 0, 10, 40]);
        if self.growth_permille > 0 {
            lengthen(&mut self.volumes, random);
        }
    }

    fn trouble(&mut self, random: &mut Random) {
        if random.percent(TROUBLED_PERCENT) {
            self.add_troubles(random);
        }
        if random.percent(FAILING_FLUSHES_PERCENT) {
            self.add_failing_flushes(random);
        }
        if random.percent(OUTAGES_PERCENT) {
            self.add_outages(random);
        }
    }

    fn trouble_tight(&mut self, random: &mut Random) {
        if random.percent(PURSUIT_PERCENT) {
            self.add_pursuit(random);
        } else if self.silent.is_none() && random.percent(ABSENCE_PERCENT) {
            self.add_absence(random);
        }
        if self.silent.is_none() && random.percent(OUTAGES_PERCENT) {
            self.add_outages(random);
        }
    }

    /// Origins stall, or cannot be reached, for about as long as requests wait for them.
    fn add_outages(&mut self, random: &mut Random) {
        self.faults.lives_percent = 100;
        let errors = [IoError::Transient, IoError::TimedOut, IoError::Gone];
        let how = match random.below(6) {
            0..=2 => OutageKind::Stalls,
            3 => OutageKind::Fails(*random.pick(&errors)),
            _ => OutageKind::FailsTransfers(*random.pick(&errors)),
        };
        self.faults.origin.outage = Some(Outage {
            from_operation: random.below(300),
            lasts_ns: *random.pick(&OUTAGES_MS) * MILLISECOND,
            again_after: random.below(300),
            how,
        });
        for volume in &mut self.volumes {
            if random.percent(30) {
                volume.mode = *random.pick(&[CacheMode::Writearound, CacheMode::Passthrough]);
            }
            volume.settings.origin_timeout_s = *random.pick(&[30, 5, 1, 1]);
        }
    }

    /// Origins are away for a while, and the log fills up to its last segments with what cannot go
    /// home. They have no other failures: what lasts longer than a life may keep writes waiting.
    fn add_absence(&mut self, random: &mut Random) {
        self.faults.lives_percent = 100;
        let gone = Gone {
            from_operation: random.below(500),
            lasts_ns: Some(*random.pick(&[300, 3000, 30_000]) * MILLISECOND),
            back_for: None,
        };
        self.faults.origin = FaultRates { gone: Some(gone), ..FaultRates::default() };
        self.requests = self.requests.max(600);
        for volume in &mut self.volumes {
            volume.mode = *random.pick(&[CacheMode::Writeback, CacheMode::Writeonly]);
            volume.settings.writeback_percent = 100;
        }
    }

    /// Flushes of origins fail again and again while much is written home, and power cuts take what
    /// they lost.
    fn add_failing_flushes(&mut self, random: &mut Random) {
        self.faults.lives_percent = 100;
        self.faults.origin.flush_permille = *random.pick(&[50, 200]);
        self.faults.origin.failures_max = FAILING_FLUSHES_MAX;
        self.power_percent = 100;
        self.requests = self.requests.max(200);
        self.mixture = self.mixture.clone().with_flushes();
        for volume in &mut self.volumes {
            volume.mode = *random.pick(&[CacheMode::Writeback, CacheMode::Writethrough]);
            volume.settings.writeback_percent = *random.pick(&[0, 1, 10]);
        }
    }

    /// What chance seldom brings together: failures that follow one another or last, and an
    /// administrator who is always about.
    fn add_troubles(&mut self, random: &mut Random) {
        let faults = &mut self.faults;
        faults.lives_percent = 70;
        for _ in 0..random.between(1..=2) {
            let operations = *random.pick(&[50, 300, 2000]);
            let from_operation = random.below(operations);
            match random.below(7) {
                0 => {
                    let failures = *random.pick(&[2, 4, 9, 20]);
                    faults.cache.burst = Some(Burst { from_operation, failures });
                }
                1 | 2 => {
                    let permille = *random.pick(&[20, 100, 400]);
                    let blocks_max = *random.pick(&[1, 5, 40]);
                    faults.cache.decay = Some(Decay { from_operation, permille, blocks_max });
                }
                3 => {
                    let lasts_ns = Some(*random.pick(&[20, 200, 1000]) * MILLISECOND);
                    let operations = *random.pick(&[10, 60, 60, 500]);
                    let back_for = Some(random.below(operations));
                    faults.cache.gone = Some(Gone { from_operation, lasts_ns, back_for });
                }
                4 | 5 => {
                    self.administrator.permille = BUSY_PERMILLE;
                    self.administrator.cancel_percent = 20;
                    self.administrator.weights[DETACH] += random.below(3) as u32;
                }
                _ => {
                    // The log fills up with what cannot go home.
                    self.missing_percent = 40;
                    let lasts_ns = *random.pick(&[None, Some(60_000 * MILLISECOND)]);
                    faults.origin.gone = Some(Gone { from_operation, lasts_ns, back_for: None });
                    self.volumes.iter_mut().for_each(|volume| {
                        volume.settings.writeback_percent = 100;
                    });
                }
            }
        }
    }

    /// Clients go where segments are dropped, and write around the log there.
    fn add_pursuit(&mut self, random: &mut Random) {
        self.pursuit_percent = *random.pick(&[30, 80]);
        self.power_percent = *random.pick(&[0, 0, 60]);
        if random.percent(40) {
            self.administrator.permille = BUSY_PERMILLE;
        }
        for volume in &mut self.volumes {
            if random.percent(80) {
                volume.mode = CacheMode::Writearound;
            }
        }
    }

    /// The same with volumes that do not fit into the cache and clients that write and read all of
    /// them, so that most of the time segments are reclaimed, and with a crash soon after a drop or
    /// a checkpoint in most lives.
    fn tight(mut self, random: &mut Random) -> Config {
        for volume in &mut self.volumes {
            let blocks = random.between(1536..=3072);
            volume.size_bytes = blocks * 4096;
            volume.origin.size_bytes = volume.size_bytes;
            volume.mode = *random.pick(&[
                CacheMode::Writeback,
                CacheMode::Writeback,
                CacheMode::Writearound,
                CacheMode::Writethrough,
            ]);
            volume.settings.writeback_percent = *random.pick(&[1, 40, 90]);
        }
        Config {
            lives: self.lives.max(2),
            strikes_percent: 75,
            requests: self.requests.max(300),
            mixture: Mixture::tight(random),
            depth_max: *random.pick(&[4, 16]),
            think_ns: *random.pick(&THINK_NS[..2]),
            ..self
        }
    }

    /// A small world without chance failures: a sweep puts in its own. Half of these worlds are
    /// small enough to look at; in the others so much is written, before and in the life that the
    /// sweep strikes, that the log is reclaimed, and an administrator is about.
    fn for_sweep(random: &mut Random) -> Config {
        let is_busy = random.percent(50);
        let geometry = geometry(25);
        let volume = VolumeConfig {
            size_bytes: MIB,
            mode: *random.pick(&[
                CacheMode::Writeback,
                CacheMode::Writeback,
                CacheMode::Writethrough,
                CacheMode::Writearound,
            ]),
            ..volume(random, TimesOf::Chance)
        };
        // Some longer than the volume, which grows.
        let origin_bytes = if is_busy { 2 * MIB } else { MIB };
        let origin = DeviceOptions { size_bytes: origin_bytes, ..volume.origin };
        let mut volume = VolumeConfig { origin, ..volume };
        if is_busy {
            volume.settings.writeback_percent = *random.pick(&[0, 1, 10]);
        }
        Config {
            cache: cache_device(random, &geometry, TimesOf::Chance),
            geometry,
            supports_discard: true,
            settings: SetSettings::default(),
            volumes: vec![volume],
            lives: if is_busy { 2 } else { 1 },
            strikes_percent: 0,
            pursuit_percent: 0,
            requests: 60,
            history_requests: if is_busy { 100 } else { 0 },
            power: PowerStyle::Random,
            power_percent: 0,
            faults: FaultConfig::default(),
            rot: Rot::None,
            silent: None,
            pool: PoolLimits { engine_bytes_max: 64 * MIB, refusal_permille: 0 },
            mixture: if is_busy { Mixture::busy() } else { Mixture::small() },
            connections: 2,
            depth_max: 4,
            think_ns: MILLISECOND,
            batch_ns: 0,
            administrator: AdministratorConfig {
                permille: if is_busy { 40 } else { 0 },
                weights: [1; 6],
                cancel_percent: 0,
            },
            host_save_ns: MILLISECOND,
            cache_timeout_ms: CACHE_TIMEOUT_MS,
            missing_percent: MISSING_PERCENT,
            pins_permille: if is_busy { 40 } else { 0 },
            growth_permille: if is_busy { 40 } else { 0 },
        }
    }
}

/// A device of about so many segments of the smallest size.
fn geometry(segments: u64) -> Geometry {
    let bytes = segments * SEGMENT_BYTES_MIN + MIB / 2;
    let laid_out = match Geometry::new(bytes, Some(SEGMENT_BYTES_MIN)) {
        Err(GeometryError::TooSmall { needed_bytes, .. }) => {
            Geometry::new(needed_bytes, Some(SEGMENT_BYTES_MIN))
        }
        other => other,
    };
    laid_out.expect("a device of that size can be laid out")
}

/// Who decides how long operations last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimesOf {
    Chance,
    Models,
}

fn cache_pace(random: &mut Random, times: TimesOf) -> Pace {
    match times {
        TimesOf::Models => Pace::fast_model(random),
        TimesOf::Chance => Pace::Random(Speed {
            base_ns: 20 * MICROSECOND,
            spread_ns: *random.pick(&[40, 200, 2000]) * MICROSECOND,
            block_ns: 1000,
        }),
    }
}

fn origin_pace(random: &mut Random, times: TimesOf) -> Pace {
    match times {
        TimesOf::Models => Pace::slow_model(random),
        TimesOf::Chance if random.percent(50) => Pace::Random(ROTATIONAL),
        TimesOf::Chance => Pace::Random(NOT_ROTATIONAL),
    }
}

fn cache_device(random: &mut Random, geometry: &Geometry, times: TimesOf) -> DeviceOptions {
    DeviceOptions {
        size_bytes: geometry.device_bytes,
        // The engine's unit is the block: a torn block is told by its checksum.
        atomic: *random.pick(&[AtomicUnit::Sector, AtomicUnit::Block]),
        write_cache: write_cache(random),
        pace: cache_pace(random, times),
        fresh: if random.percent(50) { Fresh::Zeroes } else { Fresh::Noise(random.bits()) },
    }
}

fn write_cache(random: &mut Random) -> WriteCache {
    if random.percent(85) { WriteCache::Volatile } else { WriteCache::Durable }
}

fn volume(random: &mut Random, times: TimesOf) -> VolumeConfig {
    let blocks = match random.below(10) {
        0..=5 => random.between(256..=1024),
        6..=8 => random.between(1024..=3072),
        _ => random.between(3072..=8192),
    };
    let logical_block_bytes = if random.percent(75) { 512 } else { 4096 };
    let tail = if logical_block_bytes == 512 && random.percent(40) { random.below(8) } else { 0 };
    let size_bytes = (blocks * 4096 - tail * 512).min(32 * MIB);
    let mode = match random.below(20) {
        0..=9 => CacheMode::Writeback,
        10..=12 => CacheMode::Writethrough,
        13..=15 => CacheMode::Writearound,
        16..=17 => CacheMode::Writeonly,
        _ => CacheMode::Passthrough,
    };
    let is_ordered = mode == CacheMode::Writeback && random.percent(ORDERED_PERCENT);
    let pace = origin_pace(random, times);
    VolumeConfig {
        size_bytes,
        logical_block_bytes,
        mode,
        order: if is_ordered { WritebackOrder::Ordered } else { WritebackOrder::Coalescing },
        settings: volume_settings(random),
        origin: DeviceOptions {
            size_bytes,
            atomic: if logical_block_bytes == 512 { AtomicUnit::Sector } else { AtomicUnit::Block },
            write_cache: write_cache(random),
            pace,
            // Replaced by stamps when the oracle has numbered them.
            fresh: Fresh::Zeroes,
        },
        is_rotational: pace.is_hard_disk() || pace == Pace::Random(ROTATIONAL),
        optimal_io_bytes: *random.pick(&[0, 0, 65536, 262_144]),
    }
}

/// Settings of a volume, old or new.
pub(crate) fn volume_settings(random: &mut Random) -> VolumeSettings {
    let mut writeback = random.clone().fork();
    let rate_max_bytes = *writeback.pick(&[0, 0, 0, MIB, 64 * MIB]);
    let (share_min_percent, share_max_percent) = *writeback.clone().fork().pick(&SHARES);
    VolumeSettings {
        writeback_delay_s: *writeback.pick(&[0, 0, 1, 30, DIRTY_SECONDS_MAX]),
        writeback_rate_min_bytes: *writeback.pick(&[4096, 4096, MIB]),
        writeback_rate_max_bytes: rate_max_bytes,
        writeback_ios_max: *writeback.pick(&[0, 0, 1, 8, 64]),
        writeback_idle_only: writeback.percent(20),
        dirty_age_max_s: *writeback.pick(&[0, 1, 10, 600]),
        origin_timeout_s: *writeback.pick(&[30, 30, 5, 1, 0]),
        sequential_policy: *writeback.pick(&SEQUENTIAL_POLICIES),
        promote_on_read: !writeback.percent(10),
        promote_on_write: !writeback.percent(30),
        promotion_nhit: *writeback.pick(&[1, 1, 1, 2, 15]),
        share_min_percent,
        share_max_percent,
        sequential_cutoff_bytes: *random.pick(&[0, 65536, MIB]),
        writeback_percent: *random.pick(&[0, 1, 10, 10, 40, 90, 100]),
        read_ahead_bytes: *random.pick(&[0, 16384, 65536, 65536, 1 << 20]),
    }
}

/// Settings of the set, old or new.
pub(crate) fn set_settings(random: &mut Random) -> SetSettings {
    let mut beside = random.clone().fork();
    let marks = *beside.pick(&[(40, 90), (40, 90), (1, 2), (10, 50), (80, 95)]);
    let (dirty_soft_percent, dirty_hard_percent) = marks;
    SetSettings {
        dirty_soft_percent,
        dirty_hard_percent,
        cache_write_budget_bytes_per_day: *beside.pick(&[0, 0, 0, 1, 1 << 30, 1 << 50]),
        memory_max_bytes: *random.pick(&[u64::MAX, u64::MAX, u64::MAX, 256 * KIB, 160 * KIB, 0]),
        discard_freed_segments: random.percent(70),
        // Half of the runs keep to the default.
        policy: if beside.percent(50) {
            PolicyKind::Clock2q
        } else {
            *beside.pick(&PolicyKind::ALL)
        },
    }
}

fn power_style(random: &mut Random) -> PowerStyle {
    *random.pick(&[
        PowerStyle::NoneSurvive,
        PowerStyle::AllSurvive,
        PowerStyle::Random,
        PowerStyle::Random,
        PowerStyle::RandomWithRubbish,
    ])
}

fn administrator(random: &mut Random) -> AdministratorConfig {
    let mut weights = [0; 6];
    for weight in &mut weights {
        *weight = if random.percent(60) { 1 } else { 0 };
    }
    weights[random.index(6)] += 1;
    let permille = *random.pick(&[0, 0, 3, 15]);
    AdministratorConfig { permille, weights, cancel_percent: *random.pick(&[0, 10]) }
}

fn silent_fault(random: &mut Random, lives: u64) -> SilentFault {
    let (class, nth_max) = match random.below(10) {
        0 => (WriteClass::Superblock, 4),
        1..=2 => (WriteClass::Checkpoint, 6),
        3 => (WriteClass::Summary, 8),
        _ => (WriteClass::Record, *random.pick(&[5, 20, 60])),
    };
    let how = if random.percent(50) { Silent::Lost } else { Silent::Misdirected };
    SilentFault { life: random.below(lives) as u32, class, nth: random.below(nth_max), how }
}

fn bad_range(random: &mut Random) -> BadRange {
    BadRange {
        from_permille: random.below(1000),
        block_count: *random.pick(&[1, 16, 200]),
        fails: *random.pick(&[BadKind::ReadsUntilWritten, BadKind::Writes, BadKind::All]),
    }
}

/// Four runs of ten have failures, of one or two kinds.
fn faults(random: &mut Random) -> FaultConfig {
    if !random.percent(40) {
        return FaultConfig::default();
    }
    let mut faults = FaultConfig { lives_percent: 70, ..FaultConfig::default() };
    for _ in 0..random.between(1..=2) {
        let device = if random.percent(60) { &mut faults.cache } else { &mut faults.origin };
        device.failures_max = *random.pick(&[1, 3, 10, 50]);
        let permille = *random.pick(&[5, 20, 60]);
        match random.below(12) {
            0..=2 => device.write_permille = permille,
            3..=4 => device.read_permille = permille,
            5..=6 => device.flush_permille = 5 * permille,
            7 => device.stall_permille = permille,
            8 => device.bad_range = Some(bad_range(random)),
            _ => {
                let short = Some(200 * MILLISECOND);
                let lasts_ns = *random.pick(&[None, short, short, Some(5_000_000_000)]);
                // Counted from the beginning of the life; the life adds what came before.
                let operations = *random.pick(&[100, 500, 2000]);
                let from_operation = random.below(operations);
                device.gone = Some(Gone { from_operation, lasts_ns, back_for: None });
            }
        }
    }
    faults
}
