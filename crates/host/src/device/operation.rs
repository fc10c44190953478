//! One device operation: what is left to do, how to ask the kernel for it, what an answer means.
//!
//! An operation takes as many steps as it needs: a short transfer goes on where it stopped, a
//! request that the device does not know is replaced by the next best one. Bounds: a step that the
//! kernel asks to repeat is repeated [`RETRIES_MAX`] times.

use forebay_engine::io::{IoError, IoResult, Slices};
use forebay_engine::payload::BufferRange;
use io_uring::types::{Fd, Fixed, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::buffer_pool::{BufferPool, ZERO_BYTES};
use crate::ring::{FileHandle, Ring};

/// Most pieces in one system call: the kernel's `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;
/// How often a step is repeated because the kernel said "again". Chosen: the kernel itself waits
/// where waiting helps, so more than a few repetitions mean that it will not get better.
const RETRIES_MAX: u8 = 16;
/// A transfer is continued at a multiple of this, or direct I/O would refuse the rest.
const CONTINUE_BYTES: u64 = 512;
/// Most bytes given to the kernel at once: it transfers at most 2 GiB less a page.
const STEP_BYTES_MAX: u64 = 1 << 30;
/// `BLOCK_URING_CMD_DISCARD` of linux/blkdev.h: `_IO(0x12, 0)`. Linux 6.12.
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;

/// Builds an entry for either way of naming a file.
macro_rules! with_file {
    ($file:expr, |$fd:ident| $build:expr) => {
        match $file {
            FileHandle::Registered(slot) => {
                let $fd = Fixed(slot);
                $build
            }
            FileHandle::Plain(descriptor) => {
                let $fd = Fd(descriptor);
                $build
            }
        }
    };
}

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// What a range operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangePurpose {
    /// The content is no longer needed.
    Discard,
    /// Zeroes, by deallocating if that is cheaper.
    ZeroMayUnmap,
    /// Zeroes that stay allocated.
    ZeroKeep,
}

impl RangePurpose {
    pub(super) const COUNT: usize = 3;

    /// The method to try when the device does not know `unknown`. A discard may do nothing in the
    /// end; zeroes are written if nothing else is left.
    pub(super) fn method_after(self, unknown: RangeMethod) -> RangeMethod {
        match (self, unknown) {
            (RangePurpose::Discard, RangeMethod::DiscardCommand) => RangeMethod::PunchHole,
            (RangePurpose::Discard, _) => RangeMethod::Nothing,
            (RangePurpose::ZeroMayUnmap, RangeMethod::PunchHole) => RangeMethod::ZeroRange,
            (RangePurpose::ZeroMayUnmap | RangePurpose::ZeroKeep, _) => RangeMethod::Write,
        }
    }
}

/// How a range is emptied or zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeMethod {
    /// The block device's discard command.
    DiscardCommand,
    /// `fallocate` with `PUNCH_HOLE`.
    PunchHole,
    /// `fallocate` with `ZERO_RANGE`.
    ZeroRange,
    /// Writing zeroes.
    Write,
    /// Nothing: a discard that the device does not know.
    Nothing,
}

/// What an operation does.
#[derive(Debug)]
pub(super) enum Work {
    Transfer { direction: Direction, offset_bytes: u64, slices: Slices },
    Flush,
    Range { purpose: RangePurpose, method: RangeMethod, offset_bytes: u64, length_bytes: u64 },
}

/// What to do with an operation after an answer of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is over.
    Done(IoResult),
    /// Another step is needed.
    Again,
    /// The device does not know this method.
    Unsupported(RangePurpose, RangeMethod),
}

/// What an operation has come to.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) work: Work,
    done_bytes: u64,
    retries: u8,
    /// Kept until the completion, since the kernel may read it until the submission.
    pieces: Vec<libc::iovec>,
}

impl Progress {
    pub(super) fn new(work: Work) -> Progress {
        Progress { work, done_bytes: 0, retries: 0, pieces: Vec::new() }
    }

