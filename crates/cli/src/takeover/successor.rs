//! The daemon that takes over. See [`super`] for the order.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_engine::units::VolumeSlot;
use forebay_host::takeover::{HandedDevice, HandedDevices, HandedListeners, TAKEOVER_MAX};
use forebay_host::{DeviceSpec, ListenAddress, Listener, ReadyMemory};

use super::wire::{Meeting, Received, Wire};
use super::{Message, Role, Supervisor, TakeoverRequest, VERSION};
use crate::admin::client::{self, AdminClient};
use crate::admin::socket::BoundSocket;
use crate::exit::{Exit, Failure};

/// How long the predecessor may take to say something: longer than it waits itself, so that what
/// it has decided is heard.
const PATIENCE: Duration = TAKEOVER_MAX.saturating_add(Duration::from_secs(5));
/// How long it may take to say that it goes on, after it has begun to: it does so in one step. As
/// much longer it holds requests back where a cache device is damaged indeed.
const LAST_WORD_PATIENCE: Duration = Duration::from_secs(1);
/// Most descriptors that are taken: far more than a full volume table and all sockets.
const DESCRIPTORS_MAX: usize = 4096;

/// The conversation with the predecessor.
#[derive(Debug)]
pub(crate) struct Succession {
    wire: Wire,
    pid: u32,
    supervisor: Option<Supervisor>,
}

/// What the predecessor has given, but not given up.
pub(crate) struct Handed {
    pub(crate) devices: HandedDevices,
    pub(crate) listeners: HandedListeners,
    pub(crate) admin: BoundSocket,
}

/// A predecessor, as a daemon that takes over needs it.
pub(crate) struct Predecessor {
    pub(crate) succession: Succession,
    pub(crate) listeners: HandedListeners,
    pub(crate) admin: BoundSocket,
    pub(crate) memory: ReadyMemory,
    /// When it began to hold requests back, about.
    pub(crate) began: Instant,
}

fn broken(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the daemon that runs does not hand over: {what}"))
        .or("it goes on if it has not ended; its log says more")
}

impl Succession {
    /// Finds the daemon that serves `cache` and asks it to hand over. It goes on serving until
    /// [`Succession::begin`]. `ublk` names the volumes that are to be block devices.
    pub(crate) fn meet(
        cache: &Path,
        set_id: &str,
        state_directory: PathBuf,
        admin: Option<&Path>,
        ublk: &[String],
    ) -> Result<Succession, Failure> {
        let daemon = find(cache, admin)?;
        let ending = format!("takeover-{}", std::process::id());
        let meeting = Meeting::open(&daemon.socket().with_extension(ending))?;
        let socket = std::path::absolute(meeting.path())
            .map_err(|error| Failure::failed(format!("cannot find the directory: {error}")))?;
        let request = TakeoverRequest {
            version: VERSION,
            set_id: set_id.to_owned(),
            socket,
            state_directory: Some(state_directory),
        };
        client::block_on(daemon.take_over(&request))?.map_err(|failure| match failure.exit {
            Exit::NotFound => Failure::refused("the daemon that runs knows no takeover")
                .or("stop it with `forebay stop` and start this one without --takeover"),
            _ => failure,
        })?;
        let wire = meeting.accept(PATIENCE).map_err(broken)?;
        wire.set_patience(PATIENCE).map_err(broken)?;
        let offer = wire.receive().map_err(broken)?.message;
        let Message::Offer { pid, ublk: served, supervisor } = offer else {
            return Err(broken(format!("it says {offer:?}")));
        };
        // A device that nobody takes over waits for ever, and whoever uses it with it.
        if let Some(name) = served.iter().find(|name| !ublk.contains(name)) {
            return Err(Failure::usage(format!("`{name}` is a ublk device of daemon {pid}"))
                .or(format!("add --ublk {name}, or release the device and stop that daemon")));
        }
        Ok(Succession { wire, pid, supervisor })
    }

    /// Has requests held back and takes devices and sockets. Nothing may be written through them
    /// before [`Succession::finish`].
    pub(crate) fn begin(&self) -> Result<Handed, Failure> {
        self.say(&Message::Begin {})?;
        let (mut cache, mut admin) = (None, None);
        let (mut origins, mut listeners) = (Vec::new(), HandedListeners::default());
        for _ in 0..DESCRIPTORS_MAX {
            let Received { message, descriptor } = self.wire.receive().map_err(broken)?;
            match (message, descriptor) {
                (Message::Silent {}, _) => {
                    let cache = cache.ok_or_else(|| broken("it names no cache device"))?;
                    let admin = admin.ok_or_else(|| broken("it names no admin socket"))?;
                    let devices = HandedDevices { cache, origins };
                    return Ok(Handed { devices, listeners, admin });
                }
                (Message::Cache { device }, Some(descriptor)) => {
                    cache = Some(HandedDevice { descriptor, spec: spec(&device)? });
                }
                (Message::Origin { slot, device }, Some(descriptor)) => {
                    let device = HandedDevice { descriptor, spec: spec(&device)? };
                    origins.push((VolumeSlot(slot), device));
                }
                (Message::Listener { role, wanted, address }, Some(descriptor)) => {
                    let (wanted, address) = (listen_address(&wanted)?, listen_address(&address)?);
                    let listener = |socket| Listener::handed(socket, wanted, address.clone());
                    match role {
                        Role::Nbd => listeners.nbd.push(listener(descriptor)),
                        Role::VhostUser => listeners.vhost_user.push(listener(descriptor)),
                        Role::Admin => admin = Some(admin_socket(descriptor, &address)?),
                    }
                }
                (Message::Refused { reason }, _) => return Err(refused(&reason)),
                (other, _) => return Err(broken(format!("it says {other:?}"))),
            }
        }
        Err(broken("it names more than there can be"))
    }

