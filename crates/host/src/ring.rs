//! Ownership of the one io_uring of a shard: submission, waiting, completions, wake-ups.
//!
//! What is submitted carries a [`Token`], and its completion brings the token back; the loop
//! dispatches on it. Timers are the loop's deadline, handed to [`Ring::wait`]: the kernel's own
//! wait takes a timeout, so a timer costs no submission. Devices are registered files, the payload
//! memory is a registered buffer region; where the kernel or a limit refuses that, plain
//! descriptors and buffers are used and the ring says so once.
//!
//! Invariants: every entry that was accepted is submitted, in order (a full queue is submitted
//! first, and what still finds no room waits in a backlog); at most one wake-up poll is armed. The
//! ring does not interpret results and does not continue short transfers; the submitters do.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;

/// Entries of the submission queue: what one round of the loop usually submits at once.
const SUBMISSION_ENTRIES: u32 = 1024;
/// Entries of the completion queue: all that may be in flight without the kernel's overflow list.
const COMPLETION_ENTRIES: u32 = 8192;
/// The same for users who may lock only little memory (64 KiB is the kernel's own default): slower
/// when busy, since more calls are needed, but just as correct.
const SMALL_SUBMISSION_ENTRIES: u32 = 128;
const SMALL_COMPLETION_ENTRIES: u32 = 512;
/// Slots for registered files. Devices only, so it bounds volumes and bare exports together.
pub(crate) const FILE_SLOTS: u32 = 512;
/// Largest buffer that the kernel registers in one piece.
const REGISTERED_BUFFER_BYTES_MAX: usize = 1 << 30;

/// What a completion is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// A device operation, by index in the table of operations.
    Device(u32),
    /// A listener, by index.
    Accept(u32),
    /// Bytes for a connection, by slot.
    Receive(u32),
    /// Bytes from a connection, by slot.
    Send(u32),
    /// Somebody woke the loop.
    WakeUp,
    /// A command of a ublk device, by slot.
    Ublk(u32),
    /// Something about a vhost-user socket, by its number and place.
    VhostUser(u32),
    /// A poll was cancelled, or had ended before.
    Cancelled,
}

impl Token {
    /// The kind in the upper half, the index in the lower.
    fn to_user_data(self) -> u64 {
        let (kind, index) = match self {
            Token::Device(index) => (1u64, index),
            Token::Accept(index) => (2, index),
            Token::Receive(index) => (3, index),
            Token::Send(index) => (4, index),
            Token::WakeUp => (5, 0),
            Token::Ublk(index) => (6, index),
            Token::VhostUser(index) => (7, index),
            Token::Cancelled => (8, 0),
        };
        kind << 32 | u64::from(index)
    }

    fn from_user_data(user_data: u64) -> Token {
        let index = (user_data & u64::from(u32::MAX)) as u32;
        match user_data >> 32 {
            1 => Token::Device(index),
            2 => Token::Accept(index),
            3 => Token::Receive(index),
            4 => Token::Send(index),
            5 => Token::WakeUp,
            6 => Token::Ublk(index),
            7 => Token::VhostUser(index),
            8 => Token::Cancelled,
            kind => panic!("the kernel returned user data of kind {kind}, which was never given"),
        }
    }
}

/// The end of something that was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    /// As submitted.
    pub(crate) token: Token,
    /// Not negative: as the system call would return it. Negative: the negated errno.
    pub(crate) result: i32,
    /// Whether more completions with this token will come.
    pub(crate) has_more: bool,
}

/// Why the ring cannot be set up or has stopped working.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel refuses io_uring.
    #[error(
        "io_uring cannot be set up: {source}; it needs Linux 5.19 or later, \
         /proc/sys/kernel/io_uring_disabled must not forbid it, \
         and RLIMIT_MEMLOCK must allow 64 KiB"
    )]
    Setup {
        /// What the kernel said.
        source: io::Error,
    },
    /// Waiting for completions failed.
    #[error("io_uring failed while waiting for completions")]
    Wait {
        /// What the kernel said.
        source: io::Error,
    },
    /// The event counter for wake-ups cannot be made.
    #[error("cannot make an eventfd")]
    EventFd {
        /// What the kernel said.
        source: io::Error,
    },
}

