//! The cache device dies with dirty data on it. In order the origin alone is a file system all the
//! same, as it was at some moment (promise 4).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::machine;
use crate::origin::FileSystem;
use crate::process::{poll, succeed};
use crate::stack::{Site, VOLUME};

const CACHE: &str = "64M";
const ORIGIN_BYTES: u64 = 256 << 20;
/// So slow that much is dirty at any moment.
const ORIGIN: &str = "hdd:origin";
const BLOCK_BYTES: usize = 4096;
/// Blocks of the file that is written over and over.
const COUNTER_BLOCKS: usize = 8;
const ROUNDS: u64 = 3;
const LONG_ROUNDS: u64 = 50;

#[test]
fn ext4_in_order_outlives_the_death_of_its_cache_device() {
    let name = "ext4_in_order_outlives_the_death_of_its_cache_device";
    if !machine::can_mount(name, FileSystem::Ext4.programs()) {
        return;
    }
    let rounds = if machine::is_long() { LONG_ROUNDS } else { ROUNDS };
    let mut sum = Outcome { synced: 0, on_origin: 0 };
    for round in 0..rounds {
        let outcome = lose_cache(40 + round * 17 % 60);
        println!("round {round}: {outcome:?}");
        sum.synced += outcome.synced;
        sum.on_origin += outcome.on_origin;
    }
    assert!(sum.on_origin > 0, "something goes home at all");
    assert!(sum.on_origin < sum.synced, "something was dirty when the cache device died");
}

/// How many files were synced, and how many the origin alone has.
#[derive(Debug)]
struct Outcome {
    synced: u64,
    on_origin: u64,
}

fn lose_cache(files: u64) -> Outcome {
    let site = Site::new();
    let options = ["--cache-mode", "writeback", "--writeback-order", "ordered"];
    site.prepare_as(CACHE, (ORIGIN, ORIGIN_BYTES), &options);
    let mut stack = site.start();
    succeed(&mut site.forebay(&["set", VOLUME, "writeback_percent=0"]));
    FileSystem::Ext4.make(stack.device());
    stack.mount();
    // The origin has a file system, and from here on falls behind.
    succeed(&mut site.forebay(&["drain", VOLUME]));
    succeed(&mut site.forebay(&["set", VOLUME, "cache_mode=writeback"]));
    let synced = Arc::new(AtomicU64::new(0));
    let (folder, count) = (site.mount_folder(), synced.clone());
    let writer = thread::spawn(move || {
        // Ends with the daemon.
        let _ = write_files(&folder, &count);
    });
    let is_enough = poll(|| (synced.load(Ordering::Acquire) >= files).then_some(()));
    assert_eq!(is_enough, Some(()), "{files} files are synced");
    stack.kill_daemon();
    stack.kill_nbdfuse();
    writer.join().expect("it does not panic");
    stack.take_down();
    fs::remove_file(site.path("cache")).expect("the cache device dies");
    let mut on_origin = 0;
    FileSystem::Ext4.look_at(&site.path("origin"), &site.path("alone"), |folder| {
        on_origin = assert_of_one_moment(folder);
    });
    Outcome { synced: synced.load(Ordering::Acquire), on_origin }
}

/// Block `block` of the content with this number.
fn block_of(number: u64, block: u64) -> Vec<u8> {
    let word = (number << 16 | block).to_le_bytes();
    word.repeat(BLOCK_BYTES / word.len())
}

fn blocks_of(number: u64) -> u64 {
    1 + number * 7 % 30
}

/// One new file after the other, each synced before the counter says so, which is synced as well.
fn write_files(folder: &Path, synced: &AtomicU64) -> io::Result<()> {
    let counter = File::create(folder.join("counter"))?;
    for number in 1.. {
        let mut file = File::create(folder.join(format!("{number}")))?;
        for block in 0..blocks_of(number) {
            file.write_all(&block_of(number, block))?;
        }
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        for block in 0..COUNTER_BLOCKS {
            counter.write_all_at(&block_of(number, 0), (block * BLOCK_BYTES) as u64)?;
        }
        counter.sync_all()?;
        synced.store(number, Ordering::Release);
    }
    Ok(())
}

fn is_whole(folder: &Path, number: u64) -> bool {
    let Ok(content) = fs::read(folder.join(format!("{number}"))) else { return false };
    let expected: Vec<u8> =
        (0..blocks_of(number)).flat_map(|block| block_of(number, block)).collect();
    content == expected
}

/// Checks that there was a moment at which all could have been so; answers how many files there
/// are.
#[track_caller]
fn assert_of_one_moment(folder: &Path) -> u64 {
    let last = (1..1000).rev().find(|number| is_whole(folder, *number)).unwrap_or(0);
    for number in 1..last {
        assert!(is_whole(folder, number), "file {number} of {last} was synced before the last");
    }
    let content = fs::read(folder.join("counter")).unwrap_or_default();
    let counts: Vec<u64> = content
        .chunks(BLOCK_BYTES)
        .map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight bytes")) >> 16)
        .collect();
    // The counter is written in place, so part of it may be one ahead.
    let least = counts.iter().copied().min().unwrap_or(0);
    let most = counts.iter().copied().max().unwrap_or(0);
    assert!(most <= last, "the counter says {most}, and {last} files are there");
    assert!(most <= least + 1, "the counter is from {least} to {most}");
    assert!(least + 1 >= last, "file {last} is there, and the counter says {least}");
    last
}
