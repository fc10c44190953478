//! `forebay demo`: what a cache does, shown on this machine with nothing but this binary.
//!
//! All files are in one temporary directory, all servers are children that end with this process;
//! both are gone when it ends, however it ends.

mod client;
mod figures;
mod job;
mod server;
mod stage;
mod stamps;
mod zipf;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::args::DemoArguments;
use crate::commands::format::absolute;
use crate::exit::{Exit, Failure};
use crate::signals::{self, HangUp};
use crate::{output, size};
use figures::{CrashFigures, Figures, Report};
use job::{JOB_BYTES, JOB_COUNT, QUEUE_DEPTH, Work};
use server::Server;
use stage::Stage;
use stamps::{BLOCK_BYTES, Comparison, Stamps};

/// Size of the cache: room for both jobs and half as much again.
const CACHE_BYTES: u64 = 192 << 20;
/// Data that fills the cache with what nobody asks for later.
const JUNK_BYTES: u64 = 256 << 20;
/// The volume: the data of the jobs, then junk.
const ORIGIN_BYTES: u64 = JOB_COUNT * JOB_BYTES + JUNK_BYTES;
/// Free space that the directory must have.
const ROOM_BYTES: u64 = ORIGIN_BYTES + CACHE_BYTES + JOB_COUNT * JOB_BYTES + (32 << 20);
/// Name of the volume.
const VOLUME: &str = "demo";
/// Blocks that each of the clients writes before the kill.
const CRASH_BLOCKS: usize = 4096;
/// Acknowledged writes after which the server is killed.
const CRASH_AFTER: u64 = 20_000;
/// It is killed after so long in any case.
const CRASH_AFTER_MAX: Duration = Duration::from_secs(3);

/// How long each run takes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    bare: Duration,
    cached: Duration,
    write_flush: Duration,
}

/// Runs the command.
pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    signals::watch(HangUp::Watch, move |_| flag.store(true, Ordering::Relaxed))?;
    if let Some(json) = &arguments.json {
        // Better now than after the runs.
        std::fs::File::create(json).map_err(|error| cannot_write(json, &error))?;
    }
    let parent = choose_directory(arguments.dir.as_deref())?;
    let directory = tempfile::Builder::new().prefix("forebay-demo-").tempdir_in(&parent);
    let directory = directory.map_err(|error| {
        Failure::failed(format!("cannot make a directory in {}: {error}", parent.display()))
            .or("choose another place with --dir")
    })?;
    let seconds = Duration::from_secs(arguments.seconds);
    let plan = Plan { bare: seconds / 5, cached: seconds, write_flush: seconds * 3 / 20 };
    let stage = Stage::new(directory.path(), interrupted);
    let report = play(&stage, plan)?;
    output::print(&report.text())?;
    if let Some(json) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).expect("numbers and strings");
        std::fs::write(json, text + "\n").map_err(|error| cannot_write(json, &error))?;
    }
    if report.crash.blocks_wrong > 0 {
        return Err(Failure::new(Exit::Damaged, "acknowledged writes were lost"));
    }
    Ok(ExitCode::SUCCESS)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

fn room_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
}

/// A place where the fast device is fast: memory if there is room for it, else the usual one.
fn choose_directory(wanted: Option<&Path>) -> Result<PathBuf, Failure> {
    let directory = match wanted {
        Some(directory) => absolute(directory)?,
        None => {
            let memory = Path::new("/dev/shm");
            // The files must not take the memory that the rest of the machine needs.
            let has_room = memory.is_dir() && room_bytes(memory) >= 2 * ROOM_BYTES;
            if has_room { memory.to_owned() } else { std::env::temp_dir() }
        }
    };
    let room = room_bytes(&directory);
    if room < ROOM_BYTES {
        let (place, need) = (directory.display(), size::text(ROOM_BYTES));
        let message = format!("{place} has {} free, and the demo needs {need}", size::text(room));
        return Err(Failure::failed(message).or("choose another place with --dir"));
    }
    Ok(directory)
}

