//! One queue of a front end: how far it is set up, and its requests.
//!
//! Bounds: a head names one request at most, so slots are made when the ring starts, and the lists
//! of segments in them keep their memory, for [`DATA_SEGMENTS_MAX`] each at most: a request
//! allocates nothing but its payload.
//!
//! Invariants: a request that was taken is given back once or left to the next server, or its front
//! end is gone. Nothing is written to a ring that was stopped, since its memory may be used for
//! something else. Of all that stands in the used ring the driver was told, whoever wrote it there:
//! a call too many is harmless, one too few is a disk that hangs.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use forebay_engine::units::Time;
use rustix::event::PollFlags;

use super::abi::{RingAddresses, status};
use super::in_flight::InFlight;
use super::memory::{Memory, Segment};
use super::poll::is_there;
use super::request::{DATA_SEGMENTS_MAX, Geometry, Judged, judge, take_status, total};
use super::ring::{Chain, Places, RingFault, SplitRing};
use crate::buffer_pool::BufferPool;
use crate::frontend::block_request::{Active, Want};

/// What a head of the ring is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum SlotState {
    /// The driver has it.
    #[default]
    Idle,
    /// Its request is about to begin, or waits for memory.
    Taken(Active),
    /// Its request is at the engine.
    UnderWay(Active),
}

/// One head of the ring.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    /// Where its data is in guest memory.
    data: Vec<Segment>,
    /// Where its status belongs, of a request that was taken.
    status_address: u64,
}

/// What a look at the ring brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// There is no request that could begin.
    Nothing,
    /// The request of this head.
    Request(u16),
    /// A request that was answered at once; why, if it was refused.
    Answered(Option<&'static str>),
}

/// What all queues of a front end share.
pub(super) struct Shared<'a> {
    pub(super) memory: &'a Memory,
    pub(super) in_flight: Option<&'a mut InFlight>,
    pub(super) features: u64,
}

/// One queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    number: u16,
    pub(super) size: u16,
    pub(super) addresses: Option<RingAddresses>,
    pub(super) base: u16,
    pub(super) kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    pub(super) is_enabled: bool,
    /// What is wrong with the ring, if something is; it rests then until it is stopped.
    pub(super) fault: Option<RingFault>,
    /// There is one while the ring is started.
    ring: Option<SplitRing>,
    pub(super) slots: Vec<Slot>,
    chain: Chain,
    /// Requests that a predecessor has not ended, by head.
    again: VecDeque<u16>,
    /// Requests that were taken and not given back.
    pub(super) in_flight: u32,
    /// A request that was taken is left to the next server.
    has_left: bool,
    /// A request waits for memory; no others are taken meanwhile.
    pub(super) is_stalled: bool,
    /// Something was given back since the driver was told.
    needs_call: bool,
}

impl Queue {
    pub(super) fn new(number: u16) -> Queue {
        Queue { number, ..Queue::default() }
    }

    pub(super) fn is_started(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether requests are to be taken from it.
    pub(super) fn is_running(&self) -> bool {
        let is_kicked = self.kick.is_some() && self.is_enabled;
        self.ring.is_some() && is_kicked && self.fault.is_none()
    }

    /// Whether all that it takes to start is there.
    pub(super) fn can_start(&self) -> bool {
        let is_set_up = self.kick.is_some() && self.addresses.is_some() && self.size > 0;
        self.ring.is_none() && self.is_enabled && is_set_up
    }

    fn places(&self, memory: &Memory) -> Result<Places, RingFault> {
        let addresses = self.addresses.ok_or(RingFault::OutsideOfMemory)?;
        let find = |address| memory.of_user(address).ok_or(RingFault::OutsideOfMemory);
        Ok(Places {
            descriptors: find(addresses.descriptors)?,
            available: find(addresses.available)?,
            used: find(addresses.used)?,
        })
    }

    /// Begins to work on the ring.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(super) fn start(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        assert!(self.in_flight == 0 && self.can_start());
        let places = self.places(shared.memory).map_err(|fault| fault.text().to_owned())?;
        let mut ring = SplitRing::start(shared.memory, self.size, places, shared.features)
            .map_err(|fault| fault.text().to_owned())?;
        ring.set_next_available(self.base);
        self.again.clear();
        if let Some(in_flight) = &mut shared.in_flight {
            let again = in_flight.start(self.number, self.size, ring.next_used())?;
            // What the driver has made available is either used or under way. Where the front end
            // says to begin is not known to one whose server was killed.
            ring.set_next_available(ring.next_used().wrapping_add(again.len() as u16));
            self.again.extend(again);
        }
        self.slots.resize_with(self.size.into(), Slot::default);
        assert!(self.slots.iter().all(|slot| slot.state == SlotState::Idle));
        self.fault = None;
        self.ring = Some(ring);
        // A predecessor may have been killed between giving a request back and the call. Its driver
        // waits for that call: what ends later lies behind the event index, and calls nobody.
        signal(self.call.as_ref());
        Ok(())
    }

