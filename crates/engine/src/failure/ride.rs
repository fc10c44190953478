//! An origin that stalls, or fails in a way that may pass: requests that need it wait for it, up to
//! `origin_timeout`, and everybody else goes on.
//!
//! *Errors* that may pass are tried again with growing waits, under the locks that the request
//! holds, so that nobody writes to the range in between. Not so errors of the place (the device
//! says that it cannot), want of space, and any error of a flush: what a failed flush may have lost
//! no later one tells of (promise 3). An error that stays while the origin does other work is one
//! of the place, whatever the device calls it.
//!
//! *Stalls* cannot be ended: an operation that the kernel has cannot be taken back, its buffer
//! belongs to the device until it ends, and a write may land until then. So when its time is over a
//! request is *answered late*: its client gets an error, and the request stays in the engine with
//! its buffer and its range locks until the operation has ended. Hence no later write can be
//! overtaken by a late one: to the origin it waits for the lock, and in the log it has a higher
//! version and goes home under that lock. What of the request has not begun by then never begins:
//! it would be a write that comes after its own failure.
//!
//! What waits for room in the log, or for the cache device, does not wait for the origin, and is
//! not counted here. Writeback has its own waits (`background/writeback/pause.rs`), and no limit.

use alloc::vec::Vec;

use super::back_off;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::io::{Device, IoError, IoResult};
use crate::options::VolumeSettings;
use crate::path::write::UnitState;
use crate::payload::{BufferId, Payload};
use crate::range_lock::LockOwner;
use crate::request::{Request, RequestError, RequestKind, Served};
use crate::slab::Key;
use crate::status::{OriginState, OriginStatus};
use crate::units::{Time, VolumeSlot};
use crate::volume::{Service, Volume};
use crate::wake::Waiter;

/// Milliseconds after which an operation of an origin counts as stalled in the status. No device in
/// working order takes so long, with any queue that we give it.
pub(super) const STALLED_MS: u64 = 5_000;
/// Failures of an operation from which on it is the place that is bad if the origin did other work
/// between the last two: so long after the first one a link is up again or nothing works. Work that
/// ended well before that may have been under way already when the link went down.
const PLACE_FAILURES: u32 = 4;
/// Milliseconds until requests are looked at again that could not be answered late yet.
const LOOK_AGAIN_MS: u64 = 1_000;
/// Payload of requests that are answered and still under way, at most; more of them wait on. A
/// quarter of what the host has for its clients.
pub const ORIGIN_LATE_BYTES_MAX: u64 = 32 << 20;
/// Requests that are answered and still under way, at most.
const LATE_COUNT_MAX: u64 = 4096;

/// What failed at an origin and is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// The read of a miss or a repair.
    Miss(Key),
    /// The read of the old content of a block of which a part is written.
    OldBlock(Key),
    /// A client's write.
    Write(Key),
}

/// An operation that has failed and not succeeded since.
#[derive(Debug)]
struct Retry {
    attempt: Attempt,
    failures: u32,
    first_failed: Time,
    last_failed: Time,
    error: IoError,
    /// When it is tried again; `None` while it is.
    at: Option<Time>,
}

/// How an origin does, and what waits for it.
#[derive(Debug, Default)]
pub(crate) struct OriginRide {
    retries: Vec<Retry>,
    /// No request has waited too long before.
    look_at: Option<Time>,
    /// Since when operations fail that are tried again.
    failing_since: Time,
    last_good: Time,
    last_error: Option<(IoError, Time)>,
}

impl OriginRide {
    /// Requests may have waited too long by now.
    pub(crate) fn look_now(&mut self, now: Time) {
        self.look_at = Some(now);
    }

    fn find(&mut self, attempt: Attempt) -> Option<&mut Retry> {
        self.retries.iter_mut().find(|retry| retry.attempt == attempt)
    }

    /// Nobody wants what waits to be tried again: it is looked at now, and ends.
    pub(crate) fn hurry(&mut self, now: Time) {
        for retry in self.retries.iter_mut().filter(|retry| retry.at.is_some()) {
            retry.at = Some(now);
        }
    }

    /// When an operation of the origin last ended well.
    pub(super) fn last_good(&self) -> Time {
        self.last_good
    }

    /// Since when what is tried again has failed.
    pub(super) fn first_failed(&self) -> Option<Time> {
        self.retries.iter().map(|retry| retry.first_failed).min()
    }

    fn next_retry(&self) -> Option<Time> {
        self.retries.iter().filter_map(|retry| retry.at).min()
    }
}

/// Requests that were answered and are still under way.
#[derive(Debug, Default)]
pub(crate) struct Late {
    count: u64,
    bytes: u64,
    /// A request waits on since there was no room for it here.
    has_refused: bool,
    /// Of requests that have ended since.
    buffers: Vec<BufferId>,
}

