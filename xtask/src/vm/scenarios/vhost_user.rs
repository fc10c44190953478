//! A guest whose disk is a volume over vhost-user. Its server runs outside of the guest, and is
//! killed and started again while the guest writes; later the volume grows under a mounted file
//! system, and while no monitor is there to be told.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Scenario, System};
use crate::vm::stage::Stage;

/// For all that is done once.
const ONCE_TIME_MAX: Duration = Duration::from_secs(240);
/// From one kill of the server to the next: QEMU tries once a second to reach it.
const ROUND: Duration = Duration::from_secs(4);
/// What the servers say.
const LOG: &str = "server.log";
const CACHE_BYTES: &str = "192M";
/// So slow that writes through to it are under way for most of the time.
const ORIGIN: &str = "iops:1000:origin";
const ORIGIN_BYTES: u64 = 256 << 20;
/// After it was made longer, and longer again.
const GROWN_BYTES: u64 = 384 << 20;
const GROWN_AGAIN_BYTES: u64 = 512 << 20;
const SECTOR_BYTES: u64 = 512;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "vhost-user",
    about: "a guest's disk over vhost-user outlives its server, and grows, without an error",
    system: System::Busybox,
    disks: &[],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let rounds = if stage.is_long() { 20 } else { 2 };
    let mut server = Server::new(stage.forebay(), stage.folder())?;
    server.start()?;
    let mut guest = stage.boot_with(Some(&server.socket))?;
    let kills = ROUND * (rounds + 1);
    let sectors = [GROWN_BYTES, GROWN_AGAIN_BYTES].map(|bytes| bytes / SECTOR_BYTES);
    let script = format!("vhost-user.sh {} {} {}", kills.as_secs(), sectors[0], sectors[1]);
    let time_max = ONCE_TIME_MAX + 3 * kills;
    let mut modes = ["writeback", "writethrough"].iter();
    stage.script_with(&mut guest, &script, time_max, &mut |line| {
        if line == "kills begin" {
            let mode = modes.next().context("kills are for two modes")?;
            server.run(&["set", "home", &format!("cache_mode={mode}")])?;
            for _ in 0..rounds {
                thread::sleep(ROUND);
                server.kill()?;
                server.start()?;
            }
        }
        if line == "grow begin" {
            // The last kill may have been a moment ago.
            thread::sleep(ROUND);
            let answer = server.grow(GROWN_BYTES)?;
            ensure!(answer.contains("\"live\""), "the guest is not told: {answer}");
        }
        if line == "grow unseen begin" {
            server.kill()?;
            server.start()?;
            server.grow(GROWN_AGAIN_BYTES)?;
        }
        Ok(())
    })?;
    guest.power_off()?;
    let met = server.repeated()?;
    println!("  {met} queues of killed servers had requests under way");
    ensure!(met > 0, "no kill met a request under way");
    Ok(())
}

/// The daemon, killed when it is dropped.
struct Server {
    forebay: PathBuf,
    folder: PathBuf,
    socket: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// With a volume on new files in `folder`; not started.
    fn new(forebay: &Path, folder: &Path) -> anyhow::Result<Server> {
        let (forebay, folder) = (forebay.to_owned(), folder.to_owned());
        let socket = folder.join("disk.sock");
        let server = Server { forebay, folder, socket, child: None };
        std::fs::File::create(server.folder.join("origin")).context("cannot make an origin")?;
        server.set_origin_bytes(ORIGIN_BYTES)?;
        let format = ["format", "cache", "--size", CACHE_BYTES];
        let attach = ["attach", "cache", ORIGIN, "--name", "home", "--cache-mode", "writeback"];
        for arguments in [&format[..], &attach[..]] {
            server.run(arguments)?;
        }
        Ok(server)
    }

    fn set_origin_bytes(&self, bytes: u64) -> anyhow::Result<()> {
        let origin = std::fs::File::options().write(true).open(self.folder.join("origin"));
        origin.and_then(|file| file.set_len(bytes)).context("an origin cannot get its size")
    }

    /// Runs a command to its end; returns what it says.
    fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command().args(arguments).output().context("cannot run forebay")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "forebay {}: {text}", arguments[0]);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Makes origin and volume longer; returns who knows of it.
    fn grow(&self, bytes: u64) -> anyhow::Result<String> {
        self.set_origin_bytes(bytes)?;
        self.run(&["resize", "home", "--json"])
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.forebay);
        command.current_dir(&self.folder).env("FOREBAY_RUN_DIR", &self.folder);
        command.env("FOREBAY_ADMIN", self.folder.join("admin")).env("FOREBAY_LOG", "info");
        command
    }

    /// Starts it, and waits until it serves.
    fn start(&mut self) -> anyhow::Result<()> {
        let export = format!("home={}", self.socket.display());
        let mut command = self.command();
        command.args(["serve", "cache", "--state-dir", ".", "--exit-with-parent"]);
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join(LOG));
        command.stderr(log.context("the server has no log")?);
        command.args(["--vhost-user", &export]).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot run forebay")?;
        let output = child.stdout.take().context("the output is piped")?;
        self.child = Some(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("the server says nothing")?;
        ensure!(!line.is_empty(), "the server has ended");
        Ok(())
    }

    /// How many queues had requests that a server did again, since it found them under way.
    fn repeated(&self) -> anyhow::Result<usize> {
        let log =
            std::fs::read_to_string(self.folder.join(LOG)).context("the server has no log")?;
        Ok(log.matches("requests are done again").count())
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).context("the server cannot be killed")?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
