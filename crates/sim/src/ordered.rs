//! Promise 4: the origin of an ordered volume alone is a state that a crash could have left.
//!
//! Such a state has a moment: everything flushed before it is there, and of what was submitted
//! before it any part. It is enough to try the moments just before a flush completes, since between
//! two of these only more becomes allowed; and each sector allows a few ranges of them.

use forebay_engine::units::SECTOR_BYTES;

use crate::media::NEVER;
use crate::oracle::{Mismatch, Oracle, Run};
use crate::stamp::{self, Found};

impl Oracle {
    /// Checks that the touched sectors, as `read` finds them, are one crash state of the volume.
    ///
    /// # Errors
    /// If there is no moment at which all could have been so; names the sector that ruled out the
    /// last.
    pub fn check_crash_state(
        &self,
        volume: usize,
        read: &mut dyn FnMut(Run, &mut [u8]),
    ) -> Result<(), Mismatch> {
        let mut moments = self.volumes[volume].flush_points.clone();
        moments.push(NEVER - 1);
        let mut is_possible = vec![true; moments.len()];
        let mut bytes = Vec::new();
        for run in self.touched(volume, 2048) {
            bytes.resize(run.count as usize * SECTOR_BYTES, 0);
            read(run, &mut bytes);
            for (sector, bytes) in (run.first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let ranges = self.moments_of(volume, sector, stamp::read(bytes));
                let before = is_possible.iter().filter(|possible| **possible).count();
                for (moment, possible) in moments.iter().zip(&mut is_possible) {
                    *possible &= ranges.iter().any(|(from, to)| from < moment && moment <= to);
                }
                if !is_possible.contains(&true) {
                    let found = stamp::read(bytes);
                    let text = format!(
                        "found {found} on the origin, possible in {ranges:?}; {before} of {} \
                         moments were possible by the sectors before it",
                        moments.len()
                    );
                    return Err(Mismatch { kind: "no crash state", sector, text });
                }
            }
        }
        Ok(())
    }

    /// Ranges of moments, first exclusive and last inclusive, at which a sector may hold `found`.
    fn moments_of(&self, volume: usize, sector: u32, found: Found) -> Vec<(u64, u64)> {
        let history = &self.volumes[volume];
        let versions = &history.sectors[sector as usize];
        let value = match found {
            Found::Zero => 0,
            Found::Stamp(stamp) if stamp.volume as usize == volume && stamp.sector == sector => {
                stamp.write
            }
            _ => return Vec::new(),
        };
        if versions.is_empty() {
            return if value == history.initial { vec![(0, NEVER)] } else { Vec::new() };
        }
        let mut ranges = Vec::new();
        for version in versions {
            let write = &self.writes[version.write as usize];
            if version.value != value && version.value != u32::MAX {
                continue;
            }
            let superseded = versions
                .iter()
                .map(|later| &self.writes[later.write as usize])
                .filter(|later| later.acknowledged && later.submitted > write.done)
                .map(|later| later.flushed)
                .min();
            ranges.push((write.submitted, superseded.unwrap_or(NEVER)));
        }
        ranges
    }
}
