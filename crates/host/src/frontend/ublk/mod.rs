//! The ublk front end: exports as block devices of this machine, `/dev/ublkbN`.
//!
//! The kernel's driver hands requests over through commands that wait on the shard's ring, one for
//! each tag of each queue; the answer to a request asks for the next one in the same command. What
//! else a device needs is done by a thread that lives only for that (see [`lifecycle`]), since the
//! kernel lets it wait: for our first commands, for requests under way, for others who use the
//! device. It tells the shard how far it is, as [`Progress`].
//!
//! Bounds: each tag has one request under way at most, so slots are made when a device is opened
//! and a request allocates nothing but its payload. Requests for whose payload there is no memory
//! wait in turn; those of a device that holds its part of it wait until it holds less, and hold up
//! no others.
//!
//! Invariants: a request that was taken gets one commit, unless it is left with its device to the
//! next server. The character device is closed only when its last command has come back. An export
//! that has a device is offered by no other front end, nor is one whose device waits for its
//! server: by another way in, or as another device, it could be written by two who do not know of
//! each other.

mod abi;
mod channel;
mod control;
mod device;
mod error;
mod lifecycle;
mod request;
mod resize;
#[cfg(test)]
mod tests;
mod write_out;

use std::collections::VecDeque;
use std::thread;

use forebay_engine::request::RequestError;
use forebay_engine::units::Time;

use self::control::Control;
use self::device::{Device, Phase, Slot, SlotState};
use self::lifecycle::{PageCache, Progress, Task, Wanted};
use self::request::{Geometry, errno_of};
use super::block_request::{Active, rejoin_line};
use super::memory_turn::Claimant;
use super::{ClientReply, ClientSize, Demand, FrontContext, FrontEnd, SizeReach};
use crate::buffer_pool::BufferPool;
use crate::ring::Ring;
use crate::shard::exports::{ExportNumber, ExportTable, NotClaimable};
use crate::shard::handle::{Message, ShardHandle};
use crate::shard::status::ConnectionReport;

pub use self::error::UblkError;
pub(crate) use self::error::block_path;
pub use self::write_out::{WRITE_OUT, write_out_disk};

/// Why other front ends do not offer an export that has a device.
const TAKEN: &str = "in use as a ublk device; a volume has one writable front end at a time";
/// Numbers of devices among those of connections start here, above any that NBD counts up to.
const CONNECTION_BASE: u64 = 1 << 32;

/// A device that is to be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UblkOptions {
    /// Name of the export.
    pub name: String,
    /// N of `/dev/ublkbN`. `None`: that of the predecessor if it left one, else the driver chooses.
    pub number: Option<u32>,
    /// Queues. The shard serves all of them; more than one spares processors that send many
    /// requests at once from waiting for each other.
    pub queue_count: u16,
    /// Requests under way in each queue.
    pub queue_depth: u16,
}

/// Whether this machine has a driver that can do what is needed, and this process may use it.
///
/// # Errors
/// What is missing, and what to do.
pub fn ublk_driver() -> Result<(), UblkError> {
    Control::open().map(drop)
}

impl UblkOptions {
    /// As deep as the kernel's own network block device.
    pub const QUEUE_DEPTH: u16 = 128;
    /// Most queues, and the deepest: far beyond what one shard can use.
    pub const QUEUE_COUNT_MAX: u16 = 64;
    /// See there.
    pub const QUEUE_DEPTH_MAX: u16 = 1024;
}

/// What the thread of a device tells.
pub(crate) struct UblkReport {
    device: usize,
    progress: Progress,
}

/// The front end.
pub(crate) struct UblkFrontEnd {
    devices: Vec<Device>,
    slots: Vec<Slot>,
    demands: VecDeque<Demand>,
    memory_waiters: VecDeque<u32>,
    handle: ShardHandle,
    /// Whether the driver can give a device at work another size.
    can_resize: bool,
    is_stopping: bool,
}

impl UblkFrontEnd {
    /// A front end without devices.
    pub(crate) fn new(handle: ShardHandle) -> UblkFrontEnd {
        UblkFrontEnd {
            devices: Vec::new(),
            slots: Vec::new(),
            demands: VecDeque::new(),
            memory_waiters: VecDeque::new(),
            handle,
            can_resize: false,
            is_stopping: false,
        }
    }

