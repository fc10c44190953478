//! A virtual machine in miniature: its memory, the driver of a virtio disk, and the front end that
//! connects the two to a server. The front end is that of Cloud Hypervisor.
//!
//! Memory and driver outlive the server, as those of a real guest do.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Requests that a queue has room for.
pub(crate) const QUEUE_SIZE: u16 = 64;
/// Descriptors of a request: header, data, status.
const DESCRIPTORS: u16 = 3;
/// Requests that a queue can have under way.
pub(crate) const SLOTS: u16 = QUEUE_SIZE / DESCRIPTORS;
/// Longest data of a request.
pub(crate) const DATA_BYTES_MAX: u64 = 64 << 10;

/// Two regions with a hole between them, neither at zero.
const REGIONS: [(u64, usize); 2] = [(1 << 20, 8 << 20), (64 << 20, 8 << 20)];
const RINGS: u64 = REGIONS[0].0;
const RING_BYTES: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x3000;
const HEADER_BYTES: u64 = 32;
const DATA: u64 = REGIONS[1].0;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const FEATURE_EVENT_INDEX: u64 = 1 << 29;
/// How long a request may take: far more than any does.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_micros(200);

/// A queue, as its driver sees it.
struct Driver {
    kick: EventFd,
    call: EventFd,
    next_available: u16,
    next_used: u16,
}

/// A guest with its monitor.
pub(crate) struct Guest {
    memory: GuestMemoryMmap,
    queues: Vec<Driver>,
    in_flight: Option<(VhostUserInflight, File)>,
    features_unknown: u64,
    pub(crate) front_end: Option<Frontend>,
}

