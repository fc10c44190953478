//! The paths of client requests, one file each. This file starts and ends them.

pub(crate) mod flush;
pub(crate) mod miss;
pub(crate) mod origin_write;
pub(crate) mod pace;
pub(crate) mod read;
pub(crate) mod room;
pub(crate) mod write;

use crate::admission::Verdict;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, Phase};
use crate::options::CacheMode;
use crate::payload::Payload;
use crate::request::{Durability, Reply, Request, RequestError, RequestId, RequestKind, Served};
use crate::slab::Key;
use crate::status::AdmitReason;
use crate::units::{BLOCK_BYTES, Time};
use crate::volume::{Service, Volume};
use crate::wake::{Ended, Waiter};

/// A client request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) request: Request,
    /// Parts under way, plus one while parts are being created.
    pub(crate) parts: u32,
    pub(crate) error: Option<RequestError>,
    /// Part of it went into the log: FUA flushes the cache device.
    pub(crate) used_log: bool,
    /// Part of it went to the origin: FUA flushes the origin, a read was not a pure hit.
    pub(crate) used_origin: bool,
    /// Flushes it waits for.
    pub(crate) flushes: u8,
    /// When it last turned to the origin.
    pub(crate) origin_since: Option<Time>,
    /// Its client was told that it failed, since the origin took too long.
    pub(crate) is_answered: bool,
    /// Whether what it misses is promoted, and why.
    pub(crate) admission: Verdict,
    /// Regions of it for which it is remembered what became of them.
    pub(crate) regions_noted: u8,
}

impl Operation {
    /// First block and number of blocks that the request touches.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let start = self.request.offset_bytes / BLOCK_BYTES as u64;
        let end = self.request.offset_bytes + self.request.length_bytes;
        (start, end.div_ceil(BLOCK_BYTES as u64) - start)
    }

    fn durability(&self) -> Durability {
        match self.request.kind {
            RequestKind::Write { durability, .. }
            | RequestKind::WriteZeroes { durability, .. }
            | RequestKind::Discard { durability } => durability,
            RequestKind::Read { .. } | RequestKind::Prefetch | RequestKind::Flush => {
                Durability::Completed
            }
        }
    }

    /// Whether its client may rely on what was written before: a flush epoch ends with it.
    fn ends_epoch(&self) -> bool {
        let is_flush = self.request.kind == RequestKind::Flush;
        let is_forced = self.durability() == Durability::ForcedUnitAccess;
        is_flush && !has_defect(Defect::FlushEndsNoEpoch)
            || is_forced && !has_defect(Defect::FuaEndsNoEpoch)
    }
}

impl Engine {
    pub(crate) fn start_request(&mut self, request: Request, payload: &mut dyn Payload) {
        let volume = self.volumes.get_mut(usize::from(request.volume.0)).and_then(Option::as_mut);
        let is_stopped = self.stopping.is_some() || !matches!(self.phase, Phase::Serving);
        let is_handing_over = self.hand_over.is_begun || self.takeover.is_begun();
        let is_served = |volume: &&mut Volume| volume.service != Service::GivenUp;
        let Some(volume) = volume.filter(is_served).filter(|_| !is_stopped) else {
            self.reply(request.id, Err(RequestError::Shutdown), Served::NoRead);
            return;
        };
        if volume.is_gated || is_handing_over {
            volume.gated.push_back(request);
            return;
        }
        if volume.service == Service::Quiesced {
            if self.waits_for_return(request.volume) {
                self.volume_mut(request.volume).gated.push_back(request);
            } else {
                self.fail_quiesced(&request);
            }
            return;
        }
        assert!(request.offset_bytes + request.length_bytes <= volume.size_bytes);
        volume.operations += 1;
        let key = self.operations.insert(Operation {
            request,
            parts: 1,
            error: None,
            used_log: false,
            used_origin: false,
            flushes: 0,
            origin_since: None,
            is_answered: false,
            admission: Ok(AdmitReason::Prefetch),
            regions_noted: 0,
        });
        self.count_request(&request);
        match request.kind {
            RequestKind::Read { buffer } => self.start_read(key, buffer, payload),
            RequestKind::Prefetch => self.start_prefetch(key, payload),
            RequestKind::Flush => self.start_flush(key),
            RequestKind::Write { .. }
            | RequestKind::WriteZeroes { .. }
            | RequestKind::Discard { .. } => self.start_write(key, payload),
        }
        self.end_part(key, Ok(()));
    }

