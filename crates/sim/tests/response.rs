//! How the engine answers a step of dirty data: bounds on what the documents show.

use std::process::Command;

use forebay_sim::response::{Response, Step, respond};

/// How far below its target dirty data may come, in percent of the step.
const OVERSHOOT_PERCENT: u64 = 3;
/// Poles at 50 and 200 seconds bring it within a twentieth in about three times the longer one.
const SETTLED_SECONDS: u64 = 600;

fn assert_is_calm(response: &Response, what: &str) {
    let (step, overshoot) = (response.step_bytes(), response.overshoot_bytes());
    assert!(overshoot * 100 <= step * OVERSHOOT_PERCENT, "{what}: {overshoot} of {step}");
    let settled = response.settled_after();
    assert!(settled.is_some_and(|seconds| seconds <= SETTLED_SECONDS), "{what}: {settled:?}");
    assert_eq!(response.swings_after_settling(), 0, "{what}");
    assert_eq!(response.lost_blocks, 0, "{what}");
}

#[test]
fn dirty_data_comes_to_its_target_without_swinging() {
    for seed in 1..=3 {
        let step = Step::usual(seed);
        let response = respond(&step);
        assert!(response.step_bytes() >= step.burst_bytes);
        assert_is_calm(&response, &format!("seed {seed}"));
        // What is within the target waits for a pause, and there is none.
        let last = response.samples.last().expect("it lasted");
        let (excess, band) = (last.excess_bytes(), response.band_bytes());
        assert!(excess.unsigned_abs() <= band, "seed {seed}: {excess} at the end");
    }
}

/// An integral that went on growing while the origin could do no more would take dirty data far
/// below its target, or let it swing.
#[test]
fn a_long_time_at_the_limit_of_the_origin_leaves_no_debt() {
    let step = Step { burst_bytes: 96 << 20, ..Step::usual(1) };
    let response = respond(&step);
    let limited = response.samples.iter().filter(|sample| {
        sample.rate_bytes > 2 * sample.written_back_bytes && sample.second > response.stream_begins
    });
    assert!(limited.count() > 60, "the origin was the limit for a minute at least");
    assert_is_calm(&response, "after it was the limit");
}

#[test]
fn a_writer_that_stops_leaves_its_target_dirty() {
    let step = Step { stream_bytes_per_second: 64 << 10, stream_seconds: 600, ..Step::usual(1) };
    let response = respond(&step);
    let (step, overshoot) = (response.step_bytes(), response.overshoot_bytes());
    assert!(overshoot * 100 <= step * OVERSHOOT_PERCENT, "{overshoot} of {step}");
    let rest = response.samples.iter().filter(|sample| sample.second > response.stream_ends + 60);
    assert!(rest.map(|sample| sample.written_back_bytes).sum::<u64>() == 0);
}

#[test]
fn equal_steps_have_equal_responses() {
    let step = Step { stream_seconds: 60, rest_seconds: 10, ..Step::usual(7) };
    assert_eq!(respond(&step), respond(&step));
    assert_ne!(respond(&step).samples, respond(&Step { seed: 8, ..step }).samples);
}

/// The chart in the documents is drawn from it: `cargo xtask charts`.
#[test]
fn the_data_of_the_chart_is_what_the_program_prints() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/charts/step-response.json");
    let committed = std::fs::read_to_string(path).expect("it is committed");
    let program = Command::new(env!("CARGO_BIN_EXE_forebay-sim"))
        .args(["step-response", "--json", "--every", "5"])
        .output()
        .expect("it runs");
    assert!(program.status.success());
    let printed = String::from_utf8(program.stdout).expect("text");
    assert!(printed == committed, "compute it again: cargo xtask charts step-response");
}

#[test]
fn what_the_documents_say_of_the_response_is_what_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies.md");
    let text = std::fs::read_to_string(path).expect("it is there");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let response = respond(&Step::usual(1));
    let (step, overshoot) = (response.step_bytes() as f64, response.overshoot_bytes() as f64);
    let settled = response.settled_after().expect("it settles");
    for words in [
        format!("of a step of {:.1} MiB it is within 5 % after {settled} s", step / 1048576.0),
        format!("than {:.0} KiB ({:.1} %)", overshoot / 1024.0, overshoot * 100.0 / step),
    ] {
        assert!(text.contains(&words), "policies.md does not say: {words}");
    }
}
