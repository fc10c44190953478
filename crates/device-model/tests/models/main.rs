//! What the device models promise, checked from outside in virtual time. The simulator compares
//! them with published figures (`crates/sim/src/models.rs`).

mod behaviour;