    /// The entry for the next step. The memory that it names: buffers of the pool, which the owner
    /// of the operation holds until its end, the pool's zeroes, and `self.pieces`.
    pub(super) fn entry(
        &mut self,
        ring: &Ring,
        pool: &BufferPool,
        file: FileHandle,
    ) -> squeue::Entry {
        match &self.work {
            Work::Transfer { direction, offset_bytes, slices } => {
                let (direction, offset_bytes) = (*direction, *offset_bytes + self.done_bytes);
                let rest = Remaining::of(slices, self.done_bytes);
                let step = Step { ring, file, direction, offset_bytes };
                step.transfer(rest, pool, &mut self.pieces)
            }
            Work::Flush => {
                with_file!(file, |fd| opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build())
            }
            Work::Range { method, offset_bytes, length_bytes, .. } => {
                let (offset_bytes, length_bytes) = (*offset_bytes, *length_bytes);
                match method {
                    RangeMethod::DiscardCommand => {
                        discard_command(file, offset_bytes, length_bytes)
                    }
                    RangeMethod::PunchHole | RangeMethod::ZeroRange => {
                        let mode = fallocate_mode(*method);
                        with_file!(file, |fd| opcode::Fallocate::new(fd, length_bytes)
                            .offset(offset_bytes)
                            .mode(mode)
                            .build())
                    }
                    RangeMethod::Write => {
                        let left = (length_bytes - self.done_bytes).min(ZERO_BYTES as u64);
                        let step = Step {
                            ring,
                            file,
                            direction: Direction::Write,
                            offset_bytes: offset_bytes + self.done_bytes,
                        };
                        let (region_offset, start) = pool.zeroes();
                        step.single(region_offset, start, left as u32)
                    }
                    RangeMethod::Nothing => opcode::Nop::new().build(),
                }
            }
        }
    }

    /// Interprets the kernel's answer to a step.
    pub(super) fn handle_result(&mut self, result: i32) -> Verdict {
        if result < 0 {
            return self.handle_error(-result);
        }
        let total_bytes = match &self.work {
            Work::Transfer { slices, .. } => slices.total_bytes(),
            Work::Range { method: RangeMethod::Write, length_bytes, .. } => *length_bytes,
            Work::Flush | Work::Range { .. } => return Verdict::Done(Ok(())),
        };
        let moved = result as u64;
        if self.done_bytes + moved >= total_bytes {
            assert!(self.done_bytes + moved == total_bytes, "the kernel moved more than was asked");
            return Verdict::Done(Ok(()));
        }
        let whole = moved / CONTINUE_BYTES * CONTINUE_BYTES;
        self.done_bytes += whole;
        if whole > 0 {
            self.retries = 0;
            return Verdict::Again;
        }
        // Nothing was moved: the device has become shorter than it was when it was opened.
        if moved == 0 { Verdict::Done(Err(IoError::Media)) } else { self.again_or(IoError::Media) }
    }