    /// Notes which devices there shall be, and takes their exports away from other front ends. What
    /// can be known to go wrong is found now, before anybody is served: a device, too, that a
    /// predecessor left of a volume that is to be served in another way.
    pub(crate) fn claim(
        &mut self,
        options: &[UblkOptions],
        exports: &mut ExportTable,
    ) -> Result<(), UblkError> {
        if !options.is_empty() {
            self.claim_devices(options, exports)?;
        }
        let is_own = |number| self.devices.iter().any(|device| device.export == number);
        let others = exports.iter().filter(|(number, _)| !is_own(*number));
        let (identities, names): (Vec<u64>, Vec<&str>) =
            others.map(|(_, export)| (export.facts.identity, &*export.facts.name)).unzip();
        match lifecycle::find_left(&identities) {
            Some((number, index)) => Err(UblkError::Left { number, name: names[index].to_owned() }),
            None => Ok(()),
        }
    }

    fn claim_devices(
        &mut self,
        options: &[UblkOptions],
        exports: &mut ExportTable,
    ) -> Result<(), UblkError> {
        let control = &mut Control::open()?;
        self.can_resize = control.can_resize();
        for option in options {
            let name = || option.name.clone();
            let number = exports.claimable(&option.name).map_err(|reason| match reason {
                NotClaimable::Unknown { known } => UblkError::UnknownExport { name: name(), known },
                NotClaimable::Taken => UblkError::Twice { name: name() },
            })?;
            let same = |device: &Device| device.wanted.number == option.number;
            if let Some(number) = option.number
                && self.devices.iter().any(same)
            {
                return Err(UblkError::SameNumber { number });
            }
            let mut device = Device::new(number, wanted(option, exports, number));
            lifecycle::plan(control, &device.wanted)?;
            if exports[number].unavailable().is_some() {
                device.phase = Phase::Gone;
            }
            exports.claim(number, TAKEN);
            self.devices.push(device);
        }
        Ok(())
    }

    /// Brings the devices to life. To be called when requests can be served; again does no harm.
    pub(crate) fn begin(&mut self, exports: &ExportTable) {
        for index in 0..self.devices.len() {
            if !self.may_begin(index) {
                continue;
            }
            let device = &mut self.devices[index];
            device.phase = Phase::Starting;
            // What recovery found may have changed the size.
            device.wanted.geometry = Geometry::of(&exports[device.export].facts);
            let wanted = device.wanted.clone();
            self.spawn(index, Task::Start, move |tell| lifecycle::start(&wanted, tell));
        }
    }

    /// Whether it is a device's turn. Those without a number of their own come when the others have
    /// theirs: the driver could give them one of these.
    fn may_begin(&self, index: usize) -> bool {
        let device = &self.devices[index];
        let mut devices = self.devices.iter();
        let is_turn = device.wanted.number.is_some() || !devices.any(Device::waits_for_its_number);
        device.phase == Phase::Waiting && is_turn && !self.is_stopping
    }

    fn spawn(
        &self,
        index: usize,
        task: Task,
        work: impl FnOnce(&dyn Fn(Progress)) + Send + 'static,
    ) {
        let handle = self.handle.clone();
        let tell = move |progress| {
            let report = UblkReport { device: index, progress };
            handle.send(Message::Ublk(Box::new(report)));
        };
        let spawned = thread::Builder::new().name("ublk".into()).spawn(move || work(&tell));
        if let Err(source) = spawned {
            // As the thread would have told it.
            let progress = Progress::NoThread { task, source };
            self.handle.send(Message::Ublk(Box::new(UblkReport { device: index, progress })));
        }
    }

    /// Whether all devices can be used, as far as there are to be any.
    pub(crate) fn is_ready(&self) -> bool {
        let is_to_come = |phase| matches!(phase, Phase::Waiting | Phase::Starting | Phase::GivenUp);
        self.devices.iter().all(|device| !is_to_come(device.phase))
    }

