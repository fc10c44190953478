//! A virtual machine in miniature: its memory and the driver of a virtio disk, one queue for each
//! thread. The front end that connects them to a server is that of Cloud Hypervisor.
//!
//! The driver notifies as virtio says, with `VIRTIO_F_EVENT_IDX`: it makes available all that it
//! has before it asks whether the server wants a kick, takes all that is used before it asks for
//! the next call, and sleeps only if nothing has come meanwhile. That is what a kernel's driver
//! does; a call is an interrupt there, and here the end of one system call. That is a wait for the
//! edge of the event counter, which nobody has to read: a read would not wait, since the server
//! must not wait when it writes, and both share the mode.
//!
//! Deliberately absent: the loss of the server, which tests have.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::load::{BLOCK_BYTES, Load, Work};

/// Places of a ring, as QEMU has them by default.
const RING_SIZE: u16 = 128;
/// Descriptors of a request: header, data, status.
const DESCRIPTORS: u16 = 3;
/// Requests that a queue can have under way.
pub(crate) const DEPTH_MAX: u16 = RING_SIZE / DESCRIPTORS;

/// Where memory begins in the guest: not at zero, so that an offset is not taken for an address.
const MEMORY_START: u64 = 1 << 20;
/// Memory of each queue: a page for each part of the ring, one for headers, then data.
const QUEUE_BYTES: u64 = 1 << 20;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x3000;
const DATA: u64 = 0x4000;
/// Header and status of a request, and what keeps headers apart.
const HEADER_BYTES: u64 = 32;
const STATUS_OFFSET: u64 = 16;
/// Flags and index before the entries of a ring.
const RING_HEADER_BYTES: u64 = 4;

/// Numbers of virtio, see its specification: descriptor flags, requests, features.
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const READ: u32 = 0;
const WRITE: u32 = 1;
const OK: u8 = 0;
const FEATURE_EVENT_INDEX: u64 = 1 << 29;
/// Bytes of the configuration that are asked for; the first eight are the size in sectors.
const CONFIG_BYTES: u32 = 60;
const SECTOR_BYTES: u64 = 512;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;

/// What crossed the event counters.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Notifications {
    /// Of the server by the driver.
    pub(crate) kicks: u64,
    /// Times that the driver slept until it was called.
    pub(crate) calls: u64,
}

/// A guest that is connected.
pub(crate) struct Guest {
    memory: GuestMemoryMmap,
    events: Vec<[EventFd; 2]>,
    front: Frontend,
    _in_flight: File,
}

impl Guest {
    /// Connects to a server and starts all queues.
    pub(crate) fn connect(path: &Path, queue_count: u16) -> Result<Guest, vhost::Error> {
        let bytes = QUEUE_BYTES * u64::from(queue_count);
        let memory = memory(bytes).map_err(vhost::Error::IOError)?;
        let events = (0..queue_count).map(|_| events()).collect::<io::Result<Vec<_>>>();
        let events = events.map_err(vhost::Error::IOError)?;
        let mut front = Frontend::connect(path, u64::from(queue_count))?;
        front.set_owner()?;
        let features = front.get_features()?;
        assert!(features & FEATURE_EVENT_INDEX != 0, "the server suppresses no notifications");
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert!(front.get_protocol_features()?.contains(wanted));
        front.set_protocol_features(wanted)?;
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front.set_features(features)?;
        // As monitors do, so that the server keeps account of what is under way.
        let area = VhostUserInflight::new(0, 0, queue_count, RING_SIZE);
        let (area, in_flight) = front.get_inflight_fd(&area)?;
        front.set_inflight_fd(&area, in_flight.as_raw_fd())?;
        let regions: Result<Vec<_>, _> =
            memory.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect();
        front.set_mem_table(&regions?)?;
        let mut guest = Guest { memory, events, front, _in_flight: in_flight };
        for index in 0..guest.events.len() {
            guest.start(index)?;
        }
        Ok(guest)
    }