fn limit_ms(settings: &VolumeSettings) -> Option<u64> {
    (settings.origin_timeout_s > 0).then(|| u64::from(settings.origin_timeout_s) * 1_000)
}

/// Bytes of the buffer that a request holds: a discard of a terabyte has none.
fn payload_bytes(request: &Request) -> u64 {
    match request.kind {
        RequestKind::Read { .. } | RequestKind::Write { .. } => request.length_bytes,
        _ => 0,
    }
}

impl IoError {
    /// Whether the same operation may end well some other time.
    fn may_pass(self) -> bool {
        match self {
            IoError::Transient | IoError::Gone | IoError::TimedOut => true,
            IoError::Media | IoError::NoSpace => false,
        }
    }
}

impl Engine {
    /// The request turns to its origin; from now on its time counts. What it waited for before,
    /// the cache device perhaps, is not held against the origin.
    pub(crate) fn note_needs_origin(&mut self, key: Key) {
        let now = self.now;
        let operation = &mut self.operations[key];
        operation.origin_since = Some(now);
        let slot = operation.request.volume;
        let volume = self.volume_mut(slot);
        if let Some(limit_ms) = limit_ms(&volume.settings) {
            volume.ride.look_at.get_or_insert(now.after_ms(limit_ms));
        }
    }

    /// An operation of an origin has ended.
    pub(crate) fn note_origin_end(&mut self, device: Device, started: Time, result: IoResult) {
        let Device::Origin(slot) = device else { return };
        let now = self.now;
        let is_first = result.is_err() && !self.is_retrying(slot);
        let Some(volume) = self.volumes[usize::from(slot.0)].as_mut() else { return };
        volume.origin_cost.on_end(now, started);
        match result {
            Ok(()) => volume.ride.last_good = now,
            Err(error) => volume.ride.last_error = Some((error, now)),
        }
        if is_first {
            volume.ride.failing_since = now;
        }
    }

    /// Whether something that failed at the origin is to be tried again.
    fn is_retrying(&self, slot: VolumeSlot) -> bool {
        let Some(volume) = self.volumes[usize::from(slot.0)].as_ref() else { return false };
        !volume.ride.retries.is_empty() || volume.dirty_blocks > 0 && self.has_origin_error(slot)
    }

    /// How an attempt of `operation` ended. Whether it is tried again later; then it is not over.
    pub(crate) fn tries_again(&mut self, operation: Key, attempt: Attempt, end: IoResult) -> bool {
        let (now, slot) = (self.now, self.operations[operation].request.volume);
        let ride = &mut self.volume_mut(slot).ride;
        let last_good = ride.last_good;
        let mut is_of_place = false;
        if let Some(retry) = ride.find(attempt) {
            retry.failures += 1;
            is_of_place = retry.failures >= PLACE_FAILURES && last_good > retry.last_failed;
            retry.last_failed = now;
        }
        let error = end.err().filter(|error| error.may_pass() && !is_of_place);
        let Some(error) = error.filter(|_| self.is_wanted(operation)) else {
            self.volume_mut(slot).ride.retries.retain(|retry| retry.attempt != attempt);
            return false;
        };
        let volume = self.volume_mut(slot);
        volume.counters.origin_errors += 1;
        volume.counters.origin_retries += 1;
        let seed = now.0 ^ volume.counters.origin_retries;
        let retry = match volume.ride.retries.iter().position(|retry| retry.attempt == attempt) {
            Some(index) => &mut volume.ride.retries[index],
            None => {
                volume.ride.retries.push(Retry {
                    attempt,
                    failures: 1,
                    first_failed: now,
                    last_failed: now,
                    error,
                    at: None,
                });
                volume.ride.retries.last_mut().expect("just added")
            }
        };
        let wait_ms = back_off::after_failures_ms(retry.failures, seed);
        (retry.error, retry.at) = (error, Some(now.after_ms(wait_ms)));
        true
    }

    /// Whether it is worth while to try again for this request.
    fn is_wanted(&self, operation: Key) -> bool {
        let operation = &self.operations[operation];
        let volume = self.volume(operation.request.volume);
        // On a cache device that is gone the request waits for that, as a whole.
        let is_served = match volume.service {
            Service::Quiesced => volume.waits_for_host(),
            Service::GivenUp => false,
            _ => true,
        };
        limit_ms(&volume.settings).is_some()
            && !operation.is_answered
            && self.stopping.is_none()
            && is_served
            && operation.request.kind != RequestKind::Prefetch
    }

