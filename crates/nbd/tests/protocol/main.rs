//! Tests of the protocol from the outside: recorded dialogues, both sides against each other, a
//! seeded fuzzer, and foreign peers.

mod client_dialogue;
mod foreign_peers;
mod fuzz;
mod harness;
mod host;
mod random;
mod round_trip;
mod server_handshake;
mod server_transmission;
mod wire;
