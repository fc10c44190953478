//! The servers that are compared, each on a file of its own with the same size.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::forebay::{self, Daemon, Order, Program, Set};
use super::ground::Ground;
use super::server::{Ready, Server};
use crate::packages;

/// Clients that qemu-nbd lets in at once; we only need one, and one to see that it listens.
const QEMU_CLIENTS: &str = "4";

/// A server under comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Contender {
    Forebay,
    Bare,
    NbdkitFile,
    NbdkitCache,
    QemuNbd,
}

impl Contender {
    pub(super) const COUNT: usize = Contender::ALL.len();
    const ALL: [Contender; 5] = [
        Contender::Forebay,
        Contender::Bare,
        Contender::NbdkitFile,
        Contender::NbdkitCache,
        Contender::QemuNbd,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Contender::Forebay => "forebay, writeback",
            Contender::Bare => "`forebay serve --bare`",
            Contender::NbdkitFile => "`nbdkit file`",
            Contender::NbdkitCache => "`nbdkit --filter=cache file`",
            Contender::QemuNbd => "`qemu-nbd`",
        }
    }

    /// The foreign program that it is.
    fn program(self) -> Option<&'static str> {
        match self {
            Contender::Forebay | Contender::Bare => None,
            Contender::NbdkitFile | Contender::NbdkitCache => Some("nbdkit"),
            Contender::QemuNbd => Some("qemu-nbd"),
        }
    }

    /// Those whose programs are there.
    pub(super) fn present() -> Vec<Contender> {
        let is_present =
            |contender: &Contender| contender.program().is_none_or(packages::has_program);
        Contender::ALL.into_iter().filter(is_present).collect()
    }

    /// Name of its file.
    fn file_name(self) -> &'static str {
        match self {
            Contender::Forebay => "origin.img",
            Contender::Bare => "bare.img",
            Contender::NbdkitFile => "nbdkit-file.img",
            Contender::NbdkitCache => "nbdkit-cache.img",
            Contender::QemuNbd => "qemu-nbd.img",
        }
    }
}

/// Everything that servers are started from.
pub(super) struct Stage<'a> {
    pub(super) program: &'a Program,
    pub(super) ground: &'a Ground,
    /// Size of each file.
    pub(super) file_bytes: u64,
    pub(super) cache_bytes: u64,
}

/// A contender at work.
pub(super) struct Running {
    pub(super) contender: Contender,
    pub(super) uri: String,
    /// How it does its I/O.
    pub(super) io: &'static str,
    file: PathBuf,
    process: Process,
}

/// What runs.
enum Process {
    /// With an admin socket to ask.
    Cached(Daemon),
    Plain(Server),
}

impl Running {
    /// The process, to look at and to end.
    pub(super) fn server(&self) -> &Server {
        match &self.process {
            Process::Cached(daemon) => &daemon.server,
            Process::Plain(server) => server,
        }
    }

    /// The daemon, if it has a cache of ours.
    pub(super) fn daemon(&self) -> Option<&Daemon> {
        match &self.process {
            Process::Cached(daemon) => Some(daemon),
            Process::Plain(_) => None,
        }
    }

    /// Ends the server; what is left in the page cache is written out.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        match self.process {
            Process::Cached(daemon) => daemon.server.stop()?,
            Process::Plain(server) => server.stop()?,
        }
        super::ground::settle(&self.file)
    }
}

impl Stage<'_> {
    /// Writes the files of all contenders that are not there yet, and lets the product write its
    /// cache file in full.
    pub(super) fn make_files(&self) -> anyhow::Result<()> {
        for contender in Contender::present() {
            self.ground.file(contender.file_name(), self.file_bytes)?;
        }
        let origin = self.ground.path(Contender::Forebay.file_name());
        self.make_set(&origin)
    }

    fn make_set(&self, origin: &Path) -> anyhow::Result<()> {
        let (bytes, order) = (self.cache_bytes, Order::Coalescing);
        self.program.make_set(Set { cache: &self.cache(), origin, bytes, order })
    }

    fn cache(&self) -> PathBuf {
        self.ground.path("cache.img")
    }

    /// Starts a contender. The product begins with an empty cache.
    pub(super) fn start(&self, contender: Contender) -> anyhow::Result<Running> {
        let file = self.ground.path(contender.file_name());
        let socket = self.ground.path(&format!("{}.nbd", contender.file_name()));
        let log = self.ground.path(&format!("{}.log", contender.file_name()));
        let direct = "O_DIRECT";
        let (uri, io, process) = match contender {
            Contender::Forebay => {
                self.make_set(&file)?;
                let daemon = self.program.serve(&self.cache(), self.ground)?;
                (daemon.uri.clone(), direct, Process::Cached(daemon))
            }
            Contender::Bare => {
                let device = file.display().to_string();
                let server = self.program.serve_bare(&device, &socket, &log)?;
                (forebay::uri(forebay::VOLUME, &socket), direct, Process::Plain(server))
            }
            Contender::NbdkitFile | Contender::NbdkitCache => {
                let command = self.nbdkit(contender, &socket, &file);
                let server = Server::start(command, &socket, &log, Ready::Socket)?;
                (forebay::uri("", &socket), "page cache", Process::Plain(server))
            }
            Contender::QemuNbd => {
                let (server, io) = start_qemu_nbd(&socket, &file, &log)?;
                (forebay::uri("", &socket), io, Process::Plain(server))
            }
        };
        Ok(Running { contender, uri, io, file, process })
    }

    fn nbdkit(&self, contender: Contender, socket: &Path, file: &Path) -> Command {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
        if contender == Contender::NbdkitCache {
            command.arg("--filter=cache");
        }
        command.arg("file").arg(file);
        if contender == Contender::NbdkitCache {
            command.arg("cache-on-read=true");
            // Its cache file is a temporary one; it shall lie on the same medium.
            command.env("TMPDIR", self.ground.folder());
        }
        command
    }
}

/// Starts qemu-nbd with direct I/O, or through the page cache where the file system has none.
fn start_qemu_nbd(
    socket: &Path,
    file: &Path,
    log: &Path,
) -> anyhow::Result<(Server, &'static str)> {
    let start = |options: &[&str]| {
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--persistent", "--shared", QEMU_CLIENTS]).args(options);
        command.arg("--socket").arg(socket).arg(file);
        Server::start(command, socket, log, Ready::Socket)
    };
    if let Ok(server) = start(&["--cache=none", "--aio=io_uring"]) {
        return Ok((server, "O_DIRECT, io_uring"));
    }
    if let Ok(server) = start(&["--cache=none", "--aio=native"]) {
        return Ok((server, "O_DIRECT, Linux AIO"));
    }
    let server = start(&["--cache=writeback"]).context("qemu-nbd starts in no cache mode")?;
    Ok((server, "page cache"))
}
