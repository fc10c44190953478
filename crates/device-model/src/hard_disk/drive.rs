//! A drive at work: its command queue, its cache and its one head.
//!
//! A request waits until the drive has room in its queue. It then is served by the drive cache if
//! that can be, or waits for the head. The head takes whatever it reaches first, counting the time
//! until the platter has turned to the right place: native command queueing. Writes complete in the
//! write cache while that has room and go to the platter when the head has nothing to read, or when
//! room is wanted. A flush is no queued command: it begins when all before it have completed, and
//! nothing behind it begins before it has.
//!
//! Invariants:
//! - The drive moves from event to event at the events' own times; a late caller changes nothing.
//! - A command that `overtakes_max` others have overtaken goes before all that came after it.
//! - The head does one thing at a time, and what it has begun it ends; only read-ahead is broken
//!   off.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::HardDisk;
use super::extents::{Extent, ReadCache, WriteCache};
use super::geometry::{Geometry, Head, Settle};
use crate::request::{Completion, Request, RequestKind, Token};
use crate::schedule::Schedule;
use crate::transfer_ns;

/// Extents of the write cache on each side of the head that are looked at for the next write. The
/// one that is reached first is among the nearest but for rare cases.
const WRITE_CANDIDATES: usize = 16;
/// Longest write to the platter in one go, so that a read does not wait for a long one.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// What a read adds to itself if it goes on with a stream, before the head does anything else.
const PREFETCH_BYTES: u64 = 256 << 10;

/// A drive.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    parameters: HardDisk,
    geometry: Geometry,
    read_cache: ReadCache,
    write_cache: WriteCache,
    /// Not yet in the drive's queue, oldest first.
    waiting: VecDeque<Command>,
    /// In the drive's queue and not served by the cache, oldest first.
    queued: Vec<Command>,
    /// Commands in the drive's queue: those in `queued`, those in `schedule`, and a flush.
    accepted_count: usize,
    /// A flush is the one accepted command.
    flush: Flush,
    head: Head,
    activity: Option<Activity>,
    read_ahead: Option<ReadAhead>,
    bus_free_at_ns: u64,
    schedule: Schedule,
    completed: VecDeque<Completion>,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    token: Token,
    kind: RequestKind,
    extent: Extent,
    accepted_ns: u64,
    overtaken_count: u32,
}

#[derive(Clone, Copy, Debug)]
enum Flush {
    None,
    /// Waits for the write cache to run empty.
    Writing(Token),
    /// Its completion is in the schedule.
    Answering,
}

/// What the head is doing.
#[derive(Clone, Copy, Debug)]
struct Activity {
    end_ns: u64,
    action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Reads this, of which what was asked for completes in time.
    Read(Extent),
    /// Writes this, which stays in the write cache until the end.
    WriteBack(Extent),
    /// Writes what is too long for the write cache.
    WriteThrough,
}

/// Reading on while nobody asks for the head.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    /// Start of what is in the cache or will be.
    start: u64,
    /// Where the head was at `since_ns`.
    from: u64,
    since_ns: u64,
    /// Where it stops.
    limit: u64,
}

/// How the head comes to a command.
#[derive(Clone, Copy, Debug)]
struct Approach {
    /// First byte that it has to transfer.
    target: u64,
    /// The read goes on where the cache ends.
    is_stream: bool,
    /// When the transfer can begin.
    ready_ns: u64,
}

/// What the head can do next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// The command at this index of `queued`.
    Command(usize),
    /// The extent of the write cache at this offset.
    WriteBack(u64),
}