/// All runs, one after the other.
fn play(stage: &Stage, plan: Plan) -> Result<Report, Failure> {
    stage.say(&format!("making files of {} in {}", size::text(ROOM_BYTES), stage.place()));
    let origin = stage.make_file("origin.img", ORIGIN_BYTES)?;
    let fast = stage.make_file("fast.img", JOB_COUNT * JOB_BYTES)?;
    let slow = format!("hdd:{}", origin.display());
    let (mut reads, mut write_flushes) = (Vec::new(), Vec::new());
    for (name, device) in [("hard disk", slow.clone()), ("fast file", fast.display().to_string())] {
        let bare = format!("{VOLUME}={device}");
        let server = stage.start(&["--bare", &bare])?;
        reads.push(stage.measure(&server, name, Work::Read, plan.bare)?);
        write_flushes.push(stage.measure(&server, name, Work::WriteFlush, plan.write_flush)?);
        server.stop()?;
    }
    let cache = stage.make_cache(CACHE_BYTES, &slow)?;
    let server = stage.start(&[&cache])?;
    reads.push(stage.measure(&server, "cached, from cold", Work::Read, plan.cached)?);
    server.stop()?;
    let cache = stage.make_cache(CACHE_BYTES, &slow)?;
    let server = stage.start(&[&cache])?;
    stage.fill_with_junk(&server, JOB_COUNT * JOB_BYTES..ORIGIN_BYTES)?;
    reads.push(stage.measure(&server, "cached, full of junk", Work::Read, plan.cached)?);
    write_flushes.push(stage.measure(&server, "cached", Work::WriteFlush, plan.write_flush)?);
    let crash = crash(stage, server, &cache)?;
    figures::compare(&mut reads);
    figures::compare(&mut write_flushes);
    Ok(report(stage, reads, write_flushes, crash))
}

fn report(
    stage: &Stage,
    reads: Vec<Figures>,
    write_flushes: Vec<Figures>,
    crash: CrashFigures,
) -> Report {
    Report {
        scale: format!(
            "scale: Zipf {}, 4 KiB, {JOB_COUNT} jobs of {} at queue depth {QUEUE_DEPTH}; cache {}; \
             volume {} on a modelled hard disk",
            zipf::EXPONENT,
            size::text(JOB_BYTES),
            size::text(CACHE_BYTES),
            size::text(ORIGIN_BYTES)
        ),
        directory: stage.parent(),
        directory_is_memory: stage.is_in_memory(),
        reads,
        write_flushes,
        crash,
    }
}

/// Kills the server in the middle of writes, starts it again, and compares what was acknowledged.
fn crash(stage: &Stage, server: Server, cache: &str) -> Result<CrashFigures, Failure> {
    stage.say("kill -9 in the middle of writes");
    let seed = 0x5eed;
    let jobs = 0..JOB_COUNT;
    let mut all: Vec<Stamps> = jobs
        .map(|job| Stamps::new(job * JOB_BYTES / BLOCK_BYTES as u64, CRASH_BLOCKS, seed + job))
        .collect();
    let answers = std::sync::atomic::AtomicU64::new(0);
    let socket = server.socket.clone();
    std::thread::scope(|scope| {
        let writers: Vec<_> = all
            .iter_mut()
            .map(|stamps| {
                let (socket, answers) = (&socket, &answers);
                scope.spawn(move || {
                    let mut client = client::NbdClient::connect(socket, VOLUME)?;
                    stamps.write(&mut client, &|| false, &|| {
                        answers.fetch_add(1, Ordering::Relaxed);
                    })
                })
            })
            .collect();
        let started = Instant::now();
        while answers.load(Ordering::Relaxed) < CRASH_AFTER && started.elapsed() < CRASH_AFTER_MAX {
            std::thread::sleep(Duration::from_millis(2));
        }
        let killed = server.kill();
        for writer in writers {
            let result = writer.join().expect("a writer does not panic");
            result.map_err(|error| Failure::failed(format!("a write before the kill: {error}")))?;
        }
        killed
    })?;
    let started = Instant::now();
    let server = stage.start(&[cache])?;
    let restart_ms = started.elapsed().as_millis() as u64;
    let mut total = Comparison::default();
    for stamps in &mut all {
        let compared = client::NbdClient::connect(&server.socket, VOLUME)
            .and_then(|mut client| stamps.compare(&mut client))
            .map_err(|error| Failure::failed(format!("reading back after the kill: {error}")))?;
        total.compared += compared.compared;
        total.newer += compared.newer;
        total.wrong.extend(compared.wrong);
    }
    server.stop()?;
    Ok(CrashFigures {
        acknowledged_writes: answers.load(Ordering::Relaxed),
        blocks_compared: total.compared,
        blocks_newer: total.newer,
        blocks_wrong: total.wrong.len() as u64,
        restart_ms,
    })
}