    /// Whether the engine may stop: no device can bring it a request any more. Those that came from
    /// a device that is kept need no answer, and an error will do for one that is given up.
    pub(crate) fn may_stop(&self) -> bool {
        let is_past = |phase| matches!(phase, Phase::GivenUp | Phase::Kept | Phase::Gone);
        self.devices.iter().all(|device| is_past(device.phase))
    }

    /// The device of an export, if it can be used.
    pub(crate) fn path_of(&self, export: ExportNumber) -> Option<String> {
        let mut devices = self.devices.iter();
        let device = devices.find(|device| device.export == export)?;
        (device.phase == Phase::Live).then(|| block_path(device.number))
    }

    /// A thread tells how far a device is. Returns why it cannot be had, if it cannot.
    pub(crate) fn handle_report(
        &mut self,
        context: &mut FrontContext<'_>,
        report: UblkReport,
    ) -> Result<(), UblkError> {
        self.take_report(context, report)?;
        // Some may have waited for that.
        self.begin(context.exports);
        Ok(())
    }

    fn take_report(
        &mut self,
        context: &mut FrontContext<'_>,
        report: UblkReport,
    ) -> Result<(), UblkError> {
        let UblkReport { device: index, progress } = report;
        match progress {
            Progress::Opened(opened) => {
                let device = &mut self.devices[index];
                let base = self.slots.len() as u32;
                device.open(opened, base);
                let slots = (0..device.slot_count()).map(|_| Slot::new(index));
                self.slots.extend(slots);
                // What each slot can want at once; the queue never grows under load.
                self.demands.reserve(self.slots.len());
                self.memory_waiters.reserve(self.slots.len());
                self.devices[index].fetch_all(context.ring);
                if self.is_stopping {
                    self.begin_removal(index);
                }
            }
            Progress::Live { .. } if self.devices[index].phase == Phase::GivenUp => {
                self.spawn_removal(index, PageCache::IsClean);
            }
            Progress::Live { was_taken_over } => {
                let device = &mut self.devices[index];
                device.phase = Phase::Live;
                device.alive_since = context.now;
                let (path, name) = (block_path(device.number), &device.wanted.name);
                if was_taken_over {
                    tracing::info!(device = path, export = name, "taken over from a dead server");
                } else {
                    tracing::info!(device = path, export = name, "in use as a block device");
                }
                if self.is_stopping {
                    self.begin_removal(index);
                } else {
                    self.begin_resize(index);
                }
            }
            Progress::Failed { error, was_at_work } => {
                self.devices[index].fail();
                if was_at_work {
                    // Its users wait for a server that has it.
                    return Err(error);
                }
                return self.do_without(context.exports, index, error);
            }
            Progress::NoThread { task, source } => match task {
                Task::Start => {
                    self.devices[index].fail();
                    return self.do_without(context.exports, index, UblkError::Thread { source });
                }
                // It serves on, whatever its size.
                Task::Resize => self.on_resized(index, Err(UblkError::Thread { source })),
                Task::Remove => self.keep(index, &format!("it cannot be ended: {source}")),
            },
            Progress::Resized(result) => self.on_resized(index, result),
            Progress::InUse(user) => {
                self.keep(index, &format!("it is in use ({user})"));
            }
            Progress::Stopped => self.devices[index].let_go(),
            Progress::Removed => {
                let device = &mut self.devices[index];
                device.phase = Phase::Gone;
                tracing::info!(device = block_path(device.number), "removed");
            }
        }
        Ok(())
    }

    /// A device that nobody can have used yet cannot be made. It is no reason to end others.
    ///
    /// # Errors
    /// The error again, if there are no others.
    fn do_without(
        &mut self,
        exports: &mut ExportTable,
        index: usize,
        error: UblkError,
    ) -> Result<(), UblkError> {
        if self.devices.iter().all(|device| device.phase == Phase::Gone) {
            return Err(error);
        }
        tracing::error!("{error}");
        exports.make_unavailable(self.devices[index].export, error.to_string());
        Ok(())
    }

