//! The front end with a device that has no kernel behind it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use forebay_engine::payload::{BufferId, Payload};
use forebay_engine::request::{Durability, RequestError, RequestKind};
use forebay_engine::units::{Time, VolumeSlot};

use super::abi::{self, IoDescriptor, io_flag, op};
use super::channel::{Channel, Place};
use super::device::{Device, Phase};
use super::lifecycle::{Opened, Progress, Task, Users, Wanted};
use super::request::{Geometry, REQUEST_BYTES_MAX};
use super::{TAKEN, UblkError, UblkFrontEnd, UblkReport};
use crate::buffer_pool::{BufferPool, Owner};
use crate::frontend::memory_turn::MemoryTurn;
use crate::frontend::{
    ClientReply, ClientRequest, Demand, FrontContext, FrontEnd, Served, SizeReach,
};
use crate::ring::{Ring, Token, WakeUp};
use crate::shard::MemoryOptions;
use crate::shard::exports::{ExportFacts, ExportNumber, ExportTable, Target};
use crate::shard::handle::ShardHandle;

const DEPTH: u16 = 4;
const QUEUES: u16 = 2;
const CLIENT_BYTES: u64 = 64 << 20;

/// What the driver would have: requests by place, payload, and what it was told.
#[derive(Default)]
struct Driver {
    descriptors: BTreeMap<(u16, u16), IoDescriptor>,
    payload: BTreeMap<(u16, u16), Vec<u8>>,
    fetched: Vec<u32>,
    committed: Vec<(u32, i32)>,
    payload_fails: bool,
    is_closed: bool,
}

struct FakeChannel(Arc<Mutex<Driver>>);

fn slot_of(token: Token) -> u32 {
    let Token::Ublk(slot) = token else { panic!("{token:?} is not of this front end") };
    slot
}

impl Channel for FakeChannel {
    fn descriptor(&self, place: Place) -> IoDescriptor {
        self.0.lock().unwrap().descriptors[&(place.queue, place.tag)]
    }

