use super::*;
use crate::plan::Plan;

const DEVICES: &str = r#"
    about = "a test"
    clock = "virtual"
    [[device]]
    name = "disk"
    preset = "hdd"
    size = "4G"
    at = 0
    [[device]]
    name = "ssd"
    preset = "sata_ssd"
    size = "1G"
    [[target]]
    name = "ssd"
    device = "ssd"
    [[target]]
    name = "cached"
    forebay = { cache = "ssd", cache_size = "256M", origin = "disk", mode = "writeback" }
"#;

fn plan(phases: &str) -> Plan {
    Plan::parse(&format!("{DEVICES}{phases}")).expect("a plan")
}

fn measure(plan: &Plan, target: usize, repetition: u32) -> TargetResult {
    run(plan, &plan.targets[target], repetition, &mut |_| ()).expect("devices have models")
}

/// Fills 16 MiB of the volume, and then reads them at random.
const FILL_AND_READ: &str = r#"
    [[phase]]
    name = "fill"
    is_preparation = true
    [[phase.job]]
    name = "a"
    work = "write"
    pattern = "sequential"
    size = "16M"
    block = "64K"
    amount = "16M"
    depth = 4
    [[phase]]
    name = "read"
    seconds = 2
    [[phase.job]]
    name = "a"
    work = "read"
    pattern = "uniform"
    size = "16M"
    depth = 8
    [[phase.job]]
    name = "b"
    work = "read"
    pattern = "zipf"
    theta = 1.2
    size = "16M"
    depth = 8
"#;

#[test]
fn what_was_written_is_read_from_the_cache_at_the_speed_of_the_ssd() {
    let plan = plan(FILL_AND_READ);
    let [bare, cached] = [0, 1].map(|target| measure(&plan, target, 1));
    let read = &cached.phases[1];
    let cache = read.cache.expect("it has a cache");
    assert_eq!((cache.read_miss_bytes, cache.hit_ratio()), (0, Some(1.0)));
    assert_eq!(cached.phases[0].cache.unwrap().write_bytes, 16 << 20);
    let ratio = read.iops() / bare.phases[1].iops();
    // What was written goes home meanwhile, which is read from the SSD, too.
    assert!((0.9..=1.02).contains(&ratio), "{ratio}");
    let [less, more] = [u64::min, u64::max].map(|of| of(read.jobs[0].reads, read.jobs[1].reads));
    let share = less as f64 / more as f64;
    // By Zipf's law, some channels of the SSD are asked more than others.
    assert!((0.85..1.0).contains(&share), "{share}");
    assert_eq!(read.fairness(), None, "they do unlike work");
    let origin = read.devices.iter().find(|device| device.name == "disk").unwrap();
    assert_eq!(origin.reads, 0);
    assert_eq!(read.samples.len(), 2);
    // Those that end at the very end are counted on both sides.
    assert_eq!(read.samples.iter().map(|sample| sample.requests).sum::<u64>(), read.requests());
}

