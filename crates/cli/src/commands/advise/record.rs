//! Recording the requests to a block device with the program `blktrace`.
//!
//! The kernel does the recording; `blktrace` asks it to and saves what it says, a file for each
//! processor. What it lacks is found out beforehand, so that each cause is named with its remedy.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};
use crate::signals::{self, HangUp};

const PROGRAM: &str = "blktrace";
/// Where the kernel offers what `blktrace` reads.
const DEBUG_DIRECTORY: &str = "/sys/kernel/debug";
const BLOCK_DEVICES: &str = "/sys/block";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const LOCKDOWN_REMEDY: &str = "\
    a locked-down kernel (Secure Boot, lockdown=) does not open debugfs; boot it without, or \
    record in another way (`forebay replay --help` lists formats)";
/// The recorded files begin with this, followed by the number of the processor.
const OUTPUT: &str = "recording";
/// How long `blktrace` may take to begin and to end beyond the time that it records.
const GRACE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Whether the operator gave up, by Ctrl-C or SIGTERM. Either would end the process at once, and
/// leave the temporary folder behind.
#[derive(Clone, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    /// From now on signals do nothing but that.
    pub(super) fn watch() -> Result<GivenUp, Failure> {
        let given_up = GivenUp::default();
        let flag = given_up.0.clone();
        signals::watch(HangUp::Watch, move |_| flag.store(true, Ordering::Relaxed))?;
        Ok(given_up)
    }

    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if so.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.is_so() {
            Err(Failure::new(Exit::Cancelled, "given up by a signal"))
        } else {
            Ok(())
        }
    }
}

/// How `blktrace` ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Well,
    Badly,
    /// The operator did not wait for it.
    GivenUp,
}

/// What was recorded. Unless it is to be kept, it goes away with this.
pub(super) struct Recording {
    files: Vec<PathBuf>,
    _temporary: Option<tempfile::TempDir>,
}

impl Recording {
    /// The files, one for each processor that had requests.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

/// Whether the path is a block device.
pub(super) fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Records the requests to a device for so many seconds.
pub(super) fn record(
    device: &Path,
    seconds: u64,
    keep: Option<&Path>,
    given_up: &GivenUp,
) -> Result<Recording, Failure> {
    let found = fs::metadata(device).map_err(|error| {
        Failure::not_found(format!("cannot record {}: {error}", device.display()))
    })?;
    if !found.file_type().is_block_device() {
        return Err(Failure::usage(format!(
            "{} is no block device; --record takes one such as /dev/sdb, and a trace is read \
             without --record",
            device.display()
        )));
    }
    let missing = Machine::probe().missing();
    if !missing.is_empty() {
        return Err(Failure::failed(format!(
            "cannot record {} here: {}",
            device.display(),
            missing.join("; ")
        )));
    }
    let temporary = match keep {
        Some(_) => None,
        None => Some(tempfile::tempdir().map_err(|error| {
            Failure::failed(format!("cannot make a temporary folder: {error}"))
                .or("set TMPDIR, or name a folder with --keep")
        })?),
    };
    let directory = match (&temporary, keep) {
        (Some(temporary), _) => temporary.path().to_owned(),
        (None, keep) => new_directory(keep.expect("there is one or the other"))?,
    };
    let blktrace = Blktrace { program: Path::new(PROGRAM), device, seconds };
    let said = blktrace.run(&directory, given_up)?;
    let files = recorded_files(&directory)?;
    if files.is_empty() {
        return Err(nothing_recorded(device, seconds, &said));
    }
    Ok(Recording { files, _temporary: temporary })
}

/// The folder of `--keep`: a new one, or one without a recording.
fn new_directory(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("cannot make the folder {}: {error}", path.display()))
    };
    fs::create_dir_all(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    if recorded_files(&path)?.is_empty() {
        return Ok(path);
    }
    Err(Failure::refused(format!(
        "{} holds a recording; name another folder with --keep",
        path.display()
    )))
}

