//! What front ends say, in order and out of order.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::super::abi::{BlockConfig, ConfigPart, InFlightArea};
use super::super::device::Place;
use super::super::wire::{FILES_MAX, Wire, WireFault};
use super::*;
use crate::frontend::SizeReach;
use crate::ring::Completion;

#[test]
fn features_configuration_and_queues_are_told() {
    let mut world = World::new();
    world.say(request::GET_FEATURES, &[], None);
    let features = world.hear_number();
    assert_ne!(features & feature::PROTOCOL, 0);
    assert_eq!(features & feature::READ_ONLY, 0);
    world.say(request::GET_QUEUE_NUM, &[], None);
    assert_eq!(world.hear_number(), 64);
    let part = ConfigPart { offset: 0, bytes: 96, flags: 0 };
    let payload = [part.as_bytes(), &[0; 96]].concat();
    world.say(request::GET_CONFIG, &payload, None);
    let (_, reply) = world.hear();
    assert_eq!(reply.len(), payload.len());
    let (config, _) = BlockConfig::read_from_prefix(&reply[12..]).unwrap();
    assert_eq!(config.capacity.get(), (64 << 20) / 512);
    assert_eq!((config.block_bytes.get(), config.optimal_io.get()), (512, 8));
    assert!(world.is_connected());
}

#[test]
fn a_message_may_come_in_pieces() {
    let mut world = World::new();
    let header = Header { request: request::GET_FEATURES, flags: 1, payload_bytes: 0 };
    for piece in header.as_bytes().chunks(5) {
        world.peer.write_all(piece).unwrap();
        world.listen();
    }
    assert_ne!(world.hear_number(), 0);
}

#[test]
fn a_front_end_that_makes_no_sense_is_left() {
    let state = |index, value| RingState { index, value }.as_bytes().to_vec();
    for (request, payload) in [
        (999, vec![]),
        (request::SET_FEATURES, u64::MAX.as_bytes().to_vec()),
        (request::SET_FEATURES, vec![0; 3]),
        (request::SET_PROTOCOL_FEATURES, (1u64 << 8).as_bytes().to_vec()),
        (request::SET_MEM_TABLE, vec![0xff; 40]),
        (request::SET_VRING_NUM, state(0, 3)),
        (request::SET_VRING_NUM, state(0, 65536)),
        (request::SET_VRING_NUM, state(64, 16)),
        (request::SET_VRING_KICK, 0u64.as_bytes().to_vec()),
        (request::SET_VRING_KICK, 0x100u64.as_bytes().to_vec()),
        (request::GET_CONFIG, [u32::MAX, u32::MAX, 0].as_bytes().to_vec()),
        (request::GET_INFLIGHT_FD, vec![0; 24]),
        (request::SET_INFLIGHT_FD, vec![0xff; 24]),
    ] {
        let mut world = World::new();
        world.say(request, &payload, None);
        assert!(!world.is_connected(), "request {request} with {payload:?}");
    }
    let mut world = World::new();
    world.peer.write_all(&[0xff; 12]).unwrap();
    world.listen();
    assert!(!world.is_connected());
}

