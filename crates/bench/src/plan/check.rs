//! Whether a plan makes sense.

use std::path::{Path, PathBuf};

use forebay_engine::format::superblock::VOLUME_BYTES_MAX;

use super::{Device, Job, Pattern, Phase, Plan, Published, Target, Work};
use crate::folder;

/// What is wrong with a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, or has a word that is not known.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// It needs a file beside it, and has no place.
    #[error("the plan needs {0} beside it, and is not in a file")]
    NoFolder(String),
    /// It makes no sense.
    #[error("{place}: {what}")]
    Sense {
        /// Which part of it.
        place: String,
        /// What is wrong there.
        what: String,
    },
    /// The same, in a file.
    #[error("plan {}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        error: Box<PlanError>,
    },
}

impl PlanError {
    pub(super) fn in_file(self, path: &Path) -> PlanError {
        PlanError::File { path: path.to_owned(), error: Box::new(self) }
    }
}

/// Most requests in flight of a job: what a volume takes at once, and more than any disk.
const DEPTH_MAX: u32 = 1024;
/// Most clients of a job.
const CLIENTS_MAX: u32 = 256;
/// Largest request, which is what a volume takes.
const BLOCK_MAX: u64 = 32 << 20;
const SECTOR: u64 = 512;
/// Longest phase with all its times: a year. All of a plan's are far from overflowing nanoseconds.
const SECONDS_MAX: u64 = 366 * 24 * 3600;
/// Most repetitions.
const REPETITIONS_MAX: u32 = 1000;
/// Least memory of a program: one that cannot be loaded says nothing of a cache.
const MEMORY_MIN: u64 = 8 << 20;
/// Longest pause between requests: a minute.
const THINK_US_MAX: u64 = 60_000_000;
/// Most files that a disk is divided into.
const FILES_MAX: u32 = 1024;
/// Most blocks that Zipf's law is worked out for: eight bytes are needed for each.
const RANKS_MAX: u64 = 1 << 28;