impl Drive {
    pub(crate) fn new(parameters: HardDisk, length_bytes: u64) -> Drive {
        assert!(parameters.queue_depth > 0);
        let parameters = parameters.scaled_to(length_bytes);
        Drive {
            parameters,
            geometry: Geometry::new(parameters, length_bytes),
            read_cache: ReadCache::new(parameters.read_cache_bytes, parameters.read_segment_count),
            write_cache: WriteCache::default(),
            waiting: VecDeque::new(),
            queued: Vec::new(),
            accepted_count: 0,
            flush: Flush::None,
            head: Head { offset: 0, since_ns: 0 },
            activity: None,
            read_ahead: None,
            bus_free_at_ns: 0,
            schedule: Schedule::default(),
            completed: VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        self.advance(now_ns);
        let start = request.offset_bytes;
        self.waiting.push_back(Command {
            token,
            kind: request.kind,
            extent: Extent { start, end: start + request.length_bytes },
            accepted_ns: now_ns,
            overtaken_count: 0,
        });
        self.accept(now_ns);
        self.dispatch(now_ns);
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> Option<Completion> {
        self.advance(now_ns);
        self.completed.pop_front()
    }

    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        if let Some(completion) = self.completed.front() {
            return Some(completion.at_ns);
        }
        // Without a request there is nothing to wake up for: write-back catches up when asked.
        if self.accepted_count == 0 {
            return None;
        }
        let activity_ns = self.activity.map(|activity| activity.end_ns);
        [self.schedule.next_ns(), activity_ns].into_iter().flatten().min()
    }

    /// Goes through all events up to `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        loop {
            // Completions first: they make room in the queue, and the head may choose from more.
            let end_ns = self.activity.map_or(u64::MAX, |activity| activity.end_ns);
            if let Some(completion) = self.schedule.take_due(now_ns.min(end_ns)) {
                self.completed.push_back(completion);
                self.accepted_count -= 1;
                self.accept(completion.at_ns);
                self.dispatch(completion.at_ns);
            } else if end_ns <= now_ns {
                self.finish_activity(end_ns);
            } else {
                return;
            }
        }
    }

    /// Moves waiting commands into the drive's queue as far as there is room.
    fn accept(&mut self, now_ns: u64) {
        if self.accepted_count == 0 {
            self.flush = Flush::None;
        }
        while matches!(self.flush, Flush::None) && self.accepted_count < self.parameters.queue_depth
        {
            let Some(&next) = self.waiting.front() else { return };
            if next.kind == RequestKind::Flush {
                if self.accepted_count > 0 {
                    return;
                }
                self.flush = Flush::Writing(next.token);
            }
            self.waiting.pop_front();
            self.accepted_count += 1;
            self.begin(now_ns, Command { accepted_ns: now_ns, ..next });
        }
    }

    /// Serves `command` from the drive cache, or queues it for the head.
    fn begin(&mut self, now_ns: u64, command: Command) {
        match command.kind {
            RequestKind::Flush => {}
            RequestKind::Discard => self.complete_hit(now_ns, command.token, 0),
            RequestKind::Read => {
                if !self.read_from_cache(now_ns, command) {
                    self.queued.push(command);
                }
            }
            RequestKind::Write | RequestKind::WriteZeroes => {
                // Behind an older write that waits for room nobody slips in.
                let is_first = !self.queued.iter().any(|queued| self.waits_for_room(queued));
                if !is_first || !self.write_to_cache(now_ns, command) {
                    self.queued.push(command);
                }
            }
        }
    }

    fn read_from_cache(&mut self, now_ns: u64, command: Command) -> bool {
        let wanted = command.extent;
        let is_being_written = match self.activity {
            Some(Activity { action: Action::WriteBack(written), .. }) => written.covers(wanted),
            _ => false,
        };
        if is_being_written
            || wanted.length_bytes() == 0
            || self.write_cache.covers(wanted)
            || self.read_cache.hit(wanted)
        {
            self.complete_hit(now_ns, command.token, wanted.length_bytes());
            return true;
        }
        let Some(reached_ns) = self.read_ahead_reaches(now_ns, wanted) else { return false };
        self.complete_hit(reached_ns.max(now_ns), command.token, wanted.length_bytes());
        true
    }

    /// When the read-ahead under way has all of `wanted`. It then goes on from there.
    fn read_ahead_reaches(&mut self, now_ns: u64, wanted: Extent) -> Option<u64> {
        let ahead = self.read_ahead?;
        let position = self.read_ahead_position(ahead, now_ns);
        let is_moving = position < ahead.limit;
        let is_held = (Extent { start: ahead.start, end: ahead.limit }).covers(wanted);
        // A head that has stopped would have to wait for the platter to come round again.
        let goes_on = is_moving && (ahead.start..=ahead.limit).contains(&wanted.start);
        if !is_held && !goes_on {
            return None;
        }
        let left_bytes = wanted.end.saturating_sub(ahead.from);
        let reached_ns = ahead.since_ns + self.geometry.transfer_ns(ahead.from, left_bytes);
        if is_moving {
            let read_ahead_bytes = self.parameters.read_ahead_bytes;
            self.read_ahead = Some(ReadAhead {
                start: ahead.start.max(position.saturating_sub(2 * read_ahead_bytes)),
                from: position,
                since_ns: now_ns,
                limit: ahead.limit.max(wanted.end + read_ahead_bytes),
            });
        }
        Some(reached_ns)
    }

    fn read_ahead_position(&self, ahead: ReadAhead, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(ahead.since_ns);
        let passed_bytes = self.geometry.passed_bytes(ahead.from, elapsed_ns);
        ahead.limit.min(ahead.from.saturating_add(passed_bytes))
    }

    /// Whether `command` is a write that the write cache will take once it has room.
    fn waits_for_room(&self, command: &Command) -> bool {
        matches!(command.kind, RequestKind::Write | RequestKind::WriteZeroes)
            && command.extent.length_bytes() <= self.parameters.write_cache_bytes
    }

    fn write_to_cache(&mut self, now_ns: u64, command: Command) -> bool {
        let written = command.extent;
        let held_bytes = self.write_cache.bytes() + self.being_written_bytes();
        let has_room = held_bytes + written.length_bytes() <= self.parameters.write_cache_bytes;
        if !has_room && !self.write_cache.covers(written) {
            return false;
        }
        self.write_cache.insert(written);
        let bus_bytes = if command.kind == RequestKind::Write { written.length_bytes() } else { 0 };
        self.complete_hit(now_ns, command.token, bus_bytes);
        true
    }

    fn being_written_bytes(&self) -> u64 {
        match self.activity {
            Some(Activity { action: Action::WriteBack(extent), .. }) => extent.length_bytes(),
            _ => 0,
        }
    }

    /// Completes a command that needs no head: firmware and bus, the latter one at a time.
    fn complete_hit(&mut self, now_ns: u64, token: Token, bus_bytes: u64) {
        let bus_ns = transfer_ns(bus_bytes, self.parameters.bus_bytes_per_second);
        self.bus_free_at_ns = self.bus_free_at_ns.max(now_ns) + bus_ns;
        let busy_ns = if self.queued.is_empty() { 0 } else { self.parameters.busy_hit_ns };
        self.schedule.insert(self.bus_free_at_ns + self.parameters.command_ns + busy_ns, token);
    }

    /// Gives the head something to do if it is free.
    fn dispatch(&mut self, now_ns: u64) {
        if self.activity.is_some() {
            return;
        }
        match self.choose(now_ns) {
            Some(choice) => {
                self.stop_read_ahead(now_ns);
                match choice {
                    Choice::Command(index) => self.start_command(now_ns, index),
                    Choice::WriteBack(start) => self.start_write_back(now_ns, start),
                }
            }
            None => {
                if let Flush::Writing(token) = self.flush {
                    assert!(self.write_cache.is_empty());
                    self.flush = Flush::Answering;
                    self.schedule.insert(now_ns + self.parameters.command_ns, token);
                }
            }
        }
    }

    /// What the head reaches first, unless something has been overtaken too often.
    fn choose(&self, now_ns: u64) -> Option<Choice> {
        let is_due = |command: &Command| command.overtaken_count >= self.parameters.overtakes_max;
        if let Some(index) = self.queued.iter().position(is_due) {
            if !self.waits_for_room(&self.queued[index]) {
                return Some(Choice::Command(index));
            }
            return self.nearest_write_back(now_ns).map(|(_, choice)| choice);
        }
        let mut best: Option<(u64, Choice)> = None;
        let mut is_room_wanted = matches!(self.flush, Flush::Writing(_));
        for (index, command) in self.queued.iter().enumerate() {
            if self.waits_for_room(command) {
                is_room_wanted = true;
                continue;
            }
            let cost_ns = self.approach(self.head_at(now_ns), now_ns, command).ready_ns - now_ns;
            if best.is_none_or(|(best_ns, _)| cost_ns < best_ns) {
                best = Some((cost_ns, Choice::Command(index)));
            }
        }
        if is_room_wanted || best.is_none() {
            let write_back = self.nearest_write_back(now_ns);
            if let Some((cost_ns, _)) = write_back
                && best.is_none_or(|(best_ns, _)| cost_ns < best_ns)
            {
                best = write_back;
            }
        }
        best.map(|(_, choice)| choice)
    }

    fn nearest_write_back(&self, now_ns: u64) -> Option<(u64, Choice)> {
        let head = self.head_at(now_ns);
        let cost = |start| {
            let cost_ns = self.geometry.positioning_ns(head, now_ns, start, Settle::ToWrite);
            (cost_ns, Choice::WriteBack(start))
        };
        self.write_cache.near(head.offset, WRITE_CANDIDATES).map(cost).min_by_key(|(ns, _)| *ns)
    }

    /// Where the head is, also while it reads ahead.
    fn head_at(&self, now_ns: u64) -> Head {
        match self.read_ahead {
            Some(ahead) => {
                let offset = self.read_ahead_position(ahead, now_ns);
                let is_moving = offset < ahead.limit;
                Head { offset, since_ns: if is_moving { now_ns } else { ahead.since_ns } }
            }
            None => self.head,
        }
    }

    /// How `head` comes to what the cache does not hold of `command`.
    fn approach(&self, head: Head, now_ns: u64, command: &Command) -> Approach {
        let extent = command.extent;
        // The firmware has to look at the command first, which it does while the head is busy.
        let start_ns = now_ns.max(command.accepted_ns + self.parameters.command_ns);
        if command.kind == RequestKind::Read {
            let held_until = self.read_cache.held_until(extent.start);
            let target = held_until.unwrap_or(extent.start).min(extent.end);
            let wait_ns = self.geometry.positioning_ns(head, start_ns, target, Settle::ToRead);
            Approach { target, is_stream: held_until.is_some(), ready_ns: start_ns + wait_ns }
        } else {
            let target = extent.start;
            let wait_ns = self.geometry.positioning_ns(head, start_ns, target, Settle::ToWrite);
            Approach { target, is_stream: false, ready_ns: start_ns + wait_ns }
        }
    }

    fn stop_read_ahead(&mut self, now_ns: u64) {
        self.head = self.head_at(now_ns);
        if let Some(ahead) = self.read_ahead.take() {
            self.read_cache.insert(Extent { start: ahead.start, end: self.head.offset });
        }
    }

    fn start_command(&mut self, now_ns: u64, index: usize) {
        let command = self.queued.remove(index);
        for overtaken in &mut self.queued[..index] {
            overtaken.overtaken_count += 1;
        }
        let extent = command.extent;
        let approach = self.approach(self.head, now_ns, &command);
        let target = approach.target;
        let done_ns = approach.ready_ns + self.geometry.transfer_ns(target, extent.end - target);
        self.schedule.insert(done_ns, command.token);
        if command.kind == RequestKind::Read {
            let prefetch_bytes = if approach.is_stream {
                PREFETCH_BYTES.min(self.parameters.read_ahead_bytes)
            } else {
                0
            };
            let read = Extent { end: extent.end + prefetch_bytes, ..extent };
            let end_ns = done_ns + self.geometry.transfer_ns(extent.end, prefetch_bytes);
            self.activity = Some(Activity { end_ns, action: Action::Read(read) });
            self.head = Head { offset: read.end, since_ns: end_ns };
        } else {
            self.activity = Some(Activity { end_ns: done_ns, action: Action::WriteThrough });
            self.head = Head { offset: extent.end, since_ns: done_ns };
        }
    }

    fn start_write_back(&mut self, now_ns: u64, start: u64) {
        for queued in &mut self.queued {
            queued.overtaken_count += 1;
        }
        let extent = self.write_cache.take(start, WRITE_BYTES_MAX);
        let end_ns = now_ns
            + self.geometry.positioning_ns(self.head, now_ns, start, Settle::ToWrite)
            + self.geometry.transfer_ns(start, extent.length_bytes());
        self.activity = Some(Activity { end_ns, action: Action::WriteBack(extent) });
        self.head = Head { offset: extent.end, since_ns: end_ns };
    }

    fn finish_activity(&mut self, now_ns: u64) {
        let activity = self.activity.take().expect("the caller saw it end");
        match activity.action {
            Action::Read(read) => {
                self.read_cache.insert(read);
                self.begin_again(now_ns, |command| command.kind == RequestKind::Read);
            }
            Action::WriteBack(_) => {
                self.begin_again(now_ns, |command| command.kind != RequestKind::Read);
            }
            Action::WriteThrough => {}
        }
        self.dispatch(now_ns);
        if let Action::Read(read) = activity.action
            && self.activity.is_none()
            && self.parameters.read_ahead_bytes > 0
        {
            self.read_ahead = Some(ReadAhead {
                start: read.start,
                from: read.end,
                since_ns: now_ns,
                limit: read.end + self.parameters.read_ahead_bytes,
            });
        }
    }

    /// Looks again whether the drive cache can now serve those of the queued commands.
    fn begin_again(&mut self, now_ns: u64, applies: impl Fn(&Command) -> bool) {
        let queued = core::mem::take(&mut self.queued);
        for command in queued {
            if applies(&command) {
                self.begin(now_ns, command);
            } else {
                self.queued.push(command);
            }
        }
    }
}
