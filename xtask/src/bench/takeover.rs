//! How long clients wait while a daemon is replaced by another one.
//!
//! A log is filled with extents of 4 KiB, the smallest and so the most of them. A client on one
//! connection sends one request after another, reads of what is cached and every eighth time a
//! write, and comes back at once when it is cut. Meanwhile another daemon takes over. What counts
//! is the longest time between two answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job};
use super::forebay::{Order, Program, Set, VOLUME};
use super::ground::Ground;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::spread::Spread;

/// What is cached, in extents of 4 KiB: 262,144 of them.
const CACHED_BYTES: u64 = 1 << 30;
/// The log: with room for headers, and for what the product keeps free.
const CACHE_BYTES: u64 = CACHED_BYTES / 8 * 11;
/// The volume is larger than what is read of it, so that neighbours are seldom both cached.
const VOLUME_BYTES: u64 = 16 * CACHE_BYTES;
const BLOCK_BYTES: u64 = 4096;
const FILL_DEPTH: u32 = 32;
/// What the client touches.
const HOT_BYTES: u64 = 64 << 20;
/// One request of so many is a write.
const WRITE_EACH: u64 = 8;
/// How long the client works before and after a takeover.
const AROUND: Duration = Duration::from_millis(500);
/// What making and filling the log takes on an ordinary machine, and one takeover.
const FILL_SECONDS: u64 = 40;
const TAKEOVER_SECONDS: u64 = 3;

/// One takeover.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Longest time between two answers.
    pub(super) gap_ms: f64,
    /// The same without a takeover, just after.
    pub(super) quiet_gap_ms: f64,
    /// Of the predecessor: until nothing was under way and the checkpoint was durable.
    pub(super) held_ms: f64,
    /// Of the successor: until everything was read.
    pub(super) read_ms: f64,
    /// From the end of the predecessor until the successor served.
    pub(super) start_ms: f64,
}

/// All of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Takeovers {
    pub(super) extents: u64,
    pub(super) cached_bytes: u64,
    pub(super) samples: Vec<Sample>,
}

impl Takeovers {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Bytes that the medium must have room for; the volume is a hole.
pub(super) fn ground_bytes() -> u64 {
    CACHE_BYTES / 4 * 5
}

pub(super) fn seconds(plan: Plan) -> u64 {
    FILL_SECONDS + TAKEOVER_SECONDS * u64::from(plan.repetitions)
}

/// Fills a log and replaces its daemon as often as is measured.
pub(super) fn measure(
    program: &Program,
    ground: &Ground,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Takeovers> {
    println!("takeovers, {}", ground.medium.title());
    let takeovers = progress.sample("takeover", || measure_all(program, ground, plan))?;
    for (name, spread) in [
        ("longest wait of a client", takeovers.spread(|sample| sample.gap_ms)),
        ("  without a takeover", takeovers.spread(|sample| sample.quiet_gap_ms)),
        ("  hold and checkpoint", takeovers.spread(|sample| sample.held_ms)),
        ("  read", takeovers.spread(|sample| sample.read_ms)),
        ("  commit and start", takeovers.spread(|sample| sample.start_ms)),
    ] {
        println!("  {name}: {} ms", spread.map(|spread| spread.text(1)).unwrap_or_default());
    }
    println!("  {} extents, {} MiB", takeovers.extents, takeovers.cached_bytes >> 20);
    Ok(takeovers)
}

fn measure_all(program: &Program, ground: &Ground, plan: Plan) -> anyhow::Result<Takeovers> {
    let (cache, origin) = (ground.path("log.img"), ground.path("volume.img"));
    std::fs::File::create(&origin)?.set_len(VOLUME_BYTES)?;
    let (bytes, order) = (CACHE_BYTES, Order::Coalescing);
    program.make_set(Set { cache: &cache, origin: &origin, bytes, order })?;
    let mut daemon = program.serve(&cache, ground)?;
    // The hot part last, so that it is what the policy keeps.
    for (start_bytes, span_bytes, bytes) in
        [(HOT_BYTES, VOLUME_BYTES - HOT_BYTES, CACHED_BYTES - HOT_BYTES), (0, HOT_BYTES, HOT_BYTES)]
    {
        let fill = Job {
            pattern: "randread",
            block_bytes: BLOCK_BYTES,
            depth: FILL_DEPTH,
            start_bytes,
            span_bytes,
            end: End::Bytes(bytes),
            more: &[],
        };
        fio::run_over_nbd(&fill, &daemon.uri, ground.folder())?;
    }
    let status = program.status(&daemon)?;
    let mut samples = Vec::new();
    for round in 0..plan.repetitions {
        interrupt::check()?;
        let socket = daemon.socket.clone();
        let (next, gap) = longest_gap_during(&socket, || {
            thread::sleep(AROUND);
            let next = program.take_over(&cache, ground, round);
            thread::sleep(AROUND);
            next
        })?;
        let next = next?;
        let ((), quiet_gap) = longest_gap_during(&socket, || thread::sleep(AROUND))?;
        let mut before = std::mem::replace(&mut daemon, next);
        before.server.wait()?;
        samples.push(Sample {
            gap_ms: gap.as_secs_f64() * 1e3,
            quiet_gap_ms: quiet_gap.as_secs_f64() * 1e3,
            held_ms: before.server.logged("held_ms")?,
            read_ms: before.server.logged("read_ms")?,
            start_ms: daemon.server.logged("start_ms")?,
        });
    }
    daemon.server.stop()?;
    let extents = status.volume()?.cached_extent_count;
    Ok(Takeovers { extents, cached_bytes: status.cache_set.cached_bytes, samples })
}

/// What `work` comes to, and the longest time between two answers of a client meanwhile.
fn longest_gap_during<T>(socket: &Path, work: impl FnOnce() -> T) -> anyhow::Result<(T, Duration)> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| longest_gap(socket, &is_over));
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        let gap = client.join().expect("the client does not panic")?;
        Ok((result, gap))
    })
}

