//! Replies of one connection on their way out: many of them in one system call.
//!
//! Replies gather in a queue while an earlier batch is on its way; then the whole queue becomes the
//! next batch. A batch is first offered to the socket at once, which usually takes all of it; what
//! it does not take goes through the ring, which waits for the client without holding up anybody.
//!
//! Invariants: at most one batch is under way; while the ring holds it, neither its replies nor the
//! array of pieces that points into them moves.

use std::os::fd::{AsRawFd, BorrowedFd};

use forebay_engine::payload::BufferRange;
use forebay_nbd::REPLY_HEADER_BYTES_MAX;
use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use crate::buffer_pool::BufferPool;

/// Most pieces in one call: the kernel's `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;
/// Most replies in one batch: each has a header and at most one body.
const BATCH_REPLIES_MAX: usize = PIECES_MAX / 2;

/// What follows the header of a reply.
#[derive(Debug)]
pub(super) enum Body {
    /// Nothing.
    None,
    /// Payload. The reply owns one reference of the buffer.
    Data(BufferRange),
    /// Bytes of a handshake or a block status.
    Text(Vec<u8>),
}

/// A reply, or bytes of the handshake.
#[derive(Debug)]
pub(super) struct OutgoingReply {
    pub(super) header: [u8; REPLY_HEADER_BYTES_MAX],
    pub(super) header_bytes: u8,
    pub(super) body: Body,
    /// Whether it ends a request.
    pub(super) ends_request: bool,
    /// Payload memory that is free when it is sent.
    pub(super) buffer_bytes: u32,
}

impl OutgoingReply {
    /// The reply that ends a request: a header so far.
    pub(super) fn to_request(
        header: [u8; REPLY_HEADER_BYTES_MAX],
        header_bytes: usize,
    ) -> OutgoingReply {
        OutgoingReply { ends_request: true, ..OutgoingReply::refusal(header, header_bytes) }
    }

    /// The reply to a request that was refused before it became one.
    pub(super) fn refusal(
        header: [u8; REPLY_HEADER_BYTES_MAX],
        header_bytes: usize,
    ) -> OutgoingReply {
        let header_bytes = header_bytes as u8;
        let body = Body::None;
        OutgoingReply { header, header_bytes, body, ends_request: false, buffer_bytes: 0 }
    }
}

/// What has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sent {
    pub(super) requests: u32,
    pub(super) buffer_bytes: u64,
}

/// How an attempt to send went on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendStep {
    /// The batch is gone.
    Complete,
    /// The socket takes no more for now.
    Blocked,
    /// The client is gone.
    Broken(i32),
}

/// Replies of one connection.
pub(super) struct Outbox {
    queued: Vec<OutgoingReply>,
    batch: Vec<OutgoingReply>,
    /// Of both, those that end no request.
    other_count: u32,
    pieces: Vec<libc::iovec>,
    /// Pieces before this one are sent.
    next_piece: usize,
    message: Box<libc::msghdr>,
    is_in_ring: bool,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            queued: Vec::new(),
            batch: Vec::new(),
            other_count: 0,
            pieces: Vec::new(),
            next_piece: 0,
            message: Box::new(empty_message()),
            is_in_ring: false,
        }
    }

    /// Adds a reply.
    pub(super) fn push(&mut self, reply: OutgoingReply) {
        self.other_count += u32::from(!reply.ends_request);
        self.queued.push(reply);
    }

    /// Replies that end no request and have not left.
    pub(super) fn other_count(&self) -> u32 {
        self.other_count
    }

    /// Adds bytes that are no reply to a request.
    pub(super) fn push_text(&mut self, text: Vec<u8>) {
        let header = [0; REPLY_HEADER_BYTES_MAX];
        self.push(OutgoingReply { body: Body::Text(text), ..OutgoingReply::refusal(header, 0) });
    }

    /// Whether everything is sent.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.batch.is_empty()
    }

    /// Whether the ring holds a batch.
    pub(super) fn is_in_ring(&self) -> bool {
        self.is_in_ring
    }

    /// Makes the next batch of what is queued. Returns whether there is one to send.
    pub(super) fn prepare(&mut self, pool: &BufferPool) -> bool {
        assert!(!self.is_in_ring);
        if !self.batch.is_empty() {
            return true;
        }
        if self.queued.is_empty() {
            return false;
        }
        if self.queued.len() <= BATCH_REPLIES_MAX {
            std::mem::swap(&mut self.queued, &mut self.batch);
        } else {
            self.batch.extend(self.queued.drain(..BATCH_REPLIES_MAX));
        }
        self.pieces.clear();
        self.next_piece = 0;
        for reply in &self.batch {
            if reply.header_bytes > 0 {
                self.pieces.push(piece(&reply.header[..usize::from(reply.header_bytes)]));
            }
            match &reply.body {
                Body::None => {}
                Body::Data(range) => self.pieces.push(libc::iovec {
                    iov_base: pool.pointer(*range).cast(),
                    iov_len: range.length as usize,
                }),
                Body::Text(text) => self.pieces.push(piece(text)),
            }
        }
        true
    }

    /// Offers the batch to the socket, without waiting.
    pub(super) fn send_now(&mut self, socket: BorrowedFd<'_>) -> SendStep {
        loop {
            let message = self.message();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the message names `self.pieces`, whose pieces are in `self.batch`, in its
            // texts, and in pool buffers that the batch owns references of; none moves or is freed
            // during the call.
            let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), message, flags) };
            if sent < 0 {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                return match errno {
                    libc::EINTR => continue,
                    libc::EAGAIN => SendStep::Blocked,
                    _ => SendStep::Broken(errno),
                };
            }
            if self.advance(sent as usize) {
                return SendStep::Complete;
            }
        }
    }

    /// The rest of the batch as an entry for the ring, which then holds it.
    pub(super) fn entry(&mut self, socket: BorrowedFd<'_>) -> squeue::Entry {
        assert!(!self.is_in_ring);
        self.is_in_ring = true;
        let descriptor = Fd(socket.as_raw_fd());
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        opcode::SendMsg::new(descriptor, self.message()).flags(flags).build()
    }

    /// The ring has given the batch back.
    pub(super) fn handle_sent(&mut self, result: i32) -> SendStep {
        assert!(self.is_in_ring);
        self.is_in_ring = false;
        match result {
            sent if sent >= 0 => {
                if self.advance(sent as usize) {
                    SendStep::Complete
                } else {
                    SendStep::Blocked
                }
            }
            errno if matches!(-errno, libc::EINTR | libc::EAGAIN) => SendStep::Blocked,
            errno => SendStep::Broken(-errno),
        }
    }

    /// Takes the sent batch apart: gives its buffers to `release`.
    pub(super) fn take_sent(&mut self, mut release: impl FnMut(BufferRange)) -> Sent {
        assert!(!self.is_in_ring);
        let mut sent = Sent::default();
        for reply in self.batch.drain(..) {
            count(&reply, &mut sent, &mut self.other_count);
            if let Body::Data(range) = reply.body {
                release(range);
            }
        }
        sent
    }

    /// Drops everything, sent or not: the client is gone.
    pub(super) fn take_all(&mut self, mut release: impl FnMut(BufferRange)) -> Sent {
        let mut sent = self.take_sent(&mut release);
        for reply in self.queued.drain(..) {
            count(&reply, &mut sent, &mut self.other_count);
            if let Body::Data(range) = reply.body {
                release(range);
            }
        }
        sent
    }

    fn message(&mut self) -> *const libc::msghdr {
        let rest = &mut self.pieces[self.next_piece..];
        assert!(!rest.is_empty() && rest.len() <= PIECES_MAX);
        self.message.msg_iov = rest.as_mut_ptr();
        self.message.msg_iovlen = rest.len();
        &raw const *self.message
    }

    /// Marks bytes as sent. Returns whether the batch is complete.
    fn advance(&mut self, bytes: usize) -> bool {
        let mut left = bytes;
        while let Some(piece) = self.pieces.get_mut(self.next_piece) {
            if left < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(left);
                piece.iov_len -= left;
                return false;
            }
            left -= piece.iov_len;
            self.next_piece += 1;
        }
        assert!(left == 0, "the kernel sent more than there was");
        true
    }
}

