//! First in, first out: hits change nothing.

use super::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use crate::units::CacheBlock;

/// One queue in order of appending.
pub struct Fifo;

impl Policy for Fifo {
    fn queue_of_new(&mut self, _: BlockKey, _: u32) -> Queue {
        Queue::Main
    }

    fn on_placed(&mut self, _: CacheBlock, _: u32, _: Standing) {}

    fn on_hit(&mut self, _: &Hit) -> OnHit {
        OnHit::Stay
    }

    fn victim_queue(&self, _: &Lengths) -> Queue {
        Queue::Main
    }

    fn turn(&mut self, _: CacheBlock, _: Queue) -> Worth {
        Worth::Nothing
    }

    fn on_demoted(&mut self, _: BlockKey, _: u32, _: Queue) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}
