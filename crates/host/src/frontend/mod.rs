//! Front ends: how clients reach exports.
//!
//! A front end turns what clients ask into [`Demand`]s, and [`ClientReply`]s into what clients get.
//! It knows exports by number and nothing of what is behind them. [`FrontEnd`] is all that the loop
//! asks of one; what the kernel has completed goes to the front end that submitted it.
//! [`FrontEnds`] has all of them stand beside each other: it puts the front end's place into the
//! number of each request, and finds it there again when the reply comes.

mod accept_pause;
mod block_request;
mod connection;
mod log_once;
pub(crate) mod memory_turn;
pub(crate) mod nbd;
mod outbox;
mod translation;
pub(crate) mod ublk;
pub(crate) mod vhost_user;

use forebay_engine::io::IoError;
use forebay_engine::payload::BufferId;
use forebay_engine::request::{RequestError, RequestKind};
use forebay_engine::status::BlockState;
use forebay_engine::units::{BLOCK_BYTES, Time};

use crate::buffer_pool::BufferPool;
use crate::ring::Ring;
use crate::shard::exports::{ExportNumber, ExportTable};
use crate::shard::status::ConnectionReport;
use memory_turn::{Claimant, MemoryTurn};
use nbd::NbdFrontEnd;
use ublk::UblkFrontEnd;
use vhost_user::VhostUserFrontEnd;

/// Bits of a request's number that are the front end's own; its place is above them. Far more than
/// can be under way.
const NUMBER_BITS: u32 = 28;

/// Where the blocks of a read came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// All from the cache.
    Cache,
    /// At least one from the origin, or from a bare device.
    Origin,
}

/// A client's request, validated, with a buffer if it moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientRequest {
    /// Names it in its reply.
    pub(crate) number: u32,
    pub(crate) export: ExportNumber,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) kind: RequestKind,
}

/// What a front end wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// A request, to be answered by a [`ClientReply`].
    Request(ClientRequest),
    /// The client of a request is gone: it need not wait any more. It is answered all the same.
    Forget { number: u32, export: ExportNumber },
    /// The state of a range, to be answered by runs of it.
    BlockStatus { number: u32, export: ExportNumber, offset_bytes: u64, length_bytes: u64 },
}

impl Demand {
    /// The same with another number.
    fn numbered(mut self, change: impl FnOnce(u32) -> u32) -> Demand {
        let (Demand::Request(ClientRequest { number, .. })
        | Demand::Forget { number, .. }
        | Demand::BlockStatus { number, .. }) = &mut self;
        *number = change(*number);
        self
    }
}

/// Largest range of one block status: bounds the time that the engine's index is walked, and the
/// text of the answer.
pub(crate) const STATUS_BYTES_MAX: u64 = 1 << 30;

/// The answer to a request. Each request gets exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientReply {
    pub(crate) number: u32,
    pub(crate) result: Result<(), RequestError>,
    pub(crate) served: Served,
}

/// When a client that is there sees that its export has become longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeReach {
    /// At once: it was told.
    Live,
    /// When it connects again: nothing tells it before.
    Reconnect,
    /// When its block device was removed and made anew: by a stop and a start of the server while
    /// nobody uses the device.
    Restart,
}

/// A client of an export, and when it sees a new size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientSize {
    /// Address, process, socket or block device.
    pub client: String,
    /// When.
    pub reach: SizeReach,
}

/// What a front end works with.
pub(crate) struct FrontContext<'a> {
    pub(crate) ring: &'a mut Ring,
    pub(crate) pool: &'a mut BufferPool,
    pub(crate) memory_turn: &'a mut MemoryTurn,
    pub(crate) exports: &'a mut ExportTable,
    pub(crate) now: Time,
}

impl FrontContext<'_> {
    /// Memory for the payload of a request; `None` if it has to wait.
    fn allocate(&mut self, claimant: Claimant, bytes: usize) -> Option<BufferId> {
        self.memory_turn.allocate(claimant, self.pool, bytes)
    }
}

/// Bytes of the whole blocks around a range: memory for the payload of a request.
fn whole_blocks(offset_bytes: u64, length_bytes: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    let start = offset_bytes / block * block;
    (offset_bytes + length_bytes).next_multiple_of(block) - start
}

/// What the loop asks of a front end.
pub(crate) trait FrontEnd {
    /// The next thing that a client wants.
    fn poll_demand(&mut self) -> Option<Demand>;

