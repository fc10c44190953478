//! Where bytes lie on the platters, and what it takes to bring the head there.
//!
//! Offsets are those of the file. The [`Placement`] maps them to positions on the disk, and only
//! the length of a seek and the zone come from positions. The angle of a byte follows its place on
//! its track; heads of one cylinder and the skew between tracks are folded into the sequential
//! rate.

use super::{HardDisk, Placement};
use crate::SECOND_NS;

/// Zones of equal size. Real disks have some tens; the rate falls evenly from the first to the
/// last.
const ZONE_COUNT: usize = 16;
/// A byte that passed under the head this long before it settled still counts as caught: rounding,
/// and the few hundred bytes between sectors.
const CAUGHT_NS: u64 = 1_000;
/// Largest disk, 4 PiB: what the square root below can scale without overflow.
const CAPACITY_BYTES_MAX: u64 = 1 << 52;
/// Scales distances before their square root is taken, for precision.
const ROOT_SHIFT: u32 = 8;

/// Where the head is, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// It has just passed the byte before this one.
    pub(crate) offset: u64,
    /// When it had.
    pub(crate) since_ns: u64,
}

/// What the head is to do at its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settle {
    /// Reading may begin while the head still settles.
    ToRead,
    /// Writing may not.
    ToWrite,
}

/// Geometry and mechanics of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    parameters: HardDisk,
    capacity_bytes: u64,
    /// Square root of `capacity_bytes`, scaled.
    capacity_root: u64,
    /// Distance between the starts of neighbouring pieces; 0 for a band.
    stride_bytes: u64,
    /// Pieces of each file that is spread.
    file_pieces: u64,
    zone_bytes: u64,
    track_bytes: [u64; ZONE_COUNT],
}

impl Geometry {
    pub(crate) fn new(parameters: HardDisk, length_bytes: u64) -> Geometry {
        assert!(parameters.revolution_ns > 0);
        assert!(parameters.outer_bytes_per_second >= parameters.inner_bytes_per_second);
        assert!(parameters.seek_track_ns <= parameters.seek_third_ns);
        assert!(parameters.seek_third_ns <= parameters.seek_full_ns);
        let needed_bytes = match parameters.placement {
            Placement::Band { start_bytes } => start_bytes + length_bytes,
            Placement::Spread { piece_bytes, file_count } => {
                length_bytes.next_multiple_of(piece_bytes * u64::from(file_count))
            }
        };
        let capacity_bytes = parameters.capacity_bytes.max(needed_bytes).max(ZONE_COUNT as u64);
        assert!(capacity_bytes <= CAPACITY_BYTES_MAX);
        let (stride_bytes, file_pieces) = match parameters.placement {
            Placement::Band { .. } => (0, 0),
            Placement::Spread { piece_bytes, file_count } => {
                let files = u64::from(file_count);
                let file_pieces = length_bytes.div_ceil(piece_bytes * files).max(1);
                (capacity_bytes / (file_pieces * files), file_pieces)
            }
        };
        let outer = parameters.outer_bytes_per_second;
        let inner = parameters.inner_bytes_per_second;
        let track_bytes = core::array::from_fn(|zone| {
            let rate = outer - (outer - inner) * zone as u64 / (ZONE_COUNT as u64 - 1);
            // At least one byte, so that no division below is by zero.
            (rate * (parameters.revolution_ns / 1000) / (SECOND_NS / 1000)).max(1)
        });
        Geometry {
            parameters,
            capacity_bytes,
            capacity_root: (capacity_bytes << ROOT_SHIFT).isqrt(),
            stride_bytes,
            file_pieces,
            zone_bytes: capacity_bytes / ZONE_COUNT as u64,
            track_bytes,
        }
    }

