//! Where the blocks of a volume are: origin blocks to places in the log.
//!
//! Two maps make up the index of a volume. `complete` is what reads see: the newest copy of which
//! the record is complete. `pending` holds what has been appended and is not complete yet; together
//! they say which copy will win, and that one has its live bit set. A block that is in neither map
//! has no copy in the log that recovery could find (rule 3).

mod batch;
mod extent;
mod extent_map;
mod map;
mod marks;
mod node;

pub(crate) use batch::Batch;
pub(crate) use extent::{Extent, VERSION_LIMIT};
pub(crate) use map::{BlankKind, BlockMap, Piece, Place};

/// The index of one volume.
#[derive(Default)]
pub(crate) struct VolumeIndex {
    /// Copies whose record is complete.
    pub(crate) complete: BlockMap,
    /// The newest copies among those whose record is under way.
    pub(crate) pending: BlockMap,
}
