//! What it costs to have a request handed to another thread, and its answer back: the price of a
//! front end with a thread of its own, which parses the rings and leaves the rest to the thread of
//! the engine.
//!
//! Each side takes all that is there, hands over all that it has in one go, tells the other side by
//! one eventfd, and sleeps in a read of its own. Nothing is done with a request: latency and CPU
//! time are those of the way alone, and a lower bound of what it would cost in a server, which
//! would have to wait for more than one event.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use crate::load::Load;
use crate::{Share, on_threads};

/// One way: slots of requests, and the event that tells of them.
struct Way {
    slots: Mutex<Vec<u16>>,
    event: EventFd,
}

impl Way {
    fn new(depth: u16) -> io::Result<Way> {
        let slots = Mutex::new(Vec::with_capacity(depth.into()));
        Ok(Way { slots, event: EventFd::new(0)? })
    }

    /// Hands over all of `slots`, which is empty then.
    fn give(&self, slots: &mut Vec<u16>) -> io::Result<()> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).append(slots);
        self.event.write(1)
    }

    /// Sleeps until something is handed over, and takes all of it into `slots`, which is empty.
    fn take(&self, slots: &mut Vec<u16>) -> io::Result<()> {
        self.event.read()?;
        std::mem::swap(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner), slots);
        Ok(())
    }
}

/// Runs the load between two threads until it is over.
pub(crate) fn run(load: Load) -> io::Result<Vec<Share>> {
    let depth = load.depth();
    let (there, back) = (Way::new(depth)?, Way::new(depth)?);
    on_threads(vec![Some(load), None], |load| match load {
        Some(load) => ask(load, &there, &back),
        None => answer(depth, &there, &back),
    })
}

/// The side that has the requests. It ends with an empty batch.
fn ask(mut load: Load, there: &Way, back: &Way) -> io::Result<Share> {
    let now = Instant::now();
    let mut slots: Vec<u16> =
        (0..load.depth()).filter(|slot| load.begin(*slot, now).is_some()).collect();
    // Who answers gives back all that it takes, so all that are under way are here.
    while load.in_flight() > 0 {
        there.give(&mut slots)?;
        back.take(&mut slots)?;
        let now = Instant::now();
        slots.retain(|slot| {
            load.end(*slot, now);
            load.begin(*slot, now).is_some()
        });
    }
    there.give(&mut slots)?;
    Ok(Share { latencies: Some(load.latencies), ..Share::default() })
}

/// The side of the engine.
fn answer(depth: u16, there: &Way, back: &Way) -> io::Result<Share> {
    let mut slots = Vec::with_capacity(depth.into());
    loop {
        there.take(&mut slots)?;
        if slots.is_empty() {
            return Ok(Share::default());
        }
        back.give(&mut slots)?;
    }
}
