//! Block traces, and what they say about a cache: whether it is worth it, and how large.
//!
//! [`trace`] reads recorded requests in the formats that people have, [`replay`] tells what caches
//! would make of them. The crate knows no device and no daemon; a trace is a file.

#![forbid(unsafe_code)]

pub mod curve;
pub mod replay;
pub mod trace;
