//! The socket of a front end: messages with descriptors in, messages out, never waiting.
//!
//! A message is read exactly: first its header, then as many bytes as that announces. Descriptors
//! belong to the bytes that they came with, so what is read beyond a message could bring those of
//! the next one.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::IntoBytes;

use super::abi::{Header, flag};
use super::poll::is_there;

/// Longest payload. The longest of a front end in its right mind is a memory table or a
/// configuration, both below 300 bytes.
const PAYLOAD_BYTES_MAX: u32 = 4096;
/// Most descriptors with a message: as many as a memory table may have regions.
pub(super) const FILES_MAX: usize = 32;

/// A message of a front end.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

/// Why no more can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WireFault {
    /// The front end has gone.
    Gone,
    Version,
    PayloadBytes,
    Files,
    /// Descriptors of a message are lost.
    Cut,
    Socket(Errno),
}

impl WireFault {
    pub(super) fn text(self) -> String {
        match self {
            WireFault::Gone => "it has gone".to_owned(),
            WireFault::Version => "a message is not of version 1 of the protocol".to_owned(),
            WireFault::PayloadBytes => "a message is too long".to_owned(),
            WireFault::Files => "a message has too many descriptors".to_owned(),
            WireFault::Cut => format!(
                "descriptors of a message are lost: it has more than {FILES_MAX}, or this process \
                 may not open more files (RLIMIT_NOFILE)"
            ),
            WireFault::Socket(errno) => format!("the socket failed: {errno}"),
        }
    }
}

/// The socket, and what was read of the next message.
pub(super) struct Wire {
    socket: OwnedFd,
    partial: Message,
    header: [u8; size_of::<Header>()],
    header_bytes: usize,
    payload_bytes: usize,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> Wire {
        Wire {
            socket,
            partial: Message::default(),
            header: [0; size_of::<Header>()],
            header_bytes: 0,
            payload_bytes: 0,
        }
    }

    /// The next message; `None` if it has not come yet.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, WireFault> {
        while self.header_bytes < self.header.len() {
            let rest = &mut self.header[self.header_bytes..];
            match receive_some(&self.socket, rest, &mut self.partial.files)? {
                Some(count) => self.header_bytes += count,
                None => return Ok(None),
            }
            if self.header_bytes == self.header.len() {
                self.partial.header = zerocopy::transmute!(self.header);
                let header = self.partial.header;
                if header.flags & flag::VERSION_MASK != flag::VERSION {
                    return Err(WireFault::Version);
                }
                if header.payload_bytes > PAYLOAD_BYTES_MAX {
                    return Err(WireFault::PayloadBytes);
                }
                self.partial.payload.resize(header.payload_bytes as usize, 0);
            }
        }
        while self.payload_bytes < self.partial.payload.len() {
            let rest = &mut self.partial.payload[self.payload_bytes..];
            match receive_some(&self.socket, rest, &mut self.partial.files)? {
                Some(count) => self.payload_bytes += count,
                None => return Ok(None),
            }
        }
        (self.header_bytes, self.payload_bytes) = (0, 0);
        Ok(Some(std::mem::take(&mut self.partial)))
    }

    /// Sends the reply to a request. It fits into the socket, unless the front end reads none.
    pub(super) fn reply(
        &self,
        request: u32,
        payload: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), WireFault> {
        send(self.socket.as_fd(), request, flag::VERSION | flag::REPLY, payload, file)
    }

    /// Whether the front end has closed its end.
    pub(super) fn is_hung_up(&self) -> bool {
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        is_there(&self.socket, PollFlags::RDHUP, ended)
    }

    /// Shows the front end that nothing more will come.
    pub(super) fn shut_down(&self) {
        // It may be shut down from the other side already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends a message whole.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    request: u32,
    flags: u32,
    payload: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), WireFault> {
    let header = Header { request, flags, payload_bytes: payload.len() as u32 };
    let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() {
        let has_room = control.push(SendAncillaryMessage::ScmRights(files));
        assert!(has_room, "there is room for one");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::io::retry_on_intr(|| sendmsg(socket, &pieces, &mut control, flags)) {
        Ok(sent) if sent == size_of::<Header>() + payload.len() => Ok(()),
        Ok(_) => Err(WireFault::Socket(Errno::AGAIN)),
        Err(errno) => Err(WireFault::Socket(errno)),
    }
}

/// Reads what there is, up to a length; `None` if there is nothing yet.
fn receive_some(
    socket: &OwnedFd,
    into: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, WireFault> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut pieces = [IoSliceMut::new(into)];
    let received = match recvmsg(socket, &mut pieces, &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(WireFault::Gone),
        Err(errno) => return Err(WireFault::Socket(errno)),
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(WireFault::Cut);
    }
    if files.len() > FILES_MAX {
        return Err(WireFault::Files);
    }
    if received.bytes == 0 {
        return Err(WireFault::Gone);
    }
    Ok(Some(received.bytes))
}
