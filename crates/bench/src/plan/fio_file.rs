//! Job files of fio, as far as both clocks know what they ask for.
//!
//! Options are those of fio's manual, section "JOB FILE PARAMETERS". Where requests go, and what is
//! written down of them, is the plan's matter: such options are read over. Any other option that is
//! not known here is an error, so that no figure is of other work than the file says.

use std::collections::BTreeMap;

use super::{Job, Pattern, Work};

/// What a job file says.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FioFile {
    pub(super) jobs: Vec<Job>,
    /// How long all of them last; `None` if they end by themselves.
    pub(super) seconds: Option<u64>,
}

/// Options of where requests go, how fio works, and what it prints.
const READ_OVER: [&str; 15] = [
    "description",
    "directory",
    "disable_clat",
    "disable_slat",
    "filename",
    "group_reporting",
    "invalidate",
    "log_avg_msec",
    "name",
    "randseed",
    "refill_buffers",
    "thread",
    "uri",
    "write_iops_log",
    "write_lat_log",
];
/// Engines that do several requests of a job at once, as the engines here do.
const ENGINES: [&str; 4] = ["io_uring", "libaio", "nbd", "posixaio"];
/// Engines that wait for each request.
const ENGINES_AT_DEPTH_1: [&str; 5] = ["psync", "pvsync", "pvsync2", "sync", "vsync"];
/// Options that go by several names, and the one that stands for all.
const SYNONYMS: [(&str, &str); 4] =
    [("blocksize", "bs"), ("io_limit", "io_size"), ("loops", "times"), ("readwrite", "rw")];
const GLOBAL: &str = "global";

type Options = BTreeMap<String, String>;

/// Reads a job file.
///
/// # Errors
///
/// Which line or option is not understood.
pub(super) fn read(text: &str) -> Result<FioFile, String> {
    let mut global = Options::new();
    let mut sections: Vec<(String, Options)> = Vec::new();
    let mut is_global = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let number = index + 1;
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_global = name == GLOBAL;
            if !is_global {
                sections.push((name.to_owned(), global.clone()));
            }
            continue;
        }
        // An option without a value is switched on.
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let (key, value) = (key.trim(), value.trim());
        let key = SYNONYMS.iter().find(|(other, _)| *other == key).map_or(key, |(_, key)| *key);
        if READ_OVER.contains(&key) {
            continue;
        }
        let options = match sections.last_mut() {
            _ if is_global => &mut global,
            Some((_, options)) => options,
            None => return Err(format!("line {number}: an option before the first section")),
        };
        options.insert(key.to_owned(), value.to_owned());
    }
    if sections.is_empty() {
        return Err("there is no job".to_owned());
    }
    let mut jobs = Vec::new();
    let mut lasts: Option<Option<u64>> = None;
    for (name, options) in sections {
        let (job, seconds) = job(&name, options).map_err(|what| format!("job {name}: {what}"))?;
        if *lasts.get_or_insert(seconds) != seconds {
            return Err(format!("job {name}: all jobs last as long as the first, or none"));
        }
        jobs.push(job);
    }
    Ok(FioFile { jobs, seconds: lasts.flatten() })
}

