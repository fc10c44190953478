//! Takeovers: another engine goes on with devices that are in order, as when a daemon is replaced
//! by a new one.
//!
//! The clients notice nothing: their requests wait, and one of the two engines answers them. A
//! successor may die or be given up any time before the predecessor is, which then goes on. Who
//! dies after that is an ordinary crash, as is the death of both. Nothing is expected beside what
//! is expected without takeovers: a successor that wrote too early, or a predecessor that left
//! something behind in its memory, loses or brings back data sooner or later.

use forebay_engine::request::Request;

use crate::comeback::Comeback;
use crate::random::Random;
use crate::under_test::UnderTest;
use crate::world::{Due, Halt, World, violation};

/// Share of runs that have takeovers.
const RUNS_PERCENT: u64 = 30;
/// How often one begins, of a thousand steps.
const BEGIN_PERMILLE: u64 = 4;
/// Longest time that the predecessor has to become silent.
const PATIENCE_NS_MAX: u64 = 2_000_000_000;
/// How often a successor dies while it reads, of a thousand steps.
const DEATH_PERMILLE: u64 = 15;
/// Share of successors that die when they have read everything.
const DEATH_PERCENT: u64 = 35;
/// Longest time from then until it dies or takes over.
const DECISION_NS_MAX: u64 = 20_000_000;
/// Tells this stream of chance apart from that of the run.
const STREAM: u64 = 0x7461_6b65_6f76_6572;

/// Chance of takeovers: a stream of its own, so that runs without them are as they were.
pub(crate) struct Takeovers(Option<Random>);

impl Takeovers {
    /// There are none.
    pub(crate) fn none() -> Takeovers {
        Takeovers(None)
    }

    /// Those of the run with this seed.
    pub(crate) fn of_run(seed: u64) -> Takeovers {
        let mut random = Random::new(seed ^ STREAM);
        Takeovers(random.percent(RUNS_PERCENT).then_some(random))
    }

    fn permille(&mut self, permille: u64) -> bool {
        self.0.as_mut().is_some_and(|random| random.permille(permille))
    }
}

/// How far a takeover is.
#[derive(Default)]
pub(crate) enum Takeover {
    #[default]
    None,
    /// The predecessor ends what is under way, until then at most.
    Ending { until: u64 },
    /// The engine of the world is the successor, which reads.
    Reading(Predecessor),
    /// The successor is dead; its reads are still at the devices.
    Dead(Predecessor),
}

/// The engine that is silent, and the requests that came since.
pub(crate) struct Predecessor {
    engine: Box<dyn UnderTest>,
    requests: Vec<Request>,
    /// When the successor, which has read everything, dies or takes over.
    decides_at: Option<u64>,
}