    /// Tries again what is due, answers whom it takes too long, gives back what they used.
    pub(crate) fn advance_origin_waits(&mut self, payload: &mut dyn Payload) {
        for buffer in core::mem::take(&mut self.late.buffers) {
            payload.release(buffer);
        }
        for index in 0..self.volumes.len() {
            let now = self.now;
            let Some(volume) = self.volumes[index].as_ref() else { continue };
            let slot = VolumeSlot(u16::try_from(index).expect("VOLUMES_MAX"));
            if volume.ride.look_at.is_some_and(|at| at <= now) {
                self.look_for_late(slot, payload);
            }
            let is_due = |volume: &Volume| volume.ride.next_retry().is_some_and(|at| at <= now);
            while self.volumes[index].as_ref().is_some_and(is_due) {
                self.try_again(slot, payload);
            }
        }
    }

    /// When [`Engine::advance_origin_waits`] has something to do.
    pub(crate) fn origin_wakeup(&self) -> Option<Time> {
        let rides = self.volumes.iter().flatten().map(|volume| &volume.ride);
        rides.flat_map(|ride| [ride.look_at, ride.next_retry()]).flatten().min()
    }

    /// The retry that is due first.
    fn try_again(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        let now = self.now;
        let waits_for_host = self.volume(slot).waits_for_host();
        let due = self.volume_mut(slot).ride.retries.iter_mut().filter(|retry| retry.at.is_some());
        let retry = due.min_by_key(|retry| retry.at).expect("one is due");
        if waits_for_host {
            // Rule 10: nothing goes to the origin now.
            retry.at = Some(now.after_ms(back_off::FIRST_MS));
            return;
        }
        retry.at = None;
        let (attempt, error) = (retry.attempt, retry.error);
        self.go_on();
        if has_defect(Defect::RetryNeverComes) {
            return;
        }
        let is_wanted = self.is_wanted(self.operation_of(attempt));
        match attempt {
            Attempt::Miss(miss) if is_wanted => self.read_miss_again(miss, payload),
            Attempt::OldBlock(unit) if is_wanted => self.read_old_from_origin(unit, payload),
            Attempt::Write(unit) if is_wanted => self.submit_unit_to_origin(unit, payload),
            Attempt::Miss(miss) => self.on_miss_complete(miss, Err(error), payload),
            Attempt::OldBlock(unit) => self.on_old_block_read(unit, None, Err(error), payload),
            Attempt::Write(unit) => self.on_unit_origin_written(unit, Err(error), payload),
        }
    }

