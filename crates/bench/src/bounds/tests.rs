use super::*;
use crate::plan::Clock;
use crate::result::{CacheCounts, JobResult, Latency, Sample, VERSION};

/// Two targets that do phases of one name, each its own, and what is asked of them.
const PLAN: &str = r#"
    about = "a test"
    clock = "virtual"
    device = [
        { name = "disk", preset = "hdd", size = "1G" },
        { name = "ssd", preset = "sata_ssd", size = "1G" },
    ]
    target = [
        { name = "bare", device = "disk" },
        { name = "fast", device = "ssd" },
        { name = "cached", forebay = { cache = "ssd", origin = "disk", mode = "writeback" } },
    ]
    [[phase]]
    name = "reads"
    only = ["bare", "cached"]
    seconds = 4
    job = [{ name = "a", work = "read", pattern = "uniform", size = "16M", count = 2 }]
    [[phase]]
    name = "reads"
    only = ["fast"]
    seconds = 4
    job = [{ name = "a", work = "read", pattern = "uniform", size = "64M", count = 2 }]
"#;

/// Requests of a target in each second of its phase; the second job has a third of them.
fn result(plan: &Plan, target: &str, repetition: u32, requests: &[u64]) -> TargetResult {
    let second = |(index, requests): (usize, &u64)| Sample {
        second: index as u64 + 1,
        requests: *requests,
        ..Sample::default()
    };
    let all: u64 = requests.iter().sum();
    let job = |reads: u64, slower: f64| JobResult {
        name: String::new(),
        reads,
        writes: 0,
        bytes: reads * 8192,
        read_latency: Some(Latency {
            mean_us: 1.0,
            max_us: 1.0,
            percentiles_us: (1..=8).map(|place| f64::from(place) * slower).collect(),
        }),
        write_latency: None,
        group: Some(0),
    };
    let is_cached = plan.targets.iter().any(|known| known.name == target && known.device.is_none());
    let (read_hit_bytes, read_miss_bytes) = (3, 1);
    let counts = CacheCounts { read_hit_bytes, read_miss_bytes, ..CacheCounts::default() };
    TargetResult {
        version: VERSION,
        target: target.to_owned(),
        repetition,
        clock: Clock::Virtual,
        wall_s: 0.0,
        phases: vec![PhaseResult {
            name: "reads".to_owned(),
            seconds: requests.len() as f64,
            jobs: vec![job(all / 4, 2.0), job(all - all / 4, 1.0)],
            samples: requests.iter().enumerate().map(second).collect(),
            cache: is_cached.then_some(counts),
            ..PhaseResult::default()
        }],
    }
}

/// How a bound stands whose `of`, `over` and limit are these, by the requests of each repetition of
/// each target.
fn judged(bound: &str, results: [&[&[u64]]; 3]) -> Judged {
    let plan = format!("{PLAN}\n[[bound]]\ntext = \"x\"\n{bound}");
    let plan = Plan::parse(&plan).unwrap_or_else(|error| panic!("{bound}: {error}"));
    let results: Vec<Vec<TargetResult>> = plan
        .targets
        .iter()
        .zip(results)
        .map(|(target, repetitions)| {
            let all = (1..).zip(repetitions);
            all.map(|(number, requests)| result(&plan, &target.name, number, requests)).collect()
        })
        .collect();
    let mut bounds = judge(&plan, &results);
    assert_eq!(bounds.len(), 1);
    bounds.remove(0)
}

const SLOW: &[u64] = &[10, 10, 10, 10];
const FAST: &[u64] = &[100, 100, 100, 100];
const CACHED: &[u64] = &[10, 40, 90, 60];

fn value(figure: &str) -> Option<f64> {
    let bound = format!(
        "of = {{ target = \"cached\", phase = \"reads\", figure = {figure} }}\nat_least = 0.0"
    );
    judged(&bound, [&[], &[], &[CACHED]]).value
}