/// A job, and how long it lasts.
fn job(name: &str, options: Options) -> Result<(Job, Option<u64>), String> {
    let mut options = Taken(options);
    let (pattern, work) = work(options.take("rw").as_deref().unwrap_or("read"))?;
    let distribution = options.take("random_distribution");
    let (pattern, theta) = match distribution.as_deref() {
        None | Some("random") => (pattern, None),
        Some(law) if pattern == Pattern::Uniform => match law.strip_prefix("zipf:") {
            Some(theta) => (Pattern::Zipf, Some(number(theta)?)),
            None => return Err(format!("random_distribution={law} is not known")),
        },
        Some(law) => return Err(format!("random_distribution={law} of work that is sequential")),
    };
    let size = options.bytes("size")?.ok_or("it needs a size, of all that it reads or writes")?;
    let seconds = options.take("runtime").map(|text| seconds(&text)).transpose()?;
    let depth = options.number("iodepth")?.unwrap_or(1);
    check_access(&mut options, depth)?;
    let is_timed = options.number("time_based")?.unwrap_or(0) != 0;
    if is_timed && seconds.is_none() {
        return Err("time_based needs a runtime".to_owned());
    }
    let io_size = options.bytes("io_size")?;
    let times = options.number("times")?.unwrap_or(1);
    // Without time_based a job ends when it has done its size, however much time is left.
    let amount = io_size.unwrap_or(size).checked_mul(times);
    let amount = amount.ok_or_else(|| format!("loops={times} is too much"))?;
    let amount = (!is_timed).then_some(amount);
    let reads = options.number("rwmixread")?;
    let writes = options.number("rwmixwrite")?;
    let percent = match (work, reads, writes) {
        (Work::Mix, Some(reads), _) => Some(reads),
        (Work::Mix, None, Some(writes)) => Some(100_u64.saturating_sub(writes)),
        // As fio has it.
        (Work::Mix, None, None) => Some(50),
        _ => None,
    };
    let small = |value: u64, key: &str| {
        u32::try_from(value).map_err(|_| format!("{key}={value} is too much"))
    };
    let apart = options.bytes("offset_increment")?;
    if apart.is_some_and(|distance| distance != size && distance != 0) {
        return Err(
            "offset_increment: as large as the size, so that jobs stand side by side".into()
        );
    }
    // Blocks of a random job may come twice: it asks for them by chance, in both clocks.
    options.take("norandommap");
    let job = Job {
        name: name.to_owned(),
        work,
        pattern,
        theta,
        offset: options.bytes("offset")?.unwrap_or(0),
        size,
        block: options.bytes("bs")?.unwrap_or_else(super::block),
        depth: small(depth, "iodepth")?,
        count: small(options.number("numjobs")?.unwrap_or(1), "numjobs")?,
        is_apart: apart.is_some_and(|distance| distance > 0),
        read_percent: percent.map(|percent| u8::try_from(percent.min(100)).expect("it is small")),
        amount,
        flush_every: small(options.number("fsync")?.unwrap_or(0), "fsync")?,
        think_us: 0,
        repeats_offsets: options.number("randrepeat")?.unwrap_or(1) != 0,
    };
    match options.0.keys().next() {
        Some(key) => Err(format!("{key} is not known here")),
        None => Ok((job, seconds)),
    }
}

/// Takes how a job has access to its range: direct, without the page cache, to one file or device.
/// What asks for something else is refused.
fn check_access(options: &mut Taken, depth: u64) -> Result<(), String> {
    if options.number("direct")? == Some(0) || options.number("buffered")?.is_some_and(|on| on != 0)
    {
        return Err("requests are direct here: direct=0 and buffered=1 are other work".to_owned());
    }
    if let Some(count @ (0 | 2..)) = options.number("nrfiles")? {
        return Err(format!("nrfiles={count}: a job has one range here"));
    }
    match options.take("ioengine").as_deref() {
        Some(engine) if ENGINES_AT_DEPTH_1.contains(&engine) && depth > 1 => {
            Err(format!("ioengine={engine} does one request at a time, whatever iodepth={depth}"))
        }
        Some(engine) if !ENGINES.contains(&engine) && !ENGINES_AT_DEPTH_1.contains(&engine) => {
            Err(format!("ioengine={engine} is not known here"))
        }
        _ => Ok(()),
    }
}

fn work(rw: &str) -> Result<(Pattern, Work), String> {
    match rw {
        "read" => Ok((Pattern::Sequential, Work::Read)),
        "write" => Ok((Pattern::Sequential, Work::Write)),
        "rw" | "readwrite" => Ok((Pattern::Sequential, Work::Mix)),
        "randread" => Ok((Pattern::Uniform, Work::Read)),
        "randwrite" => Ok((Pattern::Uniform, Work::Write)),
        "randrw" => Ok((Pattern::Uniform, Work::Mix)),
        other => Err(format!("rw={other} is not known")),
    }
}

/// Options of a job that nobody has looked at.
struct Taken(Options);

impl Taken {
    fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    fn number(&mut self, key: &str) -> Result<Option<u64>, String> {
        self.take(key)
            .map(|text| number(&text).map_err(|what| format!("{key}: {what}")))
            .transpose()
    }

    fn bytes(&mut self, key: &str) -> Result<Option<u64>, String> {
        let read = |text: String| {
            // fio's letters may be followed by `b`, and are powers of 1024. Followed by `i` they
            // are powers of 1000, the other way round than elsewhere. `kb_base` is refused.
            let plain = text.trim().to_ascii_lowercase();
            let plain = plain.strip_suffix('b').unwrap_or(&plain);
            let bytes = match plain.strip_suffix('i') {
                Some(decimal) => decimal_bytes(decimal),
                None => crate::size::parse(plain).ok(),
            };
            bytes.ok_or_else(|| format!("{key}={text} is no size"))
        };
        self.take(key).map(read).transpose()
    }
}

