//! A plan in virtual time: the engine itself, on models of devices.
//!
//! Invariants:
//! - Same plan, target and repetition: same figures.
//! - Requests that are under way when a phase is over end before the next one begins, and count for
//!   neither.
//! - Each request costs the daemon's processor what the plan says, one after another, before the
//!   engine has it. Bare devices have no daemon.
//!
//! Deliberately absent: data (`payload.rs`), failures, and the kernel between client and daemon.

mod client;
mod device;
mod payload;
mod settings;
mod system;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use forebay_device_model::closed_loop::Ranks;
use forebay_engine::options::CacheMode;

use crate::plan::{self, Act, Clock, Job, Mode, Phase, Plan, Target};
use crate::progress::Progress;
use crate::result::{PhaseResult, Sample, TargetResult, VERSION};
use client::Client;
use device::Device;
use system::{Cached, Parts, System, Wish};

const SECOND_NS: u64 = 1_000_000_000;

/// Why a target cannot be measured in virtual time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VirtualError {
    /// A device has no model.
    #[error("device {0} has no preset, so there is no model of it for virtual time")]
    NoModel(String),
    /// Somebody else's program runs in real time.
    #[error("target {0} is no model: it needs the real clock")]
    NotOurs(String),
    /// A file system is mounted on this machine.
    #[error("the plan has a file system: it needs the real clock")]
    FileSystem,
    /// The cache is too small, or has a setting that virtual time does not know.
    #[error("target {target}: {what}")]
    Format {
        /// Of which target.
        target: String,
        /// What is wrong.
        what: String,
    },
}

/// Measures a target once. `at_second` hears of each phase that begins, and of each second that has
/// passed in it.
///
/// # Errors
///
/// If there is no model of what the plan names.
pub fn run(
    plan: &Plan,
    target: &Target,
    repetition: u32,
    at_second: &mut dyn FnMut(Progress),
) -> Result<TargetResult, VirtualError> {
    let started = Instant::now();
    if plan.file_system.is_some() {
        return Err(VirtualError::FileSystem);
    }
    let seed = plan.seed_of(repetition);
    let mut run = Run::begin(plan, target, seed)?;
    let mut phases = Vec::new();
    for (index, phase) in plan.phases.iter().enumerate() {
        if phase.is_for(target) {
            if phase.begins_fresh {
                run = Run::begin(plan, target, seed)?;
            }
            for act in phase.begins_with.iter().filter(|act| **act != Act::DropPageCache) {
                run.now_ns = run.system.again(run.now_ns, *act);
            }
            phases.push(run.phase(phase, &Seeds { seed, index }, at_second));
        }
    }
    Ok(TargetResult {
        version: VERSION,
        target: target.name.clone(),
        repetition,
        clock: Clock::Virtual,
        wall_s: started.elapsed().as_secs_f64(),
        phases,
    })
}

/// What is asked, and the time at which it serves.
fn build(plan: &Plan, target: &Target, seed: u64) -> Result<(System, u64), VirtualError> {
    let device = |name: &str, seed: u64| {
        let described = plan.device(name);
        let model = plan::model(described);
        let model = model.ok_or_else(|| VirtualError::NoModel(name.to_owned()))?;
        Ok(Device::new(name, &model, described.size, seed))
    };
    if let Some(name) = &target.device {
        return Ok((System::Bare(Box::new(device(name, seed)?)), 0));
    }
    let Some(forebay) = &target.forebay else {
        return Err(VirtualError::NotOurs(target.name.clone()));
    };
    let (cache, origin) = (plan.device(&forebay.cache), plan.device(&forebay.origin));
    let parts = Parts {
        cache: device(&forebay.cache, seed)?,
        cache_bytes: forebay.cache_size.unwrap_or(cache.size),
        origin: device(&forebay.origin, !seed)?,
        origin_bytes: origin.size,
        is_rotational: origin.preset.is_some_and(plan::Preset::is_rotational),
        mode: match forebay.mode {
            Mode::Writeback => CacheMode::Writeback,
            Mode::Writethrough => CacheMode::Writethrough,
            Mode::Writearound => CacheMode::Writearound,
            Mode::Writeonly => CacheMode::Writeonly,
            Mode::Passthrough => CacheMode::Passthrough,
        },
        settings: &forebay.set,
    };
    let format = |what| VirtualError::Format { target: target.name.clone(), what };
    let (cached, now_ns) = Cached::serve(parts).map_err(format)?;
    Ok((System::Cached(Box::new(cached)), now_ns))
}

/// Which random numbers a phase has.
struct Seeds {
    seed: u64,
    index: usize,
}

impl Seeds {
    /// Of a client by its place, the so-manieth time. Those that repeat their offsets have the same
    /// every time, and in every phase.
    fn of(&self, job: &Job, client: usize, time: u32) -> u64 {
        let (phase, time) =
            if job.repeats_offsets { (0, 0) } else { (self.index as u64 + 1, u64::from(time)) };
        self.seed ^ (client as u64) << 8 ^ phase << 20 ^ time << 44
    }
}

