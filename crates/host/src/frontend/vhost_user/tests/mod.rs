//! The front end with a peer at the other end of a socket pair, and no engine behind it.

mod fuzz;
mod protocol;
mod rings;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_engine::payload::{BufferId, Payload};
use forebay_engine::request::RequestError;
use forebay_engine::units::{Time, VolumeSlot};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{
    Descriptor, Header, RingAddresses, RingState, TableHeader, TableRegion, feature, flag, request,
};
use super::device::Device;
use super::memory::Memory;
use super::request::Geometry;
use super::{TAKEN, VhostUserFrontEnd, wire};
use crate::buffer_pool::{BufferPool, Owner};
use crate::frontend::memory_turn::MemoryTurn;
use crate::frontend::{ClientReply, ClientRequest, Demand, FrontContext, FrontEnd, Served};
use crate::ring::{Ring, Token};
use crate::shard::MemoryOptions;
use crate::shard::exports::{ExportFacts, ExportNumber, ExportTable, Target};

const CLIENT_BYTES: u64 = 64 << 20;
/// Guest memory: where it is for the guest, for the front end, and how much of it there is.
const GUEST: u64 = 1 << 20;
const USER: u64 = 0x7000_0000_0000;
const BYTES: u64 = 1 << 20;
/// What lies before and behind it in its file, and is nobody's business.
const MARGIN: u64 = 4096;
const MARGIN_BYTE: u8 = 0xa5;

const SIZE: u16 = 16;
/// Places in guest memory.
const DESCRIPTORS: u64 = GUEST;
const AVAILABLE: u64 = GUEST + 0x1000;
const USED: u64 = GUEST + 0x2000;
const DATA: u64 = GUEST + 0x10000;
/// From the rings of one queue to those of the next one; there is room for four before the data.
const RINGS_BYTES: u64 = 0x3000;

/// Memory of a guest in a file with margins.
fn guest_file() -> File {
    let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(MARGIN + BYTES + MARGIN).unwrap();
    for offset in [0, MARGIN + BYTES] {
        file.write_all_at(&[MARGIN_BYTE; MARGIN as usize], offset).unwrap();
    }
    file
}

fn region() -> TableRegion {
    TableRegion { guest_address: GUEST, bytes: BYTES, user_address: USER, file_offset: MARGIN }
}