impl Plan {
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let counts = format!("1 to {REPETITIONS_MAX}");
        let is_count = (1..=REPETITIONS_MAX).contains(&self.repetitions);
        require(is_count, "repetitions", &counts)?;
        for names in [
            self.devices.iter().map(|device| &device.name).collect::<Vec<_>>(),
            self.targets.iter().map(|target| &target.name).collect(),
        ] {
            require(!names.is_empty(), "plan", "a device and a target are needed")?;
            for (index, name) in names.iter().enumerate() {
                let is_plain = |character: char| {
                    character.is_ascii_alphanumeric() || "-_.".contains(character)
                };
                let is_name = !name.is_empty() && name.chars().all(is_plain);
                require(is_name, name, "a name has letters, digits, `-`, `_` and `.`")?;
                require(!names[..index].contains(name), name, "the name is there twice")?;
            }
        }
        for device in &self.devices {
            self.check_device(device)?;
        }
        for target in &self.targets {
            self.check_target(target)?;
        }
        for phase in &self.phases {
            self.check_phase(phase)?;
        }
        for published in &self.published {
            let place = format!("published {}", published.title);
            let is_known = |name: &String| {
                self.phases.iter().any(|phase| !phase.is_preparation && phase.name == *name)
            };
            let what = "phase: there is none of that name that is measured";
            require(published.phase.as_ref().is_none_or(is_known), &place, what)?;
            check_published(published, &place)?;
        }
        for bound in &self.bounds {
            bound.check(self)?;
        }
        let is_measured = self.phases.iter().any(Phase::is_measured);
        require(is_measured, "plan", "no phase with work is measured")
    }

    fn check_device(&self, device: &Device) -> Result<(), PlanError> {
        let place = format!("device {}", device.name);
        require(
            device.size > 0 && device.size.is_multiple_of(SECTOR),
            &place,
            "size: whole sectors",
        )?;
        let end = device.at.unwrap_or(0).checked_add(device.size);
        let too_large = format!("a device ends at {} PiB", VOLUME_BYTES_MAX >> 50);
        require(end.is_some_and(|end| end <= VOLUME_BYTES_MAX), &place, &too_large)?;
        let is_disk = device.preset.is_some_and(super::Preset::is_rotational);
        let has_more =
            device.at.is_some() || device.files.is_some() || device.queue_depth.is_some();
        let only_disks = "`at`, `files` and `queue_depth` are for disks that turn";
        require(is_disk || !has_more, &place, only_disks)?;
        let files = format!("files: 1 to {FILES_MAX}, and not with `at`");
        let is_count = device.files.is_none_or(|files| (1..=FILES_MAX).contains(&files));
        require(is_count && (device.at.is_none() || device.files.is_none()), &place, &files)?;
        require(device.queue_depth != Some(0), &place, "queue_depth: at least 1")
    }

    fn check_target(&self, target: &Target) -> Result<(), PlanError> {
        let place = format!("target {}", target.name);
        let kinds = [target.device.is_some(), target.forebay.is_some(), target.nbd.is_some()];
        let one = "exactly one of `device`, `forebay` and `nbd`";
        require(kinds.iter().filter(|kind| **kind).count() == 1, &place, one)?;
        let (cache, origin) = target.parts();
        for name in cache.into_iter().chain(origin).chain(target.device.as_deref()) {
            let is_known = self.devices.iter().any(|device| device.name == *name);
            require(is_known, &place, &format!("there is no device {name}"))?;
        }
        let is_made = target.cache.is_some() && target.origin.is_some();
        let is_plain = target.cache.is_none() && target.origin.is_none();
        let parts = "`cache` and `origin` are for a target with `device`, both or none";
        require(is_plain || is_made && target.device.is_some(), &place, parts)?;
        let served = "`is_served` is for a target with `device`, and without `cache`";
        let is_bare = target.device.is_some() && is_plain;
        require(!target.is_served || is_bare, &place, served)?;
        let counted = "`hit_counts` is for a target with `cache`";
        require(target.hit_counts.is_empty() || is_made, &place, counted)?;
        let command = "`command` is for a target with `nbd`";
        require(target.command.is_empty() || target.nbd.is_some(), &place, command)?;
        if let Some(forebay) = &target.forebay {
            require(forebay.cache != forebay.origin, &place, "cache and origin are one device")?;
            let room = self.device(&forebay.cache).size;
            let fits = forebay.cache_size.is_none_or(|size| size <= room);
            require(fits, &place, "cache_size: more than the device has")?;
        }
        Ok(())
    }

    fn check_phase(&self, phase: &Phase) -> Result<(), PlanError> {
        let place = format!("phase {}", phase.name);
        for name in &phase.only {
            let is_known = self.targets.iter().any(|target| target.name == *name);
            require(is_known, &place, &format!("there is no target {name}"))?;
        }
        let is_program = !phase.program.is_empty();
        let alone = "program: without jobs and `seconds`";
        require(!is_program || phase.jobs.is_empty() && phase.seconds.is_none(), &place, alone)?;
        let mounted = "program: on a `file_system` of the plan";
        require(!is_program || self.file_system.is_some(), &place, mounted)?;
        require(phase.seconds != Some(0), &place, "seconds: at least 1")?;
        let endless = "needs `seconds`, or an `amount` for each job";
        require(phase.seconds.is_some() || phase.ends_with_its_work(), &place, endless)?;
        require(phase.times > 0, &place, "times: at least 1")?;
        let is_short = phase.lasts_s().is_none_or(|seconds| seconds <= SECONDS_MAX);
        require(is_short, &place, "seconds: more than a year, with all `times`")?;
        let limited = "memory_max: of a program";
        require(is_program || phase.memory_max.is_none(), &place, limited)?;
        let too_little = format!("memory_max: at least {} MiB", MEMORY_MIN >> 20);
        let is_enough = phase.memory_max.is_none_or(|bytes| bytes >= MEMORY_MIN);
        require(is_enough, &place, &too_little)?;
        for job in &phase.jobs {
            let place = format!("{place}, job {}", job.name);
            check_job(job, &place)?;
            for target in self.targets.iter().filter(|target| phase.is_for(target)) {
                let origin = target.forebay.as_ref().map(|forebay| &forebay.origin);
                let Some(device) = target.device.as_ref().or(origin) else { continue };
                let room = self.device(device).size;
                let fits = job.end().is_some_and(|end| end <= room);
                require(fits, &place, &format!("ends beyond device {device}"))?;
            }
        }
        Ok(())
    }
}

