//! Chains of descriptors, good and bad, and requests in them.

use super::super::ring::{Chain, Places, RingFault, SplitRing};
use super::*;

fn ring(memory: &Memory, features: u64) -> SplitRing {
    let places = Places { descriptors: DESCRIPTORS, available: AVAILABLE, used: USED };
    SplitRing::start(memory, SIZE, places, features).unwrap()
}

fn walk(memory: &Memory, head: u16) -> Result<Chain, RingFault> {
    let mut chain = Chain::default();
    ring(memory, 0).walk(memory, head, &mut chain).map(|()| chain)
}

#[test]
fn chains_are_walked_through_tables_of_both_kinds() {
    let memory = map(&guest_file());
    put(&memory, DESCRIPTORS, &descriptor(DATA, 16, 1, 5));
    put(&memory, DESCRIPTORS + 5 * 16, &descriptor(DATA + 0x100, 32, 4, 0));
    put(&memory, DATA + 0x100, &descriptor(DATA + 0x200, 512, 1 | 2, 1));
    put(&memory, DATA + 0x110, &descriptor(DATA + 0x400, 1, 2, 0));
    let chain = walk(&memory, 0).unwrap();
    assert_eq!((chain.readable.len(), chain.writable.len()), (1, 2));
    assert_eq!(chain.writable[1].address, DATA + 0x400);
}

#[test]
fn chains_that_make_no_sense_are_faults() {
    let memory = map(&guest_file());
    let fault = |first: Descriptor, second: Descriptor| {
        put(&memory, DESCRIPTORS, &first);
        put(&memory, DESCRIPTORS + 16, &second);
        walk(&memory, 0).err()
    };
    let good = descriptor(DATA, 16, 0, 0);
    let first = descriptor(DATA, 16, 1, 1);
    assert_eq!(fault(first, good), None);
    assert_eq!(fault(first, descriptor(DATA, 16, 1, 0)), Some(RingFault::ChainTooLong));
    assert_eq!(fault(first, descriptor(DATA, 16, 1, SIZE)), Some(RingFault::NextOutOfRange));
    let writable = descriptor(DATA, 16, 1 | 2, 1);
    assert_eq!(fault(writable, good), Some(RingFault::WritableBeforeReadable));
    for (address, bytes) in
        [(0, 16), (GUEST - 1, 2), (GUEST + BYTES - 15, 16), (u64::MAX, 16), (DATA, u32::MAX)]
    {
        let outside = descriptor(address, bytes, 0, 0);
        assert_eq!(fault(first, outside), Some(RingFault::SegmentOutsideOfMemory));
    }
    for bytes in [0, 15, 17] {
        assert_eq!(fault(first, descriptor(DATA, bytes, 4, 0)), Some(RingFault::IndirectLength));
    }
    put(&memory, DATA, &descriptor(DATA + 0x100, 16, 4, 0));
    assert_eq!(fault(first, descriptor(DATA, 16, 4, 0)), Some(RingFault::IndirectTwice));
    assert_eq!(fault(first, descriptor(DATA, 16, 4 | 1, 0)), Some(RingFault::IndirectTwice));
}

#[test]
fn rings_that_make_no_sense_are_faults() {
    let memory = map(&guest_file());
    let mut places = Places { descriptors: DESCRIPTORS, available: AVAILABLE, used: USED };
    let start = |places| SplitRing::start(&memory, SIZE, places, 0).err();
    assert_eq!(start(places), None);
    places.used = GUEST + BYTES - 4;
    assert_eq!(start(places), Some(RingFault::OutsideOfMemory));
    places.used = USED + 2;
    assert_eq!(start(places), Some(RingFault::Misaligned));
    let mut ring = ring(&memory, 0);
    put(&memory, AVAILABLE + 2, &(SIZE + 1));
    assert_eq!(ring.pop(&memory), Err(RingFault::AvailableIndex));
    put(&memory, AVAILABLE + 2, &1u16);
    put(&memory, AVAILABLE + 4, &SIZE);
    assert_eq!(ring.pop(&memory), Err(RingFault::HeadOutOfRange));
}

