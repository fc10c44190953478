//! How fast writeback may go on: clients come first at an origin.
//!
//! As long as no client needs the origin, and when something presses (the log fills up, a drain, a
//! stop), writeback is as fast as the origin, within the ceiling that the operator sets. While
//! clients use it, what is dirty beyond `writeback_percent` goes home at the rate of a controller,
//! one transfer at a time; and after each the origin is left to clients for three times as long as
//! it took. So they have three quarters of its time: a share of the time and not of the bytes,
//! since that is what a disk has little of. What is within `writeback_percent` waits until they
//! pause.

use super::controller::RateBounds;
use super::cost::Transfers;
use super::{State, Turn};
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose, Phase};
use crate::io::Device;
use crate::mean;
use crate::status::WritebackPace;
use crate::units::{BLOCK_BYTES, Time, VolumeSlot};

/// Milliseconds without a client's transfer after which an origin counts as idle.
const IDLE_MS: u64 = 500;
/// Milliseconds after a client's transfer for which a disk that sleeps otherwise counts as awake.
const AWAKE_MS: u64 = 5_000;
/// What a client's transfer counts for at most: one that stalls says nothing of the others.
const TRANSFER_NS_MAX: u64 = 1_000_000_000;
/// How much longer than a transfer the origin is left to clients behind it.
const CLIENTS_SHARE: u64 = 3;
/// Milliseconds that a volume may take of a window that goes home at a low rate; then others have
/// their turn, and the next window sees what has become dirty meanwhile.
const PACED_WINDOW_MS: u64 = 10_000;
/// Blocks in the buffers of runs under way at most, so that clients find some: 16 MiB.
const BLOCKS_UNDER_WAY_MAX: u64 = 4096;

/// Who uses an origin.
#[derive(Debug, Default)]
pub(crate) struct OriginUse {
    /// Transfers of clients under way.
    clients: u32,
    /// When the last one began or ended; `None` if there was none.
    last: Option<Time>,
    /// When the last one ended, or began if none was under way.
    busy_since: Time,
    /// For how long a transfer keeps the origin busy, on an average.
    transfer_ns: u64,
}

impl OriginUse {
    fn begin(&mut self, now: Time) {
        if self.clients == 0 {
            self.busy_since = now;
        }
        self.clients += 1;
        self.last = Some(now);
    }

    fn end(&mut self, now: Time) {
        self.clients -= 1;
        self.last = Some(now);
        let sample_ns = now.nanoseconds_since(self.busy_since).min(TRANSFER_NS_MAX);
        self.busy_since = now;
        self.transfer_ns = if self.transfer_ns == 0 {
            sample_ns
        } else {
            mean::moved(self.transfer_ns, sample_ns)
        };
    }

    /// From when on the origin is idle, if no client comes; `None` while one uses it.
    fn idle_from(&self) -> Option<Time> {
        let from = self.last.map_or(Time(0), |last| last.after_ms(IDLE_MS));
        (self.clients == 0).then_some(from)
    }

    fn awake_until(&self) -> Time {
        self.last.map_or(Time(0), |last| last.after_ms(AWAKE_MS))
    }
}

/// How fast dirty data of a volume goes home now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Speed {
    /// As the origin can.
    Full,
    /// At the rate of the controller.
    Paced,
    /// Not at all.
    Resting,
}

