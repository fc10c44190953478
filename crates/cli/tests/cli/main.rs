//! End-to-end tests: they run the real binary, as an operator would.
//!
//! Each test has a directory of its own for files, sockets and state; nothing depends on fixed
//! ports or on other tests. The NBD client is the demo's own.

mod advise;
mod bench;
mod claims;
#[path = "../../src/demo/client.rs"]
mod client;
mod comeback;
mod crash;
mod damage;
mod demo;
mod discard_dirty;
mod explain;
mod format;
mod fuse;
mod online;
mod ordered;
mod origin_stalls;
mod pins;
mod recorded;
mod replay;
mod resize;
mod serve;
#[path = "../../src/demo/stamps.rs"]
mod stamps;
mod support;
mod systemd;
mod takeover;
mod up;
mod vhost_user;