    fn start(&mut self, index: usize) -> Result<(), vhost::Error> {
        let ring = ring_of(index);
        let region = self.memory.iter().next().expect("there is one");
        let user = |address: u64| {
            let offset = vm_memory::MemoryRegionAddress(address - MEMORY_START);
            region.get_host_address(offset).expect("it is in the region") as u64
        };
        let addresses = VringConfigData {
            queue_max_size: RING_SIZE,
            queue_size: RING_SIZE,
            flags: 0,
            desc_table_addr: user(ring),
            used_ring_addr: user(ring + USED),
            avail_ring_addr: user(ring + AVAILABLE),
            log_addr: None,
        };
        let [kick, call] = &self.events[index];
        self.front.set_vring_num(index, RING_SIZE)?;
        self.front.set_vring_addr(index, &addresses)?;
        self.front.set_vring_base(index, 0)?;
        self.front.set_vring_call(index, call)?;
        self.front.set_vring_kick(index, kick)?;
        self.front.set_vring_enable(index, true)
    }

    /// Size of the disk.
    pub(crate) fn size_bytes(&mut self) -> Result<u64, vhost::Error> {
        let buffer = [0; CONFIG_BYTES as usize];
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = self.front.get_config(0, CONFIG_BYTES, flags, &buffer)?;
        let sectors = config[..8].try_into().expect("eight bytes");
        Ok(u64::from_le_bytes(sectors) * SECTOR_BYTES)
    }

    /// Its queues, each for a thread.
    pub(crate) fn queues(&self) -> impl Iterator<Item = io::Result<Queue<'_>>> {
        self.events.iter().enumerate().map(|(index, [kick, call])| {
            let wait = Epoll::new()?;
            let edges = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
            wait.ctl(ControlOperation::Add, call.as_raw_fd(), edges)?;
            Ok(Queue {
                memory: &self.memory,
                kick,
                wait,
                ring: ring_of(index),
                next_available: 0,
                next_used: 0,
                notifications: Notifications::default(),
            })
        })
    }
}

/// A kick and a call.
fn events() -> io::Result<[EventFd; 2]> {
    Ok([EventFd::new(0)?, EventFd::new(0)?])
}

fn memory(bytes: u64) -> io::Result<GuestMemoryMmap> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("guest", flags)?);
    file.set_len(bytes)?;
    let bytes = usize::try_from(bytes).expect("some MiB");
    let range = (GuestAddress(MEMORY_START), bytes, Some(FileOffset::new(file, 0)));
    GuestMemoryMmap::from_ranges_with_files([range]).map_err(io::Error::other)
}

fn ring_of(index: usize) -> u64 {
    MEMORY_START + index as u64 * QUEUE_BYTES
}

/// Whether who waits for the entry at `event` is to be told, now that entries from `old` up to
/// `new` have been added.
fn needs_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A queue, as its driver sees it.
pub(crate) struct Queue<'a> {
    memory: &'a GuestMemoryMmap,
    kick: &'a EventFd,
    /// For calls.
    wait: Epoll,
    ring: u64,
    next_available: u16,
    next_used: u16,
    notifications: Notifications,
}