/// When so many blocks are over at so many a second.
fn after(from: Time, blocks: u64, rate: u64) -> Time {
    let wait_ns = u128::from(blocks) * 1_000_000_000 / u128::from(rate);
    Time(from.0.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
}

impl Engine {
    /// An operation of a device begins or ends: whether a client uses an origin for it.
    pub(crate) fn note_client_begins(&mut self, device: Device, purpose: &IoPurpose) {
        let is_clients = matches!(
            purpose,
            IoPurpose::Miss { .. } | IoPurpose::UnitOld { .. } | IoPurpose::UnitOrigin { .. }
        );
        if let (Device::Origin(slot), true) = (device, is_clients) {
            let now = self.now;
            self.volume_mut(slot).origin_use.begin(now);
        }
    }

    pub(crate) fn note_client_ends(&mut self, purpose: &IoPurpose) {
        let slot = match purpose {
            IoPurpose::Miss { miss } => self.misses[*miss].slot,
            IoPurpose::UnitOld { unit, position: None } | IoPurpose::UnitOrigin { unit } => {
                self.units[*unit].slot
            }
            _ => return,
        };
        let now = self.now;
        self.volume_mut(slot).origin_use.end(now);
    }

    fn is_origin_idle(&self, slot: VolumeSlot) -> bool {
        self.volume(slot).origin_use.idle_from().is_some_and(|from| from <= self.now)
    }

    /// When dirty data of the volume goes home because nobody uses the origin; `None` while
    /// somebody does.
    fn idle_turn_at(&self, slot: VolumeSlot) -> Option<Time> {
        let volume = self.volume(slot);
        let idle_from = volume.origin_use.idle_from()?;
        let rests_ms = |seconds: u32| volume.dirty_since.after_ms(u64::from(seconds) * 1_000);
        let settings = &volume.settings;
        if !settings.writeback_idle_only {
            return Some(idle_from.max(rests_ms(settings.writeback_delay_s)));
        }
        let awake_until = volume.origin_use.awake_until();
        if idle_from <= awake_until && self.now <= awake_until {
            return Some(idle_from);
        }
        Some(idle_from.max(rests_ms(settings.dirty_age_max_s)))
    }

    pub(super) fn has_idle_turn(&self, slot: VolumeSlot) -> bool {
        self.idle_turn_at(slot).is_some_and(|at| at <= self.now)
    }

    /// Whether more of the volume is dirty than its settings want, or the log fills up: with what
    /// is dirty, with what is dead beside it, or with older copies that an order needs.
    pub(super) fn is_over_target(&self, slot: VolumeSlot) -> bool {
        let is_idle_only = self.volume(slot).settings.writeback_idle_only;
        self.dirty_excess() > 0 || !is_idle_only && self.excess_blocks(slot) > 0
    }

    /// What writeback of the volume aims at while clients use its origin.
    #[must_use]
    pub fn writeback_pace(&self, slot: VolumeSlot) -> Option<WritebackPace> {
        let volume = self.find_volume(slot)?;
        Some(WritebackPace {
            target_blocks: self.dirty_limit(volume.settings.writeback_percent),
            blocks_per_second: volume.rate_controller.set_last(),
        })
    }

    /// Dirty blocks beyond `writeback_percent`.
    fn excess_blocks(&self, slot: VolumeSlot) -> i64 {
        let volume = self.volume(slot);
        let blocks = |count: u64| i64::try_from(count).expect("blocks of a log");
        blocks(volume.dirty_blocks) - blocks(self.dirty_limit(volume.settings.writeback_percent))
    }

    /// Whether somebody waits for dirty data to go home, or will soon: then clients of the origin
    /// have to share it.
    fn is_writeback_pressing(&self) -> bool {
        !matches!(self.phase, Phase::Serving)
            || self.writeback.is_urgent
            || self.writeback.was_urgent
            || self.dirty_excess() > 0
            || self.is_degraded()
            || self.is_short_of_blanks()
            || self.volumes.iter().flatten().any(|v| v.is_leaving() || v.needs_writeback)
    }

    fn speed(&self, slot: VolumeSlot) -> Speed {
        if self.is_writeback_pressing() || self.is_origin_idle(slot) {
            Speed::Full
        } else if self.is_over_target(slot) || self.is_ordered_window() {
            // An epoch of which a part is home is not left lying.
            Speed::Paced
        } else {
            Speed::Resting
        }
    }

    /// Whether dirty data of the volume waits for a pause of its clients.
    pub(super) fn is_resting(&self, slot: VolumeSlot) -> bool {
        self.speed(slot) == Speed::Resting
    }

    /// Whether the next run of the queue may begin.
    pub(super) fn may_start_run(&mut self) -> bool {
        let Some(run) = self.writeback.queue.front() else { return false };
        if self.is_outgrown() {
            // What is left stays dirty, and the next window takes it with the rest.
            self.writeback.queue.clear();
            self.writeback.has_taken_all = false;
            // This one, and the next.
            self.writeback.uncut_windows = 2;
            return false;
        }
        let slot = run.slot;
        let under_way = self.writeback.runs.len();
        let is_below_ceiling = self.volume(slot).ceiling_at <= self.now;
        let has_time_come = self.volume(slot).next_run_at <= self.now;
        let speed = self.speed(slot);
        let may_start = match speed {
            Speed::Full => {
                let most = self.volume(slot).settings.writeback_ios_max;
                let limit = usize::from(self.volume(slot).run_depth.limit(most));
                let blocks: u64 =
                    self.writeback.runs.iter().map(|(_, run)| run.end() - run.start()).sum();
                under_way < limit
                    && (under_way == 0 || blocks < BLOCKS_UNDER_WAY_MAX)
                    && (is_below_ceiling || !matches!(self.phase, Phase::Serving))
                    && (has_time_come || !has_defect(Defect::PacedUnderPressure))
            }
            Speed::Paced => under_way == 0 && has_time_come && is_below_ceiling,
            Speed::Resting => false,
        };
        let is_long = speed == Speed::Paced
            && !self.is_ordered_window()
            && self.writeback.volume_began_at.after_ms(PACED_WINDOW_MS) <= self.now;
        if speed == Speed::Resting || is_long {
            // What is left of the volume stays dirty; others have their turn.
            self.writeback.queue.retain(|run| run.slot != slot);
            self.writeback.has_taken_all = false;
            self.writeback.volume_began_at = self.now;
            return self.may_start_run();
        }
        if !may_start && under_way == 0 {
            // What is not written for such a reason says nothing of how fast the origin is.
            self.skip_measuring();
        }
        may_start
    }

    /// A run of so many blocks begins: from when on the next one may.
    pub(super) fn note_run_begins(&mut self, slot: VolumeSlot, blocks: u64) {
        let settings = self.volume(slot).settings;
        let block = BLOCK_BYTES as u64;
        let most = match settings.writeback_rate_max_bytes {
            0 => u64::MAX,
            bytes => (bytes / block).max(1),
        };
        let least = (settings.writeback_rate_min_bytes / block).max(1).min(most);
        let (now, excess) = (self.now, self.excess_blocks(slot));
        let is_paced = self.speed(slot) != Speed::Full;
        let volume = self.volume_mut(slot);
        volume.ceiling_at = after(volume.ceiling_at.max(now), blocks, most);
        if is_paced {
            let rate = volume.rate_controller.rate(now, excess, RateBounds { least, most });
            volume.next_run_at = after(volume.next_run_at.max(now), blocks, rate);
        }
    }

    /// What the way to a transfer beside clients counts for at least; zero at full speed. A write
    /// between the transfers of clients has the same way to go as these.
    pub(super) fn least_way_ns(&self, slot: VolumeSlot) -> u64 {
        match self.speed(slot) {
            Speed::Full => 0,
            Speed::Paced | Speed::Resting => self.volume(slot).origin_use.transfer_ns,
        }
    }

    /// A run ended that took so long: clients have the origin for a while. A drive with a cache for
    /// writes answers at once and works later, so it counts for no less than its transfers cost.
    pub(super) fn note_run_ends(&mut self, slot: VolumeSlot, transfers: Transfers, took_ns: u64) {
        if self.speed(slot) == Speed::Full {
            return;
        }
        let way_ns = self.least_way_ns(slot);
        let cost_ns = self.volume(slot).origin_cost.busy_ns(transfers, way_ns);
        let busy_ns = took_ns.max(cost_ns.unwrap_or(way_ns));
        let now = self.now;
        let volume = self.volume_mut(slot);
        let until = Time(now.0 + CLIENTS_SHARE * busy_ns);
        if until > volume.next_run_at {
            volume.next_run_at = until;
            volume.rate_controller.on_held_up();
        }
    }

    /// When writeback may have something to do that it has not now.
    pub(super) fn pacing_wakeup(&self) -> Option<Time> {
        if self.writeback.state == State::Writing {
            let run = self.writeback.queue.front()?;
            let volume = self.volume(run.slot);
            let times =
                [Some(volume.next_run_at), Some(volume.ceiling_at), volume.origin_use.idle_from()];
            return times.into_iter().flatten().filter(|at| *at > self.now).min();
        }
        let is_idle = self.writeback.is_idle() && matches!(self.phase, Phase::Serving);
        let waits = |slot: &VolumeSlot| {
            let volume = self.volume(*slot);
            volume.dirty_blocks > 0 && self.is_writable(*slot) && self.owes_writeback(*slot)
        };
        let at = |slot| self.idle_turn_at(slot);
        let times = self.slots().filter(waits).filter_map(at).filter(|at| *at > self.now);
        times.min().filter(|_| is_idle && self.has_clients())
    }

    /// A window is home that began then: what is dirty now is no older, if it took everything.
    pub(super) fn note_window_home(&mut self, turn: Turn) {
        let began_at = self.writeback.began_at;
        let has_taken_all = self.writeback.has_taken_all;
        for (slot, volume) in (0u16..).zip(&mut self.volumes) {
            let Some(volume) = volume else { continue };
            let is_its = match turn {
                Turn::Coalescing => !volume.is_ordered(),
                Turn::Ordered(ordered) => {
                    ordered == VolumeSlot(slot) && volume.epochs.ended().is_empty()
                }
            };
            if is_its && has_taken_all {
                volume.dirty_since = volume.dirty_since.max(began_at);
            }
        }
    }
}