#[test]
fn a_repetition_gives_the_same_again_and_another_does_not() {
    let plan = plan(FILL_AND_READ);
    let [first, again, other] = [1, 1, 2].map(|repetition| measure(&plan, 1, repetition).phases);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// Reads, twice, with a pause between; the same ones unless `more` says otherwise, as fio does.
fn read_twice(more: &str) -> Plan {
    let reads = |name: &str| {
        format!(
            r#"
            [[phase]]
            name = "{name}"
            only = ["cached"]
            [[phase.job]]
            name = "a"
            work = "read"
            pattern = "uniform"
            size = "4G"
            amount = "2M"
            {more}
            "#
        )
    };
    let pause = r#"
        [[phase]]
        name = "pause"
        only = ["cached"]
        seconds = 3
    "#;
    plan(&format!("{}{pause}{}", reads("first"), reads("second")))
}

#[test]
fn jobs_repeat_their_offsets_unless_they_are_told_not_to() {
    let hits = |plan: &Plan| measure(plan, 1, 1).phases[2].cache.unwrap().hit_ratio().unwrap();
    let repeated = read_twice("");
    assert_eq!(hits(&repeated), 1.0);
    assert!(hits(&read_twice("repeats_offsets = false")) < 0.5);
    let pause = &measure(&repeated, 1, 1).phases[1];
    assert_eq!((pause.requests(), pause.samples.len(), pause.seconds), (0, 3, 3.0));
}

#[test]
fn a_phase_ends_when_all_jobs_have_done_their_amount() {
    let phases = measure(&read_twice(""), 1, 1).phases;
    assert_eq!(phases[0].requests(), 512);
    assert_eq!(phases[0].jobs[0].bytes, 2 << 20);
    assert!(phases[0].seconds > 1.0, "a hard disk takes some milliseconds for each");
}

#[test]
fn the_processor_takes_its_time_for_one_request_after_another() {
    let mut plan = plan(FILL_AND_READ);
    plan.cpu_ns_per_request = 100_000;
    let cached = measure(&plan, 1, 1);
    let read = &cached.phases[1];
    assert!((9_900.0..10_001.0).contains(&read.iops()), "{}", read.iops());
    assert!((99.0..101.0).contains(&read.cpu_us_per_request().unwrap()));
    let bare = measure(&plan, 0, 1);
    assert!(bare.phases[1].iops() > 50_000.0, "a bare device needs no daemon");
    // What the target says counts, not what the plan says.
    let forebay = plan.targets[1].forebay.as_mut().unwrap();
    forebay.cpu_ns_per_request = Some(200_000);
    let slow = measure(&plan, 1, 1).phases[1].iops();
    assert!((4_950.0..5_001.0).contains(&slow), "{slow}");
}

#[test]
fn a_client_thinks_about_each_answer() {
    let phases = "
        [[phase]]
        name = 'a'
        [[phase.job]]
        name = 'a'
        work = 'read'
        pattern = 'uniform'
        size = '1G'
        amount = '400K'
        think_us = 10000
    ";
    let result = measure(&plan(phases), 0, 1);
    // A hundred times 10 ms, and a hundred reads of an SSD.
    let seconds = result.phases[0].seconds;
    assert!((1.0..1.1).contains(&seconds), "{seconds}");
    assert_eq!(result.phases[0].jobs[0].reads, 100);
}

#[test]
fn what_has_no_model_is_refused() {
    let text = format!("{DEVICES}{FILL_AND_READ}").replace("preset = \"sata_ssd\"", "");
    let plan = Plan::parse(&text).unwrap();
    let error = run(&plan, &plan.targets[0], 1, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("device ssd has no preset"), "{error}");
    let text = format!("{DEVICES}{FILL_AND_READ}")
        .replace("mode = \"writeback\"", "mode = \"writeback\", set = { colour = \"red\" }");
    let plan = Plan::parse(&text).unwrap();
    let error = run(&plan, &plan.targets[1], 1, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("target cached: a setting colour"), "{error}");
}

/// Three clients, each on a range of its own, twice.
const THREE_TWICE: &str = r#"
    [[phase]]
    name = "reads"
    only = ["cached"]
    seconds = 4
    times = 2
    [[phase.job]]
    name = "a"
    work = "read"
    pattern = "uniform"
    size = "1G"
    count = 3
    is_apart = true
    [[phase]]
    name = "again"
    only = ["cached"]
    begins_fresh = true
    seconds = 4
    [[phase.job]]
    name = "a"
    work = "read"
    pattern = "uniform"
    size = "1G"
    count = 3
    is_apart = true
"#;

#[test]
fn a_phase_that_is_done_twice_meets_what_it_read_and_a_fresh_one_does_not() {
    let phases = measure(&plan(THREE_TWICE), 1, 1).phases;
    let [twice, fresh] = [&phases[0], &phases[1]];
    assert_eq!((twice.samples.len(), twice.jobs.len()), (8, 3));
    assert_eq!(twice.jobs[2].name, "a 3");
    // What was under way in between ended at no time of the phase.
    assert_eq!(twice.seconds, 8.0);
    assert!(twice.fairness().is_some_and(|fairness| fairness > 0.5), "three do alike work");
    let hits = |range: std::ops::Range<usize>| {
        let ratios = twice.samples[range].iter().filter_map(|sample| sample.hit_ratio);
        ratios.sum::<f64>()
    };
    assert!(hits(4..8) > hits(0..4) + 0.5, "{:?}", twice.samples);
    assert!(fresh.cache.unwrap().hit_ratio().unwrap() < 0.1);
    assert!(fresh.jobs.iter().all(|job| job.reads > 0));
}

#[test]
fn a_daemon_that_is_killed_or_started_again_has_what_was_written() {
    for act in ["kill", "restart"] {
        let read = FILL_AND_READ.replace(
            "name = \"read\"",
            &format!("name = \"read\"\nbegins_with = [\"drop_page_cache\", \"{act}\"]"),
        );
        let plan = plan(&read);
        let cached = measure(&plan, 1, 1);
        let cache = cached.phases[1].cache.unwrap();
        assert_eq!((cache.read_miss_bytes, cache.hit_ratio()), (0, Some(1.0)), "{act}");
        assert_eq!(cache.write_bytes, 0, "{act}");
        assert!(cache.cached_bytes >= 16 << 20, "{act}");
        assert_eq!(measure(&plan, 0, 1).phases[1].cache, None);
    }
}
