//! The main job on real input: file systems on a volume that outlive the daemon.
//!
//! A volume is served over NBD, `nbdfuse` makes a file of it, a loop device makes a block device of
//! that file, and the kernel mounts it. A source tree is cloned onto it and changed; the daemon is
//! killed in the middle of that, and what was synced before must be there afterwards.
//!
//! Here are also the procedures of the documents, run as they are written.
//!
//! Each test has a directory of its own and ends only what it has started, also when it panics. A
//! test that lacks root, a device, a program or the source package says so and is skipped.

mod documents;
mod kills;
mod ledger;
mod lost_cache;
mod machine;
mod origin;
mod process;
mod source;
mod stack;
mod writers;
