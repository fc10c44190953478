//! A running guest: QEMU as a child process, with commands going in and lines coming out.
//!
//! The kernel's messages go to a file, and are shown when something fails. The second serial port
//! is QEMU's standard input and output, over which `xtask/vm/commands` takes commands.
//!
//! A guest ends with this value, and QEMU also ends when the thread that started it does, whatever
//! ends that. No other process is ever touched.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::disk::{Disk, Speed};
use super::supplies::Supplies;

/// A boot takes 6 to 12 s on an idle machine with two processors, and with systemd some 20 s more.
const BOOT_TIME_MAX: Duration = Duration::from_secs(90);
const SYSTEMD_TIME_MAX: Duration = Duration::from_secs(180);
/// QEMU without help of the hardware fails at some boots. What was booted is never tried again.
const BOOT_TRIES_MAX: u32 = 3;
/// How long the way out takes at most; after that the guest is killed, which harms nobody.
const POWER_OFF_TIME_MAX: Duration = Duration::from_secs(20);
/// Lines of the kernel that are shown when something fails.
const SHOWN_LINES_MAX: usize = 40;
/// Memory of a guest: its programs, twice while they are unpacked, and a daemon's.
const MEMORY: &str = "2048";
/// `tsc` and `no_timer_check`: time is emulated, too, and the kernel would not believe it.
const KERNEL_OPTIONS: &str =
    "console=ttyS0 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check quiet";
/// Of a guest with systemd: which disk the first file system hands over to; nobody logs in.
const ROOT_OPTIONS: &str = "guest.root=root systemd.getty_auto=no";
/// The disk of the system, for the guest.
const ROOT: Disk = Disk { name: "root", bytes: 0, speed: Speed::Memory };

/// What a guest is booted from.
pub(crate) struct Hardware<'a> {
    pub(crate) supplies: &'a Supplies,
    pub(crate) image: &'a Path,
    /// Disks and the files that hold their content.
    pub(crate) disks: Vec<(Disk, PathBuf)>,
    /// The disk of a system with systemd to be booted, if one is; see `root.rs`.
    pub(crate) root: Option<&'a Path>,
    /// Where a disk is served over vhost-user, if one is.
    pub(crate) vhost_user: Option<&'a Path>,
    /// Where the kernel's messages go.
    pub(crate) console: PathBuf,
}

/// A guest that takes commands.
pub(crate) struct Guest {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    console: PathBuf,
}

/// What a guest that was told to do something says next.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Line(String),
    /// The command ended with this status.
    Done(i32),
}

impl Guest {
    /// Boots a guest, again if that fails for reasons that are not forebay's, and waits until it
    /// takes commands.
    pub(crate) fn boot(hardware: &Hardware<'_>) -> anyhow::Result<Guest> {
        let mut tries = 1;
        loop {
            let started = Instant::now();
            let mut guest = Guest::start(hardware)?;
            match guest.wait_until_ready(boot_time_max(hardware)) {
                Ok(()) => {
                    println!("  booted in {:.1} s", started.elapsed().as_secs_f64());
                    return Ok(guest);
                }
                Err(error) if tries < BOOT_TRIES_MAX && !guest.tells_of_forebay() => {
                    println!("  boot {tries} of {BOOT_TRIES_MAX} failed: {error:#}");
                    guest.show_console();
                    tries += 1;
                }
                Err(error) => {
                    guest.show_console();
                    return Err(error.context(format!("no boot in {tries} tries")));
                }
            }
        }
    }

