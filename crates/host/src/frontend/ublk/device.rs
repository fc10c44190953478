//! One device and its requests: slots, counters, payload on its way.

use std::collections::VecDeque;
use std::io;

use forebay_engine::units::Time;

use super::abi::IoDescriptor;
use super::channel::{Channel, Place};
use super::error::block_path;
use super::lifecycle::{Opened, Users, Wanted};
use super::request::Geometry;
use crate::buffer_pool::BufferPool;
use crate::frontend::block_request::{Active, Want};
use crate::frontend::log_once::LogOnce;
use crate::ring::{Ring, Token};
use crate::shard::exports::ExportNumber;

/// Where a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Until requests can be served.
    Waiting,
    /// A thread brings it to life.
    Starting,
    /// It can be used.
    Live,
    /// A thread ends it, unless it is in use.
    Removing,
    /// The shard stops while it comes to life, and nobody has used it yet: its requests fail, so
    /// that it does, and then it ends.
    GivenUp,
    /// The shard stops and leaves it to the kernel and the next server.
    Kept,
    /// There is none, or none any more.
    Gone,
}

/// What a tag of a queue is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    /// Nothing: no command waits for its next request.
    Idle,
    /// A command waits at the driver.
    AtKernel,
    /// Its request waits for memory, or until its device holds less.
    Stalled(Active),
    /// Its request is at the engine.
    UnderWay(Active),
}

/// One tag of one queue.
pub(super) struct Slot {
    /// By place in the table of devices.
    pub(super) device: usize,
    pub(super) state: SlotState,
}

impl Slot {
    pub(super) fn new(device: usize) -> Slot {
        // The device fetches for all of them at once.
        Slot { device, state: SlotState::AtKernel }
    }
}

/// What there is while the character device is open.
struct Open {
    channel: Box<dyn Channel>,
    geometry: Geometry,
    users: Users,
    queue_count: u16,
    queue_depth: u16,
    /// Its slots are numbered from here on, by queue and tag.
    first_slot: u32,
}

impl Open {
    fn place(&self, slot: u32) -> Place {
        let index = slot - self.first_slot;
        let depth = u32::from(self.queue_depth);
        Place { queue: (index / depth) as u16, tag: (index % depth) as u16 }
    }
}

/// One device.
pub(super) struct Device {
    pub(super) export: ExportNumber,
    pub(super) wanted: Wanted,
    pub(super) phase: Phase,
    /// N of `/dev/ublkbN`, once it is open.
    pub(super) number: u32,
    /// Requests at the engine.
    pub(super) in_flight: u32,
    /// Commands at the driver.
    pub(super) commands: u32,
    /// Memory of requests at the engine.
    pub(super) buffer_bytes: u64,
    /// Slots whose requests wait until the device holds less memory, in turn.
    pub(super) waiters: VecDeque<u32>,
    /// Requests that came.
    pub(super) requests: u64,
    pub(super) alive_since: Time,
    /// What it serves is not there any more.
    pub(super) has_lost_export: bool,
    /// Its size as the driver has it.
    pub(super) shown_sectors: u64,
    /// A thread tells the driver of a new size.
    pub(super) is_resizing: bool,
    open: Option<Open>,
    /// The character device is to be closed when its last command has come back.
    is_let_go: bool,
    /// Complaints about its requests and commands.
    pub(super) log: LogOnce,
}

impl Device {
    pub(super) fn new(export: ExportNumber, wanted: Wanted) -> Device {
        Device {
            export,
            number: wanted.number.unwrap_or_default(),
            wanted,
            phase: Phase::Waiting,
            in_flight: 0,
            commands: 0,
            buffer_bytes: 0,
            waiters: VecDeque::new(),
            requests: 0,
            alive_since: Time(0),
            has_lost_export: false,
            shown_sectors: 0,
            is_resizing: false,
            open: None,
            is_let_go: false,
            log: LogOnce::default(),
        }
    }