fn map(file: &File) -> Memory {
    let file = OwnedFd::from(file.try_clone().unwrap());
    Memory::map(&[region()], vec![file]).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn assert_margins(file: &File) {
    for offset in [0, MARGIN + BYTES] {
        let mut margin = [0; MARGIN as usize];
        file.read_exact_at(&mut margin, offset).unwrap();
        assert!(margin == [MARGIN_BYTE; MARGIN as usize], "memory was written that is not shared");
    }
}

fn descriptor(address: u64, bytes: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor {
        address: address.into(),
        bytes: bytes.into(),
        flags: flags.into(),
        next: next.into(),
    }
}

/// Writes a structure to guest memory.
fn put(memory: &Memory, address: u64, value: &(impl IntoBytes + zerocopy::Immutable)) {
    memory.write(address, value.as_bytes()).unwrap();
}

/// The front end and what surrounds it.
struct World {
    front: VhostUserFrontEnd,
    ring: Ring,
    pool: BufferPool,
    memory_turn: MemoryTurn,
    exports: ExportTable,
    export: ExportNumber,
    peer: UnixStream,
    file: File,
    memory: Memory,
    kick: OwnedFd,
    call: OwnedFd,
    /// The queue that rings and requests are of.
    queue: u16,
}

impl World {
    /// Connected, and nothing said yet.
    fn new() -> World {
        let mut exports = ExportTable::new();
        let facts = ExportFacts::example();
        let geometry = Geometry::of(&facts);
        let export = exports.add(facts, Target::Volume(VolumeSlot(0)), None).unwrap();
        exports.claim(export, TAKEN);
        let memory = MemoryOptions { engine_bytes: 0, client_bytes: CLIENT_BYTES };
        let file = guest_file();
        let (own, peer) = UnixStream::pair().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let event = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut world = World {
            front: VhostUserFrontEnd::new(),
            ring: Ring::new().unwrap(),
            pool: BufferPool::new(memory).unwrap(),
            memory_turn: MemoryTurn::new(),
            exports,
            export,
            peer,
            memory: map(&file),
            file,
            kick: event(),
            call: event(),
            queue: 0,
        };
        world.front.devices.push(Device::new(0, export, "home", "disk.sock".into(), geometry));
        world.with(|front, context| {
            front.devices[0].connect(context.ring, own.into(), context.now);
        });
        world
    }

    /// Where a place of the first queue's rings is for the present one.
    fn at(&self, place: u64) -> u64 {
        place + u64::from(self.queue) * RINGS_BYTES
    }

    /// With one queue that works.
    fn running(features: u64) -> World {
        let mut world = World::new();
        world.set_up(features | feature::PROTOCOL | feature::VERSION_1);
        world.start();
        assert_eq!(world.calls(), 1, "the start of a queue is told");
        world
    }

    fn set_up(&mut self, features: u64) {
        self.say(request::SET_OWNER, &[], None);
        self.say(request::SET_FEATURES, features.as_bytes(), None);
        let mut table = TableHeader { region_count: 1, padding: 0 }.as_bytes().to_vec();
        table.extend_from_slice(region().as_bytes());
        let file = OwnedFd::from(self.file.try_clone().unwrap());
        self.say(request::SET_MEM_TABLE, &table, Some(&file));
    }

    fn start(&mut self) {
        let index = u32::from(self.queue);
        let state = |value| RingState { index, value };
        self.say(request::SET_VRING_NUM, state(SIZE.into()).as_bytes(), None);
        let user = |address| self.at(address) - GUEST + USER;
        let addresses = RingAddresses {
            index,
            flags: 0,
            descriptors: user(DESCRIPTORS),
            used: user(USED),
            available: user(AVAILABLE),
            log: 0,
        };
        self.say(request::SET_VRING_ADDR, addresses.as_bytes(), None);
        let (kick, call) = (self.kick.try_clone().unwrap(), self.call.try_clone().unwrap());
        let number = u64::from(index);
        self.say(request::SET_VRING_CALL, number.as_bytes(), Some(&call));
        self.say(request::SET_VRING_KICK, number.as_bytes(), Some(&kick));
        self.say(request::SET_VRING_ENABLE, state(1).as_bytes(), None);
    }

    fn with<T>(
        &mut self,
        run: impl FnOnce(&mut VhostUserFrontEnd, &mut FrontContext<'_>) -> T,
    ) -> T {
        let mut context = FrontContext {
            ring: &mut self.ring,
            pool: &mut self.pool,
            memory_turn: &mut self.memory_turn,
            exports: &mut self.exports,
            now: Time(1),
        };
        run(&mut self.front, &mut context)
    }

    /// Sends a message and has it handled.
    fn say(&mut self, request: u32, payload: &[u8], file: Option<&OwnedFd>) {
        let file = file.map(AsFd::as_fd);
        // Whether the other end still listens is what some tests are about.
        let _ = wire::send(self.peer.as_fd(), request, flag::VERSION, payload, file);
        self.listen();
    }

    fn listen(&mut self) {
        self.with(|front, context| {
            front.read_messages(context, 0);
            front.flush(context);
        });
    }

    /// The reply to the last message.
    fn hear(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; size_of::<Header>()];
        self.peer.read_exact(&mut header).unwrap();
        let header = Header::read_from_bytes(&header).unwrap();
        let mut payload = vec![0; header.payload_bytes as usize];
        self.peer.read_exact(&mut payload).unwrap();
        (header, payload)
    }

    fn hear_number(&mut self) -> u64 {
        u64::read_from_bytes(&self.hear().1).unwrap()
    }

    /// Takes what is available, as after a kick.
    fn kick(&mut self) {
        let queue = self.queue;
        self.with(|front, context| {
            front.drain(context, 0, queue);
            front.flush(context);
        });
    }

    fn demand(&mut self) -> Option<ClientRequest> {
        loop {
            match self.front.poll_demand()? {
                Demand::Request(request) => return Some(request),
                Demand::Forget { .. } => {}
                other @ Demand::BlockStatus { .. } => panic!("{other:?} was not asked for"),
            }
        }
    }

    fn reply(&mut self, number: u32, result: Result<(), RequestError>) {
        let reply = ClientReply { number, result, served: Served::Cache };
        self.with(|front, context| {
            front.handle_reply(context, reply);
            front.flush(context);
        });
    }

    /// Lets the ring complete what it has, as the loop would.
    fn turn(&mut self) {
        let mut completions = Vec::new();
        self.ring.wait(Some(Duration::from_millis(1))).unwrap();
        self.ring.take_completions(&mut completions);
        for completion in completions {
            if let Token::VhostUser(number) = completion.token {
                self.with(|front, context| {
                    front.handle_completion(context, number, completion);
                });
            }
        }
        self.with(|front, context| front.flush(context));
    }

    fn is_connected(&mut self) -> bool {
        self.front.devices[0].open_session().is_some()
    }

    fn is_resting(&mut self) -> bool {
        let session = self.front.devices[0].session.as_ref().unwrap();
        let queue = session.queues.get(usize::from(self.queue));
        queue.is_some_and(|queue| queue.fault.is_some())
    }

    fn calls(&self) -> u64 {
        let mut counter = [0; 8];
        match rustix::io::read(&self.call, &mut counter) {
            Ok(_) => u64::from_ne_bytes(counter),
            Err(_) => 0,
        }
    }

    /// All the memory that clients may have.
    fn take_memory(&mut self) -> Vec<BufferId> {
        let mut taken = Vec::new();
        for bytes in [32 << 20, 4096] {
            let next = || self.pool.allocate_for(Owner::Clients, bytes);
            taken.extend(std::iter::from_fn(next));
        }
        taken
    }

    fn give_memory(&mut self, taken: Vec<BufferId>) {
        taken.into_iter().for_each(|buffer| self.pool.release(buffer));
    }

    /// Makes a chain available that begins at a descriptor.
    fn make_available(&self, index: u16, head: u16) {
        let ring = self.at(AVAILABLE);
        put(&self.memory, ring + 4 + u64::from(index % SIZE) * 2, &head);
        put(&self.memory, ring + 2, &index.wrapping_add(1));
    }

    /// A request of three descriptors, header, data and status, from the given one on.
    fn request(&self, head: u16, kind: u32, sector: u64, data_bytes: u32, data_flags: u16) {
        let place = DATA + u64::from(head) * 0x4000;
        put(&self.memory, place, &[u64::from(kind), sector]);
        let next = |index: u64| self.at(DESCRIPTORS) + (u64::from(head) + index) * 16;
        put(&self.memory, next(0), &descriptor(place, 16, 1, head + 1));
        let data = descriptor(place + 0x100, data_bytes, 1 | data_flags, head + 2);
        put(&self.memory, next(1), &data);
        put(&self.memory, next(2), &descriptor(place + 0x80, 1, 2, 0));
        put(&self.memory, place + 0x80, &0xffu8);
    }

    fn status(&self, head: u16) -> u8 {
        let mut status = [0];
        self.memory.read(DATA + u64::from(head) * 0x4000 + 0x80, &mut status).unwrap();
        status[0]
    }

    fn used(&self) -> u16 {
        self.memory.load(USED + 2, std::sync::atomic::Ordering::Acquire).unwrap()
    }
}

#[test]
fn numbers_of_requests_and_tokens_hold_their_places() {
    use super::device::{Place, RequestPlace};
    for place in [(0, 0, 0), (1, 2, 3), (4095, 63, 1023)] {
        let (device, queue, head) = place;
        let place = RequestPlace { device, queue, head };
        assert_eq!(RequestPlace::of_number(place.number()), place);
        assert!(place.number() < 1 << super::NUMBER_BITS);
    }
    for place in [Place::Accept, Place::Socket, Place::Kick(0), Place::Kick(63)] {
        let Token::VhostUser(number) = place.token(77) else { panic!("another token") };
        assert_eq!(Place::of_token(number), (77, place));
    }
}

#[test]
fn a_kick_comes_through_the_ring_and_one_call_tells_of_all() {
    let mut world = World::running(0);
    for (index, head) in [0, 3, 6].into_iter().enumerate() {
        world.request(head, 0, u64::from(head), 512, 2);
        world.make_available(index as u16, head);
    }
    for _ in 0..2 {
        rustix::io::write(&world.kick, &1u64.to_ne_bytes()).unwrap();
        world.turn();
    }
    let requests: Vec<_> = std::iter::from_fn(|| world.demand()).collect();
    assert_eq!(requests.len(), 3);
    world.with(|front, context| {
        for request in &requests {
            let reply =
                ClientReply { number: request.number, result: Ok(()), served: Served::Cache };
            front.handle_reply(context, reply);
        }
        front.flush(context);
    });
    assert_eq!((world.calls(), world.used()), (1, 3));
    assert_eq!((world.status(0), world.status(3), world.status(6)), (0, 0, 0));
    assert_eq!(world.pool.report().clients.used_bytes, 0);
}

#[test]
fn a_request_without_memory_waits_and_the_ring_with_it() {
    let mut world = World::running(0);
    let held = world.take_memory();
    for (index, head) in [0, 3].into_iter().enumerate() {
        world.request(head, 1, 0, 512, 0);
        world.make_available(index as u16, head);
    }
    world.kick();
    assert!(world.demand().is_none() && world.front.waits_for_memory());
    world.give_memory(held);
    world.kick();
    assert!(!world.front.waits_for_memory());
    assert!(world.demand().is_some() && world.demand().is_some());
}

#[test]
fn a_disk_holds_no_more_than_its_part_of_the_memory() {
    let mut world = World::running(0);
    let part = CLIENT_BYTES / 4;
    // As if that much were under way already.
    world.front.devices[0].buffer_bytes = part - 4096;
    for (index, head) in [0, 3, 6].into_iter().enumerate() {
        world.request(head, 1, 8 * u64::from(head), 4096, 0);
        world.make_available(index as u16, head);
    }
    world.kick();
    let first = world.demand().unwrap();
    assert!(world.demand().is_none());
    assert!(!world.front.waits_for_memory(), "others may have what is left");
    world.reply(first.number, Ok(()));
    let second = world.demand().unwrap();
    assert!(world.demand().is_none());
    world.front.devices[0].buffer_bytes -= part - 4096;
    world.reply(second.number, Ok(()));
    let third = world.demand().unwrap();
    world.reply(third.number, Ok(()));
    assert_eq!((world.used(), world.front.devices[0].buffer_bytes), (3, 0));
}
