//! Guests and front ends that write anything anywhere: nothing panics, nothing is touched that was
//! not shared, and no memory is lost. A failure names its seed.

use std::io::Write;
use std::net::Shutdown;

use forebay_device_model::Random;

use super::super::abi::InFlightArea;
use super::super::in_flight;
use super::*;

const SEEDS: u64 = 300;
/// Times as many in a long run.
const LONG_FACTOR: u64 = 100;
const STEPS: u64 = 40;

/// Those of every run, and more in a long one.
fn seeds() -> u64 {
    let is_long = std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1");
    SEEDS * if is_long { LONG_FACTOR } else { 1 }
}

/// An address that is often inside, often at an edge, sometimes anywhere.
fn address(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.next_u64(),
        1 => GUEST + BYTES - random.below(600),
        2 => GUEST - random.below(600),
        3 => DESCRIPTORS + random.below(u64::from(SIZE)) * 16,
        4 => [DESCRIPTORS, AVAILABLE, USED][random.below(3) as usize] + random.below(100),
        _ => DATA + random.below(BYTES - 0x10000),
    }
}

fn length(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => random.next_u64() as u32,
        1 => 0,
        2 => random.below(64) as u32,
        3 => 16,
        4 => random.below(40) as u32 * 16,
        _ => 512 * (1 + random.below(32) as u32),
    }
}

fn random_descriptor(random: &mut Random) -> Descriptor {
    let flags =
        if random.below(10) == 0 { random.next_u64() as u16 } else { random.below(8) as u16 };
    let next = if random.below(10) == 0 { random.next_u64() } else { random.below(SIZE.into()) };
    descriptor(address(random), length(random), flags, next as u16)
}

/// Changes something in the memory of the guest, or makes a whole request that might be good.
fn scribble(world: &World, random: &mut Random, available: &mut u16) {
    match random.below(12) {
        0 => {
            let mut bytes = vec![0; random.below(300) as usize];
            bytes.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            let _ = world.memory.write(address(random), &bytes);
        }
        1 | 2 => {
            let place = world.at(DESCRIPTORS) + random.below(SIZE.into()) * 16;
            put(&world.memory, place, &random_descriptor(random));
        }
        3 => put(&world.memory, world.at(AVAILABLE) + 2, &(random.next_u64() as u16)),
        _ => {
            let head = random.below(5) as u16 * 3;
            let kind = [0, 0, 1, 1, 1, 4, 8, 11, 13, 99][random.below(10) as usize];
            let flags = if random.below(5) == 0 {
                random.below(8) as u16
            } else {
                2 * u16::from(kind == 0)
            };
            let sectors_max = if random.below(8) == 0 { 1 << 18 } else { 1 << 16 };
            world.request(head, kind, random.below(sectors_max), length(random), flags);
            world.make_available(*available, head);
            *available = available.wrapping_add(1);
        }
    }
}

/// Restarts a ring that rests, as a driver would that starts anew.
fn restart(world: &mut World, available: &mut u16) {
    let state = RingState { index: world.queue.into(), value: 0 };
    world.say(request::GET_VRING_BASE, state.as_bytes(), None);
    while let Some(request) = world.demand() {
        world.reply(request.number, Ok(()));
    }
    for place in [AVAILABLE, USED] {
        world.memory.write(world.at(place), &[0; 4]).unwrap();
    }
    *available = 0;
    world.say(request::SET_VRING_BASE, state.as_bytes(), None);
    world.start();
}

