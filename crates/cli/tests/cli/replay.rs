//! `forebay replay` as an operator runs it.

use std::fmt::Write;

use crate::support::Scratch;

/// A loop over ten blocks, each line a read of one, and one broken line.
fn loop_of_ten(scratch: &Scratch) -> String {
    let mut text = String::new();
    for line in 0..1_000 {
        writeln!(text, "{} 8 0", line % 10 * 8).expect("text");
    }
    text.push_str("not a line\n");
    std::fs::write(scratch.path("loop.txt"), text).expect("written");
    "loop.txt".to_owned()
}

#[test]
fn ratios_are_given_for_every_trace_size_and_policy() {
    let scratch = Scratch::new();
    let trace = loop_of_ten(&scratch);
    let sizes = ["--cache-size", "20K,40K", "--policy", "lru,fifo,min,clock2q"];
    let arguments = [&["replay", &trace, &trace, "--json"], &sizes[..]].concat();
    let ended = scratch.run(&arguments).expect(0).says("line 1001");
    let rows = ended.json();
    let rows = rows.as_array().expect("an array");
    assert_eq!(rows.len(), 2 * 2 * 4);
    let row = |policy: &str, bytes: u64| {
        let is_it =
            |row: &&serde_json::Value| row["policy"] == policy && row["cache_size_bytes"] == bytes;
        rows.iter().find(is_it).expect("a row")
    };
    // A loop that does not fit defeats LRU; who knows the future hits four of nine.
    assert_eq!(row("lru", 20 << 10)["miss_ratio_blocks"], 1.0);
    let min = row("min", 20 << 10)["hit_ratio_blocks"].as_f64().expect("a number");
    assert!((min - 0.44).abs() < 0.01, "{min}");
    for policy in ["lru", "fifo", "min", "clock2q"] {
        let row = row(policy, 40 << 10);
        assert_eq!(row["hit_ratio_requests"], 0.99, "{policy}: everything fits");
        assert_eq!(row["cache_written_bytes"], 40 << 10);
        assert_eq!(row["request_count"], 1_000);
        assert_eq!(row["distinct_block_count"], 10);
        assert_eq!(row["broken_line_count"], 1);
        assert_eq!(row["format"], "arc");
    }
}

#[test]
fn long_streams_are_left_out_of_a_full_cache_unless_told_otherwise() {
    let scratch = Scratch::new();
    let lines = (0..4_096).map(|line| format!("{} 8 0\n", line * 8)).collect::<String>();
    std::fs::write(scratch.path("stream.txt"), lines).expect("written");
    let run = |more: &[&str]| {
        let arguments = ["replay", "stream.txt", "--cache-size", "2M", "--json"];
        let rows = scratch.run(&[&arguments[..], more].concat()).expect(0).json();
        (rows[0]["bypassed_bytes"].as_u64(), rows[0]["cache_written_bytes"].as_u64())
    };
    // Until it is full the stream is promoted, too.
    assert_eq!(run(&[]), (Some(14 << 20), Some(2 << 20)));
    assert_eq!(run(&["--no-sequential"]), (Some(0), Some(16 << 20)));
}

#[test]
fn a_table_for_people() {
    let scratch = Scratch::new();
    let trace = loop_of_ten(&scratch);
    let arguments = ["replay", &trace, "--cache-size", "40K", "--policy", "lru"];
    scratch.run(&arguments).expect(0).says("99.00 %").says("1000 requests").says("policy");
}

#[test]
fn wrong_usage_and_missing_files() {
    let scratch = Scratch::new();
    let trace = loop_of_ten(&scratch);
    scratch.run(&["replay", &trace]).expect(2);
    scratch.run(&["replay", &trace, "--cache-size", "1K"]).expect(2).says("no blocks");
    scratch.run(&["replay", &trace, "--cache-size", "1M", "--policy", "arc"]).expect(2);
    scratch.run(&["replay", &trace, "--cache-size", "1M", "--format", "pcap"]).expect(2);
    scratch.run(&["replay", &trace, "--cache-size", "1M", "--block-size", "3K"]).expect(2);
    scratch.run(&["replay", "missing", "--cache-size", "1M"]).expect(4).says("missing");
    let wrong = ["replay", &trace, "--cache-size", "1M", "--format", "msr"];
    scratch.run(&wrong).expect(1).says("not understood as msr");
}
