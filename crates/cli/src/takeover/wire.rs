//! Whole messages on a local socket, each with one descriptor at most.
//!
//! Invariants: a message is bounded; what is longer, has another form, or has a descriptor where
//! none belongs is an error. Descriptors that are not wanted are closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};

use super::Message;
use crate::exit::Failure;

/// Longest message: an offer that names all volumes of a full table.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// One end of the conversation.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedFd,
}

/// What came.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) descriptor: Option<OwnedFd>,
}

fn broken(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn local_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Wire {
    /// Connects to who waits at `path`.
    pub(crate) fn connect(path: &Path) -> io::Result<Wire> {
        let socket = local_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Wire { socket })
    }

    /// Both ends.
    #[cfg(test)]
    pub(super) fn pair() -> (Wire, Wire) {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (Wire { socket: a }, Wire { socket: b })
    }

    /// Process and user at the other end.
    pub(crate) fn peer(&self) -> io::Result<(u32, u32)> {
        let peer = sockopt::socket_peercred(&self.socket)?;
        let pid =
            u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(|_| broken("no process"))?;
        Ok((pid, peer.uid.as_raw()))
    }

    /// The same end once more.
    pub(crate) fn try_clone(&self) -> io::Result<Wire> {
        Ok(Wire { socket: self.socket.try_clone()? })
    }

    /// How long [`Wire::receive`] waits.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(patience))?)
    }

    /// Sends a message, with a descriptor if it has one.
    pub(crate) fn send(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.send_with(message, descriptor, SendFlags::empty())
    }

    /// Sends a message now or not at all.
    pub(crate) fn send_at_once(&self, message: &Message) -> io::Result<()> {
        self.send_with(message, None, SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(broken(format!("a message of {} bytes is too long", text.len())));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            let has_room = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            assert!(has_room, "there is room for one");
        }
        // Without NOSIGNAL the end of the other side would be a signal to this one.
        let flags = flags | SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &[IoSlice::new(&text)], &mut ancillary, flags)?;
        if sent == text.len() { Ok(()) } else { Err(broken("a message was cut")) }
    }

    /// The next message. `UnexpectedEof` if the other side has closed.
    pub(crate) fn receive(&self) -> io::Result<Received> {
        let mut text = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut text)];
        let mut receive =
            || recvmsg(&self.socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let got = match receive() {
            // The other side has closed and left something of ours unread. That is told once,
            // before what it has said itself.
            Err(Errno::CONNRESET) => receive()?,
            got => got?,
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(broken("a message is longer than any may be"));
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(broken(
                "descriptors of a message are lost: it has more than one, or this process may \
                 not open more files (RLIMIT_NOFILE)",
            ));
        }
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message: Message = serde_json::from_slice(&text[..got.bytes])?;
        let wants_one = matches!(
            message,
            Message::Cache { .. } | Message::Origin { .. } | Message::Listener { .. }
        );
        let descriptor = descriptors.pop();
        if descriptor.is_some() != wants_one || !descriptors.is_empty() {
            return Err(broken("a message has a descriptor too many or none"));
        }
        Ok(Received { message, descriptor })
    }
}

/// Where a successor waits. The path is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Meeting {
    socket: OwnedFd,
    path: std::path::PathBuf,
}

impl Meeting {
    /// Makes the socket, for its owner alone.
    pub(crate) fn open(path: &Path) -> Result<Meeting, Failure> {
        let open = || -> io::Result<Meeting> {
            let socket = local_socket()?;
            // Left by a process of the same number that was killed.
            if path.exists() {
                std::fs::remove_file(path)?;
            }
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            let meeting = Meeting { socket, path: path.to_owned() };
            // Between bind and listen nobody can connect, so the wider mode is never in force.
            rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
            listen(&meeting.socket, 1)?;
            Ok(meeting)
        };
        open().map_err(|error| {
            Failure::failed(format!("cannot make the socket {}: {error}", path.display()))
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Who connects within so long.
    pub(crate) fn accept(self, patience: Duration) -> io::Result<Wire> {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(patience))?;
        Ok(Wire { socket: accept_with(&self.socket, SocketFlags::CLOEXEC)? })
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = Wire::pair();
        let file = tempfile::tempfile().unwrap();
        let message = Message::Cache { device: "/dev/x".into() };
        a.send(&message, Some(file.as_fd())).unwrap();
        a.send(&Message::Silent {}, None).unwrap();
        let received = b.receive().unwrap();
        assert_eq!(received.message, message);
        let theirs = rustix::fs::fstat(received.descriptor.unwrap()).unwrap();
        assert_eq!(theirs.st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
        assert_eq!(b.receive().unwrap().message, Message::Silent {});
        drop(a);
        assert_eq!(b.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_has_another_form_is_an_error() {
        let (a, b) = Wire::pair();
        let raw = |text: &[u8]| {
            rustix::net::send(&a.socket, text, SendFlags::empty()).unwrap();
            b.receive().unwrap_err()
        };
        raw(b"{}");
        raw(b"not json");
        raw(br#"{"message":"ready","more":1}"#);
        raw(br#"{"message":"cache","device":"/dev/x"}"#);
        assert_eq!(raw(&vec![b' '; MESSAGE_BYTES_MAX + 1]).kind(), io::ErrorKind::InvalidData);
        let file = tempfile::tempfile().unwrap();
        a.send(&Message::Ready {}, Some(file.as_fd())).unwrap();
        assert!(b.receive().is_err(), "it has a descriptor, and none belongs to it");
        let reason = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(a.send(&Message::Refused { reason }, None).is_err());
    }

    #[test]
    fn a_peer_that_is_gone_cannot_be_told() {
        let (a, b) = Wire::pair();
        drop(b);
        assert!(a.send_at_once(&Message::Yours {}).is_err());
    }
}