    /// A request is done.
    fn handle_reply(&mut self, context: &mut FrontContext<'_>, reply: ClientReply);

    /// The state of a range, in runs of blocks from its start on: what a block status asked for.
    fn handle_block_status(&mut self, _number: u32, _runs: &[(u64, u64, BlockState)]) {
        panic!("the state of blocks that was never asked for");
    }

    /// Sends what is due, resumes what was stalled, and asks for more. To be called when all
    /// replies of a round are in, so that they leave together.
    fn flush(&mut self, context: &mut FrontContext<'_>);

    /// Whether a request waits for memory that others have.
    fn waits_for_memory(&self) -> bool;

    /// Whether something is to be done at once.
    fn has_work(&self) -> bool;

    /// Does what is due by now.
    fn handle_time(&mut self, _context: &mut FrontContext<'_>) {}

    /// When to call [`FrontEnd::handle_time`] next.
    fn next_wakeup(&self) -> Option<Time> {
        None
    }

    /// Takes no new clients and no new requests; replies that are due still go out.
    fn begin_shutdown(&mut self);

    /// Whether a request of a client is not answered yet.
    fn has_requests(&self) -> bool;

    /// Lets go of all clients.
    fn close_all(&mut self, context: &mut FrontContext<'_>);

    /// Lets go of the clients of an export.
    fn close_clients_of(&mut self, context: &mut FrontContext<'_>, export: ExportNumber);

    /// Whether the kernel holds no memory for it and no client is left.
    fn is_empty(&self) -> bool;

    /// An export has become longer: requests up to its new end are taken from now on, and clients
    /// that can be told are told.
    fn resize(&mut self, context: &mut FrontContext<'_>, export: ExportNumber);

    /// Whether clients of an export are still being told of a new size.
    fn is_resizing(&self, _export: ExportNumber) -> bool {
        false
    }

    /// When each client of an export sees the size that it has now.
    fn size_reach(&self, export: ExportNumber) -> Vec<ClientSize>;

    /// Clients of an export, by name.
    fn peers_of(&self, export: ExportNumber) -> Vec<String>;

    /// All clients.
    fn report(&self, exports: &ExportTable, now: Time) -> Vec<ConnectionReport>;
}

/// All front ends of a shard.
pub(crate) struct FrontEnds {
    pub(crate) nbd: NbdFrontEnd,
    pub(crate) ublk: UblkFrontEnd,
    pub(crate) vhost_user: VhostUserFrontEnd,
}

impl FrontEnds {
    /// Each at its place as a [`Claimant`].
    fn all(&self) -> [&dyn FrontEnd; Claimant::COUNT] {
        [&self.nbd, &self.ublk, &self.vhost_user]
    }

    fn all_mut(&mut self) -> [&mut dyn FrontEnd; Claimant::COUNT] {
        [&mut self.nbd, &mut self.ublk, &mut self.vhost_user]
    }

    /// The front end of a request, and the request's number there.
    fn of_number(&mut self, number: u32) -> (&mut dyn FrontEnd, u32) {
        let place = (number >> NUMBER_BITS) as usize;
        let front = self.all_mut().into_iter().nth(place);
        let front = front.expect("a reply is to a request that was made");
        (front, number & ((1 << NUMBER_BITS) - 1))
    }
}

impl FrontEnd for FrontEnds {
    fn poll_demand(&mut self) -> Option<Demand> {
        for (place, front) in (0u32..).zip(self.all_mut()) {
            if let Some(demand) = front.poll_demand() {
                return Some(demand.numbered(|number| {
                    assert!(number < 1 << NUMBER_BITS, "what is under way is bounded");
                    place << NUMBER_BITS | number
                }));
            }
        }
        None
    }

    fn handle_reply(&mut self, context: &mut FrontContext<'_>, reply: ClientReply) {
        let (front, number) = self.of_number(reply.number);
        front.handle_reply(context, ClientReply { number, ..reply });
    }

    fn handle_block_status(&mut self, number: u32, runs: &[(u64, u64, BlockState)]) {
        let (front, number) = self.of_number(number);
        front.handle_block_status(number, runs);
    }

    fn flush(&mut self, context: &mut FrontContext<'_>) {
        loop {
            self.all_mut().into_iter().for_each(|front| front.flush(context));
            // Who waited may have got all, or have gone, here or before.
            context.memory_turn.forget(self.all().map(FrontEnd::waits_for_memory));
            if !context.memory_turn.take_moved() {
                break;
            }
        }
        self.nbd.others_wait = self.ublk.waits_for_memory() || self.vhost_user.waits_for_memory();
    }

    fn waits_for_memory(&self) -> bool {
        self.all().into_iter().any(FrontEnd::waits_for_memory)
    }

    fn has_work(&self) -> bool {
        self.all().into_iter().any(FrontEnd::has_work)
    }

    fn handle_time(&mut self, context: &mut FrontContext<'_>) {
        self.all_mut().into_iter().for_each(|front| front.handle_time(context));
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.all().into_iter().filter_map(FrontEnd::next_wakeup).min()
    }

    fn begin_shutdown(&mut self) {
        self.all_mut().into_iter().for_each(FrontEnd::begin_shutdown);
    }

    fn has_requests(&self) -> bool {
        self.all().into_iter().any(FrontEnd::has_requests)
    }

    fn close_all(&mut self, context: &mut FrontContext<'_>) {
        self.all_mut().into_iter().for_each(|front| front.close_all(context));
    }

    fn close_clients_of(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        self.all_mut().into_iter().for_each(|front| front.close_clients_of(context, export));
    }

    fn is_empty(&self) -> bool {
        self.all().into_iter().all(FrontEnd::is_empty)
    }

    fn resize(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        self.all_mut().into_iter().for_each(|front| front.resize(context, export));
    }

    fn is_resizing(&self, export: ExportNumber) -> bool {
        self.all().into_iter().any(|front| front.is_resizing(export))
    }

    fn size_reach(&self, export: ExportNumber) -> Vec<ClientSize> {
        self.all().into_iter().flat_map(|front| front.size_reach(export)).collect()
    }

    fn peers_of(&self, export: ExportNumber) -> Vec<String> {
        self.all().into_iter().flat_map(|front| front.peers_of(export)).collect()
    }

    fn report(&self, exports: &ExportTable, now: Time) -> Vec<ConnectionReport> {
        self.all().into_iter().flat_map(|front| front.report(exports, now)).collect()
    }
}

/// What a client is told when a device of a bare export fails.
pub(crate) fn request_error(error: IoError) -> RequestError {
    match error {
        IoError::NoSpace => RequestError::NoSpace,
        IoError::Media | IoError::Transient | IoError::Gone | IoError::TimedOut => RequestError::Io,
    }
}
