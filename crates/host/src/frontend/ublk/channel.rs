//! The data path's side of a device: its character device, with descriptors mapped and payload
//! copied.
//!
//! Payload is copied by `pread` and `pwrite` on the character device (`UBLK_F_USER_COPY`) and not
//! by the driver into buffers that wait at it. A buffer that waits would have to be of the largest
//! size, for every tag of every queue, requests or not; this way a request takes a buffer of its
//! own size when it comes, from the memory that all clients share, aligned as the engine wants it,
//! and gives it back the moment its payload is copied. The price is one call for each request with
//! payload, some hundred nanoseconds beside a copy that is made in either case. Zero copy is out of
//! the question: checksums need the bytes.
//!
//! Invariants: a descriptor is read only while its request is with us; payload is copied only
//! between a request's arrival and its commit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::IntoBytes;

use super::abi::{self, DeviceInfo, IoCommand, IoDescriptor};
use super::error::character_path;
use crate::ring::{Ring, Token};

/// Entries of the ring of a thread that only fetches and leaves: what one call submits.
const LEAVING_ENTRIES: u32 = 256;

/// Where a request is: tags are numbered in each queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) queue: u16,
    pub(super) tag: u16,
}

/// What the front end needs of a device. There is one that has no kernel behind it, for tests.
pub(super) trait Channel: Send {
    /// The request at a place.
    fn descriptor(&self, place: Place) -> IoDescriptor;

    /// Copies the payload of a write.
    fn take_payload(&self, place: Place, into: &mut [u8]) -> io::Result<()>;

    /// Copies the payload of a read.
    fn give_payload(&self, place: Place, from: &[u8]) -> io::Result<()>;

    /// Asks for the first request of a place.
    fn fetch(&mut self, ring: &mut Ring, token: Token, place: Place);

    /// Ends the request of a place and asks for its next one.
    fn commit(&mut self, ring: &mut Ring, token: Token, place: Place, result: i32);
}

/// Descriptors of a queue, which the driver writes.
struct Descriptors {
    start: NonNull<IoDescriptor>,
    bytes: usize,
    count: u16,
}

// SAFETY: the mapping belongs to this value alone and can be read and unmapped from any thread of
// the process.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let (offset, bytes) = abi::descriptors(queue, depth, rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                offset,
            )?
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps no null page");
        Ok(Descriptors { start, bytes, count: depth })
    }

    fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.count);
        // SAFETY: the descriptor lies within the mapping (asserted), which lives as long as `self`;
        // any bytes are a valid one. The driver wrote it before the completion that told of it and
        // leaves it alone until the commit. No reference into the mapping is ever made; should the
        // driver write all the same, the copy has odd values, which are judged like any others.
        unsafe { self.start.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and is unmapped once; nobody has a reference.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(result.is_ok(), "an own mapping can be unmapped");
    }
}

/// The character device of a ublk device.
pub(super) struct CharacterDevice {
    queues: Vec<Descriptors>,
    file: File,
}

impl CharacterDevice {
    /// Opens the device that `info` describes. Only one process may have it open.
    pub(super) fn open(info: &DeviceInfo) -> io::Result<CharacterDevice> {
        let file = open_character(info)?;
        let queues = (0..info.queue_count)
            .map(|queue| Descriptors::map(&file, queue, info.queue_depth))
            .collect::<io::Result<_>>()?;
        Ok(CharacterDevice { queues, file })
    }

    fn push(&self, ring: &mut Ring, token: Token, entry: squeue::Entry) {
        // SAFETY: the command names no memory. The front end keeps the descriptor open until the
        // last command of the device has completed; were it closed, the command would fail.
        unsafe { ring.push(token, entry) };
    }
}

/// Only one process may have it open.
fn open_character(info: &DeviceInfo) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(character_path(info.device))
}

fn entry(file: &File, code: u32, place: Place, result: i32) -> squeue::Entry {
    let command = IoCommand { queue: place.queue, tag: place.tag, result, address: 0 };
    let mut payload = [0; 16];
    payload.copy_from_slice(command.as_bytes());
    opcode::UringCmd16::new(Fd(file.as_raw_fd()), code).cmd(payload).build()
}

/// Fetches for all places of a device and lets go of it. The calling thread must end afterwards:
/// the driver takes it for a server, and waits for its end.
pub(super) fn fetch_and_leave(info: &DeviceInfo) -> io::Result<()> {
    let file = open_character(info)?;
    let mut ring = IoUring::new(LEAVING_ENTRIES)?;
    for queue in 0..info.queue_count {
        for tag in 0..info.queue_depth {
            let entry = entry(&file, abi::FETCH, Place { queue, tag }, 0);
            // SAFETY: the command names no memory.
            while unsafe { ring.submission().push(&entry) }.is_err() {
                ring.submit()?;
            }
        }
    }
    ring.submit()?;
    Ok(())
}

impl Channel for CharacterDevice {
    fn descriptor(&self, place: Place) -> IoDescriptor {
        self.queues[usize::from(place.queue)].get(place.tag)
    }

    fn take_payload(&self, place: Place, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, abi::payload_offset(place.queue, place.tag))
    }

    fn give_payload(&self, place: Place, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, abi::payload_offset(place.queue, place.tag))
    }

    fn fetch(&mut self, ring: &mut Ring, token: Token, place: Place) {
        let entry = entry(&self.file, abi::FETCH, place, 0);
        self.push(ring, token, entry);
    }

    fn commit(&mut self, ring: &mut Ring, token: Token, place: Place, result: i32) {
        let entry = entry(&self.file, abi::COMMIT_AND_FETCH, place, result);
        self.push(ring, token, entry);
    }
}