#[test]
fn every_figure_is_that_of_the_results() {
    assert_eq!(value("\"iops\""), Some(50.0));
    assert_eq!(value("\"kb_per_second\""), Some(400.0));
    assert_eq!(value("\"fairness\""), Some(50.0 / 150.0));
    // Of the slower job.
    assert_eq!(value("\"read_p50_us\""), Some(2.0));
    assert_eq!(value("\"read_p90_us\""), Some(6.0));
    assert_eq!(value("\"read_p99_us\""), Some(10.0));
    assert_eq!(value("\"hit_ratio\""), Some(0.75));
    assert_eq!(value("\"seconds\""), Some(4.0));
    assert_eq!(value("\"slowest_second_over_mean\""), Some(0.2));
}

#[test]
fn a_window_has_its_seconds_and_no_others() {
    assert_eq!(value("\"iops\", from_second = 1"), Some(190.0 / 3.0));
    assert_eq!(value("\"iops\", first_seconds = 2"), Some(25.0));
    assert_eq!(value("\"iops\", last_seconds = 1"), Some(60.0));
    assert_eq!(value("\"kb_per_second\", last_seconds = 2"), Some(600.0));
    assert_eq!(value("\"slowest_second_over_mean\", from_second = 2"), Some(0.8));
    // What lasted less than its plan says has none of these seconds.
    let late =
        "of = { target = \"cached\", phase = \"reads\", figure = \"iops\", from_second = 3 }";
    let short = judged(&format!("{late}\nat_least = 0.0"), [&[], &[], &[&[10, 10]]]);
    assert_eq!((short.value, short.verdict), (None, Verdict::NotMeasured));
}

const OF: &str = "of = { target = \"cached\", phase = \"reads\", figure = \"iops\" }";

#[test]
fn the_median_of_the_repetitions_decides_and_the_limit_itself_is_kept() {
    let repetitions: &[&[u64]] = &[&[50; 4], &[2; 4], &[40; 4]];
    for (limit, verdict) in [
        ("at_least = 40.0", Verdict::Met),
        ("at_least = 40.1", Verdict::Missed),
        ("at_most = 40.0", Verdict::Met),
        ("at_most = 39.9", Verdict::Missed),
    ] {
        let judged = judged(&format!("{OF}\n{limit}"), [&[], &[], repetitions]);
        assert_eq!((judged.value, judged.verdict), (Some(40.0), verdict), "{limit}");
    }
}

#[test]
fn a_ratio_is_over_the_largest_and_needs_all_of_them() {
    let over = "over = [
        { target = \"bare\", phase = \"reads\", figure = \"iops\" },
        { target = \"fast\", phase = \"reads\", figure = \"iops\" },
    ]";
    let bound = format!("{OF}\n{over}\nat_least = 0.5");
    // The phase of `fast` is its own.
    let both = judged(&bound, [&[SLOW], &[FAST], &[CACHED]]);
    assert_eq!((both.value, both.verdict), (Some(0.5), Verdict::Met));
    let partial: [[&[&[u64]]; 3]; 2] = [[&[SLOW], &[], &[CACHED]], [&[SLOW], &[FAST], &[]]];
    for results in partial {
        let judged = judged(&bound, results);
        assert_eq!((judged.value, judged.verdict), (None, Verdict::NotMeasured));
    }
    // Over nothing there is no ratio.
    let nothing = judged(&bound, [&[&[0; 4]], &[&[0; 4]], &[CACHED]]);
    assert_eq!(nothing.verdict, Verdict::NotMeasured);
}

#[test]
fn what_was_published_is_a_divisor_too() {
    let bound = format!("{OF}\nover_value = 40\nat_most = 1.1");
    let judged = judged(&bound, [&[], &[], &[CACHED]]);
    assert_eq!((judged.value, judged.verdict), (Some(1.25), Verdict::Missed));
}
