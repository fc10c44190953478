//! What remembers the requests under way when this process ends: a piece of memory that the front
//! end keeps, and hands to the next server.
//!
//! Its form is the protocol's (`QueueRegionSplit`). A request is marked before it is begun and
//! unmarked when the driver can see that it has ended; in between the number of used entries tells
//! whether the driver has seen it. So a server that is killed at any moment leaves behind which
//! requests are to be done again, and none is done again that the driver has seen end.
//!
//! The front end could write anything here: what is read is checked.

use std::fs::File;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use super::abi::InFlightArea;
use super::memory::map_file;
use super::request::QUEUE_COUNT_MAX;
use super::ring::RING_SIZE_MAX;

/// Bytes before the entries of a queue.
const HEADER_BYTES: usize = 16;
/// Bytes of a request.
const ENTRY_BYTES: usize = 16;
/// Each queue begins in a cache line of its own.
const QUEUE_ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

/// Places within a queue's part.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const SIZE: usize = 10;
    pub(super) const LAST_HEAD: usize = 12;
    pub(super) const USED_INDEX: usize = 14;
}

/// Places within an entry.
mod entry {
    pub(super) const MARK: usize = 0;
    pub(super) const NEXT: usize = 6;
    pub(super) const COUNTER: usize = 8;
}

/// The memory, mapped.
pub(super) struct InFlight {
    mapping: MmapRegion,
    queue_count: u16,
    queue_size: u16,
    next_counter: u64,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(QUEUE_ALIGNMENT)
}

fn is_possible(queue_count: u16, queue_size: u16) -> bool {
    (1..=QUEUE_COUNT_MAX).contains(&queue_count)
        && queue_size.is_power_of_two()
        && queue_size <= RING_SIZE_MAX
}

/// Makes the memory for a front end to keep. Zeroes mean that nothing is under way.
///
/// # Errors
/// Why it cannot be had.
pub(super) fn create(queue_count: u16, queue_size: u16) -> Result<(File, InFlightArea), String> {
    if !is_possible(queue_count, queue_size) {
        return Err(format!("{queue_count} queues of {queue_size} requests are not possible"));
    }
    let bytes = (queue_bytes(queue_size) * usize::from(queue_count)) as u64;
    let failed = |errno: rustix::io::Errno| format!("no memory for requests in flight: {errno}");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("forebay-in-flight", flags).map_err(failed)?;
    ftruncate(&file, bytes).map_err(failed)?;
    // A front end cannot take away what is mapped here.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(failed)?;
    let area = InFlightArea { bytes, file_offset: 0, queue_count, queue_size, padding: 0 };
    Ok((File::from(file), area))
}

