//! What targets are and what phases do, in words.

use crate::plan::{Act, Clock, Device, Forebay, Job, Pattern, Phase, Plan, Preset, Target, Work};
use crate::size;

/// What is measured under a target's name, in this time.
pub(super) fn target(plan: &Plan, target: &Target, clock: Clock) -> String {
    match target {
        Target { forebay: Some(forebay), .. } => cached(plan, forebay, clock),
        Target { device: Some(name), .. } => device(plan.device(name), clock),
        Target { nbd: Some(uri), command, .. } if command.is_empty() => format!("NBD export {uri}"),
        Target { command, .. } if !command.is_empty() => command.join(" "),
        _ => String::new(),
    }
}

fn cached(plan: &Plan, forebay: &Forebay, clock: Clock) -> String {
    let mode = forebay.mode.name();
    let (cache, origin) = (plan.device(&forebay.cache), plan.device(&forebay.origin));
    let part = match forebay.cache_size {
        Some(bytes) if bytes != cache.size => format!("{} of ", size::text(bytes)),
        _ => String::new(),
    };
    let set = forebay.set.iter().map(|(key, value)| format!("; {key} = {value}"));
    format!(
        "{mode}; cache: {part}{}; origin: {}{}",
        device(cache, clock),
        device(origin, clock),
        set.collect::<String>()
    )
}

fn device(device: &Device, clock: Clock) -> String {
    let kind = match (device.preset, &device.path) {
        (Some(preset), _) if clock == Clock::Virtual => preset_words(preset),
        (Some(Preset::Hdd), None) => "emulated hard disk",
        (Some(Preset::CloudVolume), None) => "emulated cloud volume",
        (_, Some(path)) => path,
        (_, None) => "file",
    };
    let mut text = format!("{kind}, {}", size::text(device.size));
    if clock == Clock::Real {
        // Of models only: what is emulated has none of it.
        return text;
    }
    if let Some(files) = device.files {
        text.push_str(&format!(", {files} files that are spread over the disk"));
    }
    match device.queue_depth {
        Some(1) => text.push_str(", without command queueing"),
        Some(depth) => text.push_str(&format!(", {depth} commands at once")),
        None => {}
    }
    text
}

fn preset_words(preset: Preset) -> &'static str {
    match preset {
        Preset::Hdd => "hard disk",
        Preset::SataSsd => "SATA SSD",
        Preset::SmallSataSsd => "small SATA SSD",
        Preset::NvmeSsd => "NVMe SSD",
        Preset::CloudVolume => "cloud volume",
    }
}

/// What targets do in a phase: when it ends, then a line for each of its jobs.
pub(super) fn phase(phase: &Phase) -> Vec<String> {
    let ends = match phase.seconds {
        Some(seconds) => format!("{seconds} s"),
        None if !phase.program.is_empty() => "Until the program ends".to_owned(),
        None => "Until every job has done its amount".to_owned(),
    };
    let only = match &phase.only[..] {
        [] => String::new(),
        names => format!("; only {}", names.join(", ")),
    };
    let times = match phase.times {
        1 => String::new(),
        times => format!(", {times} times, each from the start"),
    };
    let fresh = if phase.begins_fresh { "; on fresh devices" } else { "" };
    let acts: String =
        phase.begins_with.iter().map(|act| format!("; {}", act_words(*act))).collect();
    let mut lines = vec![format!("{ends}{times}{fresh}{acts}{only}.")];
    lines.extend(phase.jobs.iter().map(job));
    if !phase.program.is_empty() {
        let memory =
            phase.memory_max.map(|bytes| format!("; with {} of memory", size::text(bytes)));
        lines.push(format!("{}{}.", phase.program.join(" "), memory.unwrap_or_default()));
    }
    lines
}

fn act_words(act: Act) -> &'static str {
    match act {
        Act::DropPageCache => "with an empty page cache",
        Act::Kill => "after the daemon was killed",
        Act::Restart => "after the daemon was restarted",
    }
}