    /// Leaves a device to the kernel when the shard stops: requests that come from now on wait for
    /// the next server.
    fn keep(&mut self, index: usize, why: &str) {
        let device = &mut self.devices[index];
        device.phase = Phase::Kept;
        let (path, name, number) = (block_path(device.number), &device.wanted.name, device.number);
        tracing::warn!(
            "{path} of `{name}` is kept, because {why}: its requests wait until `forebay serve` \
             with --ublk {name}={number} takes it over; to remove it, release it and stop that \
             server"
        );
        // What waits for memory was not begun.
        let mut waiters = std::mem::take(&mut self.memory_waiters);
        waiters.retain(|slot| self.slots[*slot as usize].device != index);
        self.memory_waiters = waiters;
        self.devices[index].waiters.clear();
        for slot in &mut self.slots {
            if slot.device == index && matches!(slot.state, SlotState::Stalled(_)) {
                slot.state = SlotState::Idle;
            }
        }
    }

    fn begin_removal(&mut self, index: usize) {
        let device = &mut self.devices[index];
        match device.phase {
            Phase::Waiting => device.phase = Phase::Gone,
            Phase::Live => {
                device.phase = Phase::Removing;
                self.spawn_removal(index, PageCache::MayBeDirty);
            }
            // The kernel looks for partitions before it is live. What that reads may wait for the
            // origin as long as that is away, and ends with the engine.
            Phase::Starting if device.is_unused() => device.phase = Phase::GivenUp,
            // Goes on when it is open or live, or is over already.
            Phase::Starting | Phase::Removing | Phase::GivenUp | Phase::Kept | Phase::Gone => {}
        }
    }

    fn spawn_removal(&self, index: usize, page_cache: PageCache) {
        let number = self.devices[index].number;
        let work = move |tell: &dyn Fn(Progress)| lifecycle::remove(number, page_cache, tell);
        self.spawn(index, Task::Remove, work);
    }

    /// A command of a slot has come back: with a request, or for good.
    pub(crate) fn handle_completion(
        &mut self,
        context: &mut FrontContext<'_>,
        slot: u32,
        result: i32,
    ) {
        let index = self.slots[slot as usize].device;
        let device = &mut self.devices[index];
        assert!(self.slots[slot as usize].state == SlotState::AtKernel);
        self.slots[slot as usize].state = SlotState::Idle;
        device.commands -= 1;
        match result {
            abi::RESULT_OK if device.takes_requests() => self.take(context, slot),
            abi::RESULT_OK if device.phase == Phase::GivenUp => {
                self.commit(context.ring, slot, -libc::EIO);
            }
            // It waits at the driver, which gives it to the next server.
            abi::RESULT_OK => {}
            abi::RESULT_ABORT => self.on_abort(context.exports, index),
            errno => {
                let (path, error) =
                    (block_path(device.number), std::io::Error::from_raw_os_error(-errno));
                device.log.warn("command", || format!("{path}: a request cannot be had: {error}"));
                device.close_if_quiet();
            }
        }
    }

    /// The driver has taken a command back, because the device ends. Where nobody here asked for
    /// that, somebody else did.
    fn on_abort(&mut self, exports: &mut ExportTable, index: usize) {
        let device = &mut self.devices[index];
        let is_idle = |slot: &Slot| slot.device != index || slot.state == SlotState::Idle;
        if device.phase == Phase::Live && device.commands == 0 && self.slots.iter().all(is_idle) {
            let (path, name) = (block_path(device.number), &device.wanted.name);
            tracing::error!("{path} was ended by somebody else; `{name}` is not served any more");
            let why = format!("{path} was ended by somebody else; the next start makes it anew");
            exports.make_unavailable(device.export, why);
            device.fail();
        }
        device.close_if_quiet();
    }

    /// Takes a request from the driver.
    fn take(&mut self, context: &mut FrontContext<'_>, slot: u32) {
        let device = &mut self.devices[self.slots[slot as usize].device];
        device.requests += 1;
        if device.has_lost_export {
            return self.commit(context.ring, slot, -libc::EIO);
        }
        let descriptor = device.descriptor(slot);
        match request::translate(device.geometry(), &descriptor) {
            Ok(request) => {
                let arrived = context.now;
                let active = Active { request, buffer: None, arrived };
                // Who came before has the first claim to memory.
                if request.moves_data() && !device.waiters.is_empty() {
                    self.stall_for_own(slot, active);
                } else if request.moves_data() && self.waits_for_memory() {
                    self.stall(slot, active);
                } else {
                    self.start(context, slot, active);
                }
            }
            Err(errno) => {
                let path = block_path(device.number);
                device.log.warn("request", || {
                    format!("{path}: a request was refused with errno {errno}: {descriptor:?}")
                });
                self.commit(context.ring, slot, -errno);
            }
        }
    }