impl InFlight {
    /// Maps what a front end has kept.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn map(area: &InFlightArea, file: File) -> Result<InFlight, String> {
        let InFlightArea { bytes, file_offset, queue_count, queue_size, .. } = *area;
        let least = (queue_bytes(queue_size) * usize::from(queue_count)) as u64;
        if !is_possible(queue_count, queue_size) || bytes < least {
            return Err(format!(
                "{bytes} bytes for {queue_count} queues of {queue_size} requests in flight"
            ));
        }
        let mapping = map_file(file, file_offset, bytes)
            .map_err(|error| format!("the memory for requests in flight: {error}"))?;
        Ok(InFlight { mapping, queue_count, queue_size, next_counter: 1 })
    }

    /// Begins with a queue: returns the heads of requests that were under way, oldest first.
    ///
    /// # Errors
    /// If it does not fit, or holds what no server wrote.
    pub(super) fn start(
        &mut self,
        queue: u16,
        ring_size: u16,
        used_index: u16,
    ) -> Result<Vec<u16>, String> {
        if queue >= self.queue_count || ring_size > self.queue_size {
            return Err(format!(
                "queue {queue} of {ring_size} requests has no room in the memory for requests \
                 in flight, which is for {} of {}",
                self.queue_count, self.queue_size
            ));
        }
        if self.load::<u16>(queue, at::VERSION) != VERSION {
            self.store(queue, at::VERSION, VERSION);
            self.store(queue, at::SIZE, ring_size);
            self.store(queue, at::USED_INDEX, used_index);
            return Ok(Vec::new());
        }
        self.finish_last(queue, ring_size, used_index);
        let mut found = Vec::new();
        for head in 0..ring_size {
            if self.load::<u8>(queue, place(head, entry::MARK)) != 0 {
                found.push((self.load::<u64>(queue, place(head, entry::COUNTER)), head));
            }
        }
        found.sort_unstable();
        let newest = found.last().map_or(0, |(counter, _)| *counter);
        self.next_counter = self.next_counter.max(newest.wrapping_add(1));
        Ok(found.into_iter().map(|(_, head)| head).collect())
    }

    /// Unmarks what the driver has seen end, though the predecessor did not come to note it.
    fn finish_last(&mut self, queue: u16, ring_size: u16, used_index: u16) {
        let noted: u16 = self.load(queue, at::USED_INDEX);
        let mut head: u16 = self.load(queue, at::LAST_HEAD);
        // More than a ring has is not from a server; then nothing is known to have ended.
        let count = used_index.wrapping_sub(noted);
        if count <= ring_size {
            for _ in 0..count {
                if head >= ring_size {
                    break;
                }
                self.store(queue, place(head, entry::MARK), 0u8);
                head = self.load(queue, place(head, entry::NEXT));
            }
        }
        self.store(queue, at::USED_INDEX, used_index);
    }

    /// A request is begun.
    pub(super) fn mark(&mut self, queue: u16, head: u16) {
        let counter = self.next_counter;
        self.next_counter = counter.wrapping_add(1);
        self.store(queue, place(head, entry::COUNTER), counter);
        fence(Ordering::Release);
        self.store(queue, place(head, entry::MARK), 1u8);
    }

    /// A request is about to be shown to the driver as ended.
    pub(super) fn begin_end(&mut self, queue: u16, head: u16) {
        let last: u16 = self.load(queue, at::LAST_HEAD);
        self.store(queue, place(head, entry::NEXT), last);
        self.store(queue, at::LAST_HEAD, head);
        fence(Ordering::Release);
    }

    /// The driver can see that it has ended.
    pub(super) fn end(&mut self, queue: u16, head: u16, used_index: u16) {
        fence(Ordering::Release);
        self.store(queue, place(head, entry::MARK), 0u8);
        fence(Ordering::Release);
        self.store(queue, at::USED_INDEX, used_index);
    }

    fn load<T: vm_memory::AtomicAccess>(&self, queue: u16, offset: usize) -> T {
        let slice = self.mapping.as_volatile_slice();
        let result = slice.load(self.offset(queue, offset), Ordering::Acquire);
        result.unwrap_or_else(|error| panic!("the place was checked at the start: {error}"))
    }

    fn store<T: vm_memory::AtomicAccess>(&self, queue: u16, offset: usize, value: T) {
        let slice = self.mapping.as_volatile_slice();
        let result = slice.store(value, self.offset(queue, offset), Ordering::Release);
        result.unwrap_or_else(|error| panic!("the place was checked at the start: {error}"));
    }

    fn offset(&self, queue: u16, offset: usize) -> usize {
        assert!(queue < self.queue_count && offset < queue_bytes(self.queue_size));
        queue_bytes(self.queue_size) * usize::from(queue) + offset
    }
}

fn place(head: u16, field: usize) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(head) + field
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 8;

    /// What a life of a server leaves behind, as the next one finds it.
    fn life(live: impl FnOnce(&mut InFlight), used_index: u16) -> Vec<u16> {
        let (file, area) = create(2, SIZE).unwrap();
        let open = || InFlight::map(&area, file.try_clone().unwrap()).unwrap();
        let mut first = open();
        assert!(first.start(1, SIZE, 65_535).unwrap().is_empty());
        live(&mut first);
        open().start(1, SIZE, used_index).unwrap()
    }

    #[test]
    fn a_server_may_die_at_any_step_of_an_end() {
        let marked =
            |memory: &mut InFlight| [5, 2].into_iter().for_each(|head| memory.mark(1, head));
        assert_eq!(life(marked, 65_535), [5, 2]);
        let before_the_index = |memory: &mut InFlight| {
            marked(memory);
            memory.begin_end(1, 2);
        };
        assert_eq!(life(before_the_index, 65_535), [5, 2]);
        // The driver has seen it, so it is not done again, though its mark is still there.
        assert_eq!(life(before_the_index, 0), [5]);
        let at_the_end = |memory: &mut InFlight| {
            before_the_index(memory);
            memory.end(1, 2, 0);
        };
        assert_eq!(life(at_the_end, 0), [5]);
    }

    #[test]
    fn a_head_that_is_used_again_is_the_newest() {
        let live = |memory: &mut InFlight| {
            memory.mark(1, 4);
            memory.mark(1, 3);
            memory.begin_end(1, 4);
            memory.end(1, 4, 0);
            memory.mark(1, 4);
        };
        assert_eq!(life(live, 0), [3, 4]);
    }

    #[test]
    fn what_no_server_wrote_does_no_harm() {
        let (file, area) = create(1, SIZE).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; area.bytes as usize], 0)
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &VERSION.to_ne_bytes(), 8).unwrap();
        let mut memory = InFlight::map(&area, file.try_clone().unwrap()).unwrap();
        assert_eq!(memory.start(0, SIZE, 3).unwrap().len(), usize::from(SIZE));
        assert!(memory.start(1, SIZE, 0).is_err());
        assert!(memory.start(0, SIZE * 2, 0).is_err());
        let larger = InFlightArea { queue_count: 64, ..area };
        assert!(InFlight::map(&larger, file).is_err());
    }
}
