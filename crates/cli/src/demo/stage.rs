//! The demo's stage: directory, files, servers, and the progress that is shown.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::options::CacheMode;
use forebay_host::probe::{DeviceKind, probe};
use forebay_host::{DeviceSpec, Signatures, offline};
use indicatif::{ProgressBar, ProgressStyle};

use super::figures::Figures;
use super::job::{self, Measured, Work};
use super::server::Server;
use super::{VOLUME, size};
use crate::admin::api::{SetRequest, Status};
use crate::admin::client;
use crate::commands::{format, latency_text};
use crate::exit::{Exit, Failure};
use crate::output;

/// How often live figures are refreshed.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The end of a run, of which the hit ratio is shown apart.
const FINAL: Duration = Duration::from_secs(3);

/// Reads and hits of the volume by a time.
#[derive(Clone, Copy, Default)]
struct Reads {
    hits: u64,
    all: u64,
}

impl Reads {
    fn of(status: &Status) -> Option<Reads> {
        let export = status.exports.iter().find(|export| export.name == VOLUME)?;
        let counters = &export.volume.as_ref()?.counters;
        let hits = counters.read_hit_count;
        let all = hits + counters.read_miss_count + counters.read_partial_hit_count;
        Some(Reads { hits, all })
    }

    fn ratio_since(self, earlier: Reads) -> Option<f64> {
        let all = self.all - earlier.all;
        (all > 0).then(|| (self.hits - earlier.hits) as f64 / all as f64)
    }
}

/// See the head of the file.
pub(super) struct Stage {
    directory: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl Stage {
    pub(super) fn new(directory: &Path, interrupted: Arc<AtomicBool>) -> Stage {
        Stage { directory: directory.to_owned(), interrupted }
    }

    pub(super) fn place(&self) -> String {
        self.directory.display().to_string()
    }

    /// The directory that holds ours, which is gone when the figures are read.
    pub(super) fn parent(&self) -> String {
        self.directory.parent().unwrap_or(&self.directory).display().to_string()
    }

    pub(super) fn is_in_memory(&self) -> bool {
        let facts = probe(&self.directory.join("fast.img"));
        facts.is_ok_and(|facts| facts.kind == DeviceKind::MemoryFile)
    }

    pub(super) fn say(&self, what: &str) {
        output::say(what);
    }

    fn check(&self) -> Result<(), Failure> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::new(Exit::Cancelled, "the demo was cancelled"));
        }
        Ok(())
    }

    /// A file written in full.
    pub(super) fn make_file(&self, name: &str, bytes: u64) -> Result<PathBuf, Failure> {
        self.check()?;
        let path = self.directory.join(name);
        offline::create_cache_file(&path, bytes, &mut |_| {})?;
        Ok(path)
    }

    /// A new cache with the origin attached. Replaces the one before.
    pub(super) fn make_cache(&self, bytes: u64, origin: &str) -> Result<String, Failure> {
        let path = self.directory.join("cache.img");
        // There is none the first time.
        let _ = std::fs::remove_file(&path);
        self.make_file("cache.img", bytes)?;
        let options = offline::FormatOptions {
            label: VOLUME.to_owned(),
            segment_bytes: None,
            signatures: Signatures::Respect,
            set_id: format::random_set_id()?,
        };
        format::format_device(&path, &options)?;
        let origin: DeviceSpec = origin.parse()?;
        crate::commands::attach_offline(&path, &origin, VOLUME, CacheMode::Writeback)?;
        Ok(path.display().to_string())
    }

    pub(super) fn start(&self, what: &[&str]) -> Result<Server, Failure> {
        self.check()?;
        Server::start(&self.directory, "server", what)
    }

    /// Makes the cache full of what no job asks for.
    pub(super) fn fill_with_junk(&self, server: &Server, range: Range<u64>) -> Result<(), Failure> {
        self.say("filling the cache with other data");
        // A stream as long as this is not cached otherwise.
        let set = |cutoff| {
            let request = SetRequest {
                volume: Some(VOLUME.to_owned()),
                sequential_cutoff_bytes: Some(cutoff),
                ..SetRequest::default()
            };
            client::block_on(server.admin.set(&request))?
        };
        set(0)?;
        job::read_through(&server.socket, VOLUME, range, &mut |_| self.check().is_ok())
            .map_err(|error| Failure::failed(format!("filling the cache: {error}")))?;
        self.check()?;
        set(1 << 20)?;
        let status = client::block_on(server.admin.status())??;
        if let Some(set) = &status.cache_set {
            let cached = size::text(set.cached_bytes);
            self.say(&format!("  {cached} cached, {:.0} % of the segments", set.occupancy * 100.0));
        }
        Ok(())
    }

    /// Runs both jobs and shows live figures.
    pub(super) fn measure(
        &self,
        server: &Server,
        name: &str,
        work: Work,
        duration: Duration,
    ) -> Result<Figures, Failure> {
        self.check()?;
        let kind = match work {
            Work::Read => "random reads",
            Work::WriteFlush => "write + fsync",
        };
        let title = format!("{kind}, {name}");
        let mut live = Live::start(&title, duration, server);
        let measured = job::run(&server.socket, VOLUME, work, duration, &mut |elapsed, done| {
            live.show(elapsed, done);
            self.check().is_ok()
        });
        let (total, last) = live.finish();
        self.check()?;
        let Measured { series, latency } =
            measured.map_err(|error| Failure::failed(format!("{title}: {error}")))?;
        let mut figures = Figures::new(name, &series, &latency);
        if work == Work::Read {
            (figures.hit_ratio, figures.hit_ratio_last_3_s) = (total, last);
        }
        self.say(&format!(
            "{title:<36} {:>8.0} IOPS, at the end {:>8.0}, p50 {}, p99 {}",
            figures.iops,
            figures.iops_last_3_s,
            latency_text(figures.p50_ns),
            latency_text(figures.p99_ns)
        ));
        Ok(figures)
    }
}