impl Guest {
    /// Its driver does without some of the features that a server offers.
    pub(crate) fn new(queue_count: usize, features_unknown: u64) -> Guest {
        let ranges = REGIONS.map(|(start, bytes)| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = File::from(rustix::fs::memfd_create("guest", flags).unwrap());
            // A region may begin anywhere in its file.
            file.set_len(4096 + bytes as u64).unwrap();
            (GuestAddress(start), bytes, Some(FileOffset::new(file, 4096)))
        });
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let driver = || Driver { kick: event(), call: event(), next_available: 0, next_used: 0 };
        let queues = (0..queue_count).map(|_| driver()).collect();
        Guest { memory, queues, in_flight: None, features_unknown, front_end: None }
    }

    /// Connects to a server, as a monitor does: the first time, and after each loss of the server.
    pub(crate) fn connect(&mut self, path: &Path) {
        let queue_count = self.queues.len() as u16;
        let mut front = Frontend::connect(path, u64::from(queue_count)).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap() & !self.features_unknown;
        let offered = front.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert!(offered.contains(wanted));
        front.set_protocol_features(wanted).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert!(front.get_queue_num().unwrap() >= u64::from(queue_count));
        front.set_features(features).unwrap();
        let (area, file) = self.in_flight.get_or_insert_with(|| {
            front.get_inflight_fd(&VhostUserInflight::new(0, 0, queue_count, QUEUE_SIZE)).unwrap()
        });
        front.set_inflight_fd(area, file.as_raw_fd()).unwrap();
        self.share_memory(&front);
        for index in 0..self.queues.len() {
            self.start(&mut front, index);
        }
        self.front_end = Some(front);
    }

    /// Sends the table of memory regions, again if need be.
    pub(crate) fn share_memory(&self, front: &Frontend) {
        let regions = self.memory.iter();
        let regions: Vec<_> = regions
            .map(|region| VhostUserMemoryRegionInfo::from_guest_region(region).unwrap())
            .collect();
        front.set_mem_table(&regions).unwrap();
    }

    fn start(&self, front: &mut Frontend, index: usize) {
        let driver = &self.queues[index];
        let user = |address: u64| {
            let (region, offset) = self.memory.to_region_addr(GuestAddress(address)).unwrap();
            region.get_host_address(offset).unwrap() as u64
        };
        let ring = ring_of(index);
        front.set_vring_num(index, QUEUE_SIZE).unwrap();
        let addresses = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: user(ring),
            used_ring_addr: user(ring + USED),
            avail_ring_addr: user(ring + AVAILABLE),
            log_addr: None,
        };
        front.set_vring_addr(index, &addresses).unwrap();
        // What QEMU says after it has lost its server.
        front.set_vring_base(index, self.used_index(index)).unwrap();
        // QEMU, too, has calls sent to nobody at first.
        let nobody = EventFd::new(EFD_NONBLOCK).unwrap();
        front.set_vring_call(index, &nobody).unwrap();
        front.set_vring_kick(index, &driver.kick).unwrap();
        front.set_vring_enable(index, true).unwrap();
        front.set_vring_call(index, &driver.call).unwrap();
    }

    /// The first bytes of the configuration.
    pub(crate) fn config(&mut self) -> Vec<u8> {
        let front = self.front_end.as_mut().unwrap();
        let buffer = [0; 60];
        let flags = VhostUserConfigFlags::empty();
        front.get_config(0, 60, flags, &buffer).unwrap().1
    }

    fn used_index(&self, queue: usize) -> u16 {
        self.load(ring_of(queue) + USED + 2)
    }

    fn load(&self, address: u64) -> u16 {
        self.memory.load(GuestAddress(address), Ordering::Acquire).unwrap()
    }

    fn store(&self, address: u64, value: u16) {
        self.memory.store(value, GuestAddress(address), Ordering::Release).unwrap();
    }

    /// Where the data of a slot is.
    pub(crate) fn data_address(&self, queue: usize, slot: u16) -> u64 {
        DATA + (queue as u64 * u64::from(SLOTS) + u64::from(slot)) * DATA_BYTES_MAX
    }

    pub(crate) fn set_data(&self, queue: usize, slot: u16, bytes: &[u8]) {
        let address = GuestAddress(self.data_address(queue, slot));
        self.memory.write_slice(bytes, address).unwrap();
    }

    pub(crate) fn data(&self, queue: usize, slot: u16, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let address = GuestAddress(self.data_address(queue, slot));
        self.memory.read_slice(&mut data, address).unwrap();
        data
    }

    /// Makes a request available.
    pub(crate) fn submit(&mut self, queue: usize, slot: u16, kind: u32, sector: u64, bytes: u32) {
        let ring = ring_of(queue);
        let header = ring + HEADERS + u64::from(slot) * HEADER_BYTES;
        let mut text = [0; 17];
        text[..4].copy_from_slice(&kind.to_le_bytes());
        text[8..16].copy_from_slice(&sector.to_le_bytes());
        text[16] = 0xff;
        self.memory.write_slice(&text, GuestAddress(header)).unwrap();
        let head = slot * DESCRIPTORS;
        let writable = if matches!(kind, READ | GET_ID) { 2 } else { 0 };
        let data = self.data_address(queue, slot);
        self.describe(queue, head, (header, 16), 1, head + 1 + u16::from(bytes == 0));
        self.describe(queue, head + 1, (data, bytes), 1 | writable, head + 2);
        self.describe(queue, head + 2, (header + 16, 1), 2, 0);
        let driver = &mut self.queues[queue];
        let place = u64::from(driver.next_available % QUEUE_SIZE);
        driver.next_available = driver.next_available.wrapping_add(1);
        let next = driver.next_available;
        self.store(ring + AVAILABLE + 4 + place * 2, head);
        self.store(ring + AVAILABLE + 2, next);
    }

    fn describe(&self, queue: usize, index: u16, data: (u64, u32), flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&data.0.to_le_bytes());
        descriptor[8..12].copy_from_slice(&data.1.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        let address = ring_of(queue) + u64::from(index) * 16;
        self.memory.write_slice(&descriptor, GuestAddress(address)).unwrap();
    }

    pub(crate) fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Requests that have ended since this was asked last: slot and status.
    pub(crate) fn take_ended(&mut self, queue: usize) -> Vec<(u16, u8)> {
        let ring = ring_of(queue);
        let mut ended = Vec::new();
        loop {
            let used = self.used_index(queue);
            while self.queues[queue].next_used != used {
                let place = u64::from(self.queues[queue].next_used % QUEUE_SIZE);
                let head = self.load(ring + USED + 4 + place * 8);
                assert_eq!(head % DESCRIPTORS, 0);
                let slot = head / DESCRIPTORS;
                let status = ring + HEADERS + u64::from(slot) * HEADER_BYTES + 16;
                let status = self.memory.read_obj::<u8>(GuestAddress(status)).unwrap();
                ended.push((slot, status));
                self.queues[queue].next_used = self.queues[queue].next_used.wrapping_add(1);
            }
            // The driver wants to be called at the next one.
            self.store(ring + AVAILABLE + 4 + u64::from(QUEUE_SIZE) * 2, used);
            std::sync::atomic::fence(Ordering::SeqCst);
            // What came before the server could see that comes without a call.
            if self.used_index(queue) == used {
                return ended;
            }
        }
    }

    /// Waits until so many have ended.
    #[track_caller]
    pub(crate) fn wait(&mut self, queue: usize, count: usize) -> Vec<(u16, u8)> {
        let ended = self.wait_for_some(queue, count);
        assert_eq!(ended.len(), count);
        ended
    }

    /// Waits until at least so many have ended. As a driver does, it looks only when it is called.
    #[track_caller]
    pub(crate) fn wait_for_some(&mut self, queue: usize, count: usize) -> Vec<(u16, u8)> {
        let started = Instant::now();
        let mut ended = Vec::new();
        while ended.len() < count {
            assert!(started.elapsed() < PATIENCE, "{} of {count} have ended", ended.len());
            if self.take_calls(queue) == 0 {
                std::thread::sleep(PAUSE);
                continue;
            }
            ended.extend(self.take_ended(queue));
        }
        ended
    }

    /// How many have ended that the driver has not looked at.
    pub(crate) fn ended_count(&self, queue: usize) -> u16 {
        self.used_index(queue).wrapping_sub(self.queues[queue].next_used)
    }

    /// Stops a ring, as at a reset of the guest. Returns where it goes on.
    pub(crate) fn stop(&mut self, queue: usize) -> u16 {
        self.front_end.as_ref().unwrap().get_vring_base(queue).unwrap() as u16
    }

    /// Starts a ring again that was stopped.
    pub(crate) fn restart(&mut self, queue: usize, base: u16) {
        let mut front = self.front_end.take().unwrap();
        assert_eq!(base, self.used_index(queue));
        self.start(&mut front, queue);
        self.front_end = Some(front);
    }

    /// One request, to its end.
    #[track_caller]
    pub(crate) fn request(&mut self, kind: u32, sector: u64, bytes: u32) -> u8 {
        self.submit(0, 0, kind, sector, bytes);
        self.kick(0);
        self.wait(0, 1)[0].1
    }

    /// How often the driver of a queue was called since this was asked last.
    pub(crate) fn take_calls(&self, queue: usize) -> u64 {
        self.queues[queue].call.read().unwrap_or(0)
    }
}

fn ring_of(queue: usize) -> u64 {
    RINGS + queue as u64 * RING_BYTES
}
