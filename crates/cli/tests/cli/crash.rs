//! kill -9 in the middle of writes: every acknowledged byte is there afterwards, flushed or not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device_model::Random;

use crate::client::NbdClient;
use crate::stamps::{BLOCK_BYTES, Stamps};
use crate::support::{Scratch, rounds};

/// Blocks that each client writes: few, so that they are overwritten often.
const CLIENT_BLOCKS: usize = 2000;
const CLIENTS: u64 = 2;
/// Acknowledged writes of a round before the kill; a slow machine may do fewer in the time below.
const WRITES: u64 = 3000;
const ROUND_MAX: Duration = Duration::from_secs(5);
/// For the first of them, while other tests may keep the disk busy. A server that hangs takes
/// longer.
const FIRST_MAX: Duration = Duration::from_secs(60);

fn killed_in_the_middle_of_writes(mode: &str) {
    let scratch = Scratch::new();
    scratch.cache_with_volume(mode);
    let mut all: Vec<Stamps> = (0..CLIENTS)
        .map(|client| Stamps::new(client * CLIENT_BLOCKS as u64, CLIENT_BLOCKS, client))
        .collect();
    for round in 0..rounds(3, 100) {
        let server = scratch.serve();
        let answers = AtomicU64::new(0);
        // Different moments in different rounds, the same in every run.
        let wanted = WRITES / 10 + u64::from(round) * 7919 % WRITES;
        thread::scope(|scope| {
            let writers: Vec<_> = all
                .iter_mut()
                .map(|stamps| {
                    let (mut client, answers) = (server.client(), &answers);
                    scope.spawn(move || {
                        stamps.write(&mut client, &|| false, &|| {
                            answers.fetch_add(1, Ordering::Relaxed);
                        })
                    })
                })
                .collect();
            // Reads bring copies into the cache that the writes must void.
            let (mut reader, seed) = (server.client(), round.into());
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut block = [0; BLOCK_BYTES];
                let blocks = CLIENTS * CLIENT_BLOCKS as u64;
                while reader.read(random.below(blocks) * BLOCK_BYTES as u64, &mut block).is_ok() {}
            });
            let started = Instant::now();
            let is_due = || match answers.load(Ordering::Relaxed) {
                0 => started.elapsed() > FIRST_MAX,
                count => count >= wanted || started.elapsed() > ROUND_MAX,
            };
            while !is_due() {
                thread::yield_now();
            }
            server.kill();
            for writer in writers {
                writer.join().unwrap().unwrap();
            }
        });
        assert!(answers.load(Ordering::Relaxed) > 0, "round {round}: nothing was written");
        scratch.run(&["check", "cache.img"]).expect(0);
        let server = scratch.serve();
        for stamps in &mut all {
            let mut client = NbdClient::connect(&server.socket, "vol").unwrap();
            let comparison = stamps.compare(&mut client).unwrap();
            println!("{mode}, round {round}: {comparison:?}");
            assert_eq!(comparison.wrong, [0u64; 0], "{mode}, round {round}: {comparison:?}");
            assert!(comparison.compared > 0 || comparison.newer == 0);
        }
        assert_eq!(server.terminate(), Some(0), "{mode}, round {round}");
    }
    // At last, the origin alone holds it all.
    let server = scratch.serve();
    scratch.run(&["detach", "vol"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let bare = scratch.serve_what(&["--bare", "vol=origin.img"]);
    for stamps in &mut all {
        let comparison = stamps.compare(&mut bare.client()).unwrap();
        assert_eq!(comparison.wrong, [0u64; 0], "{mode}, detached: {comparison:?}");
    }
}

#[test]
fn writeback_loses_nothing_when_killed() {
    killed_in_the_middle_of_writes("writeback");
}

#[test]
fn writethrough_loses_nothing_when_killed() {
    killed_in_the_middle_of_writes("writethrough");
}

#[test]
fn writearound_loses_nothing_when_killed() {
    killed_in_the_middle_of_writes("writearound");
}
