//! Three queues, in the manner of S3-FIFO (Yang et al., SOSP 2023) and Clock2Q+ (arXiv 2511.21958).
//!
//! New blocks enter a small queue. One that was hit before it reaches the end moves to the main
//! queue, a ring with one reference bit; else it is demoted and remembered as a fingerprint, for as
//! many demotions as half of the cache has blocks. A remembered block that comes back goes to the
//! main queue at once. Right after a block was placed, hits set no bit: in front of a block device
//! they are mostly one access of several requests.
//!
//! The small queue has 8 % of the cache as long as the main queue is of use, and up to 32 % when it
//! is not: when clients turned to other blocks, or come back to blocks sooner or later but not
//! again and again. Use is what the ring keeps: 55 blocks for each 100 that the cache demotes are
//! full use, looked back over about as many demotions as the cache has blocks. So a short memory,
//! which does better on most block traces, does not make the cache slow to turn to other blocks.
//!
//! When the ring has lost half as many blocks as the cache has and kept none, all of its room goes
//! to the small queue: clients then come back to what they used last, and not again, as where a
//! range is read to and fro, and the oldest block is the right one to lose. The first block that
//! the ring keeps ends it, or the first that was hit more than once in the small queue. A scan
//! cannot begin it: what is read once never gets to the ring.
//!
//! With these shares it misses less than LRU on each of the traces that the advisor is tested with
//! (`crates/advisor/tests/published.rs`); `docs/policy-figures.md` has the figures.

use super::ghost::Ghost;
use super::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use crate::block_bits::BlockBits;
use crate::units::CacheBlock;

/// Share of the cache that the small queue has while the main queue is of full use.
const SMALL_PERCENT: u64 = 8;
/// Its share while the main queue is of no use.
const SMALL_PERCENT_MAX: u64 = 32;
/// Demotions from the main queue without a block that it kept, as a part of the cache, after which
/// it is idle: a divisor.
const IDLE_DIVISOR: u64 = 2;
/// Demoted blocks that are remembered, as a share of the blocks of the cache.
const GHOST_PERCENT: u64 = 50;
/// Share of the cache, the blocks that were placed in the small queue last, in which a hit does not
/// count.
const CORRELATED_PERCENT: u64 = 4;
/// Blocks kept by the main queue for each 100 that are demoted that are full use.
const FULL_USE_PERCENT: u64 = 55;
/// Steps in which use is forgotten, for as many demotions as the cache has blocks.
const STEPS: u64 = 64;

/// A small queue, a ring and a ghost.
pub struct Clock2q {
    referenced: BlockBits,
    /// Used more than once since.
    used_often: BlockBits,
    ghost: Ghost,
    use_of_main: Use,
    cache_blocks: u64,
    /// What the small queue may have at present.
    small_blocks: u64,
}

impl Clock2q {
    /// For a cache of so many blocks at most, which is also how many positions there are.
    pub fn new(cache_blocks: u64) -> Clock2q {
        let use_of_main = Use::full(cache_blocks);
        Clock2q {
            referenced: BlockBits::new(cache_blocks),
            used_often: BlockBits::new(cache_blocks),
            ghost: Ghost::new(cache_blocks * GHOST_PERCENT / 100),
            small_blocks: small_blocks(cache_blocks, &use_of_main),
            use_of_main,
            cache_blocks,
        }
    }
}

/// What the small queue may have: the more the less the main queue is of use, and one in any case.
fn small_blocks(cache_blocks: u64, use_of_main: &Use) -> u64 {
    if use_of_main.idle_demotions > cache_blocks / IDLE_DIVISOR {
        return cache_blocks.max(1);
    }
    let least = cache_blocks * SMALL_PERCENT / 100;
    let growth = cache_blocks * (SMALL_PERCENT_MAX - SMALL_PERCENT) / 100;
    (least + growth - use_of_main.part_of(growth)).max(1)
}

/// How much the main queue is of use, of late.
struct Use {
    /// Blocks it kept, over as many demotions as the cache has blocks: older ones fade away.
    kept_blocks: u64,
    /// Demotions since they faded last.
    demotions: u64,
    /// What counts as full use; at least 1.
    full_blocks: u64,
    demotions_per_step: u64,
    /// Demotions from it since it kept a block or got one that was used often.
    idle_demotions: u64,
}

impl Use {
    fn full(cache_blocks: u64) -> Use {
        let full_blocks = (cache_blocks * FULL_USE_PERCENT / 100).max(1);
        let demotions_per_step = cache_blocks.div_ceil(STEPS).max(1);
        Use {
            kept_blocks: full_blocks,
            demotions: 0,
            full_blocks,
            demotions_per_step,
            idle_demotions: 0,
        }
    }