impl Queue<'_> {
    pub(crate) fn notifications(&self) -> Notifications {
        self.notifications
    }

    /// Keeps the queue busy until the load is over.
    pub(crate) fn run(&mut self, load: &mut Load) -> io::Result<()> {
        let kind = match load.work() {
            Work::Read => READ,
            Work::Write => WRITE,
        };
        let published = self.next_available;
        let now = Instant::now();
        for slot in 0..load.depth() {
            self.describe(slot, kind);
            if let Some(block) = load.begin(slot, now) {
                self.submit(slot, kind, block);
            }
        }
        self.publish(published)?;
        while load.in_flight() > 0 {
            self.sleep()?;
            let published = self.next_available;
            let now = Instant::now();
            while let Some(slot) = self.take_used()? {
                load.end(slot, now);
                if let Some(block) = load.begin(slot, now) {
                    self.submit(slot, kind, block);
                }
            }
            self.publish(published)?;
        }
        Ok(())
    }

    /// Sleeps until something is used that was not taken.
    fn sleep(&mut self) -> io::Result<()> {
        // The driver wants to be called at the next one.
        let event = self.ring + AVAILABLE + RING_HEADER_BYTES + u64::from(RING_SIZE) * 2;
        self.store(event, self.next_used);
        // Either the server sees that, or what it used meanwhile is seen here.
        fence(Ordering::SeqCst);
        while self.load(self.ring + USED + 2) == self.next_used {
            self.wait.wait(-1, &mut [EpollEvent::default()])?;
            self.notifications.calls += 1;
        }
        Ok(())
    }

    /// The slot of the next request that has ended.
    fn take_used(&mut self) -> io::Result<Option<u16>> {
        if self.load(self.ring + USED + 2) == self.next_used {
            return Ok(None);
        }
        let place = u64::from(self.next_used % RING_SIZE);
        let slot = self.load(self.ring + USED + RING_HEADER_BYTES + place * 8) / DESCRIPTORS;
        self.next_used = self.next_used.wrapping_add(1);
        let status = GuestAddress(self.header_of(slot) + STATUS_OFFSET);
        match self.memory.read_obj::<u8>(status) {
            Ok(OK) => Ok(Some(slot)),
            other => Err(io::Error::other(format!("a request failed: {other:?}"))),
        }
    }

    /// Makes a request available once [`Queue::publish`] is called.
    fn submit(&mut self, slot: u16, kind: u32, block: u64) {
        let mut header = [0; STATUS_OFFSET as usize + 1];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&(block * BLOCK_SECTORS).to_le_bytes());
        // What no request ends with.
        header[STATUS_OFFSET as usize] = 0xff;
        self.write(self.header_of(slot), &header);
        let place = u64::from(self.next_available % RING_SIZE);
        self.store(self.ring + AVAILABLE + RING_HEADER_BYTES + place * 2, slot * DESCRIPTORS);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Shows the server what was submitted since `published`, and kicks it if it waits.
    fn publish(&mut self, published: u16) -> io::Result<()> {
        if self.next_available == published {
            return Ok(());
        }
        self.store(self.ring + AVAILABLE + 2, self.next_available);
        // Either the server sees that, or its wish for a kick is seen here.
        fence(Ordering::SeqCst);
        let event = self.ring + USED + RING_HEADER_BYTES + u64::from(RING_SIZE) * 8;
        if needs_event(self.load(event), self.next_available, published) {
            self.kick.write(1)?;
            self.notifications.kicks += 1;
        }
        Ok(())
    }

    /// Writes the descriptors of a slot, which stay as they are.
    fn describe(&self, slot: u16, kind: u32) {
        let head = slot * DESCRIPTORS;
        let header = self.header_of(slot);
        let data = self.ring + DATA + u64::from(slot) * BLOCK_BYTES as u64;
        let data_flags = if kind == READ { NEXT | WRITABLE } else { NEXT };
        let parts = [
            (header, STATUS_OFFSET as u32, NEXT),
            (data, BLOCK_BYTES as u32, data_flags),
            (header + STATUS_OFFSET, 1, WRITABLE),
        ];
        for (index, (address, bytes, flags)) in (head..).zip(parts) {
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&address.to_le_bytes());
            descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
            descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
            descriptor[14..].copy_from_slice(&(index + 1).to_le_bytes());
            self.write(self.ring + u64::from(index) * 16, &descriptor);
        }
    }

    fn header_of(&self, slot: u16) -> u64 {
        self.ring + HEADERS + u64::from(slot) * HEADER_BYTES
    }

    fn load(&self, address: u64) -> u16 {
        let value: u16 = self.memory.load(GuestAddress(address), Ordering::Acquire).expect(MINE);
        u16::from_le(value)
    }

    fn store(&self, address: u64, value: u16) {
        let address = GuestAddress(address);
        self.memory.store(value.to_le(), address, Ordering::Release).expect(MINE);
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).expect(MINE);
    }
}

/// Why an address cannot be wrong.
const MINE: &str = "the driver's own memory";