fn job(job: &Job) -> String {
    let count = if job.count > 1 { format!("{} × ", job.count) } else { String::new() };
    let work = match (job.work, job.read_percent) {
        (Work::Read, _) => "reads".to_owned(),
        (Work::Write, _) => "writes".to_owned(),
        (Work::Mix, percent) => {
            let reads = percent.unwrap_or_default();
            format!("{reads} % reads, {} % writes", 100u8.saturating_sub(reads))
        }
    };
    let pattern = match (job.pattern, job.theta) {
        (Pattern::Uniform, _) => "uniform".to_owned(),
        (Pattern::Sequential, _) => "sequential".to_owned(),
        (Pattern::Zipf, theta) => format!("Zipf {}", theta.unwrap_or_default()),
    };
    let range = if job.is_apart && job.count > 1 { " each" } else { "" };
    let mut text = format!(
        "{}: {count}{work} of {}, {pattern} over {}{range}, depth {}",
        job.name,
        size::text(job.block),
        size::text(job.size),
        job.depth
    );
    if let Some(amount) = job.amount {
        text.push_str(&format!(", {} in all", size::text(amount)));
    }
    if job.flush_every > 0 {
        text.push_str(&format!(", a flush after every {} writes", job.flush_every));
    }
    if job.think_us > 0 {
        text.push_str(&format!(", {} us after each answer", job.think_us));
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        about = "a test"
        clock = "virtual"
        device = [
            { name = "disk", preset = "hdd", size = "1T", files = 3, queue_depth = 1 },
            { name = "ssd", preset = "nvme_ssd", size = "64G" },
        ]
        [[target]]
        name = "bare"
        device = "disk"
        [[target]]
        name = "cached"
        [target.forebay]
        cache = "ssd"
        cache_size = "4G"
        origin = "disk"
        mode = "writeback"
        set = { promotion_nhit = "2" }
        [[phase]]
        name = "mix"
        only = ["cached"]
        seconds = 40
        times = 10
        begins_fresh = true
        begins_with = ["drop_page_cache"]
        [[phase.job]]
        name = "a"
        work = "mix"
        pattern = "zipf"
        size = "1G"
        theta = 1.2
        depth = 4
        count = 8
        is_apart = true
        read_percent = 70
        flush_every = 32
        [[phase]]
        name = "copy"
        [[phase.job]]
        name = "b"
        work = "write"
        pattern = "sequential"
        size = "6G"
        block = "64K"
        amount = "6G"
    "#;

    #[test]
    fn targets_and_phases_are_said_in_words() {
        let plan = Plan::parse(PLAN).expect("a plan");
        assert_eq!(
            target(&plan, &plan.targets[0], Clock::Virtual),
            "hard disk, 1 TiB, 3 files that are spread over the disk, without command queueing"
        );
        assert_eq!(
            target(&plan, &plan.targets[1], Clock::Virtual),
            "writeback; cache: 4 GiB of NVMe SSD, 64 GiB; origin: hard disk, 1 TiB, 3 files that \
             are spread over the disk, without command queueing; promotion_nhit = 2"
        );
        assert_eq!(
            target(&plan, &plan.targets[1], Clock::Real),
            "writeback; cache: 4 GiB of file, 64 GiB; origin: emulated hard disk, 1 TiB; \
             promotion_nhit = 2"
        );
        assert_eq!(
            phase(&plan.phases[0]),
            [
                "40 s, 10 times, each from the start; on fresh devices; with an empty page cache; \
                 only cached.",
                "a: 8 × 70 % reads, 30 % writes of 4 KiB, Zipf 1.2 over 1 GiB each, depth 4, a \
                 flush after every 32 writes.",
            ]
        );
        assert_eq!(
            phase(&plan.phases[1]),
            [
                "Until every job has done its amount.",
                "b: writes of 64 KiB, sequential over 6 GiB, depth 1, 6 GiB in all.",
            ]
        );
        let program = Phase {
            jobs: Vec::new(),
            program: vec!["ls".to_owned(), "{mount}".to_owned()],
            memory_max: Some(64 << 20),
            ..plan.phases[1].clone()
        };
        assert_eq!(
            phase(&program),
            ["Until the program ends.", "ls {mount}; with 64 MiB of memory."]
        );
    }
}
