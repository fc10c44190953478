//! Work behind the front: checkpoints, reclaim, writeback, the superblock. Each is one job with its
//! own state; none of them ever makes a hit wait.

pub(crate) mod blanks;
pub(crate) mod checkpoint;
pub(crate) mod idle_mark;
pub(crate) mod reclaim;
pub(crate) mod reclaim_keep;
pub(crate) mod segment_entries;
pub(crate) mod superblock;
pub(crate) mod writeback;
