//! Guests and front ends that write anything anywhere: nothing panics, nothing is touched that was
//! not shared, and no memory is lost. A failure names its seed.

use std::io::Write;

use forebay_device_model::Random;

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
    match random.below(6) {
        0 => {
            let mut bytes = vec![0; random.below(300) as usize];
            bytes.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            let _ = world.memory.write(address(random), &bytes);
        }
        1 | 2 => {
            let place = DESCRIPTORS + random.below(SIZE.into()) * 16;
            put(&world.memory, place, &random_descriptor(random));
        }
        3 => put(&world.memory, AVAILABLE + 2, &(random.next_u64() as u16)),
        _ => {
            let head = random.below(5) as u16 * 3;
            let kind = [0, 1, 4, 8, 11, 13, 99][random.below(7) as usize];
            let flags = if random.below(5) == 0 {
                random.below(8) as u16
            } else {
                2 * u16::from(kind == 0)
            };
            world.request(head, kind, random.below(1 << 18), length(random), flags);
            world.make_available(*available, head);
            *available = available.wrapping_add(1);
        }
    }
}

/// Restarts a ring that rests, as a driver would that starts anew.
fn restart(world: &mut World, available: &mut u16) {
    world.say(request::GET_VRING_BASE, RingState { index: 0, value: 0 }.as_bytes(), None);
    while let Some(request) = world.demand() {
        world.reply(request.number, Ok(()));
    }
    for place in [AVAILABLE, USED] {
        world.memory.write(place, &[0; 4]).unwrap();
    }
    *available = 0;
    world.say(request::SET_VRING_BASE, RingState { index: 0, value: 0 }.as_bytes(), None);
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

#[test]
fn front_ends_that_say_anything() {
    let mut survivors = 0;
    for seed in 0..seeds() {
        let random = &mut Random::new(seed);
        let mut world = World::running(0);
        for _ in 0..10 {
            let mut payload = vec![0u8; random.below(48) as usize];
            for byte in &mut payload {
                let any = random.next_u64() as u8;
                *byte = if random.below(3) == 0 { any } else { any & 1 };
            }
            let event = world.kick.try_clone().unwrap();
            let file = OwnedFd::from(world.file.try_clone().unwrap());
            let file = [None, Some(&event), Some(&file)][random.below(3) as usize];
            world.say(random.below(42) as u32, &payload, file);
            if random.below(20) == 0 {
                let _ = world.peer.write_all(&payload);
                world.listen();
            }
            while let Some(request) = world.demand() {
                world.reply(request.number, Ok(()));
            }
            if !world.is_connected() {
                break;
            }
        }
        survivors += u64::from(world.is_connected());
        assert_margins(&world.file);
        assert_eq!(world.pool.report().clients.used_bytes, 0, "seed {seed}");
    }
    assert!(survivors < seeds());
}
