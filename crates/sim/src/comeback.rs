//! A cache device that was gone comes back while its clients are still there: the engine that lost
//! it is replaced by one that recovers it, as a host does it.
//!
//! What was answered before the loss must be there again, or be named: only what no flush had
//! covered may be named, and no flush of that volume may succeed afterwards.

use forebay_engine::event::Event;
use forebay_engine::options::OriginOpening;
use forebay_engine::request::Request;
use forebay_engine::status::{CacheFailure, CacheHealth};
use forebay_engine::units::{BLOCK_BYTES, OriginBlock, SECTOR_BYTES, VolumeSlot};

use crate::device::PowerStyle;
use crate::oracle::Run;
use crate::under_test::UnderTest;
use crate::world::{Due, Halt, World, violation};

/// Longest time until the host looks again whether the device is back.
const LOOK_NS_MAX: u64 = 2_000_000_000;
/// Share of hand-overs that the host cancels.
const CANCEL_PERCENT: u64 = 20;
/// Share of steps of a hand-over that is not ready in which the host cancels it.
const CANCEL_EARLY_PERMILLE: u64 = 10;

/// Where the return of the cache device stands.
#[derive(Default)]
pub(crate) enum Comeback {
    /// The device is in service, or gone.
    #[default]
    None,
    /// The engine that lost it holds new requests back.
    HandingOver,
    /// Another engine recovers it. The old one is kept in case that fails.
    Recovering(Predecessor),
    /// Recovery failed, and has operations at the devices.
    Failed(Predecessor),
}

/// The engine that lost the device.
pub(crate) struct Predecessor {
    engine: Box<dyn UnderTest>,
    requests: Vec<Request>,
    /// Slots of the volumes that it has. The table may know of an end of one of them already.
    slots: Vec<Option<VolumeSlot>>,
    /// Sizes of all volumes, as it has them. The table may know of a growth of one of them already.
    sizes_bytes: Vec<u64>,
}