    fn count_request(&mut self, request: &Request) {
        let counters = &mut self.volume_mut(request.volume).counters;
        let durability = match request.kind {
            // Reads are counted once it is known where their blocks are.
            RequestKind::Read { .. } => return,
            RequestKind::Prefetch => {
                counters.prefetches += 1;
                return;
            }
            RequestKind::Flush => {
                counters.flushes += 1;
                return;
            }
            RequestKind::Write { durability, .. } => {
                counters.writes += 1;
                counters.write_bytes += request.length_bytes;
                durability
            }
            RequestKind::WriteZeroes { durability, .. } => {
                counters.write_zeroes += 1;
                durability
            }
            RequestKind::Discard { durability } => {
                counters.discards += 1;
                durability
            }
        };
        if durability == Durability::ForcedUnitAccess {
            counters.fua_writes += 1;
        }
    }

    /// One part of a request ended; with the last one the request goes on to its flushes or ends.
    pub(crate) fn end_part(&mut self, key: Key, result: Result<(), RequestError>) {
        let operation = &mut self.operations[key];
        if let Err(error) = result {
            operation.error.get_or_insert(error);
        }
        operation.parts -= 1;
        if operation.parts > 0 {
            return;
        }
        let operation = *operation;
        let is_forced = operation.durability() == Durability::ForcedUnitAccess
            && !has_defect(Defect::FuaAsPlainWrite);
        if is_forced && operation.error.is_none() {
            // A FUA on one record alone would not do: earlier records of its segment, which it
            // needs to be found by recovery, might be lost (rule 2).
            let slot = operation.request.volume;
            if operation.used_origin && self.volume(slot).has_lost_writes {
                // Promise 3: a flush that failed may have been the one that covered part of this.
                self.operations[key].error = Some(RequestError::Io);
            } else {
                if operation.used_log {
                    self.wait_for_cache_flush(key);
                }
                if operation.used_origin {
                    self.wait_for_origin_flush(key);
                }
            }
        }
        if self.operations[key].flushes == 0 {
            self.end_operation(key);
        }
    }

    /// Makes the operation wait for the next flush of the cache device.
    pub(crate) fn wait_for_cache_flush(&mut self, key: Key) {
        self.operations[key].flushes += 1;
        self.join_cache_flush(Waiter::Operation(key));
    }

    /// Makes the operation wait for the next flush of its origin.
    pub(crate) fn wait_for_origin_flush(&mut self, key: Key) {
        self.operations[key].flushes += 1;
        self.note_needs_origin(key);
        let slot = self.operations[key].request.volume;
        self.join_origin_flush(slot, Waiter::Operation(key));
    }

    pub(crate) fn on_operation_flushed(&mut self, key: Key, ended: Ended) {
        let operation = &mut self.operations[key];
        if ended == Ended::Failed {
            operation.error.get_or_insert(RequestError::Io);
        }
        operation.flushes -= 1;
        if operation.flushes == 0 && operation.parts == 0 {
            self.end_operation(key);
        }
    }

    fn end_operation(&mut self, key: Key) {
        let operation = self.operations.remove(key).expect("it is under way");
        let slot = operation.request.volume;
        if operation.error.is_none() && operation.ends_epoch() {
            // Before it is answered: what a client writes then belongs to the next epoch.
            self.end_epoch(slot);
        }
        let volume = self.volume_mut(slot);
        volume.operations -= 1;
        let is_last = volume.is_gated && volume.operations == 0;
        let result = match operation.error {
            _ if operation.is_answered => {
                self.end_late(operation.request);
                if is_last {
                    self.wake(Waiter::Command(slot), Ended::Well);
                }
                return;
            }
            None => Ok(()),
            Some(_) if self.may_do_again(slot) => {
                // Not answered, so it may be done again as a whole.
                self.volume_mut(slot).gated.push_back(operation.request);
                return;
            }
            Some(error) => {
                self.volume_mut(slot).counters.errors += 1;
                Err(error)
            }
        };
        let served = match operation.request.kind {
            RequestKind::Read { .. } if operation.used_origin => Served::Origin,
            RequestKind::Read { .. } => Served::Cache,
            _ => Served::NoRead,
        };
        self.reply(operation.request.id, result, served);
        if is_last {
            self.wake(Waiter::Command(slot), Ended::Well);
        }
    }

    pub(crate) fn reply(
        &mut self,
        id: RequestId,
        result: Result<(), RequestError>,
        served: Served,
    ) {
        self.replies.push_back(Reply { id, result, served });
    }

    /// The mode in force, which a failed cache device overrides.
    pub(crate) fn effective_mode(&self, slot: crate::units::VolumeSlot) -> CacheMode {
        let volume = self.volume(slot);
        match volume.service {
            Service::WithoutCache => CacheMode::Passthrough,
            Service::Cached | Service::Quiesced | Service::GivenUp => volume.mode,
        }
    }
}