    /// What was kept counts as much as before.
    fn resize(&mut self, from_blocks: u64, to_blocks: u64) {
        let full = Use::full(to_blocks);
        let kept_blocks = self.kept_blocks * to_blocks / from_blocks.max(1);
        let Use { demotions, idle_demotions, .. } = *self;
        *self = Use { kept_blocks, demotions, idle_demotions, ..full };
    }

    /// At most twice full use is remembered, so that it does not take long to forget.
    fn on_kept(&mut self) {
        self.kept_blocks = (self.kept_blocks + 1).min(2 * self.full_blocks);
    }

    fn on_demoted(&mut self, from: Queue) {
        self.demotions += 1;
        self.idle_demotions += u64::from(from == Queue::Main);
        if self.demotions >= self.demotions_per_step {
            self.demotions = 0;
            self.kept_blocks -= self.kept_blocks.div_ceil(STEPS);
        }
    }

    /// The part of `blocks` that the use is of full use.
    fn part_of(&self, blocks: u64) -> u64 {
        blocks * self.kept_blocks.min(self.full_blocks) / self.full_blocks
    }
}

impl Policy for Clock2q {
    fn resize(&mut self, cache_blocks: u64) {
        self.use_of_main.resize(self.cache_blocks, cache_blocks);
        self.ghost.resize(cache_blocks * GHOST_PERCENT / 100);
        self.cache_blocks = cache_blocks;
        self.small_blocks = small_blocks(cache_blocks, &self.use_of_main);
    }

    fn has_small_queue(&self) -> bool {
        true
    }

    /// Of what is read or written as one, half must be known.
    fn queue_of_new(&mut self, key: BlockKey, block_count: u32) -> Queue {
        let known = self.ghost.take_run(key, block_count);
        if 2 * known >= block_count { Queue::Main } else { Queue::Small }
    }

    fn remembers(&self, key: BlockKey, block_count: u32) -> bool {
        2 * self.ghost.known_of_run(key, block_count) >= block_count
    }

    fn on_placed(&mut self, position: CacheBlock, block_count: u32, standing: Standing) {
        self.used_often.clear_run(position, block_count);
        match standing {
            Standing::New => self.referenced.clear_run(position, block_count),
            Standing::Proven => self.referenced.set_run(position, block_count),
        }
    }

    fn on_hit(&mut self, hit: &Hit) -> OnHit {
        let is_correlated = hit.queue == Queue::Small
            && hit.depth_blocks < self.cache_blocks * CORRELATED_PERCENT / 100;
        if !is_correlated {
            let Hit { position, block_count, .. } = *hit;
            for block in position.0..position.0 + block_count {
                let block = CacheBlock(block);
                if self.referenced.any(block, 1) {
                    self.used_often.set(block);
                } else {
                    self.referenced.set(block);
                }
            }
        }
        OnHit::Stay
    }

    fn victim_queue(&self, lengths: &Lengths) -> Queue {
        if lengths.small_blocks > self.small_blocks || lengths.main_blocks == 0 {
            Queue::Small
        } else {
            Queue::Main
        }
    }

    fn turn(&mut self, position: CacheBlock, from: Queue) -> Worth {
        let is_often = self.used_often.take(position);
        if !self.referenced.take(position) {
            return Worth::Nothing;
        }
        if from == Queue::Main {
            self.use_of_main.on_kept();
        }
        if from == Queue::Main || is_often {
            self.use_of_main.idle_demotions = 0;
        }
        if is_often { Worth::UsedOften } else { Worth::Used }
    }

    fn on_demoted(&mut self, key: BlockKey, block_count: u32, from: Queue) {
        if from == Queue::Small {
            self.ghost.insert_run(key, block_count);
        }
        for _ in 0..block_count {
            self.use_of_main.on_demoted(from);
        }
        self.small_blocks = small_blocks(self.cache_blocks, &self.use_of_main);
    }

    fn would_keep(&self, position: CacheBlock, block_count: u32) -> bool {
        self.referenced.any(position, block_count)
    }

    fn references(&self, position: CacheBlock) -> u64 {
        self.referenced.word(position)
    }

    fn restore(&mut self, position: CacheBlock, references: u64) {
        self.referenced.set_word(position, references);
    }

    fn prefetch(&self, position: CacheBlock) {
        self.referenced.prefetch(position);
        self.used_often.prefetch(position);
    }