/// Files with something in them, in the order of their names.
fn recorded_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("cannot read the folder {}: {error}", directory.display()))
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_ours =
            entry.file_name().to_string_lossy().starts_with(&format!("{OUTPUT}.{PROGRAM}."));
        if is_ours && entry.metadata().map_err(failed)?.len() > 0 {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Why there is no recording: `blktrace` also ends well where the kernel does not let it begin.
fn nothing_recorded(device: &Path, seconds: u64, said: &str) -> Failure {
    let device = device.display();
    if said.is_empty() {
        return Failure::failed(format!(
            "no request came to {device} in {seconds} s; record for longer, or while it is used"
        ));
    }
    let failure = Failure::failed(format!("blktrace could not record {device}: {said}"));
    if said.contains("not permitted") {
        return failure.or(format!("root is not enough here: {LOCKDOWN_REMEDY}"));
    }
    failure.or(
        "`blktrace -d` with the device shows whether it works by itself; another blktrace may be \
         recording it, which `blktrace -k -d` with the device ends",
    )
}

/// A run of the program.
struct Blktrace<'a> {
    program: &'a Path,
    device: &'a Path,
    seconds: u64,
}

impl Blktrace<'_> {
    /// Runs it until it ends by itself. Returns what it said to stderr.
    fn run(&self, directory: &Path, given_up: &GivenUp) -> Result<String, Failure> {
        let Blktrace { program, device, seconds } = *self;
        let log = directory.join("blktrace.log");
        let failed =
            |what: &str, error: std::io::Error| Failure::failed(format!("cannot {what}: {error}"));
        let stderr = fs::File::create(&log)
            .map_err(|error| failed(&format!("write {}", log.display()), error))?;
        let mut child = Command::new(program)
            .arg("-d")
            .arg(device)
            .args(["-w", &seconds.to_string(), "-o", OUTPUT])
            .arg("-D")
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(|error| failed("start blktrace", error))?;
        let ended =
            self.wait(&mut child, given_up).map_err(|error| failed("wait for blktrace", error))?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        if ended == Ended::Well {
            return Ok(said);
        }
        given_up.check()?;
        let reason =
            if said.is_empty() { "it did not end well, and gave no reason" } else { &said };
        Err(nothing_recorded(device, seconds, reason))
    }

    /// Waits for the end, with progress.
    fn wait(&self, child: &mut Child, given_up: &GivenUp) -> std::io::Result<Ended> {
        let started = Instant::now();
        let label = format!("recording {}", self.device.display());
        let mut progress = Progress::start(&label, Unit::Seconds, self.seconds);
        let limit = Duration::from_secs(self.seconds) + GRACE;
        loop {
            if let Some(status) = child.try_wait()? {
                progress.finish();
                return Ok(if status.success() { Ended::Well } else { Ended::Badly });
            }
            if given_up.is_so() {
                progress.finish();
                interrupt(child)?;
                return Ok(Ended::GivenUp);
            }
            let passed = started.elapsed();
            if passed > limit {
                child.kill()?;
                child.wait()?;
                progress.finish();
                return Ok(Ended::Badly);
            }
            progress.set(passed.as_secs().min(self.seconds));
            thread::sleep(PAUSE);
        }
    }
}

/// Ends `blktrace` so that it makes the kernel end the recording, too. A terminal has told it
/// already; a second time does no harm.
fn interrupt(child: &mut Child) -> std::io::Result<()> {
    // It may have ended by now.
    let _ = kill_process(Pid::from_child(child), Signal::INT);
    let told = Instant::now();
    while told.elapsed() < GRACE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    child.kill()?;
    child.wait().map(|_| ())
}

/// What recording needs, as it is on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Machine {
    has_program: bool,
    is_root: bool,
    /// Whether the kernel was built with it; none if it names no block device.
    has_kernel_support: Option<bool>,
    is_debugfs_mounted: bool,
    /// The mode of lockdown that is in force, if one is.
    lockdown: Option<String>,
}

impl Machine {
    fn probe() -> Machine {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_program =
            std::env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file());
        let lockdown = fs::read_to_string(LOCKDOWN).ok();
        Machine {
            has_program,
            is_root: rustix::process::geteuid().is_root(),
            has_kernel_support: kernel_support(),
            is_debugfs_mounted: fs::read_to_string("/proc/mounts")
                .is_ok_and(|mounts| is_mounted(&mounts)),
            lockdown: lockdown.as_deref().and_then(locked_down),
        }
    }

    /// What is missing, each with how to get it.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.has_program {
            missing.push(
                "the program blktrace is missing: install the package blktrace (`apt install \
                 blktrace`, `dnf install blktrace`)"
                    .to_owned(),
            );
        }
        if !self.is_root {
            missing.push("it takes root: run it with sudo".to_owned());
        }
        if self.has_kernel_support == Some(false) {
            missing.push(
                "the kernel was built without CONFIG_BLK_DEV_IO_TRACE: boot one that has it, as \
                 those of the large distributions have, or record on another machine"
                    .to_owned(),
            );
        }
        if !self.is_debugfs_mounted {
            missing.push(format!(
                "debugfs is not mounted: `mount -t debugfs debugfs {DEBUG_DIRECTORY}`"
            ));
        }
        if let Some(lockdown) = &self.lockdown {
            missing.push(format!("kernel lockdown ({lockdown}) is in force: {LOCKDOWN_REMEDY}"));
        }
        missing
    }
}