    /// Begins a request, or notes that it must wait. Returns whether there was memory, if it is
    /// to have any.
    fn start(&mut self, context: &mut FrontContext<'_>, slot: u32, mut active: Active) -> bool {
        let device = &mut self.devices[self.slots[slot as usize].device];
        if device.phase == Phase::GivenUp {
            self.commit(context.ring, slot, -libc::EIO);
            return true;
        }
        if active.request.moves_data() {
            if !context.pool.may_hold(device.buffer_bytes, active.request.memory_bytes()) {
                self.stall_for_own(slot, active);
                return true;
            }
            if !active.allocate(context, Claimant::Ublk) {
                self.stall(slot, active);
                return false;
            }
            if let Err(error) = device.take_payload(slot, &active, context.pool) {
                let path = block_path(device.number);
                device.log.warn("payload", || format!("{path}: payload cannot be had: {error}"));
                active.release(context.pool);
                self.commit(context.ring, slot, -libc::EIO);
                return true;
            }
        }
        device.in_flight += 1;
        device.buffer_bytes += active.buffer_bytes(context.pool);
        self.demands.push_back(active.demand(slot, device.export));
        self.slots[slot as usize].state = SlotState::UnderWay(active);
        true
    }

    /// Has a request wait until its device holds less memory.
    fn stall_for_own(&mut self, slot: u32, active: Active) {
        self.slots[slot as usize].state = SlotState::Stalled(active);
        self.devices[self.slots[slot as usize].device].waiters.push_back(slot);
    }

    /// Has a request wait in the line of all devices.
    fn stall(&mut self, slot: u32, active: Active) {
        self.slots[slot as usize].state = SlotState::Stalled(active);
        self.memory_waiters.push_back(slot);
    }

    /// Begins what waits for memory, in turn, as far as there is some.
    fn serve_line(&mut self, context: &mut FrontContext<'_>) {
        while let Some(slot) = self.memory_waiters.pop_front() {
            let state = std::mem::replace(&mut self.slots[slot as usize].state, SlotState::Idle);
            let SlotState::Stalled(active) = state else { panic!("who waits is stalled") };
            if !self.start(context, slot, active) {
                // It keeps its turn.
                let last = self.memory_waiters.pop_back();
                assert!(last == Some(slot));
                self.memory_waiters.push_front(slot);
                break;
            }
        }
    }

    /// Gives those a place in the line again whose devices hold little enough by now. Returns
    /// whether there were any.
    fn rejoin_line(&mut self, pool: &BufferPool) -> bool {
        let before = self.memory_waiters.len();
        let wanted = |slot: &u32| match self.slots[*slot as usize].state {
            SlotState::Stalled(active) => active.request.memory_bytes(),
            _ => panic!("who waits is stalled"),
        };
        for Device { waiters, buffer_bytes, .. } in &mut self.devices {
            rejoin_line(&mut self.memory_waiters, waiters, *buffer_bytes, pool, wanted);
        }
        self.memory_waiters.len() > before
    }

    fn commit(&mut self, ring: &mut Ring, slot: u32, result: i32) {
        self.slots[slot as usize].state = SlotState::AtKernel;
        self.devices[self.slots[slot as usize].device].commit(ring, slot, result);
    }
}

impl FrontEnd for UblkFrontEnd {
    fn poll_demand(&mut self) -> Option<Demand> {
        self.demands.pop_front()
    }