fn check_job(job: &Job, place: &str) -> Result<(), PlanError> {
    // Names go into fio's job files, where `global` is a section of its own.
    let is_plain = |character: char| character.is_alphanumeric() || "-_.,+() ".contains(character);
    let is_name = job.name.trim() == job.name && !job.name.is_empty() && job.name != "global";
    let named = "name: letters, digits, spaces and `-_.,+()`, and not `global`";
    require(is_name && job.name.chars().all(is_plain), place, named)?;
    let is_block = job.block > 0 && job.block.is_multiple_of(SECTOR) && job.block <= BLOCK_MAX;
    require(is_block, place, "block: whole sectors, at most 32 MiB")?;
    require(job.offset.is_multiple_of(SECTOR), place, "offset: whole sectors")?;
    require(job.size >= job.block, place, "size: at least one block")?;
    let has_work = job.amount.is_none_or(|amount| amount >= job.block);
    require(has_work, place, "amount: at least one block")?;
    let depths = format!("depth: 1 to {DEPTH_MAX}");
    require((1..=DEPTH_MAX).contains(&job.depth), place, &depths)?;
    let counts = format!("count: 1 to {CLIENTS_MAX}");
    require((1..=CLIENTS_MAX).contains(&job.count), place, &counts)?;
    let what = format!("think_us: at most {THINK_US_MAX}, and at depth 1");
    let may_think = job.depth == 1 && job.think_us <= THINK_US_MAX;
    require(job.think_us == 0 || may_think, place, &what)?;
    let is_zipf = job.pattern == Pattern::Zipf;
    let theta = job.theta.unwrap_or(0.0);
    let what = "theta: above 0 and at most 10, for Zipf and nothing else";
    require(is_zipf == job.theta.is_some(), place, what)?;
    require(!is_zipf || theta > 0.0 && theta <= 10.0, place, what)?;
    let too_many = "size: too many blocks for Zipf's law";
    require(!is_zipf || job.size / job.block <= RANKS_MAX, place, too_many)?;
    let what = "read_percent: 0 to 100, for a mix and nothing else";
    require((job.work == Work::Mix) == job.read_percent.is_some(), place, what)?;
    require(job.read_percent.is_none_or(|percent| percent <= 100), place, what)
}

fn check_published(published: &Published, place: &str) -> Result<(), PlanError> {
    let Published { seconds, iops, first_iops, last_iops, run_s, first_run_s, .. } = published;
    let Published { hit_ratio, p50_us, p99_us, fairness, .. } = published;
    let figures = [seconds, iops, first_iops, last_iops, run_s, first_run_s, p50_us, p99_us];
    let are_figures = figures.into_iter().flatten().all(|value| value.is_finite() && *value >= 0.0);
    require(are_figures, place, "a figure is a number, and not below 0")?;
    let are_shares = [hit_ratio, fairness].into_iter().flatten().all(|v| (0.0..=1.0).contains(v));
    require(are_shares, place, "hit_ratio and fairness: 0 to 1")
}

/// A name of a file beside a plan: it goes into the folder of the results, too.
pub(super) fn plain_name(name: &str) -> Result<&str, PlanError> {
    let what = "the folder of the results has a file of that name; choose another";
    require(!folder::OWN_NAMES.contains(&name), name, what)?;
    let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    require(is_plain, name, "a file beside the plan, without a folder")?;
    Ok(name)
}

#[allow(clippy::fn_params_excessive_bools, reason = "the condition is what it is about")]
pub(super) fn require(is_so: bool, place: &str, what: &str) -> Result<(), PlanError> {
    known(is_so.then_some(()), place, what)
}

