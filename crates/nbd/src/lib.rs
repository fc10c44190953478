//! The NBD protocol without sockets: both sides as state machines, for any host to drive.
//!
//! Fixed newstyle handshake, simple and structured replies, metadata contexts. Bytes of the peer go
//! in, events and bytes for the peer come out; there is no clock, thread, or I/O of any kind.
//!
//! # Server
//!
//! ```
//! use forebay_nbd::{ExportInfo, REPLY_HEADER_BYTES_MAX, ServerConnection, ServerEvent};
//!
//! /// Returns how many bytes of `received` are used up; the payload of a write stands behind them.
//! fn on_received(
//!     connection: &mut ServerConnection,
//!     exports: &[ExportInfo],
//!     received: &[u8],
//!     to_send: &mut Vec<u8>,
//! ) -> Result<usize, forebay_nbd::ProtocolError> {
//!     let mut used = 0;
//!     loop {
//!         let (consumed, event) = connection.handle_bytes(&received[used..], exports, to_send)?;
//!         used += consumed;
//!         match event {
//!             // More bytes are needed, or payload is pending.
//!             None => return Ok(used),
//!             Some(ServerEvent::Ready(session)) => { /* keep a copy: it forms the replies */ }
//!             Some(ServerEvent::Request(request)) => {
//!                 // Start it. If it is a write, move `request.payload_bytes()` bytes into its
//!                 // buffer: first those left in `received`, the others straight from the socket,
//!                 // and tell it with `connection.payload_taken(count)`.
//!             }
//!             Some(ServerEvent::Refused(refusal)) => {
//!                 let session = connection.session().expect("requests come after Ready");
//!                 let mut reply = [0; REPLY_HEADER_BYTES_MAX];
//!                 let length =
//!                     session.encode_error_reply(refusal.cookie, refusal.error(), &mut reply);
//!                 to_send.extend_from_slice(&reply[..length]);
//!             }
//!             Some(ServerEvent::Aborted | ServerEvent::Disconnect) => {
//!                 return Ok(used); // send, then close
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # Client
//!
//! [`ClientConnection`] is driven the same way: bytes of the server go in until no event comes;
//! requests are formed by [`ClientConnection::encode_request`]; the data of a read is taken off the
//! stream by the host, which the event tells where in the request it belongs.

#![no_std]

extern crate alloc;

mod client;
mod client_handshake;
mod client_reply;
mod client_session;
mod error;
mod export;
mod gather;
mod handshake;
mod meta_context;
mod option;
mod protocol;
mod reply;
mod request;
mod server;
mod session;
mod transmission;

pub use client::{ClientConnection, ClientEvent, REQUESTS_IN_FLIGHT_MAX, RequestError};
pub use client_handshake::{ClientGoal, ClientOptions};
pub use client_session::{
    ClientSession, HandshakeRefusal, HandshakeRefusalReason, ListedExport, Offers,
};
pub use error::{Field, ProtocolError, ReplyError};
pub use export::{ExportError, ExportInfo};
pub use meta_context::{
    ALLOCATION_HOLE, ALLOCATION_ZERO, CACHE_CLEAN, CACHE_DIRTY, CACHE_NONE, ContextSet, MetaContext,
};
pub use protocol::{
    OPTION_BYTES_MAX, OPTION_COUNT_MAX, PAYLOAD_BYTES_MAX, REQUEST_HEADER_BYTES,
    SKIPPED_OPTION_BYTES_MAX, SKIPPED_PAYLOAD_BYTES_MAX, STATUS_EXTENTS_MAX, STRING_BYTES_MAX,
};
pub use reply::{ContextExtents, REPLY_HEADER_BYTES_MAX, StatusExtent};
pub use request::{
    Command, Cookie, Durability, HolePolicy, ReadChunks, Request, StatusExtents, ZeroSpeed,
};
pub use server::{ServerConnection, ServerEvent};
pub use session::{ReplyStyle, Session};
pub use transmission::{Refusal, RefusalReason};
