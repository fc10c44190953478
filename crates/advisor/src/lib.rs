//! Block traces, and what they say about a cache: whether it is worth it, and how large.
//!
//! [`trace`] reads recorded requests in the formats that people have, [`replay`] tells what caches
//! would make of them, [`curve`] the same for all sizes from a sample. [`profile`] says what a
//! workload is like, and [`advice`] what follows from it all. The crate knows no device and no
//! daemon; a trace is a file.

#![forbid(unsafe_code)]

pub mod advice;
pub mod curve;
pub mod profile;
pub mod replay;
pub mod trace;