    fn handle_error(&mut self, errno: i32) -> Verdict {
        if let Work::Range { purpose, method, .. } = &self.work
            && *method != RangeMethod::Write
            && matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::ENOTTY)
        {
            return Verdict::Unsupported(*purpose, *method);
        }
        match errno {
            // A flush is not repeated: the kernel reports a lost write once, and a second flush
            // would succeed without it.
            libc::EINTR | libc::EAGAIN if !matches!(self.work, Work::Flush) => {
                self.again_or(io_error(errno))
            }
            _ => Verdict::Done(Err(io_error(errno))),
        }
    }

    fn again_or(&mut self, error: IoError) -> Verdict {
        self.retries += 1;
        if self.retries > RETRIES_MAX { Verdict::Done(Err(error)) } else { Verdict::Again }
    }

    /// Bytes that pass through the processor if the operation runs on the calling thread.
    pub(super) fn inline_bytes(&self) -> u64 {
        match &self.work {
            Work::Transfer { slices, .. } => slices.total_bytes(),
            Work::Flush => 0,
            Work::Range { length_bytes, .. } => *length_bytes,
        }
    }

    /// Takes the next best method for a range.
    pub(super) fn use_method(&mut self, new: RangeMethod) {
        let Work::Range { method, .. } = &mut self.work else {
            panic!("only ranges have methods");
        };
        *method = new;
        self.done_bytes = 0;
    }

    /// Runs the whole operation on the calling thread.
    pub(super) fn run_inline(&mut self, pool: &BufferPool, file: &std::fs::File) -> Verdict {
        loop {
            let result = self.step_inline(pool, file);
            match self.handle_result(result) {
                Verdict::Again => {}
                other => return other,
            }
        }
    }

    /// One system call; the answer is in the form of a completion.
    fn step_inline(&mut self, pool: &BufferPool, file: &std::fs::File) -> i32 {
        use std::os::fd::AsRawFd;
        let descriptor = file.as_raw_fd();
        let result = match &self.work {
            Work::Transfer { direction, offset_bytes, slices } => {
                let offset = (offset_bytes + self.done_bytes) as i64;
                let rest = Remaining::of(slices, self.done_bytes);
                if let (Some(range), true) = (rest.first, rest.others.is_empty()) {
                    let (start, length) = (pool.pointer(range), range.length as usize);
                    // SAFETY: the range is within a buffer of the pool, which stays mapped; the
                    // owner of the operation keeps others off it until the operation ends.
                    unsafe {
                        match direction {
                            Direction::Read => {
                                libc::pread(descriptor, start.cast(), length, offset)
                            }
                            Direction::Write => {
                                libc::pwrite(descriptor, start.cast(), length, offset)
                            }
                        }
                    }
                } else {
                    rest.fill_pieces(pool, &mut self.pieces);
                    let (first, count) = (self.pieces.as_ptr(), self.pieces.len() as i32);
                    // SAFETY: as above, for each piece; the array of pieces outlives the call.
                    unsafe {
                        match direction {
                            Direction::Read => libc::preadv(descriptor, first, count, offset),
                            Direction::Write => libc::pwritev(descriptor, first, count, offset),
                        }
                    }
                }
            }
            // SAFETY: no memory is named.
            Work::Flush => unsafe { libc::fdatasync(descriptor) as isize },
            Work::Range { method, offset_bytes, length_bytes, .. } => {
                let (offset, length) = (*offset_bytes as i64, *length_bytes as i64);
                match method {
                    RangeMethod::DiscardCommand => return -libc::EOPNOTSUPP,
                    RangeMethod::PunchHole | RangeMethod::ZeroRange => {
                        let mode = fallocate_mode(*method);
                        // SAFETY: no memory is named.
                        unsafe { libc::fallocate(descriptor, mode, offset, length) as isize }
                    }
                    RangeMethod::Write => {
                        let left = (length_bytes - self.done_bytes).min(ZERO_BYTES as u64);
                        let (_, start) = pool.zeroes();
                        let offset = offset + self.done_bytes as i64;
                        // SAFETY: the zeroes are `ZERO_BYTES` long and are only read.
                        unsafe { libc::pwrite(descriptor, start.cast(), left as usize, offset) }
                    }
                    RangeMethod::Nothing => 0,
                }
            }
        };
        if result < 0 {
            -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
        } else {
            i32::try_from(result).expect("transfers are shorter than 2 GiB")
        }
    }
}

/// What is left of the slices of a transfer.
struct Remaining<'a> {
    /// The rest of the slice in which the transfer stands.
    first: Option<BufferRange>,
    /// Those behind it.
    others: &'a [BufferRange],
}

impl<'a> Remaining<'a> {
    fn of(slices: &'a Slices, done_bytes: u64) -> Remaining<'a> {
        let slices = slices.as_slice();
        let mut skip = done_bytes;
        for (index, range) in slices.iter().enumerate() {
            let length = u64::from(range.length);
            if skip < length {
                let first = range.slice(skip as u32, (length - skip) as u32);
                return Remaining { first: Some(first), others: &slices[index + 1..] };
            }
            skip -= length;
        }
        Remaining { first: None, others: &[] }
    }

    fn fill_pieces(&self, pool: &BufferPool, pieces: &mut Vec<libc::iovec>) {
        pieces.clear();
        let mut bytes = 0;
        for range in self.first.iter().chain(self.others).take(PIECES_MAX) {
            bytes += u64::from(range.length);
            if bytes > STEP_BYTES_MAX && !pieces.is_empty() {
                break;
            }
            let (start, length) = (pool.pointer(*range), range.length as usize);
            pieces.push(libc::iovec { iov_base: start.cast(), iov_len: length });
        }
    }
}

/// One transfer to ask for.
struct Step<'a> {
    ring: &'a Ring,
    file: FileHandle,
    direction: Direction,
    offset_bytes: u64,
}