#[test]
fn drivers_are_called_when_they_want_to_be() {
    let memory = map(&guest_file());
    let mut plain = ring(&memory, 0);
    assert_eq!(plain.needs_call(&memory), Ok(false), "nothing was used");
    plain.push_used(&memory, 0, 1).unwrap();
    assert_eq!(plain.needs_call(&memory), Ok(true));
    put(&memory, AVAILABLE, &1u16);
    plain.push_used(&memory, 0, 1).unwrap();
    assert_eq!(plain.needs_call(&memory), Ok(false));
    let mut ring = ring(&memory, feature::EVENT_INDEX);
    let event = AVAILABLE + 4 + u64::from(SIZE) * 2;
    put(&memory, event, &ring.next_used());
    ring.push_used(&memory, 0, 1).unwrap();
    assert_eq!(ring.needs_call(&memory), Ok(true));
    ring.push_used(&memory, 0, 1).unwrap();
    assert_eq!(ring.needs_call(&memory), Ok(false), "its event lies behind");
}

#[test]
fn a_request_may_be_cut_in_any_way() {
    let mut world = World::running(0);
    put(&world.memory, DATA, &[1u64, 8]);
    world.memory.write(DATA + 16, &[0x55; 512]).unwrap();
    // Header in two parts, the second of which brings data along; an empty part; the status last.
    let parts = [(DATA, 5, 1, 1), (DATA + 5, 11 + 500, 1, 2), (DATA, 0, 1, 3)];
    let rest = [(DATA + 516, 12, 1, 4), (DATA + 0x1000, 0, 1 | 2, 5), (DATA + 0x1000, 1, 2, 0)];
    for (index, (address, bytes, flags, next)) in (0..).zip(parts.into_iter().chain(rest)) {
        put(&world.memory, DESCRIPTORS + index * 16, &descriptor(address, bytes, flags, next));
    }
    world.make_available(0, 0);
    world.kick();
    let request = world.demand().unwrap();
    assert_eq!((request.offset_bytes, request.length_bytes), (8 * 512, 512));
    let forebay_engine::request::RequestKind::Write { buffer, durability } = request.kind else {
        panic!("{request:?} is no write");
    };
    // The driver did not take flushes into its terms.
    assert_eq!(durability, forebay_engine::request::Durability::ForcedUnitAccess);
    let range = forebay_engine::payload::BufferRange { buffer, offset: 0, length: 512 };
    assert!(world.pool.slice(range) == [0x55; 512]);
    world.reply(request.number, Err(RequestError::NoSpace));
    let mut status = [0];
    world.memory.read(DATA + 0x1000, &mut status).unwrap();
    assert_eq!((status[0], world.used()), (1, 1));
}

/// Drivers are told how many there may be, and memory is kept for that many.
#[test]
fn a_request_has_as_many_segments_as_were_offered_and_no_more() {
    let mut world = World::running(0);
    // Header, data of a logical block each, and status.
    let make = |world: &World, kind: u64, count: u64| {
        let table = DATA + 0x40000;
        put(&world.memory, DESCRIPTORS, &descriptor(table, (count as u32 + 2) * 16, 4, 0));
        put(&world.memory, DATA, &[kind, 0]);
        put(&world.memory, table, &descriptor(DATA, 16, 1, 1));
        let flags = if kind == 0 { 1 | 2 } else { 1 };
        for index in 1..=count {
            let data = descriptor(DATA + 0x1000 + index * 512, 512, flags, index as u16 + 1);
            put(&world.memory, table + index * 16, &data);
        }
        put(&world.memory, table + (count + 1) * 16, &descriptor(DATA + 0x80, 1, 2, 0));
        put(&world.memory, DATA + 0x80, &0xffu8);
    };
    for (index, kind) in [0, 1].into_iter().enumerate() {
        let first = index as u16 * 2;
        make(&world, kind, 126);
        world.make_available(first, 0);
        world.kick();
        let request = world.demand().expect("as many as were offered");
        assert_eq!(request.length_bytes, 126 * 512);
        world.reply(request.number, Ok(()));
        assert_eq!((world.status(0), world.used()), (0, first + 1));
        make(&world, kind, 127);
        world.make_available(first + 1, 0);
        world.kick();
        assert!(world.demand().is_none());
        assert_eq!((world.status(0), world.used()), (1, first + 2));
    }
    assert!(world.is_connected());
}

#[test]
fn a_ring_with_a_fault_rests() {
    let mut world = World::running(feature::EVENT_INDEX);
    world.request(0, 0, 0, 512, 2);
    world.make_available(0, 0);
    world.make_available(1, 0);
    world.kick();
    assert!(world.is_resting(), "a head came twice");
    // What came before goes on, and what comes behind is not looked at.
    let request = world.demand().unwrap();
    world.request(3, 0, 0, 512, 2);
    world.make_available(2, 3);
    world.kick();
    assert!(world.demand().is_none());
    world.reply(request.number, Ok(()));
    assert_eq!((world.used(), world.status(0)), (1, 0));
    assert!(world.is_connected());
}