/// Sends one request after another until it is over. Returns the longest time between two answers.
fn longest_gap(socket: &Path, is_over: &AtomicBool) -> anyhow::Result<Duration> {
    let mut longest = Duration::ZERO;
    let mut answered = Instant::now();
    let mut count = 0u64;
    let mut client: Option<Client> = None;
    while !is_over.load(Ordering::Relaxed) {
        let result = match &mut client {
            None => Client::connect(socket).map(|connected| client = Some(connected)),
            Some(connected) => connected.request(count).inspect(|()| {
                longest = longest.max(answered.elapsed());
                answered = Instant::now();
                count += 1;
            }),
        };
        match result {
            Ok(()) => {}
            // An address that refuses would be a fault, and so would an error of a request.
            Err(error) if error.kind() == std::io::ErrorKind::Other => return Err(error.into()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Err(error).context("the address refuses");
            }
            Err(_) => client = None,
        }
    }
    if count == 0 {
        bail!("the client got no answer");
    }
    Ok(longest)
}

/// The simplest client of the protocol that there is.
struct Client(UnixStream);

/// Numbers of the NBD protocol, see its specification.
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const FIXED_NO_ZEROES: u32 = 3;
const EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;

impl Client {
    fn connect(socket: &Path) -> std::io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let mut text = FIXED_NO_ZEROES.to_be_bytes().to_vec();
        text.extend(OPTION_MAGIC);
        text.extend(EXPORT_NAME.to_be_bytes());
        let length = u32::try_from(VOLUME.len()).expect("a short name");
        text.extend(length.to_be_bytes());
        text.extend(VOLUME.as_bytes());
        stream.write_all(&text)?;
        // Size and flags of the export.
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        Ok(Client(stream))
    }

    fn request(&mut self, number: u64) -> std::io::Result<()> {
        let kind = if number % WRITE_EACH == WRITE_EACH - 1 { WRITE } else { READ };
        // A stride that comes by all blocks.
        let block = number.wrapping_mul(7919) % (HOT_BYTES / BLOCK_BYTES);
        let mut text = REQUEST_MAGIC.to_be_bytes().to_vec();
        text.extend(0u16.to_be_bytes());
        text.extend(kind.to_be_bytes());
        text.extend(number.to_be_bytes());
        text.extend((block * BLOCK_BYTES).to_be_bytes());
        text.extend(u32::try_from(BLOCK_BYTES).expect("4096").to_be_bytes());
        let mut block = [0; BLOCK_BYTES as usize];
        if kind == WRITE {
            text.extend(block);
        }
        self.0.write_all(&text)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        if reply[..4] != REPLY_MAGIC.to_be_bytes() || reply[4..8] != [0; 4] {
            return Err(std::io::Error::other(format!("a request failed: {reply:?}")));
        }
        if kind == READ {
            self.0.read_exact(&mut block)?;
        }
        Ok(())
    }
}