    /// Time until the head can begin at `target_offset` if it sets out at `start_ns`.
    pub(crate) fn positioning_ns(
        &self,
        head: Head,
        start_ns: u64,
        target_offset: u64,
        settle: Settle,
    ) -> u64 {
        // The next byte, and no time lost: nothing to wait for, even from one piece to the next.
        if head.offset == target_offset && head.since_ns == start_ns {
            return 0;
        }
        let seek_ns = match (self.seek_ns(head.offset, target_offset), settle) {
            (0, _) => 0,
            (seek_ns, Settle::ToRead) => seek_ns,
            (seek_ns, Settle::ToWrite) => seek_ns + self.parameters.write_settle_ns,
        };
        seek_ns + self.rotation_ns(start_ns + seek_ns, target_offset)
    }

    /// Time to read or write `length_bytes` from `offset` on, at the rate of its zone.
    pub(crate) fn transfer_ns(&self, offset: u64, length_bytes: u64) -> u64 {
        let product = u128::from(length_bytes) * u128::from(self.parameters.revolution_ns);
        let nanoseconds = product / u128::from(self.track_bytes(offset));
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }

    /// Bytes that pass under the head in `elapsed_ns` from `offset` on.
    pub(crate) fn passed_bytes(&self, offset: u64, elapsed_ns: u64) -> u64 {
        let product = u128::from(elapsed_ns) * u128::from(self.track_bytes(offset));
        let bytes = product / u128::from(self.parameters.revolution_ns);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Time of a seek: none on one track, then with the square root of the distance (the arm speeds
    /// up and slows down) up to a third of the stroke, then in proportion (it has its full speed).
    pub(crate) fn seek_ns(&self, from_offset: u64, to_offset: u64) -> u64 {
        let (from, to) = (self.position(from_offset), self.position(to_offset));
        if self.track(from) == self.track(to) {
            return 0;
        }
        let tripled = from.abs_diff(to).min(self.capacity_bytes) * 3;
        let parameters = &self.parameters;
        if tripled <= self.capacity_bytes {
            let span_ns = parameters.seek_third_ns - parameters.seek_track_ns;
            let root = (tripled << ROOT_SHIFT).isqrt();
            parameters.seek_track_ns + span_ns * root / self.capacity_root
        } else {
            let span_ns = u128::from(parameters.seek_full_ns - parameters.seek_third_ns);
            let beyond = u128::from(tripled - self.capacity_bytes);
            let extra_ns = span_ns * beyond / (2 * u128::from(self.capacity_bytes));
            parameters.seek_third_ns + u64::try_from(extra_ns).expect("at most the full stroke")
        }
    }

    /// Time from `at_ns` until the byte at `offset` passes under the head.
    fn rotation_ns(&self, at_ns: u64, offset: u64) -> u64 {
        let revolution_ns = self.parameters.revolution_ns;
        let position = self.position(offset);
        let zone = self.zone(position);
        let in_track = (position - zone as u64 * self.zone_bytes) % self.track_bytes[zone];
        let byte_angle_ns = in_track * revolution_ns / self.track_bytes[zone];
        let head_angle_ns = at_ns % revolution_ns;
        let wait_ns = (byte_angle_ns + revolution_ns - head_angle_ns) % revolution_ns;
        if wait_ns + CAUGHT_NS >= revolution_ns { 0 } else { wait_ns }
    }

    /// Where on the disk the byte at `offset` of the file is.
    fn position(&self, offset: u64) -> u64 {
        match self.parameters.placement {
            Placement::Band { start_bytes } => start_bytes + offset,
            Placement::Spread { piece_bytes, file_count } => {
                let piece = offset / piece_bytes;
                let files = u64::from(file_count);
                // The end of the last file lies behind its last piece.
                let file = (piece / self.file_pieces).min(files - 1);
                let slot = (piece - file * self.file_pieces) * files + file;
                slot * self.stride_bytes + offset % piece_bytes
            }
        }
    }

    fn zone(&self, position: u64) -> usize {
        usize::try_from(position / self.zone_bytes)
            .map_or(ZONE_COUNT - 1, |zone| zone.min(ZONE_COUNT - 1))
    }

    /// Zone, and track within it.
    fn track(&self, position: u64) -> (usize, u64) {
        let zone = self.zone(position);
        (zone, (position - zone as u64 * self.zone_bytes) / self.track_bytes[zone])
    }

    fn track_bytes(&self, offset: u64) -> u64 {
        self.track_bytes[self.zone(self.position(offset))]
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const LENGTH_BYTES: u64 = 128 << 20;

    fn geometry() -> Geometry {
        Geometry::new(HardDisk::server_7200(), LENGTH_BYTES)
    }

    #[test]
    fn longer_seeks_are_not_faster() {
        let band =
            HardDisk { placement: Placement::Band { start_bytes: 0 }, ..HardDisk::server_7200() };
        let geometry = Geometry::new(band, 2_000_000_000_000);
        let mut last_ns = 0;
        for step in 0..20_000 {
            let seek_ns = geometry.seek_ns(0, step * 100_000_000);
            assert!(seek_ns >= last_ns, "step {step}: {seek_ns} after {last_ns}");
            last_ns = seek_ns;
        }
        assert!(last_ns <= band.seek_full_ns);
        assert!(last_ns > band.seek_full_ns - 10_000);
    }

    #[test]
    fn seeks_take_as_long_back_as_forth() {
        let geometry = geometry();
        for step in 0..1000 {
            let (near, far) = (step * 4096, LENGTH_BYTES - step * 65_536);
            assert_eq!(geometry.seek_ns(near, far), geometry.seek_ns(far, near));
        }
    }

    #[test]
    fn a_third_of_the_stroke_takes_the_mean_seek() {
        let geometry = geometry();
        let seek_ns = geometry.seek_ns(0, LENGTH_BYTES / 3);
        assert!(seek_ns.abs_diff(HardDisk::server_7200().seek_third_ns) < 200_000, "{seek_ns}");
    }

    #[test]
    fn each_of_several_files_is_spread_over_the_whole_disk() {
        let placement = Placement::Spread { piece_bytes: 1 << 20, file_count: 4 };
        let geometry =
            Geometry::new(HardDisk { placement, ..HardDisk::server_7200() }, LENGTH_BYTES);
        let file_bytes = LENGTH_BYTES / 4;
        let positions: Vec<u64> = (0..128).map(|piece| geometry.position(piece << 20)).collect();
        for file in 0..4_u64 {
            let first = usize::try_from(file).expect("few") * 32;
            assert!(positions[first] < geometry.capacity_bytes / 32, "{file}");
            assert!(positions[first + 31] > geometry.capacity_bytes / 32 * 30, "{file}");
            assert_eq!(geometry.position(file * file_bytes), positions[first]);
        }
        assert!(geometry.position(LENGTH_BYTES) > positions[127], "the end is the end");
        let mut places = positions.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 128, "no two pieces are at one place");
        assert!(places.last() < Some(&geometry.capacity_bytes));
    }

    #[test]
    fn no_wait_is_longer_than_a_revolution() {
        let geometry = geometry();
        for step in 0..10_000 {
            let wait_ns = geometry.rotation_ns(step * 12_345, step * 4096 % LENGTH_BYTES);
            assert!(wait_ns < HardDisk::server_7200().revolution_ns);
        }
    }

    #[test]
    fn outer_tracks_are_faster_than_inner_ones() {
        let geometry = geometry();
        assert!(geometry.transfer_ns(0, 1 << 20) < geometry.transfer_ns(LENGTH_BYTES - 1, 1 << 20));
        let outer_ns = geometry.transfer_ns(0, 180_000_000);
        assert!(outer_ns.abs_diff(SECOND_NS) < 1_000_000, "{outer_ns}");
    }

    #[test]
    fn the_next_byte_at_once_costs_nothing_even_in_the_next_piece() {
        let geometry = geometry();
        let head = Head { offset: 16 << 20, since_ns: 5 };
        assert_eq!(geometry.positioning_ns(head, 5, 16 << 20, Settle::ToWrite), 0);
    }
}
