//! The cache device was gone with a running engine, and comes back.
//!
//! As soon as nothing of it is in flight, the device is closed, and a thread of its own looks for
//! it under its path: opening may block, and the loop must not. When the same set is found there,
//! the engine holds all requests back, hands over what it knows, and another engine recovers the
//! device. Connections stay; their requests wait here until it is known which engine serves. The
//! old engine is kept until then: if the device goes again, it goes on without it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_engine::format::SetId;
use forebay_engine::format::superblock::Superblock;
use forebay_engine::options::OriginOpening;
use forebay_engine::request::Request;
use forebay_engine::status::{CacheFailure, CacheHealth};
use forebay_engine::units::{OriginBlock, Time, VolumeSlot};

use super::handle::Message;
use super::run::{Lifecycle, Running};
use super::served_set::{ServedSet, SetPhase};
use crate::buffer_pool::BufferPool;
use crate::clock::thread_cpu;
use crate::device::{DeviceTable, OpenedDevice};
use crate::device_spec::DeviceSpec;
use crate::offline::read_superblock_from;

/// First pause between two looks for the device, doubled up to the longest. Chosen: short enough
/// for a cable that was touched, long enough not to fill the log of the kernel.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(16);
/// Most extents of lost writes that are logged one by one.
const LOGGED_EXTENTS_MAX: usize = 64;

/// Where the return of the cache device stands.
#[derive(Default)]
pub(super) enum Comeback {
    /// The device is in service, or failed in another way.
    #[default]
    None,
    /// It is gone; operations may still be under way.
    Gone,
    /// It is closed, and looked for until the sender is dropped.
    Looking { _until: Sender<()> },
    /// It is found; the engine ends what is under way.
    Found(Box<Returned>),
    /// Another engine recovers it.
    Recovering(Box<Lost>),
    /// Recovery failed; operations may still be under way.
    Failed(Box<Lost>),
}

/// The device, open again.
pub(crate) struct Returned {
    pub(super) device: OpenedDevice,
    pub(super) superblock: Superblock,
}

/// The engine that lost the device, and the requests that wait.
pub(super) struct Lost {
    engine: Engine,
    requests: Vec<Request>,
}

impl ServedSet {
    fn is_cache_gone(&self, now: Time) -> bool {
        self.engine.status(now).cache_health == CacheHealth::Failed(CacheFailure::Gone)
    }

    /// A client's request: to the engine, or to wait until it is known which one serves.
    pub(super) fn handle_request(&mut self, now: Time, request: Request, pool: &mut BufferPool) {
        self.live_curve.note(now, self.engine.superblock(), &request);
        match &mut self.comeback {
            Comeback::Recovering(lost) | Comeback::Failed(lost) => lost.requests.push(request),
            _ => self.engine.handle_request(now, request, pool),
        }
    }

    /// Requests that have waited, to the engine that serves now.
    fn hand_in(&mut self, now: Time, requests: Vec<Request>, pool: &mut BufferPool) {
        for request in requests {
            self.engine.handle_request(now, request, pool);
        }
    }

    /// By the table on the device, not that of the engine which lost it: a volume may be gone from
    /// that one by a detach which did not become durable.
    fn openings(&self, superblock: &Superblock, devices: &DeviceTable) -> Vec<OriginOpening> {
        let slots = superblock.slots();
        slots
            .map(|(slot, volume)| {
                let facts = self.origin(slot).map(|id| devices.opened(id).origin_facts());
                OriginOpening { slot, facts, mark: self.host_mark(volume.id) }
            })
            .collect()
    }
}

impl Running {
    /// Whether the engine is one that recovers a device which came back.
    pub(super) fn is_coming_back(&self) -> bool {
        self.set.as_ref().is_some_and(|set| matches!(set.comeback, Comeback::Recovering(_)))
    }

    /// The engine gave its cache device up.
    pub(super) fn begin_comeback(&mut self) {
        let now = self.now;
        let set = self.set.as_mut().expect("events come from the engine");
        if set.is_cache_gone(now) {
            set.comeback = Comeback::Gone;
        }
    }

    /// The thread has found the device.
    pub(super) fn handle_returned(&mut self, returned: Box<Returned>) {
        let is_serving = matches!(self.lifecycle, Lifecycle::Serving);
        let Some(set) = self.set.as_mut().filter(|_| is_serving) else { return };
        if matches!(set.comeback, Comeback::Looking { .. }) {
            tracing::warn!("the cache device {} is back", returned.device.spec());
            set.comeback = Comeback::Found(returned);
            set.engine.begin_hand_over(self.now);
        }
    }

    /// Goes on with the return, if it can. Returns whether it did: the engine has something to do.
    pub(super) fn advance_comeback(&mut self) -> bool {
        let Some(set) = &mut self.set else { return false };
        let is_closed = set.cache_device().is_none_or(|id| self.devices.in_flight(id) == 0);
        match std::mem::take(&mut set.comeback) {
            Comeback::Gone if is_closed => self.look(),
            Comeback::Found(returned) if set.engine.is_ready_to_hand_over() => {
                self.replace_engine(*returned);
            }
            Comeback::Failed(lost) if is_closed && set.engine.is_idle_at_devices() => {
                self.put_back(*lost);
            }
            other => {
                set.comeback = other;
                return false;
            }
        }
        true
    }