impl World<'_> {
    /// The host begins to look for the device.
    pub(crate) fn look_for_return(&mut self) {
        let time = self.now + self.random.below(LOOK_NS_MAX);
        self.agenda.push(time, Due::Return);
    }

    pub(crate) fn on_return_due(&mut self) {
        if self.life.is_stopping || !self.is_cache_gone() || self.cache.is_gone_for_good() {
            return;
        }
        if self.cache.is_still_gone(self.now) {
            self.look_for_return();
            return;
        }
        self.say("the cache device is back");
        self.life.comeback = Comeback::HandingOver;
        let now = self.time();
        self.engine().0.begin_hand_over(now);
    }

    /// Whether the engine is one that recovers a device which came back.
    pub(crate) fn is_coming_back(&self) -> bool {
        matches!(self.life.comeback, Comeback::Recovering(_) | Comeback::Failed(_))
    }

    pub(crate) fn is_cache_gone(&self) -> bool {
        let status = self.engine.as_ref().and_then(|engine| engine.status(self.time()));
        let gone = CacheHealth::Failed(CacheFailure::Gone);
        status.is_some_and(|status| status.cache_health == gone)
    }

    /// Goes on with the return, if it can.
    pub(crate) fn advance_return(&mut self) -> Result<(), Halt> {
        let is_quiet = self.ios_in_flight() == 0;
        match std::mem::take(&mut self.life.comeback) {
            Comeback::HandingOver if is_quiet && self.is_handed_over() => {
                if self.random.percent(CANCEL_PERCENT) {
                    self.cancel_hand_over();
                    return Ok(());
                }
                self.replace_engine()
            }
            Comeback::HandingOver if self.random.permille(CANCEL_EARLY_PERMILLE) => {
                self.cancel_hand_over();
                Ok(())
            }
            Comeback::Failed(predecessor) if is_quiet => self.put_back(predecessor),
            other => {
                self.life.comeback = other;
                Ok(())
            }
        }
    }

    fn is_handed_over(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.is_ready_to_hand_over())
    }

    /// The host cannot open the device after all, and looks for it again.
    fn cancel_hand_over(&mut self) {
        self.say("the hand-over is cancelled");
        let now = self.time();
        let (engine, pool) = self.engine();
        engine.cancel_hand_over(now, pool);
        self.look_for_return();
    }

    fn replace_engine(&mut self) -> Result<(), Halt> {
        let held = self.pool.held_by_engine();
        if !held.is_empty() {
            let text = format!("{} buffers, the first {:?}", held.len(), held[0]);
            return violation("buffers are held by an engine that is to be replaced", text);
        }
        let style = *self.random.pick(&[
            PowerStyle::NoneSurvive,
            PowerStyle::AllSurvive,
            PowerStyle::Random,
            PowerStyle::Random,
        ]);
        self.say(format!("the engine is replaced; of the device's cache: {style:?}"));
        self.cache.lose_unflushed(style);
        let superblock = self.read_superblock()?;
        let slots = self.volumes.iter().map(|volume| volume.slot.or(volume.lingers_in)).collect();
        let sizes_bytes = self.volumes.iter().map(|volume| volume.config.size_bytes).collect();
        self.compare_table(&superblock)?;
        let openings = self.openings_again();
        let facts = self.cache_facts();
        let now = self.time();
        // The successor counts anew.
        self.note_lost_order();
        let mut engine = self.engine.take().expect("the process lives");
        let replaced = engine.replace(now, superblock, facts, &openings);
        let (mut successor, requests) = replaced.expect("it said that it was ready");
        successor.set_cache_timeout_ms(self.config.cache_timeout_ms);
        self.engine = Some(successor);
        self.life.comeback =
            Comeback::Recovering(Predecessor { engine, requests, slots, sizes_bytes });
        self.life.is_serving = false;
        self.was_used = true;
        self.life.began = self.now;
        self.stats.returns += 1;
        self.poll()
    }

    pub(crate) fn openings_again(&self) -> Vec<OriginOpening> {
        let volumes = self.volumes.iter().enumerate();
        volumes
            .filter_map(|(index, volume)| {
                let facts = (!volume.is_missing).then(|| self.origin_facts(index));
                volume.slot.map(|slot| OriginOpening { slot, facts, mark: volume.mark })
            })
            .collect()
    }

    /// A request that has to wait until it is known which engine serves.
    pub(crate) fn hold_back(&mut self, request: Request) -> Option<Request> {
        match &mut self.life.comeback {
            Comeback::Recovering(predecessor) | Comeback::Failed(predecessor) => {
                predecessor.requests.push(request);
                None
            }
            Comeback::None | Comeback::HandingOver => self.hold_for_takeover(request),
        }
    }

    /// The successor serves.
    pub(crate) fn end_return(&mut self) {
        if let Comeback::Recovering(predecessor) = std::mem::take(&mut self.life.comeback) {
            self.life.is_cache_failed = false;
            self.hand_in(predecessor.requests);
        }
    }

    /// The successor cannot serve. Returns whether it was one.
    pub(crate) fn fail_return(&mut self) -> bool {
        match std::mem::take(&mut self.life.comeback) {
            Comeback::Recovering(predecessor) => {
                self.life.comeback = Comeback::Failed(predecessor);
                true
            }
            other => {
                self.life.comeback = other;
                false
            }
        }
    }

    fn put_back(&mut self, predecessor: Predecessor) -> Result<(), Halt> {
        let Predecessor { engine, requests, slots, sizes_bytes } = predecessor;
        self.say("the engine without its cache device goes on");
        self.engine = Some(engine);
        for (index, slot) in slots.into_iter().enumerate() {
            if self.volumes[index].slot.is_none() {
                self.leave_origin(index, slot)?;
            }
        }
        self.take_sizes_back(&sizes_bytes);
        self.life.is_serving = true;
        let now = self.time();
        self.engine().0.handle_hand_over_failed(now);
        self.hand_in(requests);
        self.look_for_return();
        Ok(())
    }

    pub(crate) fn hand_in(&mut self, requests: Vec<Request>) {
        let now = self.time();
        for request in requests {
            let (engine, pool) = self.engine();
            engine.handle_request(now, request, pool);
        }
    }

    /// The engine names what it lost.
    pub(crate) fn on_writes_lost(
        &mut self,
        slot: VolumeSlot,
        extents: &[(OriginBlock, u64)],
    ) -> Result<(), Halt> {
        let Some(volume) = self.volumes.iter().position(|v| v.slot == Some(slot)) else {
            return violation("lost writes of an unknown volume", format!("{slot:?}"));
        };
        self.stats.lost_extents += extents.len() as u64;
        self.volumes[volume].has_lost_writes = true;
        let block_sectors = (BLOCK_BYTES / SECTOR_BYTES) as u32;
        let sectors = self.sectors(volume);
        for (start, count) in extents {
            for block in start.0 as u32..(start.0 + count) as u32 {
                let first = block * block_sectors;
                let run = Run { volume, first, count: block_sectors.min(sectors - first) };
                if !self.oracle.lose(run) {
                    let event = Event::WritesLost { volume: slot, extents: extents.to_vec() };
                    return violation(
                        "durable data is declared lost",
                        format!("volume {volume} block {block}, of {event:?}"),
                    );
                }
            }
        }
        Ok(())
    }
}
