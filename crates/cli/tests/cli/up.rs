//! `forebay up` and `forebay down` with nbdfuse and loop devices, which need no module that
//! machines of tests do not have. The front ends of the kernel are tried in guests.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::NbdClient;
use crate::fuse::{await_that, stop_all_threads};
use crate::support::{Ended, Scratch, foreign, has_block_devices, has_tool};

const UP: [&str; 6] = ["up", "cache.img", "--state-dir", "state", "--front-end", "fuse"];
const DOWN: [&str; 2] = ["down", "cache.img"];
const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/systemd/forebay@.service");

/// A cache set with the volume `vol`, which is taken down with its test.
struct Site {
    scratch: Scratch,
}

impl Site {
    /// `None` if the machine lacks something.
    fn new(test: &str) -> Option<Site> {
        if !has_block_devices(test) {
            return None;
        }
        let scratch = Scratch::new();
        scratch.cache_with_volume("writethrough");
        Some(Site { scratch })
    }

    fn up(&self) -> Ended {
        self.scratch.run(&UP).expect(0)
    }

    fn down(&self) -> Ended {
        self.scratch.run(&DOWN)
    }

    fn report(&self) -> serde_json::Value {
        self.scratch.run(&[UP.as_slice(), &["--json"]].concat()).expect(0).json()
    }

    fn link(&self, name: &str) -> PathBuf {
        self.scratch.path("run/dev").join(name)
    }

    fn open(&self, name: &str) -> File {
        File::options().read(true).write(true).open(self.link(name)).expect("a device")
    }

    fn kill_daemon(&self) {
        let pid = self.report()["daemon_pid"].as_u64().expect("a number");
        kill(pid, Signal::KILL);
        await_that("the daemon has ended", || has_ended(pid));
    }

    /// Nothing is left of what was up.
    #[track_caller]
    fn assert_is_down(&self, devices: &[PathBuf]) {
        assert!(!self.link("vol").exists());
        let run = self.scratch.path("run").display().to_string();
        // Its number may be that of another test's by now.
        let is_ours = |device: &PathBuf| loop_file(device).is_some_and(|file| file.contains(&run));
        assert!(!devices.iter().any(is_ours), "{devices:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("text");
        assert!(!mounts.contains(&run), "{mounts}");
        self.scratch.run(&["check", "cache.img"]).expect(0);
        self.scratch.run(&["status", "--state-dir", "nowhere"]).expect(4);
        self.down().expect(4).says("is not up");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.down().code == Some(0) || !std::thread::panicking() {
            return;
        }
        // Somebody of a test that has failed still uses it: at least the daemon ends.
        let entries = fs::read_dir(self.scratch.path("run")).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let record = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
            if let Some(pid) = record["daemon_pid"].as_u64().filter(|pid| !has_ended(*pid)) {
                kill(pid, Signal::TERM);
            }
        }
    }
}

fn kill(pid: u64, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the daemon runs");
}

