//! The procedures of README.md and docs/operations.md, run as they are written.
//!
//! A block that follows the mark `<!-- tested: NAME -->` reads the devices and paths of its example
//! machine from variables. Here they are files in a test's directory. The block runs in namespaces
//! of its own: its mounts are nobody else's, `/var/lib` is empty, and whatever it has started ends
//! with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::ledger::Ledger;
use crate::machine::{self, program};
use crate::origin::FileSystem;
use crate::process::succeed;
use crate::stack::{Site, VOLUME};

const README: &str = include_str!("../../../../README.md");
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

const ORIGIN_BYTES: u64 = 256 << 20;
const CACHE_SIZE: &str = "128M";
const CACHE_BYTES: u64 = 128 << 20;
const FILE_COUNT: usize = 60;
const FILE_BYTES_MAX: usize = 100_000;

/// Waits for the export, and copies it to the file `export`.
const COPY_EXPORT: &str = r#"
uri="nbd+unix:///home?socket=$SOCKET"
until nbdinfo --size "$uri" >/dev/null 2>&1; do sleep 0.1; done
nbdcopy "$uri" "$EXPORT"
"#;
/// Takes the volume off; the daemon may learn a moment later than we that its client is gone.
const DETACH: &str = "
until forebay detach home; do [ $? -eq 3 ]; sleep 0.1; done
forebay stop
";

/// The block of `document` that is marked with `name`.
fn block(document: &str, name: &str) -> String {
    let mark = format!("<!-- tested: {name} -->\n```sh\n");
    let (_, rest) = document.split_once(&mark).expect("the document has the block");
    rest.split_once("\n```").expect("the block ends").0.to_owned()
}