    fn take_payload(&self, place: Place, into: &mut [u8]) -> io::Result<()> {
        let driver = self.0.lock().unwrap();
        if driver.payload_fails {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        into.copy_from_slice(&driver.payload[&(place.queue, place.tag)]);
        Ok(())
    }

    fn give_payload(&self, place: Place, from: &[u8]) -> io::Result<()> {
        let mut driver = self.0.lock().unwrap();
        if driver.payload_fails {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        driver.payload.insert((place.queue, place.tag), from.to_vec());
        Ok(())
    }

    fn fetch(&mut self, _: &mut Ring, token: Token, place: Place) {
        let slot = slot_of(token);
        assert_eq!(slot % u32::from(QUEUES * DEPTH), u32::from(place.queue * DEPTH + place.tag));
        self.0.lock().unwrap().fetched.push(slot);
    }

    fn commit(&mut self, _: &mut Ring, token: Token, _: Place, result: i32) {
        self.0.lock().unwrap().committed.push((slot_of(token), result));
    }
}

impl Drop for FakeChannel {
    fn drop(&mut self) {
        self.0.lock().unwrap().is_closed = true;
    }
}

/// The front end and what surrounds it.
struct World {
    front: UblkFrontEnd,
    ring: Ring,
    pool: BufferPool,
    memory_turn: MemoryTurn,
    exports: ExportTable,
    export: ExportNumber,
    driver: Arc<Mutex<Driver>>,
}

impl World {
    fn new() -> World {
        World::starting(Users::None)
    }

    /// Its device is open and on its way to life.
    fn starting(users: Users) -> World {
        let wake_up = Arc::new(WakeUp::new().unwrap());
        let (handle, _) = ShardHandle::new(wake_up);
        let mut exports = ExportTable::new();
        let facts = ExportFacts::example();
        let geometry = Geometry::of(&facts);
        let export = exports.add(facts, Target::Volume(VolumeSlot(0)), None).unwrap();
        exports.claim(export, TAKEN);
        let memory = MemoryOptions { engine_bytes: 0, client_bytes: CLIENT_BYTES };
        let wanted = Wanted {
            name: "home".into(),
            number: Some(7),
            queue_count: QUEUES,
            queue_depth: DEPTH,
            geometry,
            identity: 1,
        };
        let mut front = UblkFrontEnd::new(handle);
        front.devices.push(Device::new(export, wanted));
        front.devices[0].phase = Phase::Starting;
        let driver = Arc::new(Mutex::new(Driver::default()));
        let mut world = World {
            front,
            ring: Ring::new().unwrap(),
            pool: BufferPool::new(memory).unwrap(),
            memory_turn: MemoryTurn::new(),
            exports,
            export,
            driver: Arc::clone(&driver),
        };
        let channel = Box::new(FakeChannel(driver));
        world.tell(Progress::Opened(Opened {
            number: 7,
            queue_count: QUEUES,
            queue_depth: DEPTH,
            geometry,
            users,
            channel,
        }));
        world
    }

    fn live() -> World {
        let mut world = World::new();
        world.tell(Progress::Live { was_taken_over: false });
        world
    }

    fn with<T>(&mut self, run: impl FnOnce(&mut UblkFrontEnd, &mut FrontContext<'_>) -> T) -> T {
        let mut context = FrontContext {
            ring: &mut self.ring,
            pool: &mut self.pool,
            memory_turn: &mut self.memory_turn,
            exports: &mut self.exports,
            now: Time(1),
        };
        run(&mut self.front, &mut context)
    }

    fn tell(&mut self, progress: Progress) {
        let report = UblkReport { device: 0, progress };
        self.with(|front, context| front.handle_report(context, report)).unwrap();
    }

    /// A request comes at a slot.
    fn arrive(&mut self, slot: u32, op_flags: u32, first_sector: u64, sectors: u32) {
        let place = ((slot / u32::from(DEPTH)) as u16, (slot % u32::from(DEPTH)) as u16);
        let descriptor = IoDescriptor { op_flags, sectors, first_sector, address: 0 };
        self.driver.lock().unwrap().descriptors.insert(place, descriptor);
        self.complete(slot, abi::RESULT_OK);
    }

    fn complete(&mut self, slot: u32, result: i32) {
        self.with(|front, context| front.handle_completion(context, slot, result));
    }

    fn demand(&mut self) -> Option<ClientRequest> {
        self.front.poll_demand().map(|demand| match demand {
            Demand::Request(request) => request,
            other => panic!("{other:?} is no request"),
        })
    }

    /// Slots whose requests have begun.
    fn begun(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.demand()).map(|request| request.number).collect()
    }

    fn reply(&mut self, number: u32, result: Result<(), RequestError>) {
        let reply = ClientReply { number, result, served: Served::Cache };
        self.with(|front, context| {
            front.handle_reply(context, reply);
            front.flush(context);
        });
    }

    fn committed(&self) -> Vec<(u32, i32)> {
        std::mem::take(&mut self.driver.lock().unwrap().committed)
    }

    /// Takes all memory that is left.
    fn use_up_memory(&mut self) -> Vec<BufferId> {
        let mut held = Vec::new();
        let mut bytes = CLIENT_BYTES as usize;
        while bytes >= 4096 {
            match self.pool.allocate_for(Owner::Clients, bytes) {
                Some(buffer) => held.push(buffer),
                None => bytes /= 2,
            }
        }
        held
    }

    fn used_bytes(&self) -> u64 {
        self.pool.report().clients.used_bytes
    }
}

#[test]
fn every_slot_is_fetched_once_when_the_device_opens() {
    let mut world = World::new();
    assert!(world.driver.lock().unwrap().fetched.iter().copied().eq(0..8));
    assert!(!world.front.is_ready());
    assert_eq!(world.front.path_of(world.export), None);
    // The kernel looks for partitions before it says that the device has started.
    world.arrive(0, op::READ.into(), 0, 8);
    assert!(world.demand().is_some());
    world.tell(Progress::Live { was_taken_over: false });
    assert!(world.front.is_ready());
    assert_eq!(world.front.path_of(world.export).as_deref(), Some("/dev/ublkb7"));
    assert_eq!(world.front.peers_of(world.export), ["/dev/ublkb7"]);
}

#[test]
fn a_write_takes_its_payload_along_and_a_read_gives_it() {
    let mut world = World::live();
    // Three sectors, the first of them the second of its block.
    let payload: Vec<u8> = (0..1536).map(|byte| byte as u8).collect();
    world.driver.lock().unwrap().payload.insert((1, 1), payload.clone());
    world.arrive(5, u32::from(op::WRITE) | io_flag::FUA, 9, 3);
    let request = world.demand().unwrap();
    assert_eq!((request.number, request.offset_bytes, request.length_bytes), (5, 4608, 1536));
    let RequestKind::Write { buffer, durability: Durability::ForcedUnitAccess } = request.kind
    else {
        panic!("{request:?}");
    };
    let range = forebay_engine::payload::BufferRange { buffer, offset: 512, length: 1536 };
    assert_eq!(world.pool.slice(range), payload);
    world.reply(5, Ok(()));
    assert_eq!(world.committed(), [(5, 1536)]);
    assert_eq!(world.used_bytes(), 0);

    world.arrive(2, op::READ.into(), 1, 2);
    let request = world.demand().unwrap();
    let RequestKind::Read { buffer } = request.kind else { panic!("{request:?}") };
    let range = forebay_engine::payload::BufferRange { buffer, offset: 512, length: 1024 };
    world.pool.slice_mut(range).fill(0xab);
    world.reply(2, Ok(()));
    assert_eq!(world.committed(), [(2, 1024)]);
    assert_eq!(world.driver.lock().unwrap().payload[&(0, 2)], [0xab; 1024]);
    assert_eq!(world.used_bytes(), 0);
}

#[test]
fn errors_reach_whoever_asked_and_the_slot_goes_on() {
    let mut world = World::live();
    world.arrive(0, op::FLUSH.into(), 0, 0);
    assert_eq!(world.demand().unwrap().kind, RequestKind::Flush);
    world.reply(0, Err(RequestError::Io));
    assert_eq!(world.committed(), [(0, -libc::EIO)]);
    world.arrive(0, op::READ.into(), 0, 8);
    world.demand().unwrap();
    world.reply(0, Err(RequestError::NoSpace));
    assert_eq!(world.committed(), [(0, -libc::ENOSPC)]);
    // What is not valid never becomes a demand.
    world.arrive(0, 99, 0, 8);
    world.arrive(1, op::READ.into(), 1 << 40, 8);
    assert_eq!(world.committed(), [(0, -libc::EOPNOTSUPP), (1, -libc::EINVAL)]);
    assert!(world.demand().is_none());
    // Payload that the driver does not give or take.
    world.driver.lock().unwrap().payload_fails = true;
    world.arrive(0, op::WRITE.into(), 0, 8);
    assert_eq!(world.committed(), [(0, -libc::EIO)]);
    world.arrive(0, op::READ.into(), 0, 8);
    world.demand().unwrap();
    world.reply(0, Ok(()));
    assert_eq!(world.committed(), [(0, -libc::EIO)]);
    assert_eq!(world.used_bytes(), 0);
    assert!(!world.front.has_requests());
}

#[test]
fn requests_wait_in_turn_for_memory() {
    let mut world = World::live();
    let held = world.use_up_memory();
    let sectors = REQUEST_BYTES_MAX / 512;
    for slot in [3, 1, 2] {
        world.arrive(slot, op::READ.into(), 0, sectors);
    }
    world.with(|front, context| front.flush(context));
    assert!(world.demand().is_none());
    held.into_iter().for_each(|buffer| world.pool.release(buffer));
    world.with(|front, context| front.flush(context));
    let begun = world.begun();
    assert_eq!(begun, [3, 1, 2]);
    for slot in begun {
        world.reply(slot, Ok(()));
    }
    assert_eq!(world.used_bytes(), 0);
}

#[test]
fn a_device_holds_no_more_than_its_part_of_the_memory() {
    let mut world = World::live();
    let part = CLIENT_BYTES / 4;
    let sectors = REQUEST_BYTES_MAX / 512;
    // As if that much were under way already.
    let under_way = part - u64::from(REQUEST_BYTES_MAX) - 4096;
    world.front.devices[0].buffer_bytes = under_way;
    for slot in [3, 1, 2] {
        world.arrive(slot, op::READ.into(), 0, sectors);
    }
    // A small one behind them waits its turn.
    world.arrive(0, op::READ.into(), 0, 8);
    world.arrive(4, op::FLUSH.into(), 0, 0);
    assert_eq!(world.begun(), [3, 4], "a flush needs no memory");
    assert!(!world.front.waits_for_memory(), "others may have what is left");
    world.reply(3, Ok(()));
    assert_eq!(world.begun(), [1]);
    world.front.devices[0].buffer_bytes -= under_way;
    world.with(|front, context| front.flush(context));
    assert_eq!(world.begun(), [2, 0]);
    for slot in [4, 1, 2, 0] {
        world.reply(slot, Ok(()));
    }
    assert_eq!((world.used_bytes(), world.front.devices[0].buffer_bytes), (0, 0));
    // What waits is left to the next server, too.
    world.front.devices[0].buffer_bytes = part;
    world.arrive(5, op::READ.into(), 0, sectors);
    world.front.is_stopping = true;
    world.front.devices[0].phase = Phase::Removing;
    world.tell(Progress::InUse("mounted at /mnt".into()));
    world.front.devices[0].buffer_bytes = 0;
    world.with(|front, context| front.flush(context));
    assert!(world.demand().is_none());
}

#[test]
fn a_device_that_stays_in_use_is_left_to_the_next_server() {
    let mut world = World::live();
    world.arrive(0, op::READ.into(), 0, 8);
    world.demand().unwrap();
    let held = world.use_up_memory();
    world.arrive(3, op::READ.into(), 0, 8);
    world.front.is_stopping = true;
    world.front.devices[0].phase = Phase::Removing;
    // As long as it is not known, requests are served: its removal would wait for them.
    world.arrive(1, op::FLUSH.into(), 0, 0);
    assert_eq!(world.demand().unwrap().number, 1);
    world.reply(1, Ok(()));
    world.arrive(5, op::FLUSH.into(), 0, 0);
    assert_eq!(world.demand().unwrap().number, 5);
    assert!(!world.front.may_stop());
    world.tell(Progress::InUse("mounted at /mnt".into()));
    assert!(world.front.may_stop() && !world.front.is_empty(), "requests are under way");
    // The engine ends without having done it: no answer, which would be an error of the disk.
    world.reply(5, Err(RequestError::Shutdown));
    world.arrive(2, op::WRITE.into(), 0, 8);
    assert!(world.demand().is_none(), "it waits at the driver");
    assert_eq!(world.committed(), [(1, 0)]);
    world.reply(0, Ok(()));
    assert_eq!(world.committed(), [(0, 4096)]);
    assert!(world.front.is_empty());
    // What waited for memory waits at the driver, too.
    held.into_iter().for_each(|buffer| world.pool.release(buffer));
    world.with(|front, context| front.flush(context));
    assert!(world.demand().is_none());
    assert!(world.committed().is_empty());
}

#[test]
fn a_device_that_is_removed_is_closed_when_its_last_command_is_back() {
    let mut world = World::live();
    world.front.devices[0].phase = Phase::Removing;
    for slot in 0..7 {
        world.complete(slot, abi::RESULT_ABORT);
    }
    world.tell(Progress::Stopped);
    assert!(!world.driver.lock().unwrap().is_closed);
    assert!(!world.front.may_stop());
    world.complete(7, abi::RESULT_ABORT);
    assert!(world.driver.lock().unwrap().is_closed);
    world.tell(Progress::Removed);
    assert!(world.front.may_stop() && world.front.is_empty());
    assert!(world.front.peers_of(world.export).is_empty());
}

#[test]
fn a_device_that_nobody_has_used_yet_holds_up_no_stop() {
    let mut world = World::new();
    // The kernel looks for partitions, and the origin does not answer.
    world.arrive(0, op::READ.into(), 0, 8);
    assert_eq!(world.begun(), [0]);
    let held = world.use_up_memory();
    world.arrive(1, op::READ.into(), 8, 8);
    world.front.begin_shutdown();
    assert!(world.front.may_stop() && !world.front.is_empty() && !world.front.is_ready());
    world.reply(0, Err(RequestError::Shutdown));
    held.into_iter().for_each(|buffer| world.pool.release(buffer));
    world.with(|front, context| front.flush(context));
    world.arrive(2, op::READ.into(), 16, 8);
    assert!(world.demand().is_none());
    let failed = [(0, -libc::ESHUTDOWN), (1, -libc::EIO), (2, -libc::EIO)];
    assert_eq!(world.committed(), failed, "the kernel need not wait");
    // As the thread that removes it tells.
    for slot in 0..8 {
        world.complete(slot, abi::RESULT_ABORT);
    }
    world.tell(Progress::Stopped);
    assert!(world.driver.lock().unwrap().is_closed);
    assert!(!world.front.is_empty());
    world.tell(Progress::Removed);
    assert!(world.front.is_empty() && world.front.is_ready());

    // The users of one that is taken over would see the errors.
    let mut world = World::starting(Users::Predecessors);
    world.front.begin_shutdown();
    assert!(!world.front.may_stop());
    world.arrive(0, op::READ.into(), 0, 8);
    assert!(world.demand().is_some());
}

#[test]
fn a_device_that_somebody_else_ends_is_let_go() {
    let mut world = World::live();
    world.arrive(7, op::READ.into(), 0, 8);
    world.demand().unwrap();
    for slot in 0..7 {
        world.complete(slot, abi::RESULT_ABORT);
    }
    assert!(world.front.path_of(world.export).is_some(), "a request is under way");
    world.reply(7, Ok(()));
    assert!(!world.driver.lock().unwrap().is_closed);
    world.complete(7, abi::RESULT_ABORT);
    assert!(world.driver.lock().unwrap().is_closed);
    assert_eq!(world.front.path_of(world.export), None);
    let why = world.exports[world.export].unavailable().unwrap();
    assert!(why.contains("/dev/ublkb7 was ended by somebody else"), "{why}");
    world.front.begin_shutdown();
    assert!(world.front.may_stop());
}

#[test]
fn a_device_of_any_number_waits_until_others_have_theirs() {
    let mut world = World::live();
    let (export, wanted) = (world.export, world.front.devices[0].wanted.clone());
    let any = Wanted { number: None, ..wanted.clone() };
    let devices = [any, Wanted { number: Some(0), ..wanted }];
    world.front.devices.extend(devices.map(|wanted| Device::new(export, wanted)));
    let may_begin = |world: &World| [0, 1, 2].map(|index| world.front.may_begin(index));
    assert_eq!(may_begin(&world), [false, false, true]);
    world.front.devices[2].phase = Phase::Starting;
    assert_eq!(may_begin(&world), [false, false, false]);
    // It has its number, or never will have.
    world.front.devices[2].phase = Phase::Gone;
    assert_eq!(may_begin(&world), [false, true, false]);
    world.front.begin_shutdown();
    assert_eq!(may_begin(&world), [false, false, false]);
}

#[test]
fn a_device_that_cannot_be_made_is_no_reason_to_end_others() {
    let refused = |was_at_work| {
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let error = UblkError::Command { command: "ADD_DEV", name: "other".into(), source };
        UblkReport { device: 1, progress: Progress::Failed { error, was_at_work } }
    };
    let with_another = || {
        let mut world = World::live();
        let facts = ExportFacts { name: "other".into(), ..ExportFacts::example() };
        let other = world.exports.add(facts, Target::Volume(VolumeSlot(1)), None).unwrap();
        world.exports.claim(other, TAKEN);
        let wanted = Wanted { name: "other".into(), ..world.front.devices[0].wanted.clone() };
        world.front.devices.push(Device::new(other, wanted));
        world.front.devices[1].phase = Phase::Starting;
        (world, other)
    };
    let (mut world, other) = with_another();
    assert!(!world.front.is_ready());
    world.with(|front, context| front.handle_report(context, refused(false))).unwrap();
    assert!(world.front.is_ready() && world.front.path_of(world.export).is_some());
    assert!(world.exports[other].unavailable().unwrap().contains("ADD_DEV"));
    // Users of one that was at work wait for a server that has it.
    let (mut world, _) = with_another();
    world.with(|front, context| front.handle_report(context, refused(true))).unwrap_err();
    // And a server of nothing is none.
    let (mut world, _) = with_another();
    world.front.devices[0].phase = Phase::Gone;
    world.with(|front, context| front.handle_report(context, refused(false))).unwrap_err();
}

#[test]
fn a_volume_that_has_left_answers_with_errors() {
    let mut world = World::live();
    let export = world.export;
    world.with(|front, context| front.close_clients_of(context, export));
    world.arrive(0, op::READ.into(), 0, 8);
    assert!(world.demand().is_none());
    assert_eq!(world.committed(), [(0, -libc::EIO)]);
}

/// As the shard does when the engine has made a new size durable.
fn grow(world: &mut World, sectors: u64) {
    let export = world.export;
    world.exports.resize(export, sectors * 512);
    world.with(|front, context| front.resize(context, export));
}

fn reach(world: &World) -> SizeReach {
    let clients = world.front.size_reach(world.export);
    assert_eq!(clients.len(), 1);
    clients[0].reach
}

#[test]
fn a_device_whose_driver_cannot_change_its_size_keeps_it() {
    let mut world = World::live();
    let old_sectors = world.front.devices[0].shown_sectors;
    assert_eq!(reach(&world), SizeReach::Live);
    grow(&mut world, 2 * old_sectors);
    assert!(!world.front.is_resizing(world.export));
    assert_eq!(reach(&world), SizeReach::Restart);
    world.arrive(0, op::READ.into(), old_sectors, 8);
    assert_eq!(world.demand(), None, "nobody can ask for that yet");
    assert!(matches!(world.committed()[..], [(0, ..0)]));
}

#[test]
fn a_device_whose_driver_was_told_has_the_new_size() {
    for is_told in [true, false] {
        let mut world = World::live();
        let old_sectors = world.front.devices[0].shown_sectors;
        grow(&mut world, 2 * old_sectors);
        // What a thread would do: here is no driver that could be asked.
        world.front.devices[0].accept_up_to(2 * old_sectors);
        world.front.devices[0].is_resizing = true;
        assert!(world.front.is_resizing(world.export));
        world.arrive(0, op::READ.into(), old_sectors, 8);
        assert!(world.demand().is_some(), "the driver may be faster with it than with its answer");
        let failed = || UblkError::Command {
            command: "UPDATE_SIZE",
            name: "home".into(),
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        };
        world.tell(Progress::Resized(if is_told { Ok(2 * old_sectors) } else { Err(failed()) }));
        assert!(!world.front.is_resizing(world.export));
        let expected = if is_told { SizeReach::Live } else { SizeReach::Restart };
        assert_eq!(reach(&world), expected);
    }
}

#[test]
fn a_device_whose_driver_cannot_be_told_for_want_of_a_thread_serves_on() {
    let mut world = World::live();
    let old_sectors = world.front.devices[0].shown_sectors;
    grow(&mut world, 2 * old_sectors);
    world.front.devices[0].accept_up_to(2 * old_sectors);
    world.front.devices[0].is_resizing = true;
    let no_thread = |task| {
        let source = io::Error::from_raw_os_error(libc::EAGAIN);
        Progress::NoThread { task, source }
    };
    world.tell(no_thread(Task::Resize));
    assert!(!world.front.is_resizing(world.export));
    assert_eq!(reach(&world), SizeReach::Restart);
    world.arrive(0, op::READ.into(), 0, 8);
    assert!(world.demand().is_some());
    world.reply(0, Ok(()));
    assert_eq!(world.committed(), [(0, 4096)]);
    // One that is to end is left to the next server.
    world.front.is_stopping = true;
    world.front.devices[0].phase = Phase::Removing;
    world.tell(no_thread(Task::Remove));
    assert!(world.front.may_stop() && world.front.is_empty());
}