/// Whether a process is gone, or only waits to be noticed.
fn has_ended(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// What a loop device is set up on.
fn loop_file(device: &Path) -> Option<String> {
    let name = device.file_name().expect("a device");
    fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()
}

fn devices(report: &serde_json::Value) -> Vec<PathBuf> {
    let volumes = report["volumes"].as_array().expect("volumes").iter();
    volumes.map(|volume| volume["device"].as_str().expect("a path").into()).collect()
}

#[test]
fn up_makes_a_device_of_each_volume_and_down_takes_all_away() {
    let Some(site) = Site::new("up_makes_a_device_of_each_volume_and_down_takes_all_away") else {
        return;
    };
    let scratch = &site.scratch;
    // Not a multiple of its logical blocks, of which only whole ones are served.
    scratch.file("fine.img", (8 << 20) + 512);
    let fine = ["attach", "cache.img", "fine.img", "--name", "fine", "--logical-block", "4096"];
    scratch.run(&fine).expect(0);
    let printed = site.up().stdout;
    let line = |name: &str| format!("{name} {} (fuse)\n", site.link(name).display());
    assert_eq!(printed, line("vol") + &line("fine"));

    // Again does no harm, and says so.
    let again = site.up();
    assert!(again.stderr.contains("was up already"), "{again:#?}");
    assert_eq!(again.stdout, printed);
    let report = site.report();
    assert_eq!(report["was_up"], true);
    let volumes = report["volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 2);
    let sizes: Vec<_> = volumes.iter().map(|volume| &volume["size_bytes"]).collect();
    assert_eq!(sizes, [64 << 20, 8 << 20]);
    let devices = devices(&report);
    assert!(devices.iter().all(|device| loop_file(device).is_some()), "{devices:?}");
    let block = Path::new("/sys/block").join(devices[1].file_name().unwrap());
    let block = fs::read_to_string(block.join("queue/logical_block_size")).unwrap();
    assert_eq!(block.trim_end(), "4096");

    // A volume that is attached meanwhile gets a device by another `up`.
    scratch.file("late.img", 4 << 20);
    scratch.run(&["attach", "cache.img", "late.img", "--name", "late"]).expect(0);
    assert_eq!(site.up().stdout, printed + &line("late"));

    let mut device = site.open("vol");
    device.write_all(&[7; 8192]).and_then(|()| device.sync_all()).unwrap();
    let refused = site.down().expect(3);
    let who = format!("open in process {} (", std::process::id());
    assert!(refused.stderr.contains(&who), "{refused:#?}");
    assert!(site.link("vol").exists(), "nothing was touched");
    drop(device);
    site.down().expect(0).says("vol").says("has stopped");
    site.assert_is_down(&devices);
    assert_eq!(fs::read(scratch.path("origin.img")).unwrap()[..8192], [7; 8192]);
}

#[test]
fn up_and_down_cope_with_a_daemon_that_was_killed() {
    let Some(site) = Site::new("up_and_down_cope_with_a_daemon_that_was_killed") else { return };
    site.up();
    let mut device = site.open("vol");
    device.write_all(&[9; 4096]).and_then(|()| device.sync_all()).unwrap();
    let first = devices(&site.report());
    site.kill_daemon();
    for (arguments, words) in
        [(UP.as_slice(), "does not come back"), (&DOWN, "its daemon has ended")]
    {
        let refused = site.scratch.run(arguments).expect(3).says(words);
        assert!(refused.stderr.contains("open in process"), "{refused:#?}");
    }
    drop(device);
    let up = site.up();
    assert!(!up.stderr.contains("was up already"), "{up:#?}");
    let mut bytes = [0; 4096];
    let mut device = site.open("vol");
    device.seek(SeekFrom::Start(0)).and_then(|_| device.read_exact(&mut bytes)).unwrap();
    assert_eq!(bytes, [9; 4096]);
    drop(device);
    let second = devices(&site.report());
    site.kill_daemon();
    site.down().expect(0);
    site.assert_is_down(&[first, second].concat());
}

/// As the unit does it: the daemon is one command, its devices are another.
#[test]
fn a_daemon_in_the_foreground_gets_its_devices_by_a_second_up() {
    let name = "a_daemon_in_the_foreground_gets_its_devices_by_a_second_up";
    let Some(site) = Site::new(name) else { return };
    let arguments = [UP.as_slice(), &["--foreground", "--wait", "5"]].concat();
    let daemon = std::thread::scope(|scope| {
        let daemon = scope.spawn(|| site.scratch.run(&arguments));
        await_that("it serves", || site.scratch.run(&["status", "cache.img"]).code == Some(0));
        let report = site.report();
        assert_eq!(report["was_up"], true);
        assert_eq!(report["log"], serde_json::Value::Null);
        site.down().expect(0);
        site.assert_is_down(&devices(&report));
        daemon.join().expect("it does not panic")
    });
    daemon.expect(0);
}

/// What a living daemon serves stays, and what a dead one leaves is taken away.
#[test]
fn a_daemon_in_the_foreground_leaves_another_one_alone() {
    let name = "a_daemon_in_the_foreground_leaves_another_one_alone";
    let Some(site) = Site::new(name) else { return };
    site.up();
    let report = site.report();
    let pid = report["daemon_pid"].as_u64().expect("a number");
    let first = devices(&report);
    let foreground = [UP.as_slice(), &["--foreground"]].concat();
    let who = format!("daemon {pid} serves ");
    site.scratch.run(&foreground).expect(3).says(&who).says("`forebay down ");
    let mut device = site.open("vol");
    device.write_all(&[7; 4096]).and_then(|()| device.sync_all()).expect("it is served");
    drop(device);
    assert_eq!(devices(&site.report()), first);

    site.kill_daemon();
    let daemon = std::thread::scope(|scope| {
        let daemon = scope.spawn(|| site.scratch.run(&foreground));
        await_that("it serves", || site.scratch.run(&["status", "cache.img"]).code == Some(0));
        let report = site.report();
        assert_ne!(report["daemon_pid"], pid);
        site.down().expect(0);
        site.assert_is_down(&[first, devices(&report)].concat());
        daemon.join().expect("it does not panic")
    });
    daemon.expect(0);
}

/// Two sets at the same time, each with a volume of the same name; and a daemon whose socket is
/// where only its own commands look.
#[test]
fn two_sets_are_up_and_one_has_the_name() {
    let Some(site) = Site::new("two_sets_are_up_and_one_has_the_name") else { return };
    let scratch = &site.scratch;
    site.up();
    scratch.run(&["format", "other.img", "--size", "32M"]).expect(0);
    scratch.file("other-origin.img", 8 << 20);
    scratch.run(&["attach", "other.img", "other-origin.img", "--name", "vol"]).expect(0);
    let mut other = UP;
    other[1] = "other.img";
    let elsewhere = ["--admin", "elsewhere"];
    let up = scratch.run(&[other.as_slice(), &elsewhere].concat()).expect(0);
    assert!(up.stderr.contains("of another cache set"), "{up:#?}");
    assert!(up.stdout.starts_with("vol /dev/loop"), "{up:#?}");
    let again = scratch.run(&other).expect(0);
    assert!(again.stderr.contains("was up already"), "{again:#?}");
    scratch.run(&["down", "other.img"]).expect(0);
    assert_eq!(site.open("vol").seek(SeekFrom::End(0)).unwrap(), 64 << 20);
    site.down().expect(0);
}

/// A daemon that is stopped is none that has died: what its clients hold stays, and so does it.
#[test]
fn a_daemon_that_does_not_answer_is_not_taken_for_dead() {
    let Some(site) = Site::new("a_daemon_that_does_not_answer_is_not_taken_for_dead") else {
        return;
    };
    let up = site.up();
    let pid = site.report()["daemon_pid"].as_u64().expect("a number");
    let record = || fs::read_to_string(site.scratch.run_file("up")).expect("text");
    let before = record();
    stop_all_threads(u32::try_from(pid).expect("a process id"));
    let takeover = ["serve", "cache.img", "--takeover"];
    std::thread::scope(|scope| {
        let takeover = scope.spawn(|| site.scratch.run(&takeover));
        let silent = "has not answered for 10 s";
        site.scratch.run(&UP).expect(1).says(silent).says("stopped or stuck");
        site.down().expect(1).says(silent);
        takeover.join().expect("it does not panic").expect(1).says(silent);
    });
    assert!(!has_ended(pid));
    assert_eq!(record(), before);
    kill(pid, Signal::CONT);
    let again = site.up();
    assert!(again.stderr.contains("was up already"), "{again:#?}");
    assert_eq!(again.stdout, up.stdout);
    let mut device = site.open("vol");
    device.write_all(&[7; 4096]).expect("it is served");
    device.sync_all().expect("it is served");
    drop(device);
    site.down().expect(0);
}

/// What `up` has not connected is not cut off by `down`: neither where it started the daemon, nor
/// where it found one.
#[test]
fn down_keeps_a_daemon_that_serves_somebody_else() {
    let Some(site) = Site::new("down_keeps_a_daemon_that_serves_somebody_else") else { return };
    let scratch = &site.scratch;
    let server = scratch.serve();
    let mut client = NbdClient::connect(&server.socket, "vol").unwrap();
    site.down().expect(3).says("is kept").says("uses `vol`").says("--with-clients");
    client.write(0, &[5; 4096]).expect("it is served");
    drop(client);
    site.down().expect(0).says("has stopped");
    drop(server);

    site.up();
    let mut client = NbdClient::connect(&scratch.run_file("nbd"), "vol").unwrap();
    site.down().expect(3).says("is kept");
    // Where nobody looks for a signature, so that no copy is older.
    client.write(1 << 20, &[6; 4096]).expect("it is served");
    // Nothing was touched: the device is served, too.
    let mut block = [0; 4096];
    let mut device = site.open("vol");
    device.seek(SeekFrom::Start(1 << 20)).expect("a device");
    device.read_exact(&mut block).expect("a device");
    assert_eq!(block, [6; 4096]);
    drop(device);
    scratch.run(&[DOWN.as_slice(), &["--with-clients"]].concat()).expect(0).says("has stopped");
    client.write(0, &[7; 4096]).expect_err("it is gone");
    site.assert_is_down(&[]);
}

/// A loop device that was detached by hand leaves nbdfuse, which is no client of somebody else.
#[test]
fn down_knows_the_rest_of_a_device() {
    let Some(site) = Site::new("down_knows_the_rest_of_a_device") else { return };
    site.up();
    let device = fs::canonicalize(site.link("vol")).expect("a device");
    foreign("losetup", &["--detach", device.to_str().expect("a path")]);
    site.down().expect(0).says("has stopped");
    site.assert_is_down(&[device]);
}

/// A daemon that something else started, in its own folder of state: a volume that virtual machines
/// have gets no device, and a front end that was of no use before may be another one later.
#[test]
fn a_volume_of_virtual_machines_gets_no_device() {
    let Some(site) = Site::new("a_volume_of_virtual_machines_gets_no_device") else { return };
    let scratch = &site.scratch;
    let server = scratch.serve_what(&["cache.img", "--vhost-user", "vol=disk.sock"]);
    for front_end in [&["--front-end", "nbd"], &["--front-end", "fuse"]] {
        let up = ["up", "cache.img", "--state-dir", "elsewhere"];
        let why = "is served to virtual machines at";
        let ended = scratch.run(&[up.as_slice(), front_end].concat());
        ended.expect(1).says("volume `vol` has no block device").says(why).says("disk.sock");
    }
    let record = fs::read_to_string(scratch.run_file("up")).expect("text");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!(record["state_dir"], scratch.path("state").display().to_string());
    site.down().expect(0).says("has stopped");
    assert_eq!(server.ended(), Some(0));
    site.assert_is_down(&[]);
}

#[test]
fn what_the_daemon_has_to_say_is_shown() {
    let Some(site) = Site::new("what_the_daemon_has_to_say_is_shown") else { return };
    let _other = site.scratch.serve_with(&["--bare", "a=cache.img"], &[]);
    site.scratch.run(&UP).expect(3).says("the daemon has ended").says("locked").says(".log");
}

/// The daemon that runs goes on, and so does its log.
#[test]
fn a_takeover_that_fails_leaves_the_log_alone() {
    let Some(site) = Site::new("a_takeover_that_fails_leaves_the_log_alone") else { return };
    let scratch = &site.scratch;
    // A volume without an origin has no clients that a takeover would cut.
    fs::rename(scratch.path("origin.img"), scratch.path("away.img")).expect("it is there");
    scratch.run(&UP).expect(1).says("volume `vol` has no block device");
    let log = scratch.run_file("log");
    let report = scratch.run(&["status", "--json"]).expect(0).json();
    let pid = report["daemons"][0]["pid"].as_u64().expect("a number");
    let said = fs::read_to_string(&log).expect("a log");
    let take_over = ["up", "cache.img", "--state-dir", "state", "--takeover", "--", "--no-such"];
    for _ in 0..2 {
        scratch.run(&take_over).expect(2).says("the daemon has ended");
    }
    let written = fs::read_link(format!("/proc/{pid}/fd/2")).expect("it runs");
    assert_eq!(written, log, "what the daemon says can be read");
    assert!(fs::read_to_string(&log).expect("a log").starts_with(&said));
}

#[test]
fn what_cannot_be_up_is_told() {
    let scratch = Scratch::new();
    scratch.run(&["up", "nowhere.img"]).expect(4);
    scratch.file("origin.img", 1 << 20);
    scratch.run(&["up", "origin.img"]).expect(5);
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    scratch.run(&UP).expect(4).says("forebay attach");
    scratch.run(&["attach", "cache.img", "origin.img", "--name", "vol"]).expect(0);
    scratch.run_alone(&UP).expect(1).says("install nbdfuse").says("package");
    scratch.run(&["up", "cache.img", "--front-end", "iscsi"]).expect(2).says("ublk, nbd or fuse");
}

/// The unit in `dist` is one that systemd takes. The program that it starts stands in another place
/// here.
#[test]
fn the_unit_is_one_of_systemd() {
    if !has_tool("the_unit_is_one_of_systemd", "systemd-analyze") {
        return;
    }
    let scratch = Scratch::new();
    let unit = fs::read_to_string(UNIT).expect("the unit");
    let unit = unit.replace("/usr/local/bin/forebay", env!("CARGO_BIN_EXE_forebay"));
    let path = scratch.path("forebay@home.service");
    fs::write(&path, unit).expect("a file");
    let output = std::process::Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("forebay@"), "{said}");
}

/// The unit needs the file systems of the programs that it starts, and may start before all of them
/// are mounted.
#[test]
fn the_unit_is_ordered_after_the_file_system_of_its_program() {
    let unit = fs::read_to_string(UNIT).expect("the unit");
    let needed = unit.lines().filter_map(|line| line.strip_prefix("RequiresMountsFor="));
    let needed: Vec<&Path> = needed.flat_map(str::split_whitespace).map(Path::new).collect();
    let starts = unit.lines().filter(|line| line.starts_with("Exec"));
    let programs = starts.map(|line| {
        let command = line.split_once('=').expect("a setting").1;
        Path::new(command.trim_start_matches('-').split(' ').next().expect("a program"))
    });
    for program in programs {
        let folder = program.parent().expect("a path");
        assert!(needed.contains(&folder), "{program:?}: {needed:?}");
    }
}