/// Live figures of a run.
struct Live<'a> {
    server: &'a Server,
    bar: Option<ProgressBar>,
    duration: Duration,
    /// When figures were refreshed last, and what was answered by then.
    last: (Duration, u64),
    first: Reads,
    /// Reads by time, once a second.
    history: Vec<(Duration, Reads)>,
    started: Instant,
}

impl<'a> Live<'a> {
    fn start(title: &str, duration: Duration, server: &'a Server) -> Live<'a> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:<36} [{bar:24}] {msg}");
            let style = style.expect("a valid template").progress_chars("=> ");
            let bar = ProgressBar::new(duration.as_millis() as u64).with_style(style);
            bar.with_prefix(title.to_owned())
        });
        let first = reads(server).unwrap_or_default();
        Live {
            server,
            bar,
            duration,
            last: Default::default(),
            first,
            history: Vec::new(),
            started: Instant::now(),
        }
    }

    fn show(&mut self, elapsed: Duration, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(elapsed.min(self.duration).as_millis() as u64);
        }
        let (before, done_before) = self.last;
        if elapsed < before + LIVE_INTERVAL {
            return;
        }
        self.last = (elapsed, done);
        let rate = (done - done_before) as f64 / (elapsed - before).as_secs_f64();
        let now = reads(self.server);
        if let Some(now) = now {
            self.history.push((self.started.elapsed(), now));
        }
        let ratio = now.and_then(|now| now.ratio_since(self.first));
        let hits = ratio.map_or(String::new(), |ratio| format!(", {:.1} % hits", ratio * 100.0));
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{rate:.0} IOPS{hits}"));
        }
    }

    /// Hit ratio of the whole run and of its end.
    fn finish(self) -> (Option<f64>, Option<f64>) {
        let end = self.started.elapsed();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        let Some(now) = reads(self.server) else { return (None, None) };
        let from = end.saturating_sub(FINAL);
        let before = self.history.iter().rev().find(|(time, _)| *time <= from);
        let before = before.map_or(self.first, |(_, reads)| *reads);
        (now.ratio_since(self.first), now.ratio_since(before))
    }
}

fn reads(server: &Server) -> Option<Reads> {
    let status = client::block_on(server.admin.status()).ok()?.ok()?;
    Reads::of(&status)
}