    /// Says that everything is read, and waits for the end of the predecessor. Only if this is
    /// `Ok`, something may be written. An error means that this process has to end: whether the
    /// other one is dead or goes on cannot be told from here.
    pub(crate) fn finish(self) -> Result<Option<Supervisor>, Failure> {
        self.say(&Message::Ready {})?;
        match self.wire.receive() {
            Ok(Received { message: Message::Yours {}, .. }) => {
                tracing::info!(predecessor = self.pid, "it is our turn");
                Ok(self.supervisor)
            }
            Ok(Received { message: Message::Refused { reason }, .. }) => Err(refused(&reason)),
            Ok(received) => Err(broken(format!("it says {:?}", received.message))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ended()),
            Err(error) => Err(broken(error)),
        }
    }

    /// Why the predecessor has given nothing up, if it has told. From then on it writes, so what
    /// was read meanwhile says nothing of its devices.
    pub(crate) fn last_word(&self) -> Option<Failure> {
        self.wire.set_patience(LAST_WORD_PATIENCE).ok()?;
        match self.wire.receive() {
            Ok(Received { message: Message::Refused { reason }, .. }) => Some(refused(&reason)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(ended()),
            _ => None,
        }
    }

    /// Says something. If the predecessor does not listen any more, it has told why.
    fn say(&self, message: &Message) -> Result<(), Failure> {
        self.wire.send(message, None).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.last_word().unwrap_or_else(|| broken(error))
            }
            _ => broken(error),
        })
    }
}

fn ended() -> Failure {
    Failure::failed("the daemon that runs has ended before it handed over")
        .or("if it is dead, start this one without --takeover")
}

fn refused(reason: &str) -> Failure {
    Failure::refused(format!("the daemon that runs goes on and hands nothing over: {reason}"))
}

fn find(cache: &Path, admin: Option<&Path>) -> Result<AdminClient, Failure> {
    let work = async {
        match client::serving(cache, admin).await? {
            Some(daemon) => Ok(Some(daemon)),
            // The new one may be meant to have its admin socket elsewhere.
            None => client::serving(cache, None).await,
        }
    };
    let found: Result<_, Failure> = client::block_on(work)?;
    found?.ok_or_else(|| {
        let cache = cache.display();
        Failure::not_found(format!("no daemon that serves {cache} can be found"))
            .or("start one without --takeover, or name the admin socket of the one that runs with \
                 --admin")
    })
}

fn spec(text: &str) -> Result<DeviceSpec, Failure> {
    text.parse().map_err(broken)
}

fn listen_address(text: &str) -> Result<ListenAddress, Failure> {
    text.parse().map_err(broken)
}

fn admin_socket(descriptor: OwnedFd, address: &ListenAddress) -> Result<BoundSocket, Failure> {
    let ListenAddress::Unix(path) = address else {
        return Err(broken("its admin socket has no path"));
    };
    Ok(BoundSocket::handed(UnixListener::from(descriptor), PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn succession() -> (Succession, Wire) {
        let (wire, predecessor) = Wire::pair();
        (Succession { wire, pid: 1, supervisor: None }, predecessor)
    }

    fn refuse(predecessor: &Wire) {
        let reason = "it takes too long".to_owned();
        predecessor.send(&Message::Refused { reason }, None).unwrap();
    }

    #[track_caller]
    fn assert_refused(failure: &Failure) {
        assert_eq!(failure.exit, Exit::Refused, "{failure}");
        assert!(failure.message.ends_with("it takes too long"), "{failure}");
    }

    #[test]
    fn a_predecessor_that_has_gone_on_is_heard_when_it_cannot_be_told() {
        let (succession, predecessor) = succession();
        refuse(&predecessor);
        drop(predecessor);
        assert_refused(&succession.finish().expect_err("it is too late"));
        // The reason and the word that all is read have crossed.
        let (succession, predecessor) = self::succession();
        succession.say(&Message::Ready {}).unwrap();
        refuse(&predecessor);
        drop(predecessor);
        assert_refused(&succession.last_word().expect("it has told"));
        let (succession, predecessor) = self::succession();
        drop(predecessor);
        let failure = succession.finish().expect_err("it has ended");
        assert_eq!((failure.exit, failure), (Exit::Failed, ended()));
    }
}