impl Step<'_> {
    fn transfer(
        &self,
        rest: Remaining<'_>,
        pool: &BufferPool,
        pieces: &mut Vec<libc::iovec>,
    ) -> squeue::Entry {
        if let (Some(range), true) = (rest.first, rest.others.is_empty()) {
            let region_offset = pool.region_offset(range);
            return self.single(region_offset, pool.pointer(range), range.length);
        }
        rest.fill_pieces(pool, pieces);
        let (first, count) = (pieces.as_ptr(), pieces.len() as u32);
        let (file, offset) = (self.file, self.offset_bytes);
        if let Some(index) = self.common_buffer_index(&rest, pool) {
            return match self.direction {
                Direction::Read => with_file!(file, |fd| {
                    opcode::ReadvFixed::new(fd, first, count, index).offset(offset).build()
                }),
                Direction::Write => with_file!(file, |fd| {
                    opcode::WritevFixed::new(fd, first, count, index).offset(offset).build()
                }),
            };
        }
        match self.direction {
            Direction::Read => {
                with_file!(file, |fd| opcode::Readv::new(fd, first, count).offset(offset).build())
            }
            Direction::Write => {
                with_file!(file, |fd| opcode::Writev::new(fd, first, count).offset(offset).build())
            }
        }
    }

    /// The registered buffer that holds all pieces, if vectored fixed transfers may be used.
    fn common_buffer_index(&self, rest: &Remaining<'_>, pool: &BufferPool) -> Option<u16> {
        if !self.ring.has_vectored_fixed() {
            return None;
        }
        let mut indices = rest
            .first
            .iter()
            .chain(rest.others)
            .map(|range| Ring::buffer_index(pool.region_offset(*range)));
        let first = indices.next()?;
        indices.all(|index| index == first).then_some(first)
    }

    fn single(&self, region_offset: usize, start: *mut u8, length: u32) -> squeue::Entry {
        let (file, offset) = (self.file, self.offset_bytes);
        if !self.ring.has_buffers() {
            return match self.direction {
                Direction::Read => {
                    with_file!(file, |fd| opcode::Read::new(fd, start, length)
                        .offset(offset)
                        .build())
                }
                Direction::Write => {
                    with_file!(file, |fd| opcode::Write::new(fd, start, length)
                        .offset(offset)
                        .build())
                }
            };
        }
        let index = Ring::buffer_index(region_offset);
        match self.direction {
            Direction::Read => with_file!(file, |fd| {
                opcode::ReadFixed::new(fd, start, length, index).offset(offset).build()
            }),
            Direction::Write => with_file!(file, |fd| {
                opcode::WriteFixed::new(fd, start, length, index).offset(offset).build()
            }),
        }
    }
}

fn discard_command(file: FileHandle, offset_bytes: u64, length_bytes: u64) -> squeue::Entry {
    let mut command = [0u8; 16];
    command[..8].copy_from_slice(&length_bytes.to_ne_bytes());
    with_file!(file, |fd| {
        opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD)
            .cmd(command)
            .addr(Some(offset_bytes))
            .build()
    })
}

fn fallocate_mode(method: RangeMethod) -> i32 {
    match method {
        RangeMethod::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        RangeMethod::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        RangeMethod::DiscardCommand | RangeMethod::Write | RangeMethod::Nothing => {
            panic!("{method:?} is no fallocate")
        }
    }
}

