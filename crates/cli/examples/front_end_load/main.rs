//! A closed loop of random requests on one volume, over vhost-user or over NBD: what
//! `cargo xtask bench --only vhost-user` compares.
//!
//! ```sh
//! cargo run --release -p forebay-cli --example front_end_load -- \
//!     --vhost-user /run/home.sock --depth 32 --queues 2 --seconds 3
//! ```
//!
//! Both clients are of the same make: one thread for each queue or connection, which sends what it
//! can in one go, then sleeps in one system call until there are answers. Neither polls. The client
//! of vhost-user is a virtual machine in miniature ([`driver`]); that of NBD is the demo's.
//!
//! With `--hand-over` there is no server: requests go to another thread and back ([`hand_over`]).
//!
//! Deliberately absent: a check of what is read, which tests do, and anything but blocks of 4 KiB.

#[expect(dead_code, reason = "the demo does more with it")]
#[path = "../../src/demo/client.rs"]
mod client;
mod driver;
mod hand_over;
mod load;

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_nbd::{Command, Cookie, Durability, ReadChunks, Request};
use hdrhistogram::Histogram;
use serde_json::json;

use client::{NbdClient, reply_error};
use driver::{DEPTH_MAX, Guest};
use load::{BLOCK_BYTES, Load, Work};

/// Keep requests under way on a volume, and print as JSON what came of it.
#[derive(Parser)]
struct Arguments {
    /// Socket of `forebay serve --vhost-user`
    #[arg(long, value_name = "PATH", conflicts_with = "nbd")]
    #[arg(required_unless_present_any = ["nbd", "hand_over"])]
    vhost_user: Option<PathBuf>,
    /// Unix socket of `forebay serve --nbd`
    #[arg(long, value_name = "PATH", requires = "export")]
    nbd: Option<PathBuf>,
    /// Name of the export over NBD
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
    /// Hand requests to another thread, and take them back
    #[arg(long, conflicts_with_all = ["vhost_user", "nbd", "queues"])]
    hand_over: bool,
    /// What is done with blocks
    #[arg(long, value_enum, default_value = "read")]
    work: Work,
    /// Requests under way on each queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(DEPTH_MAX)))]
    depth: u16,
    /// Queues, or connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=8))]
    queues: u16,
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests of each queue after which it ends earlier
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    requests: u64,
}

impl Arguments {
    fn load(&self, queue: u16, size_bytes: u64) -> Load {
        Load::new(load::Options {
            work: self.work,
            depth: self.depth,
            block_count: size_bytes / BLOCK_BYTES as u64,
            request_count_max: self.requests,
            until: Instant::now() + Duration::from_secs(self.seconds),
            seed: u64::from(queue) + 1,
        })
    }
}

/// What one thread came to.
#[derive(Default)]
struct Share {
    /// Of what it began.
    latencies: Option<Histogram<u64>>,
    cpu_ns: u64,
    notifications: driver::Notifications,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let shares = match (&arguments.vhost_user, &arguments.nbd, &arguments.export) {
        (Some(socket), ..) => over_vhost_user(&arguments, socket)?,
        (None, Some(socket), Some(export)) => over_nbd(&arguments, socket, export)?,
        // Any block will do.
        _ => hand_over::run(arguments.load(0, BLOCK_BYTES as u64))?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let mut latencies = load::histogram();
    for share in shares.iter().filter_map(|share| share.latencies.as_ref()) {
        latencies.add(share).expect("the same bounds");
    }
    let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    let sum = |value: fn(&Share) -> u64| shares.iter().map(value).sum::<u64>();
    let report = json!({
        "requests": latencies.len(),
        "seconds": seconds,
        "mean_us": latencies.mean() / 1e3,
        "p50_us": microseconds(0.5),
        "p99_us": microseconds(0.99),
        "p999_us": microseconds(0.999),
        "cpu_seconds": sum(|share| share.cpu_ns) as f64 / 1e9,
        "kicks": sum(|share| share.notifications.kicks),
        "calls": sum(|share| share.notifications.calls),
    });
    println!("{report}");
    Ok(())
}

/// CPU time of this thread since it began, in nanoseconds; see proc(5), `schedstat`.
fn thread_cpu_ns() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other("/proc/thread-self/schedstat has no CPU time"))
}

/// Runs `work` of each queue on a thread of its own.
fn on_threads<T: Send>(
    queues: Vec<T>,
    work: impl Fn(T) -> io::Result<Share> + Sync,
) -> io::Result<Vec<Share>> {
    thread::scope(|scope| {
        let run = |queue| {
            let work = &work;
            scope.spawn(move || -> io::Result<Share> {
                let before = thread_cpu_ns()?;
                let share = work(queue)?;
                Ok(Share { cpu_ns: thread_cpu_ns()? - before, ..share })
            })
        };
        let threads: Vec<_> = queues.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

fn over_vhost_user(arguments: &Arguments, socket: &std::path::Path) -> io::Result<Vec<Share>> {
    let mut guest = Guest::connect(socket, arguments.queues).map_err(io::Error::other)?;
    let size_bytes = guest.size_bytes().map_err(io::Error::other)?;
    let queues = (0..arguments.queues).zip(guest.queues());
    let queues: io::Result<Vec<_>> = queues.map(|(number, queue)| Ok((number, queue?))).collect();
    on_threads(queues?, |(number, mut queue)| {
        let mut load = arguments.load(number, size_bytes);
        queue.run(&mut load)?;
        let notifications = queue.notifications();
        Ok(Share { latencies: Some(load.latencies), notifications, ..Share::default() })
    })
}

fn over_nbd(
    arguments: &Arguments,
    socket: &std::path::Path,
    export: &str,
) -> io::Result<Vec<Share>> {
    let connect = |number| Ok((number, NbdClient::connect(socket, export)?));
    let clients: io::Result<Vec<_>> = (0..arguments.queues).map(connect).collect();
    on_threads(clients?, |(number, mut client)| {
        let mut load = arguments.load(number, client.size_bytes());
        run_nbd(&mut client, &mut load)?;
        Ok(Share { latencies: Some(load.latencies), ..Share::default() })
    })
}

/// Keeps the connection busy until the load is over. Cookies are numbers of slots.
fn run_nbd(client: &mut NbdClient, load: &mut Load) -> io::Result<()> {
    let block = vec![0x5a; BLOCK_BYTES];
    let (command, payload) = match load.work() {
        Work::Read => (Command::Read { chunks: ReadChunks::Any }, &[][..]),
        Work::Write => (Command::Write { durability: Durability::Completed }, &block[..]),
    };
    let ask = |client: &mut NbdClient, slot: u16, block: u64| {
        let (offset_bytes, length_bytes) = (block * BLOCK_BYTES as u64, BLOCK_BYTES as u32);
        let cookie = Cookie(slot.into());
        client.queue(&Request { cookie, command, offset_bytes, length_bytes }, payload)
    };
    for slot in 0..load.depth() {
        if let Some(block) = load.begin(slot, Instant::now()) {
            ask(client, slot, block)?;
        }
    }
    while load.in_flight() > 0 {
        let (cookie, result) = client.next(&mut |_, _, _| {})?;
        result.map_err(reply_error)?;
        let slot = u16::try_from(cookie.0).expect("a number of a slot");
        let now = Instant::now();
        load.end(slot, now);
        if let Some(block) = load.begin(slot, now) {
            ask(client, slot, block)?;
        }
    }
    Ok(())
}