/// Wakes the loop from another thread.
#[derive(Debug)]
pub(crate) struct WakeUp {
    event: OwnedFd,
}

impl WakeUp {
    /// A new, quiet one.
    pub(crate) fn new() -> Result<WakeUp, RingError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| RingError::EventFd { source: errno.into() })?;
        Ok(WakeUp { event })
    }

    /// Makes the loop go round.
    pub(crate) fn wake(&self) {
        // The only failure is a counter at its maximum, and then the loop is awake anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes back all wake-ups so far.
    pub(crate) fn clear(&self) {
        let mut counter = [0u8; 8];
        // The only failure is that nobody woke the loop.
        let _ = rustix::io::read(&self.event, &mut counter);
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// How a device's file is named in submissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileHandle {
    /// Slot in the table of registered files.
    Registered(u32),
    /// Plain descriptor.
    Plain(RawFd),
}

/// The ring.
pub(crate) struct Ring {
    uring: IoUring,
    backlog: VecDeque<squeue::Entry>,
    has_file_table: bool,
    has_buffers: bool,
    knows_vectored_fixed: bool,
}

impl Ring {
    /// A ring for the calling thread, which alone may use it.
    pub(crate) fn new() -> Result<Ring, RingError> {
        let uring = build_uring().map_err(|source| RingError::Setup { source })?;
        let has_file_table = uring.submitter().register_files_sparse(FILE_SLOTS).is_ok();
        if !has_file_table {
            tracing::info!("registered files are not available; using plain descriptors");
        }
        let mut probe = io_uring::Probe::new();
        // A kernel without the probe is older than anything that is asked for here.
        let knows_vectored_fixed = uring.submitter().register_probe(&mut probe).is_ok()
            && probe.is_supported(opcode::ReadvFixed::CODE)
            && probe.is_supported(opcode::WritevFixed::CODE);
        Ok(Ring {
            uring,
            backlog: VecDeque::new(),
            has_file_table,
            has_buffers: false,
            knows_vectored_fixed,
        })
    }

    /// Registers the payload memory. Returns whether fixed-buffer operations may be used.
    ///
    /// # Safety
    /// `start..start + bytes` must be mapped, private to this process, and stay so while the ring
    /// lives.
    pub(crate) unsafe fn register_buffers(&mut self, start: *mut u8, bytes: usize) -> bool {
        assert!(!self.has_buffers);
        let pieces: Vec<libc::iovec> = (0..bytes)
            .step_by(REGISTERED_BUFFER_BYTES_MAX)
            .map(|offset| libc::iovec {
                iov_base: start.wrapping_add(offset).cast(),
                iov_len: REGISTERED_BUFFER_BYTES_MAX.min(bytes - offset),
            })
            .collect();
        // SAFETY: the caller vouches for the memory; the array of pieces is only read during the
        // call.
        let result = unsafe { self.uring.submitter().register_buffers(&pieces) };
        self.has_buffers = result.is_ok();
        if let Err(error) = result {
            tracing::warn!(
                %error,
                "payload memory cannot be registered with io_uring; each transfer costs more CPU \
                 (raise RLIMIT_MEMLOCK above the payload memory)"
            );
        }
        self.has_buffers
    }

    /// The registered buffer that holds the byte at `region_offset`, and whose start is at
    /// `region_offset` rounded down to its size.
    pub(crate) fn buffer_index(region_offset: usize) -> u16 {
        u16::try_from(region_offset / REGISTERED_BUFFER_BYTES_MAX).expect("the pool is bounded")
    }

    /// Whether fixed-buffer operations may be used.
    pub(crate) fn has_buffers(&self) -> bool {
        self.has_buffers
    }

    /// Whether transfers of several pieces may name registered buffers (Linux 6.15).
    pub(crate) fn has_vectored_fixed(&self) -> bool {
        self.has_buffers && self.knows_vectored_fixed
    }

    /// Puts a device's file into a slot of the file table.
    pub(crate) fn register_file(&mut self, slot: u32, file: BorrowedFd<'_>) -> FileHandle {
        assert!(slot < FILE_SLOTS);
        let descriptor = file.as_raw_fd();
        if self.has_file_table
            && self.uring.submitter().register_files_update(slot, &[descriptor]).is_ok()
        {
            FileHandle::Registered(slot)
        } else {
            FileHandle::Plain(descriptor)
        }
    }

    /// Empties a slot of the file table, so that the file can be closed for good.
    pub(crate) fn unregister_file(&mut self, handle: FileHandle) {
        if let FileHandle::Registered(slot) = handle {
            // A slot that cannot be emptied keeps the file open, which its lock would show.
            if let Err(error) = self.uring.submitter().register_files_update(slot, &[-1]) {
                tracing::warn!(%error, slot, "a closed device stays in the ring's file table");
            }
        }
    }

    /// Queues an entry; it is submitted by the next [`Ring::wait`] or when the queue is full.
    ///
    /// # Safety
    /// All memory that the entry names must stay valid until its completion was taken out.
    pub(crate) unsafe fn push(&mut self, token: Token, entry: squeue::Entry) {
        let entry = entry.user_data(token.to_user_data());
        if !self.backlog.is_empty() {
            self.backlog.push_back(entry);
            return;
        }
        // SAFETY: the caller vouches for what the entry names.
        if unsafe { self.uring.submission().push(&entry) }.is_ok() {
            return;
        }
        // A failure to submit shows again in `wait`, where it is handled.
        let _ = self.uring.submit();
        // SAFETY: as above.
        if unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Arms the wake-up: one completion with [`Token::WakeUp`] when somebody wakes the loop.
    pub(crate) fn arm_wake_up(&mut self, wake_up: &WakeUp) {
        let descriptor = Fd(wake_up.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build();
        // SAFETY: a poll names no memory. The descriptor outlives the ring in `Shard`; if it did
        // not, the poll would fail with an error, not touch memory.
        unsafe { self.push(Token::WakeUp, entry) };
    }

    /// Ends the poll that was queued with a token, after which it completes a last time.
    pub(crate) fn cancel_poll(&mut self, token: Token) {
        // The operation made for it is of no use: it does nothing to a poll that is just waking up,
        // and one that repeats itself then goes on.
        let entry = opcode::AsyncCancel::new(token.to_user_data()).build();
        // SAFETY: a cancellation names no memory.
        unsafe { self.push(Token::Cancelled, entry) };
    }

    /// Submits what is queued and waits for a completion, at most for `timeout` (`None`: without
    /// limit; zero: not at all).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), RingError> {
        self.submit_backlog();
        let want = usize::from(timeout != Some(Duration::ZERO));
        let result = match timeout {
            Some(limit) if want > 0 => {
                let limit = Timespec::from(limit);
                let arguments = SubmitArgs::new().timespec(&limit);
                self.uring.submitter().submit_with_args(want, &arguments)
            }
            _ => self.uring.submitter().submit_and_wait(want),
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timed out; interrupted; completions must be taken out first; out of memory for
                // now. In all cases the loop goes on and what is queued stays queued.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(RingError::Wait { source: error }),
            },
        }
    }

    fn submit_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: `push` has received this entry with its caller's promise.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                self.backlog.pop_front();
                continue;
            }
            let submitted = self.uring.submit().unwrap_or(0);
            if submitted == 0 {
                return;
            }
        }
    }

    /// Moves all completions that have arrived to `into`.
    pub(crate) fn take_completions(&mut self, into: &mut Vec<Completion>) {
        for entry in self.uring.completion() {
            into.push(Completion {
                token: Token::from_user_data(entry.user_data()),
                result: entry.result(),
                has_more: cqueue::more(entry.flags()),
            });
        }
    }
}

