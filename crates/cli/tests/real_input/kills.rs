//! A source tree on a file system on a volume, and a daemon that is killed while it changes.

use std::fs::{self, File};
use std::path::Path;

use crate::ledger::Ledger;
use crate::machine::{self, program};
use crate::origin::FileSystem;
use crate::process::{end, run, succeed};
use crate::source::{self, git};
use crate::stack::{Site, Stack};
use crate::writers;

const ORIGIN_BYTES: u64 = 2 << 30;
/// Holds the file system and all that the tests write to it.
const AMPLE_CACHE: &str = "512M";
/// A fraction of what is cloned.
const SMALL_CACHE: &str = "64M";
/// Share of its segments that a full cache has in use at least; the others are in reserve.
const FULL: f64 = 0.75;
/// What `git grep` looks for: in many files, in few, in none.
const PATTERNS: [&str; 3] = ["struct inode", "EXPORT_SYMBOL_GPL(x", "no such text anywhere"];
/// Files that are synced in a round before the kill, and how much later the other rounds kill.
const SYNCED_FILES: u64 = 300;
const LONG_SYNCED_FILES: u64 = 100;

/// One test.
struct Job {
    name: &'static str,
    file_system: FileSystem,
    mode: &'static str,
    cache_size: &'static str,
}

#[test]
fn ext4_outlives_kills_in_writeback() {
    Job {
        name: "ext4_outlives_kills_in_writeback",
        file_system: FileSystem::Ext4,
        mode: "writeback",
        cache_size: AMPLE_CACHE,
    }
    .run();
}

#[test]
fn xfs_outlives_kills_in_writeback() {
    Job {
        name: "xfs_outlives_kills_in_writeback",
        file_system: FileSystem::Xfs,
        mode: "writeback",
        cache_size: AMPLE_CACHE,
    }
    .run();
}

#[test]
fn ext4_outlives_kills_with_a_full_cache() {
    Job {
        name: "ext4_outlives_kills_with_a_full_cache",
        file_system: FileSystem::Ext4,
        mode: "writeback",
        cache_size: SMALL_CACHE,
    }
    .run();
}

#[test]
fn ext4_outlives_kills_in_writethrough() {
    Job {
        name: "ext4_outlives_kills_in_writethrough",
        file_system: FileSystem::Ext4,
        mode: "writethrough",
        cache_size: AMPLE_CACHE,
    }
    .run();
}

impl Job {
    fn run(&self) {
        if !machine::can_clone(self.name, self.file_system.programs()) {
            return;
        }
        let source = source::repository();
        let site = Site::new();
        site.prepare(self.cache_size, ORIGIN_BYTES, self.mode);
        let mut stack = site.start();
        self.file_system.make(stack.device());
        stack.mount();
        let tree = site.mount_folder().join("source");
        let mut ledger = clone(&source, &tree);
        search(&source, &tree);
        if self.cache_size == SMALL_CACHE {
            assert_full(&site);
        }
        let rounds = if machine::is_long() { 20 } else { 2 };
        for round in 0..rounds {
            ledger = self.kill(&site, &mut stack, ledger, round);
            stack = site.start();
            self.look_after_kill(&mut stack, &tree, &mut ledger);
        }
        assert_eq!(succeed(&mut git(&tree, &["fsck", "--no-dangling"])), "");
        let whole = Ledger::read(&tree);
        stack.unmount();
        let daemon = stack.disconnect();
        site.detach();
        succeed(&mut site.forebay(&["stop"]));
        assert!(daemon.wait().success(), "the daemon ends well");
        let (origin, alone) = (site.path("origin"), site.path("alone"));
        self.file_system.look_at(&origin, &alone, |folder| {
            Ledger::read(&folder.join("source")).assert_equal(&whole, "the origin alone");
        });
    }

    /// Kills the daemon while files are written, and takes down what was built on it.
    fn kill(&self, site: &Site, stack: &mut Stack, ledger: Ledger, round: u64) -> Ledger {
        let tree = site.mount_folder().join("source");
        let writers = writers::start(&tree, ledger, round + 1);
        let base = if machine::is_long() { LONG_SYNCED_FILES } else { SYNCED_FILES };
        writers.wait_for(base + round * 7919 % base);
        writers.expect_errors();
        stack.kill_daemon();
        stack.kill_nbdfuse();
        let mut ledger = writers.finish();
        stack.take_down();
        succeed(&mut site.forebay(&["check", "cache"]));
        if self.mode == "writethrough" {
            self.look_at_origin(site, &mut ledger);
        }
        ledger
    }

    /// After the restart: all that was synced is there, and the file system is sound.
    fn look_after_kill(&self, stack: &mut Stack, tree: &Path, ledger: &mut Ledger) {
        stack.mount();
        assert!(ledger.known_count() > 0, "there is something to compare");
        ledger.compare(tree);
        stack.unmount();
        self.file_system.check(stack.device());
        stack.mount();
    }

    /// The origin alone, right after the kill. A copy of it, because a mount changes it.
    fn look_at_origin(&self, site: &Site, ledger: &mut Ledger) {
        let copy = site.path("copy");
        succeed(program("cp").arg("--sparse=always").arg(site.path("origin")).arg(&copy));
        self.file_system.look_at(&copy, &site.path("alone"), |folder| {
            ledger.clone().compare(&folder.join("source"));
        });
        fs::remove_file(&copy).expect("it is ours");
    }
}

/// Clones the repository onto the volume and syncs it.
fn clone(source: &Path, tree: &Path) -> Ledger {
    let (from, to) = (source.to_str().expect("text"), tree.to_str().expect("text"));
    succeed(&mut git(Path::new("/"), &["clone", "--quiet", from, to]));
    rustix::fs::syncfs(File::open(tree).expect("it is there")).expect("the tree is synced");
    drop_page_cache();
    let ledger = Ledger::read(tree);
    let files = Ledger::read(source).work_tree();
    assert!(files.known_count() > 5_000, "some ten thousand files");
    ledger.work_tree().assert_equal(&files, "the clone");
    ledger
}

/// Looks for some text in all files of both trees, from the device.
fn search(source: &Path, tree: &Path) {
    for pattern in PATTERNS {
        let arguments = ["grep", "--line-number", "--fixed-strings", "-e", pattern];
        let grep = |folder: &Path| {
            // Without a match the exit code is 1.
            let ended = end(&mut git(folder, &arguments)).expect("git grep runs");
            (ended.code(), ended.stdout)
        };
        let expected = grep(source);
        drop_page_cache();
        assert!(grep(tree) == expected, "git grep {pattern} finds other lines on the volume");
    }
}

/// What is not dirty leaves the memory of this machine.
fn drop_page_cache() {
    run("sync", &[]);
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may do this");
}

/// The cache has no room left: it has had to make some.
fn assert_full(site: &Site) {
    let status = site.status();
    let set = &status["daemons"][0]["cache_set"];
    let reclaimed = set["counters"]["reclaimed_segment_count"].as_u64();
    assert!(reclaimed.is_some_and(|count| count > 0), "nothing was reclaimed: {set:#}");
    let occupancy = set["occupancy"].as_f64();
    assert!(occupancy.is_some_and(|share| share > FULL), "the cache is not full: {set:#}");
}