    /// Tells the driver in another way from now on. It is told at once: what was given back may
    /// have been told where nobody listens, as QEMU does while a queue starts.
    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        if self.is_started() {
            signal(self.call.as_ref());
        }
    }

    /// Goes on with the ring where it is in another table of regions.
    pub(super) fn move_to(&mut self, memory: &Memory) -> Result<(), RingFault> {
        if self.ring.is_none() {
            return Ok(());
        }
        let places = self.places(memory)?;
        self.ring.as_mut().map_or(Ok(()), |ring| ring.move_to(memory, places))
    }

    /// How many requests of a predecessor are to be done again.
    pub(super) fn again_count(&self) -> usize {
        self.again.len()
    }

    /// Takes no more requests but those to be done again: they were under way before. When the last
    /// one was given back, [`Queue::stop`] ends it.
    pub(super) fn begin_stop(&mut self) {
        self.kick = None;
    }

    /// Whether nothing is under way, or ever will be. A ring with a request that is left never is:
    /// whoever was told that it has stopped would take the request for done.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_over = self.again.is_empty() || self.fault.is_some();
        self.in_flight == 0 && !self.has_left && is_over
    }

    /// Leaves a request that was taken, and is not at the engine any more, to the next server: the
    /// memory of the front end still says that it is under way.
    pub(super) fn leave(&mut self, head: u16) {
        self.slots[usize::from(head)].state = SlotState::Idle;
        self.in_flight -= 1;
        self.has_left = true;
    }

    /// Ends the work on the ring. Returns where the next one begins.
    pub(super) fn stop(&mut self) -> u16 {
        assert!(self.is_at_rest());
        self.again.clear();
        if let Some(ring) = self.ring.take() {
            self.base = ring.next_available();
        }
        self.fault = None;
        self.needs_call = false;
        self.base
    }

    /// Takes the next request.
    ///
    /// # Errors
    /// If the ring cannot be worked on any more.
    pub(super) fn take(
        &mut self,
        shared: &mut Shared<'_>,
        geometry: &Geometry,
        now: Time,
    ) -> Result<Taken, RingFault> {
        if self.is_stalled || self.fault.is_some() {
            return Ok(Taken::Nothing);
        }
        let is_running = self.is_running();
        let Some(ring) = self.ring.as_mut() else { return Ok(Taken::Nothing) };
        let repeated = self.again.pop_front();
        let head = match repeated {
            Some(head) => Some(head),
            None if is_running => next_head(ring, shared.memory)?,
            None => None,
        };
        let Some(head) = head else { return Ok(Taken::Nothing) };
        let slot = &mut self.slots[usize::from(head)];
        if slot.state != SlotState::Idle {
            return Err(RingFault::HeadTwice);
        }
        ring.walk(shared.memory, head, &mut self.chain)?;
        let status_address = take_status(&mut self.chain)?;
        if let (None, Some(in_flight)) = (repeated, &mut shared.in_flight) {
            in_flight.mark(self.number, head);
        }
        self.in_flight += 1;
        match judge(geometry, shared.features, shared.memory, &mut self.chain) {
            Judged::Request(request) => {
                let active = Active { request, buffer: None, arrived: now };
                slot.state = SlotState::Taken(active);
                slot.status_address = status_address;
                let data = match request.want {
                    Want::Read => &self.chain.writable,
                    Want::Write { .. } => &self.chain.readable,
                    Want::Flush | Want::Discard { .. } | Want::WriteZeroes { .. } => &[][..],
                };
                assert!(data.len() <= DATA_SEGMENTS_MAX, "the request was judged");
                slot.data.clear();
                slot.data.extend_from_slice(data);
                Ok(Taken::Request(head))
            }
            Judged::Identify => {
                let serial = geometry.serial();
                write_segments(shared.memory, &self.chain.writable, &serial)?;
                self.give_back(shared, head, status_address, status::OK, serial.len() as u32)?;
                Ok(Taken::Answered(None))
            }
            Judged::Refused(status, why) => {
                self.give_back(shared, head, status_address, status, 0)?;
                Ok(Taken::Answered(Some(why)))
            }
        }
    }

    /// Copies the payload of a write from the guest.
    pub(super) fn take_payload(
        &self,
        memory: &Memory,
        head: u16,
        active: &Active,
        pool: &mut BufferPool,
    ) -> Result<(), RingFault> {
        if !matches!(active.request.want, Want::Write { .. }) {
            return Ok(());
        }
        let mut rest = pool.slice_mut(active.payload());
        for segment in &self.slots[usize::from(head)].data {
            let (part, behind) = rest.split_at_mut(segment.bytes as usize);
            memory.read(segment.address, part)?;
            rest = behind;
        }
        Ok(())
    }

    /// Ends a request: its data goes to the guest, if it was a read that went well.
    pub(super) fn end(
        &mut self,
        shared: &mut Shared<'_>,
        head: u16,
        active: &Active,
        mut status: u8,
        pool: &BufferPool,
    ) -> Result<(), RingFault> {
        let mut written = 0;
        if active.request.want == Want::Read && status == status::OK {
            let data = &self.slots[usize::from(head)].data;
            match write_segments(shared.memory, data, pool.slice(active.payload())) {
                Ok(()) => written = total(data) as u32,
                Err(_) => status = status::FAILED,
            }
        }
        let status_address = self.slots[usize::from(head)].status_address;
        self.give_back(shared, head, status_address, status, written)
    }

    fn give_back(
        &mut self,
        shared: &mut Shared<'_>,
        head: u16,
        status_address: u64,
        status: u8,
        data_bytes: u32,
    ) -> Result<(), RingFault> {
        self.in_flight -= 1;
        let Some(ring) = &mut self.ring else { return Ok(()) };
        shared.memory.write(status_address, &[status])?;
        if let Some(in_flight) = &mut shared.in_flight {
            in_flight.begin_end(self.number, head);
        }
        ring.push_used(shared.memory, head, data_bytes + 1)?;
        if let Some(in_flight) = &mut shared.in_flight {
            in_flight.end(self.number, head, ring.next_used());
        }
        self.needs_call = true;
        Ok(())
    }

    /// Tells the driver of what was given back, if it wants to know.
    pub(super) fn call(&mut self, memory: &Memory) -> Result<(), RingFault> {
        if !std::mem::take(&mut self.needs_call) {
            return Ok(());
        }
        let Some(ring) = &mut self.ring else { return Ok(()) };
        if ring.needs_call(memory)? {
            signal(self.call.as_ref());
        }
        Ok(())
    }

    /// Rests because of a fault; tells the front end, if it wants to know.
    pub(super) fn fail(&mut self, fault: RingFault) {
        self.fault = Some(fault);
        signal(self.error.as_ref());
    }

    /// Heads whose requests are at the engine.
    pub(super) fn under_way(&self) -> impl Iterator<Item = u16> {
        let is_under_way = |slot: &Slot| matches!(slot.state, SlotState::UnderWay(_));
        (0u16..).zip(&self.slots).filter(move |(_, slot)| is_under_way(slot)).map(|(head, _)| head)
    }

    /// The front end is gone: what did not begin never will, and nobody is told of the rest.
    pub(super) fn abandon(&mut self) {
        self.begin_stop();
        self.again.clear();
        self.ring = None;
        self.is_stalled = false;
        for slot in &mut self.slots {
            if matches!(slot.state, SlotState::Taken(_)) {
                slot.state = SlotState::Idle;
                self.in_flight -= 1;
            }
        }
    }
}

/// The next head, with kicks asked for when there is none.
fn next_head(ring: &mut SplitRing, memory: &Memory) -> Result<Option<u16>, RingFault> {
    loop {
        if let Some(head) = ring.pop(memory)? {
            return Ok(Some(head));
        }
        if !ring.enable_kicks(memory)? {
            return Ok(None);
        }
        ring.disable_kicks(memory)?;
    }
}

/// Adds to an event counter, unless it is at its maximum: then somebody is about to look anyway.
///
/// The front end has the same open file. It could make writes to it wait, and fill the counter, to
/// hold up everybody on this shard; so there is a look first whether it takes one more. What is
/// left to it is the moment between the two calls.
fn signal(event: Option<&OwnedFd>) {
    let Some(event) = event else { return };
    if is_there(event, PollFlags::OUT, PollFlags::OUT) {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

/// Copies bytes into segments, which are at least as long.
fn write_segments(memory: &Memory, segments: &[Segment], bytes: &[u8]) -> Result<(), RingFault> {
    let mut rest = bytes;
    for segment in segments {
        let (part, behind) = rest.split_at(rest.len().min(segment.bytes as usize));
        memory.write(segment.address, part)?;
        rest = behind;
    }
    Ok(())
}