    /// Answers requests that have waited too long for their origin.
    fn look_for_late(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        self.volume_mut(slot).ride.look_at = None;
        let Some(limit_ms) = limit_ms(&self.volume(slot).settings) else { return };
        let (now, mut next) = (self.now, None::<Time>);
        let waiters = self.origin_waiters(slot);
        let lock_waiters: Vec<Key> = self
            .units
            .iter()
            .filter(|(_, unit)| unit.slot == slot && unit.state == UnitState::Lock)
            .map(|(_, unit)| unit.operation)
            .collect();
        for key in &lock_waiters {
            // Whom they wait for may come to need the origin; until then it is not to blame.
            if !waiters.contains(key) {
                self.operations[*key].origin_since = Some(now);
            }
            next = Some(now.after_ms(LOOK_AGAIN_MS));
        }
        for key in waiters {
            let since = *self.operations[key].origin_since.get_or_insert(now);
            let mut at = since.after_ms(limit_ms);
            if at <= now {
                if self.may_answer_late(key) {
                    self.answer_late(key, payload);
                    continue;
                }
                self.late.has_refused = true;
                at = now.after_ms(LOOK_AGAIN_MS);
            }
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        self.volume_mut(slot).ride.look_at = next;
    }

    /// Requests of the volume that wait for its origin and are not answered.
    fn origin_waiters(&self, slot: VolumeSlot) -> Vec<Key> {
        let misses = self.misses.iter().filter(|(_, miss)| miss.slot == slot);
        let mut waiters: Vec<Key> = misses.flat_map(|(_, miss)| miss.operations()).collect();
        for (_, unit) in self.units.iter().filter(|(_, unit)| unit.slot == slot) {
            let waits_for_lock = unit.state == UnitState::Lock
                && self.has_origin_holder(slot, unit.start, unit.start + unit.block_count);
            if unit.is_at_origin || waits_for_lock {
                waiters.push(unit.operation);
            }
        }
        waiters.extend(self.volume(slot).flushes.waiters().filter_map(|waiter| match waiter {
            Waiter::Operation(key) => Some(key),
            _ => None,
        }));
        waiters.sort_unstable();
        waiters.dedup();
        waiters.retain(|key| !self.operations[*key].is_answered);
        waiters
    }

    /// Whether somebody has locked part of the range who waits for the origin.
    fn has_origin_holder(&self, slot: VolumeSlot, start: u64, end: u64) -> bool {
        self.volume(slot).locks.holders(start, end).any(|owner| match owner {
            LockOwner::Unit(key) => {
                let unit = &self.units[key];
                unit.is_at_origin || self.operations[unit.operation].is_answered
            }
            LockOwner::WritebackRun(_) | LockOwner::Repair(_) => true,
        })
    }

    fn may_answer_late(&self, key: Key) -> bool {
        let bytes = payload_bytes(&self.operations[key].request);
        self.late.count < LATE_COUNT_MAX && self.late.bytes + bytes <= ORIGIN_LATE_BYTES_MAX
    }

    /// The client gets its error; the request ends when its operations have.
    fn answer_late(&mut self, key: Key, payload: &mut dyn Payload) {
        let now = self.now;
        let operation = &mut self.operations[key];
        operation.is_answered = true;
        operation.error.get_or_insert(RequestError::Io);
        let request = operation.request;
        if let RequestKind::Read { buffer } | RequestKind::Write { buffer, .. } = request.kind {
            // Its client gives its own reference back now.
            payload.retain(buffer);
        }
        self.late.count += 1;
        self.late.bytes += payload_bytes(&request);
        let is_error_new = self.volume(request.volume).ride.retries.is_empty();
        let volume = self.volume_mut(request.volume);
        volume.counters.errors += 1;
        volume.counters.origin_timeouts += 1;
        if is_error_new {
            volume.ride.last_error = Some((IoError::TimedOut, now));
        }
        self.reply(request.id, Err(RequestError::Io), Served::NoRead);
        self.end_waits_of(key);
    }

    /// What waits to be tried again for a request ends now.
    fn end_waits_of(&mut self, key: Key) {
        let (now, slot) = (self.now, self.operations[key].request.volume);
        let mut retries = core::mem::take(&mut self.volume_mut(slot).ride.retries);
        for retry in &mut retries {
            if retry.at.is_some() && self.operation_of(retry.attempt) == key {
                retry.at = Some(now);
            }
        }
        self.volume_mut(slot).ride.retries = retries;
    }

    fn operation_of(&self, attempt: Attempt) -> Key {
        match attempt {
            Attempt::Miss(miss) => self.misses[miss].operation,
            Attempt::OldBlock(unit) | Attempt::Write(unit) => self.units[unit].operation,
        }
    }

    /// A request that was answered late is over.
    pub(crate) fn end_late(&mut self, request: Request) {
        self.late.count -= 1;
        self.late.bytes -= payload_bytes(&request);
        if core::mem::take(&mut self.late.has_refused) {
            // They have waited too long already.
            let now = self.now;
            self.volumes.iter_mut().flatten().for_each(|volume| volume.ride.look_now(now));
            self.go_on();
        }
        if let RequestKind::Read { buffer } | RequestKind::Write { buffer, .. } = request.kind {
            self.late.buffers.push(buffer);
            self.go_on();
        }
    }

    /// Whether the client of a unit has its answer already: what has not begun never does.
    pub(crate) fn is_too_late(&self, unit: Key) -> bool {
        self.operations[self.units[unit].operation].is_answered
            && !has_defect(Defect::AnsweredWriteGoesOn)
    }

    pub(crate) fn origin_status(&self, slot: VolumeSlot, now: Time) -> OriginStatus {
        let volume = self.volume(slot);
        let ms_since = |time: Time| now.nanoseconds_since(time) / 1_000_000;
        let oldest_io = self.oldest_origin_io(slot);
        let stalled_ms = oldest_io.map(ms_since).filter(|age_ms| *age_ms >= STALLED_MS);
        let (state, state_ms) = match stalled_ms {
            Some(age_ms) => (OriginState::Stalled, age_ms),
            None if self.is_retrying(slot) => {
                (OriginState::Retrying, ms_since(volume.ride.failing_since))
            }
            None => (OriginState::Ok, 0),
        };
        let is_late = |request: &&Request| request.volume == slot;
        let late = self.operations.iter().filter(|(_, operation)| operation.is_answered);
        let late = late.map(|(_, operation)| &operation.request).filter(is_late);
        let waiters = self.origin_waiters(slot);
        let oldest = waiters.iter().filter_map(|key| self.operations[*key].origin_since).min();
        let retry = self.writeback_retry_at(slot).filter(|_| volume.dirty_blocks > 0);
        OriginStatus {
            state,
            state_ms,
            requests_waiting: waiters.len() as u64,
            requests_late: late.count() as u64,
            late_bytes: self.late.bytes,
            oldest_wait_ms: oldest.map_or(0, ms_since),
            writeback_retry_ms: retry.map(|at| at.nanoseconds_since(now) / 1_000_000),
            last_error: volume.ride.last_error.map(|(error, at)| (error, ms_since(at))),
        }
    }
}