/// A ring of the usual size, or a small one if that much memory may not be locked.
fn build_uring() -> io::Result<IoUring> {
    match build_uring_of(SUBMISSION_ENTRIES, COMPLETION_ENTRIES) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            tracing::warn!(
                "RLIMIT_MEMLOCK is too low for an io_uring of the usual size; using a small one"
            );
            build_uring_of(SMALL_SUBMISSION_ENTRIES, SMALL_COMPLETION_ENTRIES)
        }
        other => other,
    }
}

/// The newest set of flags that this kernel knows. `SINGLE_ISSUER` and `DEFER_TASKRUN` (6.1) run
/// completion work only when the loop asks for it, in batches; `COOP_TASKRUN` (5.19) at least
/// spares interrupts of the loop.
fn build_uring_of(submissions: u32, completions: u32) -> io::Result<IoUring> {
    let base = || {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(completions).setup_submit_all();
        builder
    };
    let mut newest = base();
    newest.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    if let Ok(uring) = newest.build(submissions) {
        return Ok(uring);
    }
    let mut older = base();
    older.setup_coop_taskrun().setup_taskrun_flag();
    if let Ok(uring) = older.build(submissions) {
        return Ok(uring);
    }
    base().build(submissions)
}

impl Drop for Ring {
    /// Lets go of the devices. What is left of a closed ring the kernel takes down some time later;
    /// until then the files of its table stay open, and the devices locked and held, though their
    /// process has ended: an origin could not be mounted after a stop.
    fn drop(&mut self) {
        if self.has_file_table
            && let Err(error) = self.uring.submitter().unregister_files()
        {
            tracing::debug!(%error, "the ring keeps its files until the kernel takes it down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever stops a daemon may use its devices at once.
    #[test]
    fn a_dropped_ring_holds_no_file() {
        use rustix::fs::{FlockOperation, flock};
        for _ in 0..20 {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut ring = Ring::new().unwrap();
            let device = std::fs::File::open(file.path()).unwrap();
            flock(&device, FlockOperation::NonBlockingLockExclusive).unwrap();
            ring.register_file(0, std::os::fd::AsFd::as_fd(&device));
            let read = opcode::PollAdd::new(Fd(device.as_raw_fd()), libc::POLLIN as u32).build();
            // SAFETY: a poll names no memory.
            unsafe { ring.push(Token::Device(0), read) };
            ring.wait(Some(Duration::ZERO)).unwrap();
            drop(device);
            drop(ring);
            flock(file.as_file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        }
    }

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Device(u32::MAX),
            Token::Accept(0),
            Token::Receive(7),
            Token::Send(8),
            Token::WakeUp,
            Token::Ublk(9),
            Token::VhostUser(10),
            Token::Cancelled,
        ] {
            assert_eq!(Token::from_user_data(token.to_user_data()), token);
        }
    }

    #[test]
    fn more_entries_than_the_queue_has_room_for_all_complete() {
        let mut ring = Ring::new().unwrap();
        let count = SUBMISSION_ENTRIES * 3;
        for index in 0..count {
            // SAFETY: a no-operation names no memory.
            unsafe { ring.push(Token::Device(index), opcode::Nop::new().build()) };
        }
        let mut completions = Vec::new();
        while completions.len() < count as usize {
            ring.wait(Some(Duration::from_secs(5))).unwrap();
            let before = completions.len();
            ring.take_completions(&mut completions);
            assert!(completions.len() > before, "completions are missing");
        }
        let in_order = (0..count).map(Token::Device);
        assert!(completions.iter().map(|completion| completion.token).eq(in_order));
    }

    #[test]
    fn waking_ends_the_wait() {
        let wake_up = WakeUp::new().unwrap();
        let mut ring = Ring::new().unwrap();
        ring.arm_wake_up(&wake_up);
        std::thread::scope(|scope| {
            scope.spawn(|| wake_up.wake());
            ring.wait(None).unwrap();
        });
        let mut completions = Vec::new();
        ring.take_completions(&mut completions);
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].token, Token::WakeUp);
        wake_up.clear();
    }

    #[test]
    fn a_timeout_is_no_error() {
        let mut ring = Ring::new().unwrap();
        ring.wait(Some(Duration::from_micros(1))).unwrap();
        let mut completions = Vec::new();
        ring.take_completions(&mut completions);
        assert!(completions.is_empty());
    }
}