    /// Closes the device and looks for it: what is locked here could not be opened again.
    fn look(&mut self) {
        let set = self.set.as_mut().expect("the caller has looked");
        if let Some(id) = set.take_cache_device() {
            self.devices.remove(&mut self.ring, id);
        }
        let (until, ended) = channel();
        let (spec, set_id) = (set.cache_spec().clone(), set.engine.superblock().set_id);
        let (handle, failures) = (self.handle.clone(), set.failed_comebacks.min(8));
        let looking = thread::Builder::new().name("look".into()).spawn(move || {
            let mut pause = (LOOK_PAUSE * 2u32.saturating_pow(failures)).min(LOOK_PAUSE_MAX);
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = (pause * 2).min(LOOK_PAUSE_MAX);
                match find(&spec, &set_id) {
                    Ok(returned) => return handle.send(Message::Returned(Box::new(returned))),
                    Err(reason) => tracing::debug!("the cache device {spec} is not back: {reason}"),
                }
            }
        });
        match looking {
            Ok(_) => set.comeback = Comeback::Looking { _until: until },
            Err(error) => tracing::error!(%error, "cannot look for the cache device"),
        }
    }

    fn replace_engine(&mut self, returned: Returned) {
        let set = self.set.as_mut().expect("the caller has looked");
        let Returned { device, superblock } = returned;
        let facts = device.cache_facts();
        let Ok(id) = self.devices.add(&mut self.ring, device) else {
            tracing::error!("too many devices are open to use the cache device again: waiting");
            set.engine.cancel_hand_over(self.now, &mut self.pool);
            set.failed_comebacks += 1;
            set.comeback = Comeback::Gone;
            return;
        };
        set.set_cache_device(id);
        let openings = set.openings(&superblock, &self.devices);
        let (requests, inheritance) = set.engine.hand_over();
        set.cpu_before_recovery = thread_cpu();
        let mut engine =
            Engine::recover_returned(self.now, superblock, facts, &openings, inheritance);
        engine.set_cache_timeout_ms(self.cache_timeout_ms);
        let engine = std::mem::replace(&mut set.engine, engine);
        set.comeback = Comeback::Recovering(Box::new(Lost { engine, requests }));
        set.phase = SetPhase::Recovering;
        tracing::info!("recovering what is on the cache device");
    }

    /// The engine serves.
    pub(super) fn end_comeback(&mut self) {
        let set = self.set.as_mut().expect("events come from the engine");
        match std::mem::take(&mut set.comeback) {
            Comeback::Recovering(lost) => {
                set.hand_in(self.now, lost.requests, &mut self.pool);
                self.forget_departed();
            }
            other => set.comeback = other,
        }
    }

    /// Takes away what is offered of volumes that the table on the device does not name: it became
    /// durable without them, though nobody was told so before the device went.
    fn forget_departed(&mut self) {
        let set = self.set.as_ref().expect("it has come back");
        let is_there = |slot: VolumeSlot| set.engine.superblock().volume(slot).is_some();
        let departed = set.departed_origins();
        for export in self.exports.of_departed(is_there) {
            let name = &self.exports[export].facts.name;
            tracing::warn!("volume `{name}`: its detach was durable, so it is served no more");
            self.remove_export(export);
        }
        for slot in departed {
            self.close_origin(slot);
        }
    }

    /// The engine cannot serve. Returns whether another one can go on.
    pub(super) fn fail_comeback(&mut self) -> bool {
        let set = self.set.as_mut().expect("events come from the engine");
        match std::mem::take(&mut set.comeback) {
            Comeback::Recovering(lost) => {
                set.comeback = Comeback::Failed(lost);
                true
            }
            other => {
                set.comeback = other;
                false
            }
        }
    }

    fn put_back(&mut self, lost: Lost) {
        let set = self.set.as_mut().expect("the caller has looked");
        let Lost { engine, requests } = lost;
        // If a stop came meanwhile and has ended, the refused engine answers that.
        if !matches!(set.phase, SetPhase::Stopped(_)) {
            set.engine = engine;
            set.phase = SetPhase::Serving;
            set.engine.handle_hand_over_failed(self.now);
            set.failed_comebacks += 1;
            set.comeback = Comeback::Gone;
        }
        set.hand_in(self.now, requests, &mut self.pool);
    }

    /// What clients were told was done, and is not there.
    pub(super) fn log_lost_writes(&self, slot: VolumeSlot, extents: &[(OriginBlock, u64)]) {
        let set = self.set.as_ref().expect("events come from the engine");
        let name = set.engine.superblock().volume(slot).map(|volume| volume.name.clone());
        let name = name.unwrap_or_default();
        let blocks: u64 = extents.iter().map(|(_, count)| count).sum();
        tracing::error!(
            "volume `{name}`: the cache device came back without {blocks} blocks that were written \
             and not flushed; they are read as errors until they are written again, and flushes of \
             the volume fail until forebay is restarted: check the file system on it"
        );
        for (start, count) in extents.iter().take(LOGGED_EXTENTS_MAX) {
            tracing::error!("volume `{name}`: lost {count} blocks of 4 KiB from block {}", start.0);
        }
    }
}

/// Opens the device if the set is on it.
fn find(spec: &DeviceSpec, set_id: &SetId) -> Result<Returned, String> {
    let device = OpenedDevice::open_cache(spec).map_err(|error| error.to_string())?;
    let superblock =
        read_superblock_from(device.file(), spec.path()).map_err(|error| error.to_string())?;
    if superblock.set_id != *set_id {
        return Err("another cache set is there".to_owned());
    }
    if device.facts().size_bytes < superblock.geometry.device_bytes {
        return Err("it has become smaller".to_owned());
    }
    Ok(Returned { device, superblock })
}
