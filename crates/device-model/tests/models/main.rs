//! What the device models promise, checked from outside in virtual time.

mod behaviour;
mod closed_loop;
mod published_figures;
