//! The cache device dies under clients that rely on FUA: in order the origin alone is the volume
//! at a flush point, with any part of what was written until the next one (promise 4).
//!
//! A volume is served whose origin is slow and whose cache is a fraction of what is written to it,
//! so writeback is at work all the time. Clients write numbered blocks; some writes have FUA. The
//! daemon is killed, the origin file is looked at, the daemon is started again with its cache;
//! after the last kill the cache file is deleted before the look. In every second round clients
//! flush as well; in the others FUA alone makes flush points.

mod clients;
mod history;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device_model::Random;

use crate::support::{Scratch, rounds};
use clients::{Client, Flushes};
use history::{BLOCK_BYTES, History, Log, Standing};

const CACHE: &str = "16M";
/// So many operations in a second: an epoch takes a while to go home.
const ORIGIN: &str = "iops:2000:origin.img";
/// Of the volume: twice what the cache device has.
const BLOCKS: u32 = 8 << 10;
const CLIENTS: u64 = 3;
/// Answers of each daemon before its kill, at least, and how many more at random. The first begins
/// with an empty log; the second is killed while it brings home what recovery found.
const LIVES: [(u64, u64); 3] = [(4000, 1500), (0, 400), (2500, 1500)];
/// How long they may take: far more than they do on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was seen in all rounds.
#[derive(Default, Debug)]
struct Seen {
    looks: usize,
    points: usize,
    points_home: usize,
    /// Origins with part of the epoch after the last flush point.
    ahead: usize,
}

#[test]
fn an_ordered_origin_alone_is_at_a_flush_point_of_fua_writes() {
    let mut seen = Seen::default();
    for round in 0..rounds(2, 50) {
        let flushes = if round % 2 == 0 { Flushes::Never } else { Flushes::Sometimes };
        lose_cache(round.into(), flushes, &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.points_home < seen.points, "something was dirty when the cache device died");
    assert!(seen.ahead > 0, "no origin was between two flush points");
}

fn lose_cache(seed: u64, flushes: Flushes, seen: &mut Seen) {
    let scratch = Scratch::new();
    scratch.run(&["format", "cache.img", "--size", CACHE]).expect(0);
    scratch.file("origin.img", u64::from(BLOCKS) * BLOCK_BYTES as u64);
    let ordered = ["--cache-mode", "writeback", "--writeback-order", "ordered"];
    let attach = ["attach", "cache.img", ORIGIN, "--name", "vol"];
    scratch.run(&[&attach[..], &ordered].concat()).expect(0);
    let mut random = Random::new(seed);
    let (mut logs, clock) = (vec![Log::default(); CLIENTS as usize], AtomicU64::new(1));
    let mut home = 0;
    for (life, (least, more)) in LIVES.into_iter().enumerate() {
        let answers = least + random.below(more);
        let is_last = life + 1 == LIVES.len();
        let life_seed = seed * LIVES.len() as u64 + life as u64;
        live(&scratch, (&mut logs, &clock), answers, (flushes, life_seed));
        if is_last {
            fs::remove_file(scratch.path("cache.img")).expect("the cache device dies");
        }
        let standing = look(&scratch, &logs).unwrap_or_else(|text| {
            panic!("round {seed}, life {life}: {text}; {}", keep(&scratch, &logs));
        });
        println!("round {seed}, {flushes:?} flushing, life {life}: {standing:?}");
        let least = if least > 0 { home + 1 } else { home };
        assert!(standing.points_home >= least, "it was at {home} and is at {standing:?}");
        home = standing.points_home;
        seen.looks += 1;
        seen.ahead += usize::from(standing.blocks_ahead > 0);
        if is_last {
            seen.points += standing.points;
            seen.points_home += standing.points_home;
        }
    }
}

/// A daemon that is killed after so many answers.
fn live(
    scratch: &Scratch,
    (logs, clock): (&mut [Log], &AtomicU64),
    wanted: u64,
    (flushes, seed): (Flushes, u64),
) {
    let server = scratch.serve();
    scratch.run(&["set", "vol", "writeback_percent=0"]).expect(0);
    let answers = AtomicU64::new(0);
    thread::scope(|scope| {
        let clients: Vec<_> = logs
            .iter_mut()
            .zip(0..)
            .map(|(log, index)| {
                let random = Random::new(seed * CLIENTS + index);
                let blocks = (index as u32, CLIENTS as u32, BLOCKS);
                let client = Client { blocks, random, flushes, clock, log };
                let (connection, answers) = (server.client(), &answers);
                scope.spawn(move || client.run(connection, answers))
            })
            .collect();
        let started = Instant::now();
        while answers.load(Ordering::Relaxed) < wanted {
            assert!(started.elapsed() < PATIENCE, "not {wanted} answers: {}", server.log());
            thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        for client in clients {
            client.join().expect("no client fails while the server lives");
        }
    });
}

/// The origin file as it is.
fn look(scratch: &Scratch, logs: &[Log]) -> Result<Standing, String> {
    let origin = fs::read(scratch.path("origin.img")).expect("it is there");
    History::new(logs, BLOCKS).judge(&origin)
}

/// Keeps an origin that is wrong, and what clients did.
fn keep(scratch: &Scratch, logs: &[Log]) -> String {
    let name = format!("forebay-ordered-{}", std::process::id());
    let kept = std::env::temp_dir().join(name);
    let history = kept.with_extension("history");
    let origin = fs::copy(scratch.path("origin.img"), &kept).map(|_| ());
    let written = fs::write(&history, format!("{logs:#?}"));
    format!("the origin is kept as {kept:?} ({origin:?}), with {history:?} ({written:?})")
}
