//! Guest memory: the regions that a front end shares, mapped, and copies from and to them.
//!
//! The guest may change its memory at any time, so nothing here makes a reference into it: what is
//! read is copied once and judged as a copy. All accesses go through [`vm_memory`], which checks
//! their bounds and copies through raw pointers.
//!
//! Invariants: nothing keeps an address of a mapping beyond a call. Requests under way remember
//! guest addresses, which are looked up again when their data is copied; so a table may be replaced
//! at any time, and a region that is gone makes the request fail.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use vm_memory::mmap::MmapRegionError as MapError;
use vm_memory::{
    AtomicAccess, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap,
    GuestRegionMmap, MmapRegion,
};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::TableRegion;

/// Something lies outside of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutOfMemory;

/// A piece of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u32,
}

/// Where the front end has a region in its own process.
struct UserRange {
    user_address: u64,
    bytes: u64,
    guest_address: u64,
}

/// The memory of a guest.
pub(super) struct Memory {
    guest: GuestMemoryMmap,
    users: Vec<UserRange>,
}

impl Memory {
    /// Maps a table of regions with their files.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    pub(super) fn map(regions: &[TableRegion], files: Vec<OwnedFd>) -> Result<Memory, String> {
        if regions.len() != files.len() {
            return Err(format!("{} regions came with {} files", regions.len(), files.len()));
        }
        let mut mapped = Vec::with_capacity(regions.len());
        let mut users = Vec::with_capacity(regions.len());
        for (region, file) in regions.iter().zip(files) {
            let TableRegion { guest_address, bytes, user_address, file_offset } = *region;
            let ends = [guest_address, user_address].map(|start| start.checked_add(bytes));
            if ends.contains(&None) {
                return Err(format!("a region of {bytes} bytes goes beyond the address space"));
            }
            let mapping = map_file(File::from(file), file_offset, bytes)
                .map_err(|error| format!("a region cannot be mapped: {error}"))?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(guest_address));
            mapped.push(region.ok_or("a region goes beyond the address space")?);
            users.push(UserRange { user_address, bytes, guest_address });
        }
        mapped.sort_by_key(vm_memory::GuestMemoryRegion::start_addr);
        let guest = GuestMemoryMmap::from_regions(mapped)
            .map_err(|error| format!("the regions do not fit together: {error}"))?;
        Ok(Memory { guest, users })
    }

    /// The guest's address of something that the front end names by its own.
    pub(super) fn of_user(&self, user_address: u64) -> Option<u64> {
        self.users.iter().find_map(|range| {
            let offset = user_address.checked_sub(range.user_address)?;
            (offset < range.bytes).then(|| range.guest_address + offset)
        })
    }

    /// Checks that a range is guest memory from end to end.
    pub(super) fn check(&self, address: u64, bytes: usize) -> Result<(), OutOfMemory> {
        let is_inside = self.guest.check_range(GuestAddress(address), bytes);
        if is_inside { Ok(()) } else { Err(OutOfMemory) }
    }

    /// Copies from the guest.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), OutOfMemory> {
        self.guest.read_slice(into, GuestAddress(address)).map_err(|_| OutOfMemory)
    }

    /// Copies to the guest.
    pub(super) fn write(&self, address: u64, from: &[u8]) -> Result<(), OutOfMemory> {
        self.guest.write_slice(from, GuestAddress(address)).map_err(|_| OutOfMemory)
    }

    /// A copy of a structure.
    pub(super) fn read_struct<T>(&self, address: u64) -> Result<T, OutOfMemory>
    where
        T: Default + FromBytes + IntoBytes,
    {
        let mut value = T::default();
        self.read(address, value.as_mut_bytes())?;
        Ok(value)
    }

    /// An aligned integer that the guest's processors use, too.
    pub(super) fn load<T: AtomicAccess>(
        &self,
        address: u64,
        order: Ordering,
    ) -> Result<T, OutOfMemory> {
        self.guest.load(GuestAddress(address), order).map_err(|_| OutOfMemory)
    }

    /// See [`Memory::load`].
    pub(super) fn store<T: AtomicAccess>(
        &self,
        address: u64,
        value: T,
        order: Ordering,
    ) -> Result<(), OutOfMemory> {
        self.guest.store(value, GuestAddress(address), order).map_err(|_| OutOfMemory)
    }
}

/// Maps a part of a file that somebody else has, too.
///
/// # Errors
/// If the kernel refuses, or if the file is shorter: what is behind its end would be a signal at
/// the first access.
pub(super) fn map_file(file: File, offset: u64, bytes: u64) -> Result<MmapRegion, MapError> {
    let end = offset.checked_add(bytes).ok_or(MapError::InvalidOffsetLength)?;
    let metadata = file.metadata().map_err(MapError::Mmap)?;
    if metadata.is_file() && metadata.len() < end {
        return Err(MapError::MappingPastEof);
    }
    let bytes = usize::try_from(bytes).map_err(|_| MapError::InvalidOffsetLength)?;
    MmapRegion::from_file(FileOffset::new(file, offset), bytes)
}