    fn handle_reply(&mut self, context: &mut FrontContext<'_>, reply: ClientReply) {
        let slot = reply.number;
        let state = std::mem::replace(&mut self.slots[slot as usize].state, SlotState::Idle);
        let SlotState::UnderWay(active) = state else { panic!("a reply to no request") };
        let device = &mut self.devices[self.slots[slot as usize].device];
        let result = match reply.result {
            Ok(()) => match device.give_payload(slot, &active, context.pool) {
                Ok(()) => request::done(&active.request),
                Err(error) => {
                    let path = block_path(device.number);
                    device.log.warn("payload", || format!("{path}: payload is not taken: {error}"));
                    -libc::EIO
                }
            },
            Err(error) => -errno_of(error),
        };
        device.in_flight -= 1;
        device.buffer_bytes -= active.buffer_bytes(context.pool);
        if device.phase == Phase::Kept && reply.result == Err(RequestError::Shutdown) {
            // The engine ends without having done it. The driver gives it to the next server.
            return active.release(context.pool);
        }
        let nanoseconds = context.now.nanoseconds_since(active.arrived);
        let class = active.request.latency_class(reply.served);
        context.exports[device.export].latencies.record(class, nanoseconds);
        active.release(context.pool);
        self.commit(context.ring, slot, result);
    }

    fn flush(&mut self, context: &mut FrontContext<'_>) {
        loop {
            self.serve_line(context);
            if !self.rejoin_line(context.pool) {
                break;
            }
        }
    }

    fn waits_for_memory(&self) -> bool {
        !self.memory_waiters.is_empty()
    }

    fn has_work(&self) -> bool {
        !self.demands.is_empty()
    }

    fn begin_shutdown(&mut self) {
        self.is_stopping = true;
        for index in 0..self.devices.len() {
            self.begin_removal(index);
        }
    }

    fn has_requests(&self) -> bool {
        self.devices.iter().any(|device| device.in_flight > 0)
    }

    /// A device has no clients that could be sent away: [`FrontEnd::begin_shutdown`] has ended it
    /// or left it to the kernel.
    fn close_all(&mut self, _: &mut FrontContext<'_>) {}

    /// Its requests fail from now on; the disk stays until it is released.
    fn close_clients_of(&mut self, _: &mut FrontContext<'_>, export: ExportNumber) {
        for device in self.devices.iter_mut().filter(|device| device.export == export) {
            device.has_lost_export = true;
        }
    }

    fn is_empty(&self) -> bool {
        let is_over = |phase| matches!(phase, Phase::Kept | Phase::Gone);
        self.devices.iter().all(|device| is_over(device.phase)) && !self.has_requests()
    }

    fn resize(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        self.note_size(context.exports, export);
    }

    fn is_resizing(&self, export: ExportNumber) -> bool {
        self.devices.iter().any(|device| device.export == export && device.is_resizing)
    }

    fn size_reach(&self, export: ExportNumber) -> Vec<ClientSize> {
        let own = self.devices.iter().filter(|device| device.export == export);
        let client = |device: &Device| {
            let is_shown = device.shown_sectors == device.wanted.geometry.sectors;
            let reach = if is_shown { SizeReach::Live } else { SizeReach::Restart };
            ClientSize { client: device.label(), reach }
        };
        own.filter(|device| device.phase == Phase::Live).map(client).collect()
    }

    fn peers_of(&self, export: ExportNumber) -> Vec<String> {
        let own = self.devices.iter().filter(|device| device.export == export);
        own.filter(|device| device.phase != Phase::Gone).map(Device::label).collect()
    }

    fn report(&self, exports: &ExportTable, now: Time) -> Vec<ConnectionReport> {
        let live =
            self.devices.iter().enumerate().filter(|(_, device)| device.phase == Phase::Live);
        let report = |(index, device): (usize, &Device)| ConnectionReport {
            id: CONNECTION_BASE + index as u64,
            peer: block_path(device.number),
            peer_pid: None,
            export: Some(exports[device.export].facts.name.clone()),
            requests_in_flight: device.in_flight,
            buffer_bytes: device.buffer_bytes,
            requests: device.requests,
            age_ms: now.nanoseconds_since(device.alive_since) / 1_000_000,
        };
        live.map(report).collect()
    }
}

fn wanted(option: &UblkOptions, exports: &ExportTable, export: ExportNumber) -> Wanted {
    let facts = &exports[export].facts;
    Wanted {
        name: option.name.clone(),
        number: option.number,
        queue_count: option.queue_count,
        queue_depth: option.queue_depth,
        geometry: Geometry::of(facts),
        identity: facts.identity,
    }
}