    /// The character device is open; its slots are numbered from `first_slot` on.
    pub(super) fn open(&mut self, opened: Opened, first_slot: u32) {
        assert!(self.open.is_none() && self.phase == Phase::Starting);
        let Opened { number, queue_count, queue_depth, geometry, users, channel } = opened;
        self.number = number;
        self.shown_sectors = geometry.sectors;
        self.open = Some(Open { channel, geometry, users, queue_count, queue_depth, first_slot });
    }

    /// Whether it is to have a number that it has not yet.
    pub(super) fn waits_for_its_number(&self) -> bool {
        let is_to_come = matches!(self.phase, Phase::Waiting | Phase::Starting);
        self.wanted.number.is_some() && is_to_come && self.open.is_none()
    }

    /// Whether it comes to life, and nobody waits for that.
    pub(super) fn is_unused(&self) -> bool {
        self.phase == Phase::Starting
            && self.open.as_ref().is_some_and(|open| open.users == Users::None)
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("requests come while it is open")
    }

    fn opened_mut(&mut self) -> &mut Open {
        self.open.as_mut().expect("requests come while it is open")
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.opened().geometry
    }

    /// Takes requests up to there.
    pub(super) fn accept_up_to(&mut self, sectors: u64) {
        self.opened_mut().geometry.sectors = sectors;
    }

    pub(super) fn slot_count(&self) -> u32 {
        let open = self.opened();
        u32::from(open.queue_count) * u32::from(open.queue_depth)
    }

    /// Asks for the first request of each slot.
    pub(super) fn fetch_all(&mut self, ring: &mut Ring) {
        let count = self.slot_count();
        let open = self.opened_mut();
        for slot in open.first_slot..open.first_slot + count {
            let place = open.place(slot);
            open.channel.fetch(ring, Token::Ublk(slot), place);
        }
        self.commands += count;
    }

    /// Whether requests are taken from the driver. When the shard stops they are as long as the
    /// device is being removed, since that waits for those that came before.
    pub(super) fn takes_requests(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Live | Phase::Removing)
    }

    pub(super) fn descriptor(&self, slot: u32) -> IoDescriptor {
        let open = self.opened();
        open.channel.descriptor(open.place(slot))
    }

    /// Copies the payload of a write from the driver.
    pub(super) fn take_payload(
        &self,
        slot: u32,
        active: &Active,
        pool: &mut BufferPool,
    ) -> io::Result<()> {
        let open = self.opened();
        match active.request.want {
            Want::Write { .. } => {
                open.channel.take_payload(open.place(slot), pool.slice_mut(active.payload()))
            }
            _ => Ok(()),
        }
    }

    /// Copies the payload of a read to the driver.
    pub(super) fn give_payload(
        &self,
        slot: u32,
        active: &Active,
        pool: &BufferPool,
    ) -> io::Result<()> {
        let open = self.opened();
        match active.request.want {
            Want::Read => open.channel.give_payload(open.place(slot), pool.slice(active.payload())),
            _ => Ok(()),
        }
    }

    /// Ends the request of a slot and asks for its next one.
    pub(super) fn commit(&mut self, ring: &mut Ring, slot: u32, result: i32) {
        self.commands += 1;
        let open = self.opened_mut();
        let place = open.place(slot);
        open.channel.commit(ring, Token::Ublk(slot), place, result);
    }

    /// It could not be brought to life.
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Gone;
        self.let_go();
    }

    /// Closes the character device as soon as the driver holds no command.
    pub(super) fn let_go(&mut self) {
        self.is_let_go = true;
        self.close_if_quiet();
    }

    pub(super) fn close_if_quiet(&mut self) {
        if self.is_let_go && self.commands == 0 {
            self.open = None;
        }
    }

    /// For people.
    pub(super) fn label(&self) -> String {
        match (&self.open, self.wanted.number) {
            (None, None) => "a ublk device".to_owned(),
            _ => block_path(self.number),
        }
    }
}