/// A request that was not answered.
#[derive(Clone, Copy)]
struct Ticket {
    /// By its place.
    client: usize,
    wish: Wish,
    asked_ns: u64,
}

/// A target at work.
struct Run {
    system: System,
    now_ns: u64,
    /// Of the daemon's processor, for a request.
    cpu_ns: u64,
    /// Clients that think, by their place; which asks next, and when.
    thinking: BinaryHeap<Reverse<(u64, usize)>>,
    /// Requests that were not answered, by their number.
    tickets: Vec<Option<Ticket>>,
    free: Vec<u64>,
}

/// Requests on their way through the daemon's processor.
#[derive(Default)]
struct Processor {
    /// Each with the time at which the processor is done with it, in order.
    queue: VecDeque<(u64, u64)>,
    /// When it is done with all of them.
    free_ns: u64,
    used_ns: u64,
}

/// A phase, or one of the times that it is done.
struct Work<'a> {
    end_ns: Option<u64>,
    meter: &'a mut Meter,
    processor: &'a mut Processor,
}

/// Zipf's law for each job; equal jobs share it.
fn ranks_of(jobs: &[Job]) -> Vec<Option<Rc<Ranks>>> {
    let mut known: Vec<(f64, u64, Rc<Ranks>)> = Vec::new();
    let of = |job: &Job| {
        let (theta, count) = (job.theta?, job.size / job.block);
        let found = known.iter().find(|(other, ranks, _)| *other == theta && *ranks == count);
        if let Some((_, _, ranks)) = found {
            return Some(Rc::clone(ranks));
        }
        let ranks = Rc::new(client::ranks(job)?);
        known.push((theta, count, Rc::clone(&ranks)));
        Some(ranks)
    };
    jobs.iter().map(of).collect()
}

impl Run {
    fn begin(plan: &Plan, target: &Target, seed: u64) -> Result<Run, VirtualError> {
        let (system, now_ns) = build(plan, target, seed)?;
        let of_plan = plan.cpu_ns_per_request;
        let cpu_ns =
            target.forebay.as_ref().map_or(0, |it| it.cpu_ns_per_request.unwrap_or(of_plan));
        let (thinking, tickets, free) = (BinaryHeap::new(), Vec::new(), Vec::new());
        Ok(Run { system, now_ns, cpu_ns, thinking, tickets, free })
    }

    fn phase(
        &mut self,
        phase: &Phase,
        seeds: &Seeds,
        at_second: &mut dyn FnMut(Progress),
    ) -> PhaseResult {
        let jobs: Vec<Job> = phase.jobs.iter().flat_map(Job::clients).collect();
        let ranks = ranks_of(&jobs);
        let seed = |place: usize, time| seeds.of(&jobs[place], place, time);
        let places = jobs.iter().zip(&ranks).enumerate();
        let mut clients: Vec<Client<'_>> = places
            .map(|(place, (job, ranks))| Client::new(job, ranks.as_deref(), seed(place, 0)))
            .collect();
        let mut at_second = |second| at_second(Progress { place: seeds.index, second });
        at_second(0);
        let mut meter = Meter::new(&self.system, self.now_ns);
        let mut processor = Processor::default();
        for time in 0..phase.times {
            for (place, client) in clients.iter_mut().enumerate() {
                if time > 0 {
                    client.begin_anew(seed(place, time));
                }
                for _ in 0..jobs[place].depth {
                    self.issue(place, client, &mut processor);
                }
            }
            let end_ns = phase.seconds.map(|seconds| self.now_ns + seconds * SECOND_NS);
            let mut work = Work { end_ns, meter: &mut meter, processor: &mut processor };
            self.work(&mut clients, &mut work, &mut at_second);
            if time + 1 < phase.times {
                // In between nobody asks: that is no second of the phase.
                let before_ns = self.now_ns;
                self.finish(&mut processor);
                meter.began_ns += self.now_ns - before_ns;
            }
        }
        let ended_ns = self.now_ns;
        let cache = self.system.take_cache_counts(ended_ns);
        let devices = self.system.take_device_counts();
        self.finish(&mut processor);
        let seen = clients.iter().zip(phase.groups());
        PhaseResult {
            name: phase.name.clone(),
            is_preparation: phase.is_preparation,
            seconds: (ended_ns - meter.began_ns) as f64 / SECOND_NS as f64,
            jobs: seen.map(|(client, group)| client.result(group)).collect(),
            runs_s: Vec::new(),
            samples: meter.samples,
            cache,
            hit_counts: None,
            devices,
            cpu_s: processor.used_ns as f64 / SECOND_NS as f64,
        }
    }

