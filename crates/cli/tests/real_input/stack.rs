//! The stack from cache device to mounted file system: daemon, nbdfuse, loop device, mount.
//!
//! The order of taking down matters. Unmounting over a server that has stopped waits forever, while
//! the death of nbdfuse makes every request in flight fail. So a crash ends the daemon and nbdfuse
//! first and then takes the rest down from the top; [`Stack`] has its fields in this order, because
//! fields are dropped in the order of their declaration.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::machine::program;
use crate::process::{self, Ended, Server, end, poll, run, succeed};

/// Name of the volume in all tests: the documents have it, too.
pub(crate) const VOLUME: &str = "home";
/// Exit code of a refused command.
const REFUSED: i32 = 3;

/// Directory of a test, with everything that belongs to its volume.
pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    pub(crate) fn new() -> Site {
        Site { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the file system of the volume is mounted.
    pub(crate) fn mount_folder(&self) -> PathBuf {
        self.path("mount")
    }

    /// A command of the binary that sees only what is in this directory.
    pub(crate) fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("FOREBAY_RUN_DIR", self.path("run"))
            .env("FOREBAY_ADMIN", self.path("admin"))
            .env_remove("FOREBAY_LOG")
            .env_remove("NOTIFY_SOCKET");
        command
    }

    /// Formats the cache file and attaches an empty origin file.
    pub(crate) fn prepare(&self, cache_size: &str, origin_bytes: u64, mode: &str) {
        self.prepare_as(cache_size, ("origin", origin_bytes), &["--cache-mode", mode]);
    }

    /// The same with the origin as `spec`, and with other options of `attach`.
    pub(crate) fn prepare_as(
        &self,
        cache_size: &str,
        (spec, origin_bytes): (&str, u64),
        options: &[&str],
    ) {
        let origin = File::create(self.path("origin")).expect("a file");
        origin.set_len(origin_bytes).expect("a sparse file");
        succeed(&mut self.forebay(&["format", "cache", "--size", cache_size]));
        let attach = ["attach", "cache", spec, "--name", VOLUME];
        succeed(self.forebay(&attach).args(options));
    }

    /// Starts the daemon and waits until it serves.
    #[track_caller]
    fn serve(&self) -> Server {
        let (out, err) = (self.path("serve.out"), self.path("serve.err"));
        let address = format!("unix:{}", self.path("nbd.sock").display());
        let serve = ["serve", "cache", "--nbd", &address, "--state-dir", "state"];
        let child = self
            .forebay(&serve)
            .args(["--admin", "admin", "--exit-with-parent"])
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&err).expect("a file"))
            .spawn()
            .expect("the binary starts");
        let mut server = Server(child);
        let is_ready = || fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n'));
        let ready = poll(|| (is_ready() || server.has_ended()).then(is_ready));
        let log = || fs::read_to_string(&err).unwrap_or_default();
        assert_eq!(ready, Some(true), "the daemon does not serve: {}", log());
        server
    }

    /// Starts nbdfuse and waits for its file.
    #[track_caller]
    fn fuse(&self) -> (Server, FuseFolder) {
        let folder = self.path("fuse");
        fs::create_dir_all(&folder).expect("a directory");
        let log = self.path("nbdfuse.err");
        let uri = format!("nbd+unix:///{VOLUME}?socket={}", self.path("nbd.sock").display());
        let child = program("nbdfuse")
            .arg(&folder)
            .arg(&uri)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("nbdfuse starts");
        let mut server = Server(child);
        let guard = FuseFolder(folder.clone());
        let is_there = || folder.join("nbd").exists();
        let there = poll(|| (is_there() || server.has_ended()).then(is_there));
        let log = || fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(there, Some(true), "nbdfuse does not serve: {}", log());
        (server, guard)
    }

    /// Everything but the mount.
    #[track_caller]
    pub(crate) fn start(&self) -> Stack {
        let daemon = self.serve();
        let (nbdfuse, fuse_folder) = self.fuse();
        let loop_device = LoopDevice::new(&fuse_folder.0.join("nbd"));
        Stack {
            daemon: Some(daemon),
            nbdfuse: Some(nbdfuse),
            mount: None,
            loop_device: Some(loop_device),
            fuse_folder: Some(fuse_folder),
            mount_folder: self.mount_folder(),
        }
    }

    /// Drains the volume and takes it off its cache device.
    pub(crate) fn detach(&self) {
        // The daemon may learn a moment later than we that its client is gone.
        let ended = poll(|| {
            let ended = end(&mut self.forebay(&["detach", VOLUME]));
            let is_refused = ended.as_ref().is_ok_and(|ended| ended.code() == Some(REFUSED));
            (!is_refused).then_some(ended)
        });
        let ended = ended.expect("the volume can be detached").and_then(Ended::success);
        ended.unwrap_or_else(|error| panic!("{error}"));
    }

    /// `status --json` of the daemon.
    pub(crate) fn status(&self) -> serde_json::Value {
        let text = succeed(&mut self.forebay(&["status", "--json"]));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A running daemon with its volume as a loop device, mounted or not.
pub(crate) struct Stack {
    daemon: Option<Server>,
    nbdfuse: Option<Server>,
    mount: Option<Mount>,
    loop_device: Option<LoopDevice>,
    fuse_folder: Option<FuseFolder>,
    mount_folder: PathBuf,
}

impl Stack {
    pub(crate) fn device(&self) -> &str {
        &self.loop_device.as_ref().expect("there is a device").0
    }

    pub(crate) fn mount(&mut self) {
        self.mount = Some(Mount::new(self.device(), &self.mount_folder));
    }

    #[track_caller]
    pub(crate) fn unmount(&mut self) {
        self.mount.take().expect("it is mounted").unmount();
    }

    /// Sends SIGKILL to the daemon; the rest stays as it is.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    /// Ends what is left after the daemon was killed; every request in flight fails.
    pub(crate) fn kill_nbdfuse(&mut self) {
        assert!(self.daemon.is_none(), "the daemon was killed first");
        self.nbdfuse = None;
    }

    /// Takes down what is left after nbdfuse was killed.
    pub(crate) fn take_down(&mut self) {
        assert!(self.nbdfuse.is_none(), "nbdfuse was killed first");
        self.mount = None;
        self.loop_device = None;
        self.fuse_folder = None;
    }

    /// Takes the unmounted stack down in peace, and returns the daemon.
    #[track_caller]
    pub(crate) fn disconnect(&mut self) -> Server {
        assert!(self.mount.is_none(), "it is not mounted");
        self.loop_device = None;
        self.fuse_folder = None;
        let status = self.nbdfuse.take().expect("it runs").wait();
        assert!(status.success(), "nbdfuse: {status}");
        self.daemon.take().expect("it runs")
    }
}

/// A loop device of our own.
pub(crate) struct LoopDevice(pub(crate) String);

impl LoopDevice {
    #[track_caller]
    pub(crate) fn new(file: &Path) -> LoopDevice {
        let file = file.to_str().expect("a path of our own");
        LoopDevice(run("losetup", &["--find", "--show", file]).trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = end(program("losetup").args(["--detach", &self.0]));
    }
}

/// A mounted file system of our own.
pub(crate) struct Mount(PathBuf);

impl Mount {
    #[track_caller]
    pub(crate) fn new(device: &str, folder: &Path) -> Mount {
        fs::create_dir_all(folder).expect("a directory");
        succeed(program("mount").arg(device).arg(folder));
        Mount(folder.to_owned())
    }

    /// Between fork and exec a program that another test starts holds what is open here, so that
    /// the mount is busy for a moment.
    #[track_caller]
    pub(crate) fn unmount(self) {
        let mut refused = String::new();
        let unmounted =
            process::poll(|| match end(program("umount").arg(&self.0)).and_then(Ended::success) {
                Ok(_) => Some(()),
                Err(description) if description.contains("target is busy") => {
                    refused = description;
                    None
                }
                Err(description) => panic!("{description}"),
            });
        assert!(unmounted.is_some(), "{refused}");
        std::mem::forget(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let umount = |arguments: &[&str]| {
            let command = &mut program("umount");
            end(command.args(arguments).arg(&self.0)).and_then(Ended::success)
        };
        // Whoever is still in there must not keep the loop device forever.
        if umount(&[]).is_err() {
            let _ = umount(&["--lazy"]);
        }
    }
}

/// Where nbdfuse has mounted its file. nbdfuse ends when it is unmounted.
struct FuseFolder(PathBuf);

impl FuseFolder {
    fn is_mounted(&self) -> bool {
        // Of a mount whose server has died, not even the attributes can be had.
        let parent = self.0.parent().expect("it is in a test's directory");
        match rustix::fs::stat(&self.0) {
            Ok(stat) => rustix::fs::stat(parent).is_ok_and(|parent| parent.st_dev != stat.st_dev),
            Err(_) => true,
        }
    }
}

impl Drop for FuseFolder {
    fn drop(&mut self) {
        // The loop device may hold the file for a moment after it was detached.
        let unmounted = process::poll(|| {
            if self.is_mounted() {
                let _ = end(program("fusermount3").arg("-u").arg(&self.0));
            }
            (!self.is_mounted()).then_some(())
        });
        if unmounted.is_none() {
            let _ = end(program("fusermount3").args(["-u", "-z"]).arg(&self.0));
        }
    }
}
