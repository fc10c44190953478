//! A formatted cache device and origins that hold their first content.

use std::collections::BTreeMap;

use forebay_engine::format::SetId;
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::options::{
    CacheFacts, CacheMode, DIRTY_SECONDS_MAX, OriginFacts, SequentialPolicy, VolumeSettings,
    WritebackOrder,
};
use forebay_engine::policy::PolicyKind;

use super::world::World;
use super::{BLOCK, Buffers, Disk, ORIGINAL, block_bytes};

pub(crate) const SET_ID: SetId = *b"sixteen bytes id";
const SEGMENT_BYTES: u64 = 256 * 1024;

/// How a test begins. The defaults keep dirty data in the cache until something asks for it.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) segments: u64,
    pub(crate) modes: Vec<CacheMode>,
    pub(crate) origin_bytes: u64,
    pub(crate) writeback_percent: u8,
    /// A week, unless a test is about what happens while the origin is idle.
    pub(crate) writeback_delay_s: u32,
    /// Shares of the log with dirty data from which on writers are slowed down, and at which writes
    /// go around, in percent.
    pub(crate) marks: (u8, u8),
    /// Of all volumes.
    pub(crate) order: WritebackOrder,
    pub(crate) sequential_cutoff_bytes: u64,
    pub(crate) sequential_policy: SequentialPolicy,
    pub(crate) promote_on_read: bool,
    pub(crate) promote_on_write: bool,
    pub(crate) promotion_nhit: u8,
    /// Smallest and largest, in percent, of volume 0.
    pub(crate) shares: (u8, u8),
    pub(crate) read_ahead_bytes: u32,
    pub(crate) memory_max_bytes: u64,
    /// Bytes a day.
    pub(crate) cache_write_budget: u64,
    pub(crate) policy: PolicyKind,
    pub(crate) discards: bool,
    pub(crate) has_volatile_cache: bool,
    pub(crate) origin_discards: bool,
    /// Volumes whose origins are not there at the next start.
    pub(crate) missing: Vec<u16>,
}

impl Setup {
    pub(crate) fn of(modes: &[CacheMode]) -> Setup {
        Setup {
            segments: 24,
            modes: modes.to_vec(),
            origin_bytes: 2048 * BLOCK,
            writeback_percent: 100,
            writeback_delay_s: DIRTY_SECONDS_MAX,
            marks: (40, 90),
            order: WritebackOrder::Coalescing,
            sequential_cutoff_bytes: 0,
            sequential_policy: SequentialPolicy::Always,
            promote_on_read: true,
            promote_on_write: true,
            promotion_nhit: 1,
            shares: (0, 100),
            read_ahead_bytes: 0,
            memory_max_bytes: u64::MAX,
            cache_write_budget: 0,
            policy: PolicyKind::Clock2q,
            discards: true,
            has_volatile_cache: true,
            origin_discards: true,
            missing: Vec::new(),
        }
    }

    pub(crate) fn origin_facts(&self) -> OriginFacts {
        OriginFacts {
            optimal_io_bytes: 0,
            is_rotational: true,
            has_volatile_cache: true,
            supports_discard: self.origin_discards,
        }
    }

    pub(crate) fn new_volume(&self, index: usize) -> NewVolume {
        NewVolume {
            name: format!("volume-{index}"),
            origin_path: format!("/dev/origin-{index}"),
            size_bytes: self.origin_bytes,
            logical_block_bytes: 512,
            mode: self.modes[index],
            writeback_order: self.order,
            settings: VolumeSettings::default(),
        }
    }

    pub(crate) fn fresh_origin(&self, slot: u16) -> Disk {
        let mut bytes = block_bytes(ORIGINAL, slot, 0, self.origin_bytes.div_ceil(BLOCK));
        bytes.truncate(usize::try_from(self.origin_bytes).expect("origins are small"));
        Disk::new(bytes)
    }

    /// Formats, starts, and waits until requests are served.
    pub(crate) fn start(self) -> World {
        let mut world = self.format();
        world.restart().expect("a fresh device recovers");
        world
    }

    /// Formats, and starts nothing.
    pub(crate) fn format(self) -> World {
        let slack = 1 << 20;
        let bytes = self.segments * SEGMENT_BYTES + slack;
        let geometry = Geometry::new(bytes, Some(SEGMENT_BYTES)).expect("large enough");
        let mut superblock = Superblock::new(SET_ID, geometry, "test");
        superblock.settings.memory_max_bytes = self.memory_max_bytes;
        superblock.settings.policy = self.policy;
        superblock.settings.cache_write_budget_bytes_per_day = self.cache_write_budget;
        (superblock.settings.dirty_soft_percent, superblock.settings.dirty_hard_percent) =
            self.marks;
        let mut origins = Vec::new();
        for index in 0..self.modes.len() {
            let slot = superblock.add_volume(&self.new_volume(index)).expect("it fits");
            let volume = superblock.volumes[index].as_mut().expect("just added");
            volume.settings.writeback_percent = self.writeback_percent;
            volume.settings.writeback_delay_s = self.writeback_delay_s;
            volume.settings.sequential_cutoff_bytes = self.sequential_cutoff_bytes;
            volume.settings.sequential_policy = self.sequential_policy;
            volume.settings.promote_on_read = self.promote_on_read;
            volume.settings.promote_on_write = self.promote_on_write;
            volume.settings.promotion_nhit = self.promotion_nhit;
            volume.settings.read_ahead_bytes = self.read_ahead_bytes;
            if index == 0 {
                (volume.settings.share_min_percent, volume.settings.share_max_percent) =
                    self.shares;
            }
            origins.push(self.fresh_origin(slot.0));
        }
        let size = usize::try_from(geometry.device_bytes).expect("devices are small");
        let mut cache = Disk::new(vec![0; size]);
        let image = superblock.encode();
        cache.damage(0, &image);
        cache.damage(geometry.copy_offset, &image);
        let checkpoint = Checkpoint::empty(&geometry).encode(&SET_ID, &geometry);
        cache.damage(geometry.checkpoint_offset, &checkpoint);
        let facts = CacheFacts {
            size_bytes: geometry.device_bytes,
            has_volatile_cache: self.has_volatile_cache,
            supports_discard: self.discards,
        };
        World {
            setup: self,
            geometry,
            facts,
            now: 0,
            engine: None,
            buffers: Buffers::default(),
            cache,
            origins,
            held: Vec::new(),
            submitted: Vec::new(),
            fails: None,
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            commands: BTreeMap::new(),
            events: Vec::new(),
            saves_marks: true,
            next_id: 1,
        }
    }
}