/// As by a kernel that gives this process no more descriptors.
#[test]
fn a_message_that_has_lost_descriptors_says_so() {
    let (own, peer) = UnixStream::pair().unwrap();
    let mut receiver = Wire::new(own.into());
    let files = [peer.as_fd(); 2 * FILES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let header = Header { request: request::SET_MEM_TABLE, flags: 1, payload_bytes: 0 };
    let pieces = [IoSlice::new(header.as_bytes())];
    sendmsg(&peer, &pieces, &mut control, SendFlags::empty()).unwrap();
    assert_eq!(receiver.receive().unwrap_err(), WireFault::Cut);
}

#[test]
fn without_descriptors_front_ends_are_accepted_after_a_pause() {
    let mut world = World::new();
    let token = Place::Accept.token(0);
    let Token::VhostUser(number) = token else { panic!("{token:?} is not of this front end") };
    let failed = Completion { token, result: -libc::EMFILE, has_more: false };
    assert_eq!(world.front.next_wakeup(), None);
    world.with(|front, context| front.handle_completion(context, number, failed));
    let wakeup = world.front.next_wakeup().expect("it is tried again");
    assert!(wakeup > Time(1), "but not at once");
    world.with(|front, context| {
        context.now = wakeup;
        front.handle_time(context);
    });
    assert_eq!(world.front.next_wakeup(), None);
}

#[test]
fn what_is_refused_is_told_to_those_who_ask() {
    let mut world = World::new();
    world.say(request::SET_PROTOCOL_FEATURES, (1u64 << 3).as_bytes(), None);
    let flags = flag::VERSION | flag::NEED_REPLY;
    wire::send(world.peer.as_fd(), request::SET_CONFIG, flags, &[0; 16], None).unwrap();
    world.listen();
    assert_eq!(world.hear_number(), 1);
    wire::send(world.peer.as_fd(), request::SET_OWNER, flags, &[], None).unwrap();
    world.listen();
    assert_eq!(world.hear_number(), 0);
}

/// What the front end may do to a descriptor that it shares does not make the shard wait.
#[test]
fn a_counter_that_is_full_is_not_waited_for() {
    let mut world = World::running(0);
    rustix::io::write(&world.call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let flags = rustix::fs::fcntl_getfl(&world.call).unwrap();
    rustix::fs::fcntl_setfl(&world.call, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    world.request(0, 0, 0, 512, 2);
    world.make_available(0, 0);
    world.kick();
    let request = world.demand().unwrap();
    world.reply(request.number, Ok(()));
    assert_eq!((world.used(), world.calls()), (1, u64::MAX - 1));
    // It is called again as soon as there is room.
    world.request(3, 0, 0, 512, 2);
    world.make_available(1, 3);
    world.kick();
    let request = world.demand().unwrap();
    world.reply(request.number, Ok(()));
    rustix::fs::fcntl_setfl(&world.call, flags).unwrap();
    assert_eq!((world.used(), world.calls()), (2, 1));
}

/// By the event index a driver asks for a call at the next request that ends. Where the server dies
/// before that call, its successor makes it: the driver waits for nothing else.
#[test]
fn what_a_dead_server_gave_back_is_told_by_the_next() {
    let mut world = World::running(feature::EVENT_INDEX);
    world.request(0, 1, 0, 512, 0);
    world.make_available(0, 0);
    world.kick();
    let number = world.demand().unwrap().number;
    let reply = ClientReply { number, result: Ok(()), served: Served::Cache };
    world.with(|front, context| front.handle_reply(context, reply));
    assert_eq!((world.used(), world.calls()), (1, 0), "it dies before the call");
    let mut next = World::new();
    next.file = world.file.try_clone().unwrap();
    next.memory = map(&next.file);
    next.set_up(feature::EVENT_INDEX | feature::PROTOCOL | feature::VERSION_1);
    next.say(request::SET_VRING_BASE, RingState { index: 0, value: 1 }.as_bytes(), None);
    next.start();
    assert_eq!((next.used(), next.calls()), (1, 1));
}

/// While a queue starts, QEMU has calls sent to a descriptor that it does not look at.
#[test]
fn what_was_told_to_nobody_is_told_again() {
    let mut world = World::running(feature::EVENT_INDEX);
    let nobody = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let real = std::mem::replace(&mut world.call, nobody);
    let call = world.call.try_clone().unwrap();
    world.say(request::SET_VRING_CALL, 0u64.as_bytes(), Some(&call));
    world.request(0, 1, 0, 512, 0);
    world.make_available(0, 0);
    world.kick();
    let request = world.demand().unwrap();
    world.reply(request.number, Ok(()));
    world.call = real;
    assert_eq!((world.used(), world.calls()), (1, 0));
    let call = world.call.try_clone().unwrap();
    world.say(request::SET_VRING_CALL, 0u64.as_bytes(), Some(&call));
    assert_eq!(world.calls(), 1);
}

#[test]
fn memory_behind_the_end_of_its_file_is_refused() {
    let mut world = World::new();
    world.file.set_len(MARGIN).unwrap();
    world.set_up(0);
    assert!(!world.is_connected());
}

#[test]
fn a_ring_stops_when_its_last_request_has_ended() {
    let mut world = World::running(0);
    world.request(0, 1, 0, 512, 0);
    world.make_available(0, 0);
    world.kick();
    let request = world.demand().unwrap();
    world.request(3, 1, 0, 512, 0);
    world.make_available(1, 3);
    world.say(request::GET_VRING_BASE, RingState { index: 0, value: 0 }.as_bytes(), None);
    // What comes behind it waits, too.
    world.say(request::GET_QUEUE_NUM, &[], None);
    world.kick();
    assert!(world.demand().is_none());
    assert_eq!(world.used(), 0);
    world.reply(request.number, Ok(()));
    let (header, payload) = world.hear();
    assert_eq!(header.request, request::GET_VRING_BASE);
    let base = RingState::read_from_bytes(&payload).unwrap();
    assert_eq!((base.value, world.used()), (1, 1));
    assert_eq!(world.hear_number(), 64);
    // It goes on where it has stopped.
    world.say(request::SET_VRING_BASE, RingState { index: 0, value: 1 }.as_bytes(), None);
    world.start();
    assert!(world.demand().is_some());
}

#[test]
fn after_a_front_end_has_gone_nothing_is_written_to_its_memory() {
    let mut world = World::running(0);
    world.request(0, 0, 0, 512, 2);
    world.make_available(0, 0);
    world.kick();
    let request = world.demand().unwrap();
    world.peer.shutdown(Shutdown::Both).unwrap();
    world.listen();
    assert!(!world.is_connected());
    assert_eq!(world.front.peers_of(world.export).len(), 1, "its request is under way");
    let (own, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let next = std::os::fd::IntoRawFd::into_raw_fd(own);
    world.with(|front, context| front.handle_accept(context, 0, next));
    assert!(!world.is_connected(), "its successor waits");
    world.reply(request.number, Ok(()));
    assert_eq!((world.used(), world.status(0)), (0, 0xff));
    for _ in 0..100 {
        world.turn();
        if world.is_connected() {
            break;
        }
    }
    assert!(world.is_connected());
    assert_eq!(world.pool.report().clients.used_bytes, 0);
    drop(peer);
}

#[test]
fn who_has_no_channel_for_it_sees_a_new_size_later() {
    let mut world = World::new();
    let export = world.export;
    let reach = |world: &World| world.front.size_reach(export)[0].reach;
    assert_eq!(reach(&world), SizeReach::Live, "nothing has changed");
    world.exports.resize(export, 32 << 20);
    world.with(|front, context| front.resize(context, export));
    assert_eq!(reach(&world), SizeReach::Reconnect);
}

#[test]
fn a_new_size_is_told() {
    let mut world = World::new();
    let export = world.export;
    let (own, theirs) = UnixStream::pair().unwrap();
    world.say(request::SET_BACKEND_REQ_FD, &[], Some(&OwnedFd::from(theirs)));
    world.with(|front, context| front.begin(context));
    assert_eq!(world.front.size_reach(export)[0].reach, SizeReach::Live);
    world.exports.resize(export, 32 << 20);
    world.with(|front, context| front.resize(context, export));
    assert_eq!(world.front.size_reach(export)[0].reach, SizeReach::Live);
    world.with(|front, context| front.begin(context));
    let mut header = [0; size_of::<Header>()];
    own.set_nonblocking(true).unwrap();
    (&own).read_exact(&mut header).unwrap();
    assert_eq!(Header::read_from_bytes(&header).unwrap().request, 2);
    assert!((&own).read_exact(&mut header).is_err(), "it is told once");
    world.say(request::GET_CONFIG, [0u32, 8, 0].as_bytes(), None);
    assert_eq!(world.hear().1[12..], (32u64 << 20 >> 9).to_le_bytes());
}

#[test]
fn who_does_not_ask_for_the_configuration_is_told_to_when_a_queue_starts() {
    for asks in [false, true] {
        let mut world = World::new();
        let (own, theirs) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        world.say(request::SET_BACKEND_REQ_FD, &[], Some(&OwnedFd::from(theirs)));
        if asks {
            world.say(request::GET_CONFIG, [0u32, 8, 0].as_bytes(), None);
            world.hear();
        }
        world.set_up(feature::PROTOCOL | feature::VERSION_1);
        world.start();
        let mut header = [0; size_of::<Header>()];
        let told = (&own).read_exact(&mut header).is_ok();
        assert_eq!(told, !asks);
        assert!((&own).read_exact(&mut header).is_err(), "it is told once");
    }
}

const FEATURES: u64 = feature::PROTOCOL | feature::VERSION_1;

/// Memory for the requests of one queue, as a front end keeps it.
struct Remembered(OwnedFd, InFlightArea);

impl Remembered {
    fn new() -> Remembered {
        let (file, area) = super::super::in_flight::create(1, SIZE).unwrap();
        Remembered(file.into(), area)
    }

    /// A world with one queue, whose front end has this memory.
    fn begin(&self, mut world: World) -> World {
        world.set_up(FEATURES);
        let file = self.0.try_clone().unwrap();
        world.say(request::SET_INFLIGHT_FD, self.1.as_bytes(), Some(&file));
        world.start();
        world
    }

    /// The next server of the same guest.
    fn after(&self, world: &World) -> World {
        let mut next = World::new();
        next.file = world.file.try_clone().unwrap();
        next.memory = map(&next.file);
        self.begin(next)
    }
}

fn sectors(requests: &[ClientRequest]) -> Vec<u64> {
    requests.iter().map(|request| request.offset_bytes / 512).collect()
}

#[test]
fn what_a_stop_does_not_do_is_left_to_the_next_server() {
    let remembered = Remembered::new();
    let mut world = remembered.begin(World::new());
    for (index, head) in [6, 0, 3].into_iter().enumerate() {
        world.request(head, 1, u64::from(head), 512, 0);
        world.make_available(index as u16, head);
    }
    world.kick();
    let taken: Vec<_> = std::iter::from_fn(|| world.demand()).collect();
    // A fourth one gets no memory.
    let held = world.take_memory();
    world.request(9, 1, 9, 512, 0);
    world.make_available(3, 9);
    world.kick();
    assert!(world.front.waits_for_memory());

    world.front.begin_shutdown();
    world.give_memory(held);
    world.reply(taken[0].number, Ok(()));
    world.reply(taken[1].number, Err(RequestError::Shutdown));
    world.reply(taken[2].number, Err(RequestError::Io));
    assert!(world.demand().is_none() && !world.front.has_requests());
    assert_eq!((world.used(), world.status(6), world.status(3)), (2, 0, 1));
    // That the ring has stopped is not said.
    world.say(request::GET_VRING_BASE, RingState { index: 0, value: 0 }.as_bytes(), None);
    world.with(|front, context| front.close_all(context));
    assert_eq!(world.peer.read(&mut [0; 1]).unwrap(), 0);

    let mut next = remembered.after(&world);
    let again: Vec<_> = std::iter::from_fn(|| next.demand()).collect();
    assert_eq!(sectors(&again), [0, 9]);
}

#[test]
fn what_a_stop_does_not_do_fails_where_nobody_remembers_it() {
    let mut world = World::running(0);
    world.request(0, 1, 0, 512, 0);
    world.make_available(0, 0);
    world.kick();
    let taken = world.demand().unwrap();
    world.front.begin_shutdown();
    world.reply(taken.number, Err(RequestError::Shutdown));
    assert_eq!((world.used(), world.status(0)), (1, 1));
}

#[test]
fn requests_in_flight_are_done_again_in_their_order() {
    let remembered = Remembered::new();
    let mut world = remembered.begin(World::new());
    for (index, head) in [6, 0, 3, 9].into_iter().enumerate() {
        world.request(head, 1, u64::from(head), 512, 0);
        world.make_available(index as u16, head);
    }
    world.kick();
    let first: Vec<_> = std::iter::from_fn(|| world.demand()).collect();
    world.reply(first[1].number, Ok(()));
    // The server dies; another one gets the same memory.
    let mut next = remembered.after(&world);
    next.say(request::GET_VRING_BASE, RingState { index: 0, value: 0 }.as_bytes(), None);
    let again: Vec<_> = std::iter::from_fn(|| next.demand()).collect();
    assert_eq!(sectors(&again), [6, 3, 9]);
    for request in again {
        next.reply(request.number, Ok(()));
    }
    assert_eq!(next.used(), 4);
    let base = RingState::read_from_bytes(&next.hear().1).unwrap();
    assert_eq!(base.value, 4, "the stop has waited for them");
    // And a third one finds nothing to do.
    let mut last = remembered.after(&next);
    assert!(last.demand().is_none());
}