fn count(reply: &OutgoingReply, sent: &mut Sent, other_count: &mut u32) {
    sent.requests += u32::from(reply.ends_request);
    *other_count -= u32::from(!reply.ends_request);
    sent.buffer_bytes += u64::from(reply.buffer_bytes);
}

fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// A message without address, pieces and control data.
pub(super) fn empty_message() -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: std::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn pool() -> BufferPool {
        use crate::shard::MemoryOptions;
        BufferPool::new(MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 }).unwrap()
    }

    #[test]
    fn a_batch_leaves_in_order_whatever_the_socket_takes_at_once() {
        use crate::buffer_pool::Owner;
        use forebay_engine::payload::Payload;
        let mut pool = pool();
        let (server, mut client) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::new();
        let mut expected = Vec::new();
        for index in 0..600u32 {
            let buffer = pool.allocate_for(Owner::Clients, 4096).unwrap();
            let range = BufferRange { buffer, offset: 512, length: 3584 };
            pool.slice_mut(range).fill(index as u8);
            let header = [0xee; REPLY_HEADER_BYTES_MAX];
            expected.extend_from_slice(&header[..16]);
            expected.extend_from_slice(&[index as u8; 3584]);
            let body = Body::Data(range);
            let (ends_request, buffer_bytes) = (true, 4096);
            outbox.push(OutgoingReply {
                header,
                header_bytes: 16,
                body,
                ends_request,
                buffer_bytes,
            });
        }
        outbox.push_text(b"the end".to_vec());
        expected.extend_from_slice(b"the end");
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; expected.len()];
            client.read_exact(&mut received).unwrap();
            received == expected
        });
        let mut total = Sent::default();
        while outbox.prepare(&pool) {
            // A full socket is offered the rest until the reader has made room.
            if outbox.send_now(server.as_fd()) == SendStep::Complete {
                let sent = outbox.take_sent(|range| pool.release(range.buffer));
                total.requests += sent.requests;
                total.buffer_bytes += sent.buffer_bytes;
            }
        }
        assert!(reader.join().unwrap());
        assert_eq!(outbox.other_count(), 0);
        assert_eq!(total, Sent { requests: 600, buffer_bytes: 600 * 4096 });
        assert!(outbox.is_empty());
        assert_eq!(pool.report().clients.used_bytes, 0);
    }

    #[test]
    fn a_client_that_left_is_noticed_and_its_buffers_come_back() {
        let pool = pool();
        let (server, client) = UnixStream::pair().unwrap();
        drop(client);
        let mut outbox = Outbox::new();
        outbox.push_text(b"hello".to_vec());
        assert_eq!(outbox.other_count(), 1);
        assert!(outbox.prepare(&pool));
        assert_eq!(outbox.send_now(server.as_fd()), SendStep::Broken(libc::EPIPE));
        outbox.take_all(|_| {});
        assert!(outbox.is_empty());
        assert_eq!(outbox.other_count(), 0);
    }
}