impl World<'_> {
    pub(crate) fn is_taken_over(&self) -> bool {
        !matches!(self.life.takeover, Takeover::None)
    }

    pub(crate) fn is_successor_dead(&self) -> bool {
        matches!(self.life.takeover, Takeover::Dead(_))
    }

    /// Begins a takeover, or goes on with one.
    pub(crate) fn advance_takeover(&mut self) -> Result<(), Halt> {
        match std::mem::take(&mut self.life.takeover) {
            Takeover::None => return self.maybe_begin_takeover(),
            Takeover::Ending { until } => {
                self.life.takeover = Takeover::Ending { until };
                let engine = self.engine.as_ref().expect("the process lives");
                if self.ios_in_flight() == 0 && engine.is_ready_for_takeover() {
                    return self.start_successor();
                }
                if self.now >= until || self.takeovers.permille(2) {
                    self.say("the predecessor takes too long: no takeover");
                    self.life.takeover = Takeover::None;
                    self.stats.failed_takeovers += 1;
                    let now = self.time();
                    let (engine, pool) = self.engine();
                    engine.cancel_takeover(now, pool);
                    return self.poll();
                }
            }
            Takeover::Reading(predecessor) => {
                let is_ready = predecessor.decides_at.is_some_and(|at| at <= self.now);
                self.life.takeover = Takeover::Reading(predecessor);
                if is_ready {
                    return self.decide_takeover();
                }
                if self.takeovers.permille(DEATH_PERMILLE) {
                    self.fail_takeover("it is killed");
                }
            }
            Takeover::Dead(predecessor) => {
                if self.ios_in_flight() == 0 {
                    return self.resume_predecessor(predecessor);
                }
                self.life.takeover = Takeover::Dead(predecessor);
            }
        }
        Ok(())
    }

    fn maybe_begin_takeover(&mut self) -> Result<(), Halt> {
        let is_possible = self.life.is_serving
            && !self.life.is_stopping
            && matches!(self.life.comeback, Comeback::None)
            && self.administrator.in_flight() == 0;
        if !is_possible || !self.takeovers.permille(BEGIN_PERMILLE) {
            return Ok(());
        }
        let now = self.time();
        if self.engine().0.begin_takeover(now) {
            self.say("a takeover begins");
            let random = self.takeovers.0.as_mut().expect("it has chosen");
            let until = self.now + random.below(PATIENCE_NS_MAX);
            self.agenda.push(until, Due::Takeover);
            self.life.takeover = Takeover::Ending { until };
            return self.poll();
        }
        Ok(())
    }

    fn start_successor(&mut self) -> Result<(), Halt> {
        let held = self.pool.held_by_engine();
        if !held.is_empty() {
            let text = format!("{} buffers, the first {:?}", held.len(), held[0]);
            return violation("buffers are held by an engine that is silent", text);
        }
        self.say("the predecessor is silent, a successor reads");
        // Nobody asks the predecessor once it is given up.
        self.note_lost_order();
        let superblock = self.read_superblock()?;
        let openings = self.openings_again();
        let (facts, now) = (self.cache_facts(), self.time());
        let engine = self.engine.take().expect("the process lives");
        let successor = engine.recover_beside(now, superblock, facts, &openings);
        self.engine = Some(successor.expect("who can be taken over from has a successor"));
        let predecessor = Predecessor { engine, requests: Vec::new(), decides_at: None };
        self.life.takeover = Takeover::Reading(predecessor);
        self.poll()
    }

    /// A request that waits until it is known which engine goes on.
    pub(crate) fn hold_for_takeover(&mut self, request: Request) -> Option<Request> {
        match &mut self.life.takeover {
            Takeover::Reading(predecessor) | Takeover::Dead(predecessor) => {
                predecessor.requests.push(request);
                None
            }
            Takeover::None | Takeover::Ending { .. } => Some(request),
        }
    }

    /// The successor has read everything. Its host takes a while to say so.
    pub(crate) fn on_ready_to_take_over(&mut self) -> Result<(), Halt> {
        let (Takeover::Reading(predecessor), Some(random)) =
            (&mut self.life.takeover, &mut self.takeovers.0)
        else {
            return violation("ready to take over", "from nobody");
        };
        let at = self.now + random.below(DECISION_NS_MAX);
        predecessor.decides_at = Some(at);
        self.agenda.push(at, Due::Takeover);
        Ok(())
    }

    /// The successor dies, or the predecessor is given up.
    fn decide_takeover(&mut self) -> Result<(), Halt> {
        let random = self.takeovers.0.as_mut();
        if random.is_some_and(|random| random.percent(DEATH_PERCENT)) {
            self.fail_takeover("it is killed when it is ready");
            return Ok(());
        }
        let Takeover::Reading(mut predecessor) = std::mem::take(&mut self.life.takeover) else {
            unreachable!("the caller has looked")
        };
        // The successor knows what the medium says, as after a death.
        self.judge_medium()?;
        self.say("the predecessor is given up");
        self.stats.takeovers += 1;
        let mut requests = predecessor.engine.take_held_back();
        requests.append(&mut predecessor.requests);
        self.life.is_serving = false;
        self.life.began = self.now;
        self.was_used = true;
        // The successor cannot know of writes that failed and may have landed. As for one that is
        // started after a death, a flush is all there is to be sure.
        let moment = self.oracle.tick();
        for volume in &mut self.volumes {
            volume.origin.reopen(moment);
        }
        let (now, timeout_ms) = (self.time(), self.config.cache_timeout_ms);
        let (engine, _) = self.engine();
        engine.set_cache_timeout_ms(timeout_ms);
        engine.take_over(now);
        self.hand_in(requests);
        self.poll()
    }

    /// The successor dies before the predecessor is given up. Returns whether there was one.
    pub(crate) fn fail_takeover(&mut self, why: &str) -> bool {
        match std::mem::take(&mut self.life.takeover) {
            Takeover::Reading(predecessor) => {
                self.say(format!("the successor fails: {why}"));
                self.stats.failed_takeovers += 1;
                self.life.takeover = Takeover::Dead(predecessor);
                self.agenda.push(self.now, Due::Takeover);
                true
            }
            other => {
                self.life.takeover = other;
                false
            }
        }
    }

    fn resume_predecessor(&mut self, predecessor: Predecessor) -> Result<(), Halt> {
        self.say("the predecessor goes on");
        self.pool.take_from_engine();
        let Predecessor { engine, requests, .. } = predecessor;
        self.engine = Some(engine);
        let now = self.time();
        let (engine, pool) = self.engine();
        engine.cancel_takeover(now, pool);
        self.hand_in(requests);
        self.poll()
    }
}