    /// Whether the console names forebay, as systemd does when the service fails or something waits
    /// for it. Where a boot needs the volume, that is what is tested, and not QEMU.
    fn tells_of_forebay(&self) -> bool {
        let console = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&console).contains("forebay")
    }

    fn start(hardware: &Hardware<'_>) -> anyhow::Result<Guest> {
        let mut child = command(hardware).spawn().context("cannot run QEMU")?;
        let input = child.stdin.take().context("the input is piped")?;
        let output = child.stdout.take().context("the output is piped")?;
        let (sender, lines) = mpsc::channel();
        // Ends with the guest, whose end of the pipe it reads, or with the receiver.
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Ok(Guest { child, input, lines, console: hardware.console.clone() })
    }

    fn wait_until_ready(&mut self, time_max: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + time_max;
        while self.line(deadline)? != "ready" {}
        Ok(())
    }

    /// Has the guest run a command, whose answers are then to be awaited.
    pub(crate) fn send(&mut self, command: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{command}").context("the guest takes no command")
    }

    /// The next answer to a command.
    pub(crate) fn answer(&mut self, deadline: Instant) -> anyhow::Result<Answer> {
        Ok(parse_answer(self.line(deadline)?))
    }

    fn line(&mut self, deadline: Instant) -> anyhow::Result<String> {
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("the guest did not answer in time"),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest has ended"),
        }
    }

    /// Prints what the kernel said last.
    pub(crate) fn show_console(&self) {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        println!("  the kernel's last messages, from {}:", self.console.display());
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..] {
            println!("  | {}", line.trim_end());
        }
    }

    /// Ends the guest in order.
    pub(crate) fn power_off(mut self) -> anyhow::Result<()> {
        self.send("sync; poweroff -f")?;
        let deadline = Instant::now() + POWER_OFF_TIME_MAX;
        while self.line(deadline).is_ok() {}
        Ok(())
    }

    /// Has a guest with systemd end in order by `command`, which is `systemctl reboot` or such; a
    /// reboot ends QEMU, too. It is an error if that takes longer than `time_max`.
    pub(crate) fn shut_down(mut self, command: &str, time_max: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        self.send(command)?;
        loop {
            match self.lines.recv_timeout(time_max.saturating_sub(started.elapsed())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.show_console();
                    bail!("{command} has not ended in {} s", time_max.as_secs());
                }
            }
        }
        println!("  shut down in {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    /// Ends the guest between two instructions, as [`Drop`] does.
    ///
    /// Of what the guest gave to its disks, all is kept that QEMU has handed to the kernel of this
    /// machine, flushed or not: that kernel goes on. So this takes away what the guest had in its
    /// memory, the daemon and its state included, and requests that were on their way; a flush that
    /// the daemon forgot is not found. Reordered and torn writes are the simulator's.
    pub(crate) fn cut_power(self) {
        drop(self);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself. It is not reaped before this, so the id is still its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn boot_time_max(hardware: &Hardware<'_>) -> Duration {
    match hardware.root {
        Some(_) => BOOT_TIME_MAX + SYSTEMD_TIME_MAX,
        None => BOOT_TIME_MAX,
    }
}

fn parse_answer(line: String) -> Answer {
    match line.strip_prefix("done ").and_then(|status| status.parse().ok()) {
        Some(status) => Answer::Done(status),
        None => Answer::Line(line),
    }
}

fn command(hardware: &Hardware<'_>) -> Command {
    let supplies = hardware.supplies;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(supplies.qemu());
    command.env("LD_LIBRARY_PATH", supplies.library_path());
    command.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    command.args(["-m", MEMORY, "-nodefaults", "-display", "none", "-no-reboot"]);
    for folder in supplies.firmware() {
        command.arg("-L").arg(folder);
    }
    command.arg("-kernel").arg(supplies.kernel());
    command.arg("-initrd").arg(hardware.image);
    command.arg("-append").arg(match hardware.root {
        Some(_) => format!("{KERNEL_OPTIONS} {ROOT_OPTIONS}"),
        None => KERNEL_OPTIONS.to_owned(),
    });
    command.args(["-serial", &format!("file:{}", hardware.console.display())]);
    command.args(["-serial", "stdio"]);
    for (disk, path) in &hardware.disks {
        command.args(disk.options(path));
    }
    if let Some(path) = hardware.root {
        command.args(ROOT.options(path));
    }
    if let Some(socket) = hardware.vhost_user {
        // Its server reads and writes the guest's memory.
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY}M,share=on");
        command.args(["-object", &memory, "-machine", "memory-backend=memory"]);
        let socket = format!("socket,id=volume,reconnect-ms=1000,path={}", socket.display());
        command.args(["-chardev", &socket]);
        command.args(["-device", "vhost-user-blk-pci,chardev=volume,num-queues=2"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // QEMU's own complaints are worth as much as the kernel's.
    let errors = File::create(hardware.console.with_extension("qemu"));
    command.stderr(errors.map_or_else(|_| Stdio::inherit(), Stdio::from));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_from_other_lines() {
        assert_eq!(parse_answer("done 0".into()), Answer::Done(0));
        assert_eq!(parse_answer("done 127".into()), Answer::Done(127));
        assert_eq!(parse_answer("done with it".into()), Answer::Line("done with it".into()));
        assert_eq!(parse_answer("ok done 0".into()), Answer::Line("ok done 0".into()));
    }
}