/// What has to be there.
pub(super) fn known<T>(value: Option<T>, place: &str, what: &str) -> Result<T, PlanError> {
    value.ok_or_else(|| PlanError::Sense { place: place.to_owned(), what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        about = "a test"
        clock = "virtual"
        [[device]]
        name = "disk"
        preset = "hdd"
        size = "1G"
        [[device]]
        name = "ssd"
        preset = "sata_ssd"
        size = "1G"
        [[target]]
        name = "bare"
        device = "disk"
        [[target]]
        name = "cached"
        forebay = { cache = "ssd", cache_size = "512M", origin = "disk", mode = "writeback" }
        [[phase]]
        name = "reads"
        seconds = 10
        [[phase.job]]
        name = "a"
        work = "read"
        pattern = "zipf"
        theta = 1.2
        size = "512M"
    "#;

    #[test]
    fn a_plan_is_read_and_what_it_leaves_out_has_a_value() {
        let plan = Plan::parse(PLAN).expect("a plan");
        let job = &plan.phases[0].jobs[0];
        assert_eq!((job.block, job.depth, job.offset, job.repeats_offsets), (4096, 1, 0, true));
        assert_eq!(plan.targets[1].forebay.as_ref().unwrap().cache_size, Some(512 << 20));
        assert_eq!((plan.repetitions, plan.cpu_ns_per_request), (1, 0));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_place() {
        let cases = [
            ("seconds = 10", "", "phase reads: needs `seconds`"),
            ("seconds = 10", "seconds = 0", "phase reads: seconds: at least 1"),
            ("theta = 1.2", "theta = 1.2\namount = 0", "job a: amount: at least one block"),
            ("seconds = 10", "seconds = 10\nis_preparation = true", "no phase with work"),
            ("theta = 1.2", "", "phase reads, job a: theta"),
            ("theta = 1.2", "theta = -1.0", "phase reads, job a: theta"),
            ("\n        size = \"512M\"", "\nsize = \"2G\"", "ends beyond device disk"),
            ("\n        size = \"512M\"", "\nsize = \"1K\"", "size: at least one block"),
            ("device = \"disk\"", "device = \"tape\"", "target bare: there is no device tape"),
            ("device = \"disk\"", "", "target bare: exactly one of"),
            ("device = \"disk\"", "device = \"disk\"\norigin = \"ssd\"", "both or none"),
            ("device = \"disk\"", "device = \"disk\"\nhit_counts = [\"a\"]", "with `cache`"),
            ("device = \"disk\"", "is_served = true\nnbd = \"nbd://a\"", "`is_served` is for"),
            ("origin = \"disk\"", "origin = \"ssd\"", "one device"),
            ("cache_size = \"512M\"", "cache_size = \"2G\"", "cache_size"),
            ("name = \"bare\"", "name = \"cached\"", "twice"),
            ("name = \"bare\"", "name = \"a/b\"", "letters"),
            ("work = \"read\"", "work = \"mix\"", "read_percent"),
            ("pattern = \"zipf\"", "depth = 2\nthink_us = 1\npattern = \"zipf\"", "at depth 1"),
            ("pattern = \"zipf\"", "pattern = \"spiral\"", "unknown variant"),
            ("seconds = 10", "seconds = 9999999999", "more than a year"),
            ("seconds = 10", "seconds = 99999999\ntimes = 4294967295", "more than a year"),
            ("about =", "repetitions = 1001\nabout =", "repetitions: 1 to 1000"),
            ("name = \"a\"", "name = \"global\"", "and not `global`"),
            ("name = \"a\"", "name = \"a]\"", "job a]: name"),
            ("name = \"a\"", "name = \"a\\nfilename=/b\"", "name: letters"),
            ("about", "abuot", "unknown field"),
            ("size = \"1G\"", "size = \"1X\"", "is no size"),
            ("preset = \"sata_ssd\"", "preset = \"sata_ssd\"\nat = 0", "disks that turn"),
            ("size = \"1G\"", "size = \"5000T\"", "device disk: a device ends at 4 PiB"),
            ("preset = \"hdd\"", "preset = \"hdd\"\nat = \"4096T\"", "ends at 4 PiB"),
            ("preset = \"hdd\"", "preset = \"hdd\"\nfiles = 0", "files: 1 to"),
            ("preset = \"hdd\"", "preset = \"hdd\"\nfiles = 2\nat = 0", "not with `at`"),
            (
                "clock = \"virtual\"",
                "clock = \"virtual\"\npublished = [{ title = \"x\", phase = \"y\" }]",
                "published x: phase",
            ),
            (
                "clock = \"virtual\"",
                "clock = \"virtual\"\npublished = [{ title = \"x\", hit_ratio = 73.6 }]",
                "published x: hit_ratio",
            ),
            (
                "clock = \"virtual\"",
                "clock = \"virtual\"\npublished = [{ title = \"x\", iops = inf }]",
                "published x: a figure is a number",
            ),
            ("seconds = 10", "program = [\"ls\"]", "program: without jobs"),
            ("seconds = 10", "seconds = 10\nmemory_max = \"64M\"", "memory_max: of a program"),
            ("seconds = 10", "seconds = 10\nfio = \"../a\"", "beside the plan"),
            ("seconds = 10", "seconds = 10\nfio = \"a.fio\"", "is not in a file"),
            ("seconds = 10", "seconds = 10\nfio = \"report.md\"", "has a file of that name"),
        ];
        for (from, to, expected) in cases {
            assert!(PLAN.contains(from));
            let error = Plan::parse(&PLAN.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