#[test]
fn guests_that_write_anything() {
    let (mut requests, mut restarts) = (0, 0);
    for seed in 0..seeds() {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let features = if seed % 2 == 0 { feature::EVENT_INDEX } else { 0 };
        let mut world = World::running(features);
        let mut available = 0;
        let mut under_way = Vec::new();
        for _ in 0..STEPS {
            scribble(&world, random, &mut available);
            world.kick();
            under_way.extend(std::iter::from_fn(|| world.demand()).map(|request| request.number));
            while !under_way.is_empty() && random.below(3) > 0 {
                let number = under_way.swap_remove(random.below(under_way.len() as u64) as usize);
                let failed = random.below(4) == 0;
                world.reply(number, if failed { Err(RequestError::Io) } else { Ok(()) });
                requests += 1;
            }
            if world.is_resting() && random.below(2) == 0 {
                under_way.drain(..).for_each(|number| world.reply(number, Ok(())));
                restart(&mut world, &mut available);
                restarts += 1;
            }
        }
        under_way.drain(..).for_each(|number| world.reply(number, Ok(())));
        assert!(world.is_connected(), "seed {seed}");
        assert_margins(&world.file);
        assert_eq!(world.pool.report().clients.used_bytes, 0, "seed {seed}");
        assert!(!world.front.has_requests(), "seed {seed}");
    }
    println!("{requests} requests, {restarts} restarts");
    assert!(requests > seeds() && restarts > seeds() / 4, "too few made sense, or too many");
}

/// Queues of a front end that says anything.
const QUEUES: u16 = 4;

/// A front end that says anything, and what it keeps beyond its connection.
struct Anyone {
    world: World,
    random: Random,
    available: [u16; QUEUES as usize],
    in_flight: (File, InFlightArea),
    /// Numbers of requests at the engine.
    under_way: Vec<u32>,
}

impl Anyone {
    fn new(seed: u64) -> Anyone {
        let world = World::new();
        let in_flight = in_flight::create(QUEUES, SIZE).unwrap();
        let (available, under_way) = ([0; QUEUES as usize], Vec::new());
        let mut anyone =
            Anyone { world, random: Random::new(seed), available, in_flight, under_way };
        anyone.set_up();
        anyone
    }

    /// Does what it takes to work with all queues.
    fn set_up(&mut self) {
        let features = if self.random.below(2) == 0 { feature::EVENT_INDEX } else { 0 };
        self.world.set_up(features | feature::PROTOCOL | feature::VERSION_1);
        if self.random.below(4) > 0 {
            self.hand_over_in_flight();
        }
        for queue in 0..QUEUES {
            self.world.queue = queue;
            self.world.start();
        }
    }

    fn hand_over_in_flight(&mut self) {
        let (file, area) = &self.in_flight;
        let file = OwnedFd::from(file.try_clone().unwrap());
        self.world.say(request::SET_INFLIGHT_FD, area.as_bytes(), Some(&file));
    }

    /// Bytes of any kind, with any file.
    fn say_anything(&mut self) {
        let random = &mut self.random;
        let mut payload = vec![0u8; random.below(48) as usize];
        for byte in &mut payload {
            let any = random.next_u64() as u8;
            *byte = if random.below(3) == 0 { any } else { any & 1 };
        }
        let event = self.world.kick.try_clone().unwrap();
        let file = OwnedFd::from(self.world.file.try_clone().unwrap());
        let file = [None, Some(&event), Some(&file)][random.below(3) as usize];
        self.world.say(random.below(42) as u32, &payload, file);
        if random.below(20) == 0 {
            let _ = self.world.peer.write_all(&payload);
            self.world.listen();
        }
    }

    /// A message that makes sense, at a time when it may not.
    fn say_something_known(&mut self) {
        let random = &mut self.random;
        let index = u32::from(self.world.queue);
        let state = |value| RingState { index, value }.as_bytes().to_vec();
        let (request, payload) = match random.below(10) {
            0 => return self.world.start(),
            1 => return self.set_up(),
            2 => return self.hand_over_in_flight(),
            3 => (request::SET_VRING_NUM, state(1 << random.below(12))),
            4 => (request::SET_VRING_BASE, state(random.below(40) as u32)),
            5 => (request::SET_VRING_KICK, (1u64 << 8).as_bytes().to_vec()),
            6 | 7 => (request::SET_VRING_ENABLE, state(random.below(2) as u32)),
            _ => (request::GET_VRING_BASE, state(0)),
        };
        self.world.say(request, &payload, None);
    }