    /// Until the phase is over, or all clients have done their amount.
    fn work(
        &mut self,
        clients: &mut [Client<'_>],
        work: &mut Work<'_>,
        at_second: &mut dyn FnMut(u64),
    ) {
        let Work { end_ns, meter, processor } = work;
        let mut answered = Vec::new();
        loop {
            while let Some(place) = self.next_thinker() {
                self.issue(place, &mut clients[place], processor);
            }
            self.enter(processor);
            self.system.advance(self.now_ns, &mut answered);
            for number in answered.drain(..) {
                let ticket = self.take(number);
                let client = &mut clients[ticket.client];
                client.record(ticket.wish, self.now_ns - ticket.asked_ns);
                meter.requests += u64::from(ticket.wish != Wish::Flush);
                match client.think_ns_after(ticket.wish) {
                    0 => self.issue(ticket.client, client, processor),
                    think_ns => {
                        self.thinking.push(Reverse((self.now_ns + think_ns, ticket.client)));
                    }
                }
            }
            if self.now_ns >= meter.next_ns() {
                at_second(meter.sample(&self.system, self.now_ns));
            }
            let has_ended = !clients.is_empty() && self.is_idle();
            if has_ended || end_ns.is_some_and(|end_ns| self.now_ns >= end_ns) {
                return;
            }
            let thinker = self.thinking.peek().map(|Reverse((due_ns, _))| *due_ns);
            let next = [self.system.next_event_ns(), processor.next_ns(), *end_ns, thinker];
            let next = next.into_iter().flatten().fold(meter.next_ns(), u64::min);
            self.now_ns = self.now_ns.max(next);
        }
    }

    /// The place of a client that has thought enough.
    fn next_thinker(&mut self) -> Option<usize> {
        let Reverse((due_ns, _)) = self.thinking.peek()?;
        if *due_ns > self.now_ns {
            return None;
        }
        self.thinking.pop().map(|Reverse((_, place))| place)
    }

    /// A client has its next request, if it has one.
    fn issue(&mut self, place: usize, client: &mut Client<'_>, processor: &mut Processor) {
        let Some(wish) = client.next() else { return };
        let number = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() as u64 - 1
        });
        self.tickets[number as usize] = Some(Ticket { client: place, wish, asked_ns: self.now_ns });
        processor.free_ns = processor.free_ns.max(self.now_ns) + self.cpu_ns;
        processor.used_ns += self.cpu_ns;
        processor.queue.push_back((processor.free_ns, number));
    }

    /// What the processor is done with goes on.
    fn enter(&mut self, processor: &mut Processor) {
        while processor.next_ns().is_some_and(|ready_ns| ready_ns <= self.now_ns) {
            let (_, number) = processor.queue.pop_front().expect("it was looked at");
            let ticket = self.tickets[number as usize].expect("it was not answered");
            self.system.ask(self.now_ns, number, ticket.wish);
        }
    }

    /// Lets everything end that was asked for. What waits for the processor never is.
    fn finish(&mut self, processor: &mut Processor) {
        self.thinking.clear();
        for (_, number) in processor.queue.drain(..) {
            self.take(number);
        }
        processor.free_ns = self.now_ns;
        let mut answered = Vec::new();
        while !self.is_idle() {
            let next = self.system.next_event_ns().expect("something is under way");
            self.now_ns = self.now_ns.max(next);
            self.system.advance(self.now_ns, &mut answered);
            for number in answered.drain(..) {
                self.take(number);
            }
        }
    }

    fn take(&mut self, number: u64) -> Ticket {
        self.free.push(number);
        self.tickets[number as usize].take().expect("it was not answered")
    }

    fn is_idle(&self) -> bool {
        self.thinking.is_empty() && self.free.len() == self.tickets.len()
    }
}

impl Processor {
    fn next_ns(&self) -> Option<u64> {
        self.queue.front().map(|(ready_ns, _)| *ready_ns)
    }
}

/// Second by second, what happened.
struct Meter {
    /// When the phase began; later by what passed between the times that it is done.
    began_ns: u64,
    samples: Vec<Sample>,
    /// Since the last sample.
    requests: u64,
    /// Bytes read from the cache and from the origin, at the last sample.
    read_bytes: (u64, u64),
}

impl Meter {
    fn new(system: &System, now_ns: u64) -> Meter {
        let (hit_bytes, miss_bytes, _) = system.glance(now_ns);
        let read_bytes = (hit_bytes, miss_bytes);
        Meter { began_ns: now_ns, samples: Vec::new(), requests: 0, read_bytes }
    }

    /// When the next sample is due.
    fn next_ns(&self) -> u64 {
        self.began_ns + (self.samples.len() as u64 + 1) * SECOND_NS
    }

    /// What ended at this very moment belongs to the second that is over.
    fn sample(&mut self, system: &System, now_ns: u64) -> u64 {
        let second = self.samples.len() as u64 + 1;
        let (hit_bytes, miss_bytes, dirty_bytes) = system.glance(now_ns);
        let (hits, misses) = (hit_bytes - self.read_bytes.0, miss_bytes - self.read_bytes.1);
        self.read_bytes = (hit_bytes, miss_bytes);
        self.samples.push(Sample {
            second,
            requests: std::mem::take(&mut self.requests),
            hit_ratio: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
            dirty_bytes,
        });
        second
    }
}

#[cfg(test)]
mod tests;