    fn memory_bytes(&self) -> usize {
        let bits = self.referenced.memory_bytes() + self.used_often.memory_bytes();
        bits + self.ghost.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 0, block }
    }

    fn hit(position: u32, queue: Queue, depth_blocks: u64) -> Hit {
        Hit { position: CacheBlock(position), block_count: 1, queue, depth_blocks }
    }

    fn keeps(policy: &mut Clock2q, position: u32, from: Queue) -> bool {
        policy.turn(CacheBlock(position), from) > Worth::Nothing
    }

    /// A small queue of 80 blocks, in the young half of which hits do not count.
    fn policy() -> Clock2q {
        Clock2q::new(1_000)
    }

    #[test]
    fn what_is_hit_later_than_right_away_is_kept_once() {
        let mut policy = policy();
        policy.on_placed(CacheBlock(3), 2, Standing::New);
        assert_eq!(policy.on_hit(&hit(3, Queue::Small, 39)), OnHit::Stay);
        assert!(!keeps(&mut policy, 3, Queue::Small), "it was correlated");
        assert_eq!(policy.on_hit(&hit(3, Queue::Small, 40)), OnHit::Stay);
        assert_eq!(policy.on_hit(&hit(4, Queue::Main, 0)), OnHit::Stay);
        for position in [3, 4] {
            assert!(keeps(&mut policy, position, Queue::Small));
            assert!(!keeps(&mut policy, position, Queue::Small), "it had its turn");
        }
    }

    #[test]
    fn what_is_hit_again_and_again_is_worth_more() {
        let mut policy = policy();
        policy.on_placed(CacheBlock(3), 2, Standing::New);
        policy.on_hit(&hit(3, Queue::Main, 0));
        policy.on_hit(&hit(4, Queue::Main, 0));
        policy.on_hit(&hit(4, Queue::Main, 0));
        assert_eq!(policy.turn(CacheBlock(3), Queue::Main), Worth::Used);
        assert_eq!(policy.turn(CacheBlock(4), Queue::Main), Worth::UsedOften);
        policy.on_hit(&hit(4, Queue::Main, 0));
        assert_eq!(policy.turn(CacheBlock(4), Queue::Main), Worth::Used, "it begins anew");
    }

    #[test]
    fn shares_follow_the_size_of_the_cache() {
        let mut policy = policy();
        policy.resize(500);
        assert_eq!(small_blocks(&policy), 40);
        let young = hit(0, Queue::Small, 19);
        policy.on_hit(&young);
        assert!(!keeps(&mut policy, 0, Queue::Small));
        policy.on_hit(&Hit { depth_blocks: 20, ..young });
        assert!(keeps(&mut policy, 0, Queue::Small));
        turn(&mut policy, 2_500, 0);
        policy.resize(1_000);
        assert!(small_blocks(&policy) > 300, "what was learnt of the main queue counts still");
        for block in 0..400 {
            policy.on_demoted(key(block), 1, Queue::Small);
        }
        let known = (0..400).filter(|block| policy.queue_of_new(key(*block), 1) == Queue::Main);
        assert!(known.count() > 380);
    }

    #[test]
    fn what_is_placed_is_judged_anew_unless_it_is_proven() {
        let mut policy = policy();
        policy.on_hit(&hit(7, Queue::Main, 0));
        policy.on_placed(CacheBlock(7), 1, Standing::New);
        assert!(!keeps(&mut policy, 7, Queue::Main));
        policy.on_placed(CacheBlock(7), 1, Standing::Proven);
        assert!(keeps(&mut policy, 7, Queue::Main));
    }

    #[test]
    fn what_comes_back_from_the_small_queue_has_proven_itself() {
        let mut policy = policy();
        policy.on_demoted(key(1), 1, Queue::Small);
        policy.on_demoted(key(2), 1, Queue::Main);
        assert_eq!(policy.queue_of_new(key(1), 1), Queue::Main);
        assert_eq!(policy.queue_of_new(key(1), 1), Queue::Small, "it was remembered once");
        assert_eq!(policy.queue_of_new(key(2), 1), Queue::Small);
    }

    /// The largest small queue that loses nothing to a main queue with something in it.
    fn small_blocks(policy: &Clock2q) -> u64 {
        let named = |small_blocks: &u64| {
            policy.victim_queue(&Lengths { small_blocks: *small_blocks, main_blocks: 500 })
        };
        (0..=1_000).take_while(|blocks| named(blocks) == Queue::Main).last().expect("at least 0")
    }

    /// Demotes `demoted` blocks while the main queue keeps `kept_percent` for each hundred of them.
    fn turn(policy: &mut Clock2q, demoted: u64, kept_percent: u64) {
        for number in 0..demoted {
            for _ in 0..(number + 1) * kept_percent / 100 - number * kept_percent / 100 {
                policy.on_hit(&hit(0, Queue::Main, 500));
                assert!(keeps(policy, 0, Queue::Main));
            }
            policy.on_demoted(key(number), 1, Queue::Small);
        }
    }

    #[test]
    fn the_small_queue_gives_up_what_it_has_too_much_of() {
        let policy = policy();
        let named =
            |small_blocks, main_blocks| policy.victim_queue(&Lengths { small_blocks, main_blocks });
        assert_eq!(named(81, 900), Queue::Small);
        assert_eq!(named(80, 900), Queue::Main);
        assert_eq!(named(10, 0), Queue::Small, "the other one is empty");
    }

    #[test]
    fn the_small_queue_grows_while_the_main_one_is_of_no_use() {
        let mut policy = policy();
        turn(&mut policy, 5_000, 60);
        assert_eq!(small_blocks(&policy), 80, "60 kept for 100 demoted are full use");
        turn(&mut policy, 300, 0);
        let soon = small_blocks(&policy);
        assert!((110..160).contains(&soon), "{soon} after a third of the cache was demoted");
        turn(&mut policy, 5_000, 0);
        assert!((315..=320).contains(&small_blocks(&policy)), "{}", small_blocks(&policy));
        turn(&mut policy, 5_000, 28);
        let half = small_blocks(&policy);
        assert!((180..220).contains(&half), "{half} at half of full use");
        turn(&mut policy, 5_000, 60);
        assert_eq!(small_blocks(&policy), 80);
    }

    #[test]
    fn a_main_queue_that_keeps_nothing_for_long_gives_up_its_room() {
        let mut policy = policy();
        let lose = |policy: &mut Clock2q, lost: u64| {
            (0..lost).for_each(|number| policy.on_demoted(key(number), 1, Queue::Main));
        };
        lose(&mut policy, 500);
        assert!(small_blocks(&policy) <= 320);
        lose(&mut policy, 20);
        assert_eq!(small_blocks(&policy), 1_000);
        policy.resize(500);
        assert_eq!(small_blocks(&policy), 500, "a change of size is no news");
        turn(&mut policy, 100, 2);
        let soon = small_blocks(&policy);
        assert!((60..=160).contains(&soon), "{soon} after two blocks were kept");
    }

    #[test]
    fn an_idle_main_queue_is_given_room_again_for_what_is_used_often() {
        let mut policy = policy();
        (0..600).for_each(|number| policy.on_demoted(key(number), 1, Queue::Main));
        policy.on_hit(&hit(0, Queue::Small, 500));
        assert!(keeps(&mut policy, 0, Queue::Small));
        policy.on_demoted(key(601), 1, Queue::Main);
        assert_eq!(small_blocks(&policy), 1_000, "one more use is none of the main queue");
        policy.on_hit(&hit(0, Queue::Small, 500));
        policy.on_hit(&hit(0, Queue::Small, 500));
        assert!(keeps(&mut policy, 0, Queue::Small));
        policy.on_demoted(key(602), 1, Queue::Main);
        assert!(small_blocks(&policy) <= 320, "{}", small_blocks(&policy));
    }

    #[test]
    fn a_scan_does_not_take_the_room_of_a_main_queue_that_has_not_had_its_turn() {
        let mut policy = policy();
        turn(&mut policy, 100_000, 0);
        assert!(small_blocks(&policy) <= 320, "{}", small_blocks(&policy));
    }

    #[test]
    fn what_the_small_queue_keeps_is_no_use_of_the_main_one() {
        let mut policy = policy();
        for number in 0..5_000 {
            policy.on_hit(&hit(0, Queue::Small, 500));
            assert!(keeps(&mut policy, 0, Queue::Small));
            policy.on_demoted(key(number), 1, Queue::Small);
        }
        assert!(small_blocks(&policy) > 300);
    }

    #[test]
    fn much_use_is_not_remembered_for_longer() {
        let mut policy = policy();
        turn(&mut policy, 5_000, 900);
        turn(&mut policy, 2_500, 0);
        assert!(small_blocks(&policy) > 250, "{}", small_blocks(&policy));
    }

    #[test]
    fn a_cache_of_any_size_has_a_small_queue() {
        for cache_blocks in [0, 1, 2, 3, 12, 13, 100] {
            let mut policy = Clock2q::new(cache_blocks);
            for number in 0..1_000 {
                policy.on_demoted(key(number), 1, Queue::Main);
            }
            let blocks = small_blocks(&policy);
            assert!(blocks >= 1 && blocks <= cache_blocks.max(1), "{blocks} of {cache_blocks}");
        }
    }

    #[test]
    fn a_large_cache_takes_little_memory_before_it_demotes() {
        // 4 TiB, the largest that there is.
        let cache_blocks = 1 << 30;
        let policy = Clock2q::new(cache_blocks);
        let ghost_bytes = policy.memory_bytes() as u64 - 2 * cache_blocks / 8;
        assert!(ghost_bytes * 8 < cache_blocks, "{ghost_bytes}");
    }
}