/// Whether the running kernel has the tracer: then each block device has attributes for it.
fn kernel_support() -> Option<bool> {
    let devices = fs::read_dir(BLOCK_DEVICES).ok()?;
    let mut devices = devices.flatten().peekable();
    devices.peek()?;
    Some(devices.any(|device| device.path().join("trace").exists()))
}

fn is_mounted(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some(DEBUG_DIRECTORY) && words.next() == Some("debugfs")
    })
}

/// The mode in force, which the kernel writes in brackets; none if it is `none`.
fn locked_down(text: &str) -> Option<String> {
    let mode = text.split_once('[')?.1.split_once(']')?.0;
    (mode != "none").then(|| mode.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Machine {
        Machine {
            has_program: true,
            is_root: true,
            has_kernel_support: Some(true),
            is_debugfs_mounted: true,
            lockdown: None,
        }
    }

    #[test]
    fn everything_that_is_missing_is_named() {
        assert_eq!(ready().missing(), Vec::<String>::new());
        assert_eq!(Machine { has_kernel_support: None, ..ready() }.missing().len(), 0);
        let lockdown = Some("integrity".to_owned());
        for (machine, word) in [
            (Machine { has_program: false, ..ready() }, "apt install blktrace"),
            (Machine { is_root: false, ..ready() }, "sudo"),
            (Machine { has_kernel_support: Some(false), ..ready() }, "CONFIG_BLK_DEV_IO_TRACE"),
            (Machine { is_debugfs_mounted: false, ..ready() }, "mount -t debugfs"),
            (Machine { lockdown, ..ready() }, "lockdown (integrity)"),
        ] {
            let missing = machine.missing();
            assert_eq!(missing.len(), 1, "{missing:?}");
            assert!(missing[0].contains(word), "{missing:?}");
        }
    }

    /// A program in place of `blktrace`, which leaves a file where it was told to.
    fn program(directory: &Path, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join("program");
        // What stands behind -D.
        let text = format!("#!/bin/sh\nwhile [ \"$1\" != -D ]; do shift; done\n{script}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn who_gives_up_waits_for_no_recording() {
        let scratch = tempfile::tempdir().unwrap();
        let recording = tempfile::tempdir().unwrap();
        // It says in a file that it was interrupted, as the real one ends the recording. A shell
        // cannot trap what was ignored when it began, as it is in a job in the background.
        let script = "[ -n \"$AGAIN\" ] || \
                      AGAIN=1 exec env --default-signal=INT \"$0\" \"$@\"; \
                      trap 'echo told > $2/told; exit 0' INT; echo > $2/begun; \
                      while :; do sleep 0.05; done";
        let program = program(scratch.path(), script);
        let device = Path::new("/dev/null");
        let blktrace = Blktrace { program: &program, device, seconds: 1_000 };
        let given_up = GivenUp::default();
        let (begun, flag) = (recording.path().join("begun"), given_up.0.clone());
        let operator = thread::spawn(move || {
            while !begun.exists() {
                thread::yield_now();
            }
            flag.store(true, Ordering::Relaxed);
        });
        let failure = blktrace.run(recording.path(), &given_up).unwrap_err();
        operator.join().unwrap();
        assert_eq!(failure.exit, Exit::Cancelled);
        assert!(recording.path().join("told").exists());
        let whole = Blktrace { program: Path::new("true"), device, seconds: 1 };
        assert_eq!(whole.run(recording.path(), &GivenUp::default()), Ok(String::new()));
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(locked_down("[none] integrity confidentiality\n"), None);
        assert_eq!(locked_down("none [integrity] confidentiality\n").as_deref(), Some("integrity"));
        assert_eq!(locked_down(""), None);
        assert!(is_mounted("proc /proc proc rw 0 0\ndebugfs /sys/kernel/debug debugfs rw 0 0\n"));
        assert!(!is_mounted("tracefs /sys/kernel/debug/tracing tracefs rw 0 0\n"));
    }
}