/// A procedure in the directory of a test.
struct Procedure {
    site: Site,
    /// What was on the volume before.
    ledger: Ledger,
    /// Beside those that every procedure has.
    variables: Vec<(&'static str, PathBuf)>,
}

impl Procedure {
    /// `None` if the machine lacks something.
    fn new(test: &str) -> Option<Procedure> {
        let programs = ["mkfs.ext4", "e2fsck", "nbdcopy", "unshare", "bash"];
        machine::can_mount(test, &programs).then(|| Procedure {
            site: Site::new(),
            ledger: Ledger::default(),
            variables: Vec::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    fn set(&mut self, variable: &'static str, name: &str) {
        self.variables.push((variable, self.path(name)));
    }

    /// Makes cache device and volume with a file system in use, and stops the daemon.
    fn use_volume(&mut self, mode: &str) {
        self.site.prepare(CACHE_SIZE, ORIGIN_BYTES, "writethrough");
        let mut stack = self.site.start();
        // All of the device is discarded for it. That would be more to go home than a cache may
        // hold dirty, and what is written beside it would follow at once.
        FileSystem::Ext4.make(stack.device());
        // What is dirty from here on stays so until the daemon stops, however slow the machine is.
        let mode_setting = format!("cache_mode={mode}");
        let settings = [&mode_setting, "writeback_delay=86400", "writeback_percent=100"];
        succeed(self.site.forebay(&["set", VOLUME]).args(settings));
        stack.mount();
        let folder = self.site.mount_folder();
        fill(&folder);
        self.ledger = Ledger::read(&folder);
        stack.unmount();
        let daemon = stack.disconnect();
        let status = self.site.status();
        let dirty = &status["daemons"][0]["exports"][0]["volume"]["dirty_bytes"];
        if mode == "writeback" {
            assert!(dirty.as_u64().is_some_and(|bytes| bytes > 0), "nothing is dirty: {status:#}");
        }
        succeed(&mut self.site.forebay(&["stop"]));
        assert!(daemon.wait().success(), "the daemon ends well");
    }

    /// Runs the script with all variables set and the binary in the search path.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        let text = format!("mount -t tmpfs none /var/lib\n{script}");
        let file = self.path("script");
        fs::write(&file, text).expect("a file");
        let binary = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let folder = binary.parent().expect("it is in a folder").to_owned();
        let path = std::iter::once(folder).chain(machine::folders());
        let mut command = program("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["bash", "-euxo", "pipefail"]).arg(&file);
        command.env("PATH", std::env::join_paths(path).expect("folders without colons"));
        command.env("FOREBAY_RUN_DIR", self.path("run")).env_remove("FOREBAY_ADMIN");
        command.env("SOCKET", self.path("home.nbd")).env("STATE", self.path("state"));
        command.env("EXPORT", self.path("export")).envs(self.variables.iter().cloned());
        succeed(command.current_dir(self.path(".")))
    }

    /// Checks that the files of the volume are in the file `image`, whose file system is sound.
    #[track_caller]
    fn assert_holds_all(&self, image: &str) {
        FileSystem::Ext4.look_at(&self.path(image), &self.path("alone"), |folder| {
            Ledger::read(folder).assert_equal(&self.ledger, image);
        });
    }
}

/// Files whose content tells them apart.
fn fill(folder: &Path) {
    for index in 0..FILE_COUNT {
        let line = format!("line of file {index}\n");
        let content = line.repeat(FILE_BYTES_MAX * (index + 1) / FILE_COUNT / line.len());
        fs::write(folder.join(format!("file-{index}")), content).expect("there is room");
    }
}

#[test]
fn first_use_of_the_readme() {
    let Some(mut procedure) = Procedure::new("first_use_of_the_readme") else { return };
    for folder in ["old", "mount"] {
        fs::create_dir(procedure.path(folder)).expect("a directory");
    }
    fill(&procedure.path("old"));
    for (name, bytes) in [("cache", CACHE_BYTES), ("origin", ORIGIN_BYTES)] {
        let file = File::create(procedure.path(name)).expect("a file");
        file.set_len(bytes).expect("a sparse file");
    }
    let (old, origin) = (procedure.path("old"), procedure.path("origin"));
    succeed(program("mkfs.ext4").arg("-q").arg("-d").arg(&old).arg(origin));
    procedure.set("CACHE", "cache");
    procedure.set("ORIGIN", "origin");
    procedure.set("MOUNT", "mount");
    procedure.set("DEVICE", "run/dev/home");
    procedure.set("OLD", "old");
    let used = r#"
mountpoint "$MOUNT"
for file in "$OLD"/*; do cmp "$file" "$MOUNT/${file##*/}"; done
cp "$OLD/file-7" "$MOUNT/new"
! forebay down "$CACHE"
umount "$MOUNT"
forebay down "$CACHE"
forebay serve "$CACHE" &
until forebay status --json | grep '"state": "serving"'; do sleep 0.1; done
"#;
    procedure.run(&format!("{}{used}{DETACH}", block(README, "first-use")));
    fs::copy(old.join("file-7"), old.join("new")).expect("a file");
    procedure.ledger = Ledger::read(&old);
    procedure.assert_holds_all("origin");
}

#[test]
fn a_dead_ssd() {
    let Some(mut procedure) = Procedure::new("a_dead_ssd") else { return };
    procedure.use_volume("writethrough");
    fs::remove_file(procedure.path("cache")).expect("it is ours");
    let new = File::create(procedure.path("new-cache")).expect("a file");
    new.set_len(CACHE_BYTES).expect("a sparse file");
    procedure.set("ORIGIN", "origin");
    procedure.set("NEW_CACHE", "new-cache");
    let said = procedure.run(&(block(OPERATIONS, "ssd-died") + COPY_EXPORT + DETACH));
    assert!(said.contains("clean"), "status says what the origin lacks: {said}");
    procedure.assert_holds_all("export");
    procedure.assert_holds_all("origin");
}

#[test]
fn a_dead_disk() {
    let Some(mut procedure) = Procedure::new("a_dead_disk") else { return };
    procedure.use_volume("writeback");
    fs::rename(procedure.path("origin"), procedure.path("copy")).expect("it is ours");
    procedure.set("CACHE", "cache");
    procedure.set("ORIGIN", "origin");
    procedure.set("COPY", "copy");
    procedure.run(&(block(OPERATIONS, "disk-died") + COPY_EXPORT + DETACH));
    procedure.assert_holds_all("export");
    procedure.assert_holds_all("copy");
}

#[test]
fn another_machine() {
    let Some(mut procedure) = Procedure::new("another_machine") else { return };
    procedure.use_volume("writeback");
    fs::rename(procedure.path("origin"), procedure.path("moved")).expect("it is ours");
    fs::rename(procedure.path("state"), procedure.path("old-state")).expect("it is ours");
    procedure.set("CACHE", "cache");
    procedure.set("ORIGIN", "origin");
    procedure.set("NEW_ORIGIN", "moved");
    procedure.run(&(block(OPERATIONS, "moved-machine") + COPY_EXPORT + DETACH));
    procedure.assert_holds_all("export");
    procedure.assert_holds_all("moved");
}

#[test]
fn an_origin_mounted_by_mistake() {
    let Some(mut procedure) = Procedure::new("an_origin_mounted_by_mistake") else { return };
    procedure.use_volume("writethrough");
    procedure.set("CACHE", "cache");
    procedure.set("ORIGIN", "origin");
    procedure.set("MOUNT", "mount");
    let mistake = r#"
mount -o loop "$ORIGIN" "$MOUNT"
cat "$MOUNT/file-1" >> "$MOUNT/file-2"
printf changed | dd of="$MOUNT/file-3" conv=notrunc
mv "$MOUNT/file-4" "$MOUNT/moved"
"#;
    let block = block(OPERATIONS, "mounted-by-mistake");
    procedure.run(&format!("{mistake}{block}{COPY_EXPORT}{DETACH}"));
    // What the mistaken mount has left is what the volume is now.
    let before = procedure.ledger.clone();
    FileSystem::Ext4.look_at(&procedure.path("origin"), &procedure.path("alone"), |folder| {
        procedure.ledger = Ledger::read(folder);
    });
    let changed =
        before.0.iter().filter(|(path, known)| procedure.ledger.0.get(*path) != Some(*known));
    assert_eq!(changed.count(), 3, "the files that were changed by mistake");
    procedure.assert_holds_all("export");
}