/// The one place where an errno of a device becomes an error of the engine.
pub(super) fn io_error(errno: i32) -> IoError {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => IoError::NoSpace,
        libc::ENODEV
        | libc::ENXIO
        | libc::ENOTCONN
        | libc::ESHUTDOWN
        | libc::ENOMEDIUM
        | libc::ESTALE
        | libc::EPIPE
        | libc::ECONNABORTED
        | libc::ECONNRESET => IoError::Gone,
        libc::ETIMEDOUT | libc::ETIME => IoError::TimedOut,
        // What the block layer answers when it knows no better, when a path or a command failed,
        // or when something was short for a moment (`blk_errors` in block/blk-core.c).
        libc::EIO
        | libc::ENOLINK
        | libc::EREMCHG
        | libc::EAGAIN
        | libc::EINTR
        | libc::EBUSY
        | libc::ENOMEM
        | libc::EHOSTDOWN
        | libc::EHOSTUNREACH
        | libc::ENETDOWN
        | libc::ENETUNREACH
        | libc::ECONNREFUSED => IoError::Transient,
        // ENODATA (a bad place), EILSEQ (bad protection data), EREMOTEIO (the device refuses),
        // EBADE (it is reserved), EINVAL and whatever else a driver thinks of: this range failed,
        // and nothing says that others will, or that it will not again.
        _ => IoError::Media,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_engine::payload::BufferId;

    fn range(length: u32) -> BufferRange {
        BufferRange { buffer: BufferId(0), offset: 0, length }
    }

    fn write(slices: Slices) -> Progress {
        Progress::new(Work::Transfer { direction: Direction::Write, offset_bytes: 0, slices })
    }

    #[test]
    fn short_transfers_go_on_at_a_sector() {
        let mut progress = write(Slices::Many(vec![range(4096), range(8192)]));
        assert_eq!(progress.handle_result(4096 + 700), Verdict::Again);
        assert_eq!(progress.done_bytes, 4096 + 512);
        let Work::Transfer { slices, .. } = &progress.work else { panic!("a transfer") };
        let rest = Remaining::of(slices, progress.done_bytes);
        assert_eq!(rest.first, Some(range(8192).slice(512, 7680)));
        assert!(rest.others.is_empty());
        assert_eq!(progress.handle_result(7680), Verdict::Done(Ok(())));
    }

    #[test]
    fn a_device_that_ends_early_is_an_error_and_no_endless_loop() {
        let mut progress = write(Slices::One(range(4096)));
        assert_eq!(progress.handle_result(0), Verdict::Done(Err(IoError::Media)));
        let mut progress = write(Slices::One(range(4096)));
        for _ in 0..RETRIES_MAX {
            assert_eq!(progress.handle_result(-libc::EAGAIN), Verdict::Again);
        }
        let end = Verdict::Done(Err(IoError::Transient));
        assert_eq!(progress.handle_result(-libc::EAGAIN), end);
    }

    #[test]
    fn a_failed_flush_is_never_repeated() {
        for errno in [libc::EIO, libc::EINTR, libc::EAGAIN] {
            let mut progress = Progress::new(Work::Flush);
            assert_eq!(progress.handle_result(-errno), Verdict::Done(Err(IoError::Transient)));
        }
    }

    #[test]
    fn what_a_device_does_not_know_is_told_apart_from_what_fails() {
        let (purpose, method) = (RangePurpose::Discard, RangeMethod::DiscardCommand);
        let new = || {
            let work = Work::Range { purpose, method, offset_bytes: 0, length_bytes: 4096 };
            Progress::new(work)
        };
        assert_eq!(new().handle_result(-libc::EOPNOTSUPP), Verdict::Unsupported(purpose, method));
        assert_eq!(new().handle_result(-libc::EIO), Verdict::Done(Err(IoError::Transient)));
        assert_eq!(new().handle_result(-libc::ENODATA), Verdict::Done(Err(IoError::Media)));
        assert_eq!(new().handle_result(-libc::ENODEV), Verdict::Done(Err(IoError::Gone)));
        assert_eq!(new().handle_result(-libc::ENOSPC), Verdict::Done(Err(IoError::NoSpace)));
    }
}
