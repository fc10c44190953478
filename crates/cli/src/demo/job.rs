//! The demo's work: random reads at queue depth 8, and writes that are flushed one by one, each by
//! two clients at once.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device_model::Random;
use forebay_nbd::{Command, Cookie, ReadChunks, Request};
use hdrhistogram::Histogram;

use super::client::{NbdClient, reply_error};
use super::figures::Series;
use super::stamps::BLOCK_BYTES;
use super::zipf::Zipf;

/// Clients at once.
pub(crate) const JOB_COUNT: u64 = 2;
/// Data of each.
pub(crate) const JOB_BYTES: u64 = 64 << 20;
/// Requests that each has under way when it reads.
pub(crate) const QUEUE_DEPTH: u64 = 8;
/// How often progress is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest latency told apart.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Zipf 1.2 reads.
    Read,
    /// A random write, then a flush.
    WriteFlush,
}

/// How it went.
pub(crate) struct Measured {
    pub(crate) series: Series,
    pub(crate) latency: Histogram<u64>,
}

/// What the threads of a run share.
struct Shared {
    done: AtomicU64,
    is_over: AtomicBool,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 3).expect("valid bounds")
}

/// Runs both jobs for `duration`. `observe` is called ten times a second with the time that has
/// passed and the requests that were answered; it ends the run early by returning `false`.
pub(crate) fn run(
    socket: &Path,
    export: &str,
    work: Work,
    duration: Duration,
    observe: &mut dyn FnMut(Duration, u64) -> bool,
) -> io::Result<Measured> {
    let shared = Shared { done: AtomicU64::new(0), is_over: AtomicBool::new(false) };
    thread::scope(|scope| {
        let shared = &shared;
        let jobs: Vec<_> = (0..JOB_COUNT)
            .map(|job| {
                scope.spawn(move || {
                    let client = NbdClient::connect(socket, export)?;
                    if client.size_bytes() < JOB_COUNT * JOB_BYTES {
                        return Err(io::Error::other("the export is too small for the jobs"));
                    }
                    match work {
                        Work::Read => read(client, job, shared),
                        Work::WriteFlush => write_flush(client, job, shared),
                    }
                })
            })
            .collect();
        let started = Instant::now();
        let mut series = Series::default();
        loop {
            thread::sleep(SAMPLE_INTERVAL);
            let elapsed = started.elapsed();
            let done = shared.done.load(Ordering::Relaxed);
            series.push(elapsed, done);
            let goes_on = observe(elapsed, done) && !jobs.iter().any(|job| job.is_finished());
            if elapsed >= duration || !goes_on {
                break;
            }
        }
        shared.is_over.store(true, Ordering::Relaxed);
        let mut latency = histogram();
        for job in jobs {
            let of_job = job.join().expect("a job does not panic")?;
            latency.add(of_job).expect("same bounds");
        }
        Ok(Measured { series, latency })
    })
}

fn read(mut client: NbdClient, job: u64, shared: &Shared) -> io::Result<Histogram<u64>> {
    let blocks = (JOB_BYTES / BLOCK_BYTES as u64) as u32;
    let mut zipf = Zipf::new(blocks, job + 1);
    let mut latency = histogram();
    let mut started = [Instant::now(); QUEUE_DEPTH as usize];
    let mut submit = |client: &mut NbdClient, slot: u64| {
        let request = Request {
            cookie: Cookie(slot),
            command: Command::Read { chunks: ReadChunks::Any },
            offset_bytes: job * JOB_BYTES + zipf.next() * BLOCK_BYTES as u64,
            length_bytes: BLOCK_BYTES as u32,
        };
        client.queue(&request, &[])
    };
    for slot in 0..QUEUE_DEPTH {
        submit(&mut client, slot)?;
    }
    let mut in_flight = QUEUE_DEPTH;
    while in_flight > 0 {
        let (cookie, result) = client.next(&mut |_, _, _| {})?;
        result.map_err(reply_error)?;
        let now = Instant::now();
        let slot = cookie.0 as usize;
        latency.saturating_record((now - started[slot]).as_nanos() as u64);
        shared.done.fetch_add(1, Ordering::Relaxed);
        if shared.is_over.load(Ordering::Relaxed) {
            in_flight -= 1;
        } else {
            started[slot] = now;
            submit(&mut client, cookie.0)?;
        }
    }
    Ok(latency)
}

fn write_flush(mut client: NbdClient, job: u64, shared: &Shared) -> io::Result<Histogram<u64>> {
    let mut random = Random::new(job + 1);
    let mut latency = histogram();
    let mut bytes = [0; BLOCK_BYTES];
    while !shared.is_over.load(Ordering::Relaxed) {
        let block = random.below(JOB_BYTES / BLOCK_BYTES as u64);
        bytes[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        let started = Instant::now();
        client.write(job * JOB_BYTES + block * BLOCK_BYTES as u64, &bytes)?;
        client.flush()?;
        latency.saturating_record(started.elapsed().as_nanos() as u64);
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(latency)
}

/// Reads a range in long transfers, several at once.
pub(crate) fn read_through(
    socket: &Path,
    export: &str,
    range: std::ops::Range<u64>,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    const TRANSFER_BYTES: u32 = 1 << 20;
    let mut client = NbdClient::connect(socket, export)?;
    let mut next = range.start;
    let mut in_flight = 0;
    loop {
        while in_flight < QUEUE_DEPTH && next < range.end {
            let request = Request {
                cookie: Cookie(next),
                command: Command::Read { chunks: ReadChunks::Any },
                offset_bytes: next,
                length_bytes: TRANSFER_BYTES,
            };
            client.queue(&request, &[])?;
            next += u64::from(TRANSFER_BYTES);
            in_flight += 1;
        }
        if in_flight == 0 || !goes_on(next - range.start) {
            return Ok(());
        }
        client.next(&mut |_, _, _| {})?.1.map_err(reply_error)?;
        in_flight -= 1;
    }
}