    /// Anything at all.
    fn act(&mut self) {
        self.world.queue = self.random.below(QUEUES.into()) as u16;
        if self.world.is_resting() && self.random.below(2) == 0 {
            self.reply(usize::MAX);
            let available = &mut self.available[usize::from(self.world.queue)];
            return restart(&mut self.world, available);
        }
        match self.random.below(24) {
            0 => self.say_anything(),
            1 | 2 => self.say_something_known(),
            3 => {
                let (file, area) = &self.in_flight;
                let byte = [self.random.below(3) as u8];
                file.write_all_at(&byte, self.random.below(area.bytes)).unwrap();
            }
            _ => {
                let available = &mut self.available[usize::from(self.world.queue)];
                scribble(&self.world, &mut self.random, available);
                self.world.kick();
            }
        }
    }

    /// Takes what is wanted of the engine. Returns how much that is.
    fn take_demands(&mut self) -> u64 {
        let before = self.under_way.len();
        self.under_way.extend(std::iter::from_fn(|| self.world.demand()).map(|r| r.number));
        (self.under_way.len() - before) as u64
    }

    /// Ends up to as many requests, in any order.
    fn reply(&mut self, most: usize) {
        for _ in 0..most.min(self.under_way.len()) {
            let place = self.random.below(self.under_way.len() as u64) as usize;
            let number = self.under_way.swap_remove(place);
            let failed = self.random.below(4) == 0;
            self.world.reply(number, if failed { Err(RequestError::Io) } else { Ok(()) });
            self.take_demands();
        }
    }

    /// Another one connects in its place; it has the same guest, and is served when the last
    /// request of its predecessor has ended.
    fn connect(&mut self) {
        let (own, peer) = UnixStream::pair().unwrap();
        let own = std::os::fd::IntoRawFd::into_raw_fd(own);
        self.world.with(|front, context| front.handle_accept(context, 0, own));
        self.world.peer = peer;
        self.reply(usize::MAX);
        self.let_go_of_the_last();
        assert!(self.world.is_connected());
    }

    /// Until nothing is known of a front end that has gone.
    fn let_go_of_the_last(&mut self) {
        let is_going = |world: &World| {
            let session = world.front.devices[0].session.as_ref();
            session.is_some_and(|session| session.is_closing)
        };
        let mut turns = 0;
        while is_going(&self.world) {
            turns += 1;
            assert!(turns < 10_000, "a front end is never let go of");
            self.world.turn();
        }
    }
}

#[test]
fn front_ends_that_say_anything() {
    let (mut requests, mut left_under_way, mut again) = (0, 0, 0);
    for seed in 0..seeds() {
        println!("seed {seed}");
        let mut anyone = Anyone::new(seed);
        for _ in 0..STEPS {
            anyone.act();
            requests += anyone.take_demands();
            if anyone.world.is_connected() {
                let most = anyone.random.below(4) as usize;
                anyone.reply(most);
                continue;
            }
            left_under_way += anyone.under_way.len();
            anyone.connect();
            anyone.set_up();
            again += anyone.take_demands();
        }
        // A process that another test forks meanwhile would keep a socket open that is only closed.
        anyone.world.peer.shutdown(Shutdown::Both).unwrap();
        anyone.world.listen();
        anyone.reply(usize::MAX);
        anyone.let_go_of_the_last();
        let world = &anyone.world;
        assert_margins(&world.file);
        assert!(world.front.is_empty() && !world.front.has_requests(), "seed {seed}");
        assert_eq!(world.pool.report().clients.used_bytes, 0, "seed {seed}");
    }
    println!("{requests} requests, {left_under_way} left under way, {again} after a connection");
    let seeds = seeds() as usize;
    assert!(requests > seeds as u64 && again > 0, "too few made sense");
    assert!(left_under_way > seeds / 10, "too few had something under way when they were left");
}