/// A whole number with a letter that is a power of 1000.
fn decimal_bytes(text: &str) -> Option<u64> {
    let (count, letter) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let power = "kmgt".find(letter)? as u32 + 1;
    count.trim().parse::<u64>().ok()?.checked_mul(1000_u64.pow(power))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// Whole seconds of a time of fio, which is in seconds unless it says otherwise.
fn seconds(text: &str) -> Result<u64, String> {
    let units = [("ms", 0), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("", 1)];
    let lower = text.to_ascii_lowercase();
    let parts = units.iter().find_map(|(unit, factor)| {
        let count: u64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        Some((count, *factor))
    });
    match parts {
        Some((count, factor @ 1..)) if count > 0 => Ok(count.saturating_mul(factor)),
        _ => Err(format!("runtime={text}: whole seconds, at least one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        ; as published
        [global]
        ioengine=libaio
        direct=1
        bs=4k
        runtime=30m
        time_based
        size=2G

        [reads]
        rw=randread
        random_distribution=zipf:1.2
        iodepth=8
        numjobs=2

        [mixed]
        readwrite=randrw
        rwmixwrite=30
        offset_increment=2GB
        fsync=32
        randrepeat=0
    ";

    #[test]
    fn jobs_have_what_the_file_says_and_the_defaults_of_fio() {
        let FioFile { jobs, seconds } = read(FILE).expect("a job file");
        assert_eq!(seconds, Some(1800));
        let [reads, mixed] = &jobs[..] else { panic!("{jobs:?}") };
        assert_eq!(
            (reads.work, reads.pattern, reads.theta),
            (Work::Read, Pattern::Zipf, Some(1.2))
        );
        assert_eq!((reads.size, reads.block, reads.depth, reads.count), (2 << 30, 4096, 8, 2));
        assert_eq!((reads.amount, reads.is_apart, reads.repeats_offsets), (None, false, true));
        assert_eq!((mixed.work, mixed.pattern), (Work::Mix, Pattern::Uniform));
        assert_eq!((mixed.read_percent, mixed.flush_every, mixed.depth), (Some(70), 32, 1));
        assert_eq!((mixed.is_apart, mixed.repeats_offsets), (true, false));
    }

    #[test]
    fn a_job_without_time_ends_with_its_size() {
        let file = read("[a]\nrw=write\nsize=64M\nbs=1m\n[b]\nsize=1M\nio_size=4M").unwrap();
        let amounts: Vec<Option<u64>> = file.jobs.iter().map(|job| job.amount).collect();
        assert_eq!((file.seconds, amounts), (None, vec![Some(64 << 20), Some(4 << 20)]));
        assert_eq!(file.jobs[1].pattern, Pattern::Sequential);
    }

    /// As fio 3.33 does it, by how much it writes.
    #[test]
    fn letters_are_powers_of_1024_and_with_an_i_of_1000() {
        let sizes = ["16M", "16MB", "16mib", "16Mi", "2Ki", "16777216"]
            .map(|size| read(&format!("[a]\nbs=512\nsize={size}")).unwrap().jobs[0].size);
        assert_eq!(sizes, [16 << 20, 16 << 20, 16_000_000, 16_000_000, 2000, 16 << 20]);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let cases = [
            ("bs=4k", "line 1: an option before"),
            ("[global]\nbs=4k", "there is no job"),
            ("[a]\nrw=randread", "job a: it needs a size"),
            ("[a]\nsize=10%", "size=10% is no size"),
            ("[a]\nsize=1M\nstonewall", "job a: stonewall is not known here"),
            ("[a]\nsize=i", "size=i is no size"),
            ("[a]\nsize=1.5Mi", "size=1.5Mi is no size"),
            ("[a]\nsize=1M\nloops=18446744073709551615", "is too much"),
            ("[a]\nsize=1M\nrw=trim", "rw=trim is not known"),
            (
                "[a]\nsize=1M\nrw=randread\nrandom_distribution=pareto:0.9",
                "pareto:0.9 is not known",
            ),
            ("[a]\nsize=1M\nruntime=10ms", "runtime=10ms"),
            ("[a]\nsize=1M\ntime_based", "time_based needs a runtime"),
            ("[a]\nsize=1M\nruntime=5\n[b]\nsize=1M", "job b: all jobs last"),
            ("[a]\nsize=1M\niodepth=many", "iodepth: many is no number"),
            ("[a]\nsize=1M\noffset_increment=4k", "side by side"),
            ("[a]\nsize=1M\ndirect=0", "requests are direct"),
            ("[a]\nsize=1M\nbuffered=1", "requests are direct"),
            ("[a]\nsize=1M\nnrfiles=8", "nrfiles=8"),
            ("[a]\nsize=1M\nioengine=psync\niodepth=32", "one request at a time"),
            ("[a]\nsize=1M\nioengine=mmap", "ioengine=mmap is not known"),
        ];
        for (text, expected) in cases {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
