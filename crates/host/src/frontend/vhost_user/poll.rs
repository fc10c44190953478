//! A descriptor that the ring watches, and the end of watching it.
//!
//! Watching goes on until it is cancelled (the ring repeats it by itself), so a kick costs neither
//! a new submission nor a call to read the counter of the descriptor away.
//!
//! Invariant: at most one poll of a place is at the ring, so a completion is never taken for that
//! of a later descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::opcode;
use io_uring::types::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ring::{Completion, Ring, Token};

/// Whether one of some events is there now, without waiting.
pub(super) fn is_there(descriptor: &impl AsFd, asked: PollFlags, any_of: PollFlags) -> bool {
    let mut polled = [PollFd::new(descriptor, asked)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(any_of)
}

/// What is watched at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Poll {
    /// Nothing.
    #[default]
    Quiet,
    /// A descriptor.
    Armed,
    /// A descriptor that is not wanted any more, until its last completion.
    Cancelled,
}

impl Poll {
    /// Begins to watch, if nothing is watched, and nothing is still to come of what was.
    pub(super) fn arm(&mut self, ring: &mut Ring, token: Token, descriptor: BorrowedFd<'_>) {
        if *self != Poll::Quiet {
            return;
        }
        *self = Poll::Armed;
        let events = (libc::POLLIN | libc::POLLRDHUP) as u32;
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events).multi(true).build();
        // SAFETY: a poll names no memory. The kernel keeps the file until the poll has ended, also
        // if the descriptor is closed.
        unsafe { ring.push(token, entry) };
    }

    /// Ends it, soon.
    pub(super) fn cancel(&mut self, ring: &mut Ring, token: Token) {
        if *self == Poll::Armed {
            *self = Poll::Cancelled;
            ring.cancel_poll(token);
        }
    }

    /// The ring tells something. Returns whether that is of what is watched.
    pub(super) fn handle(&mut self, completion: Completion) -> bool {
        let is_of_interest = *self == Poll::Armed;
        if !completion.has_more {
            *self = Poll::Quiet;
        }
        is_of_interest
    }
}
