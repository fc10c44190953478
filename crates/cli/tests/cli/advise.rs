//! `forebay advise` as an operator runs it.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use serde_json::Value;

use crate::support::{Ended, Scratch};

const FIRST_TIME: u64 = 128_166_372_000_000_000;
/// Ticks of an MSR trace in a second.
const SECOND: u64 = 10_000_000;

/// Lines as MSR Cambridge has them: two in three are reads of 500 blocks, one in three a write of
/// one of 50 others, 80 a second for 750 s.
fn mixed_lines() -> String {
    let mut text = String::new();
    for line in 0..60_000u64 {
        let time = FIRST_TIME + line * SECOND / 80;
        let (operation, block) = match line % 3 {
            0 => ("Write", 10_000 + line / 3 % 50 * 7),
            _ => ("Read", line % 500 * 3),
        };
        writeln!(text, "{time},hm,0,{operation},{},4096,1", block * 4096).expect("text");
    }
    text
}

fn mixed(scratch: &Scratch) -> &'static str {
    fs::write(scratch.path("mixed.csv"), mixed_lines()).expect("written");
    "mixed.csv"
}

/// The files in a folder.
fn names(scratch: &Scratch, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(scratch.path(folder)).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().into_string().expect("text")
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_workload_that_fits_gets_the_size_it_needs() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    let report = scratch.run(&["advise", trace, "--json"]).expect(0).json();
    assert_eq!(report["traces"][0]["format"], "msr");
    assert_eq!(report["traces"][0]["broken_line_count"], 0);
    let profile = &report["profile"];
    assert_eq!(profile["reads"]["request_count"], 40_000);
    assert_eq!(profile["writes"]["bytes"], 20_000 * 4096);
    assert_eq!(profile["working_set_bytes"], 550 * 4096);
    assert!((number(&profile["duration_s"]) - 750.0).abs() < 0.1);
    // Each of the fifty is written every 1.9 s.
    assert_eq!(profile["absorption"][0]["ratio"], 0.0);
    assert!(number(&profile["absorption"][1]["ratio"]) > 0.99);
    assert_eq!(profile["absorption"][5]["ratio"], Value::Null, "they are no hour");
    let choice = &report["recommendation"]["choice"];
    assert_eq!(report["recommendation"]["verdict"], "worth_it");
    assert_eq!(choice["mode"], "writeback");
    assert!((550.0 * 4096.0..=4e6).contains(&number(&choice["cache_bytes"])), "{choice}");
    assert!(number(&choice["hit_ratio"]) > 0.98);
    assert!(number(&choice["speedup"]) > 20.0);
}

#[test]
fn sizes_and_figures_can_be_given() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    let arguments = ["advise", trace, "--json", "--cache-size", "4M,64K,4M", "--origin-read-us"];
    let read_us = |figure: &str| {
        let report = scratch.run(&[&arguments[..], &[figure]].concat()).expect(0).json();
        let sizes = report["sizes"].as_array().expect("an array");
        let bytes: Vec<&Value> = sizes.iter().map(|size| &size["cache_bytes"]).collect();
        assert_eq!(bytes, [&Value::from(64 << 10), &Value::from(4 << 20)]);
        number(&report["uncached"]["read_us"])
    };
    assert!((read_us("900") - 900.0).abs() < 100.0);
    assert!((read_us("20000") - 20_000.0).abs() < 2_000.0);
}

#[test]
fn a_table_and_words_for_people() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    let ended = scratch.run(&["advise", trace]).expect(0);
    let ended = ended.says("A cache is worth it").says("writeback").says("Confidence: medium");
    let ended = ended.says("##########").says("overwritten within").says("origin read 8000 us");
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 100), "{}", ended.stdout);
}

#[test]
fn files_of_one_recording_are_one_workload() {
    let scratch = Scratch::new();
    let lines = mixed_lines();
    let half = |odd: usize| {
        let lines = lines.lines().skip(odd).step_by(2);
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    fs::write(scratch.path("whole"), &lines).expect("written");
    fs::write(scratch.path("cpu0"), half(0)).expect("written");
    fs::write(scratch.path("cpu1"), half(1)).expect("written");
    fs::write(scratch.path("cpu2"), "").expect("written");
    let whole = scratch.run(&["advise", "whole", "--json"]).expect(0).json();
    let parts = scratch.run(&["advise", "cpu0", "cpu1", "cpu2", "--json"]).expect(0).json();
    assert_eq!(parts["traces"].as_array().map(Vec::len), Some(2), "one was idle");
    assert_eq!(parts["sizes"], whole["sizes"]);
    assert_eq!(parts["profile"], whole["profile"]);
}

#[test]
fn the_page_holds_everything_and_no_markup_from_names() {
    let scratch = Scratch::new();
    let name = "<img src=x onerror=alert(1)>\"&'.csv";
    fs::write(scratch.path(name), mixed_lines()).expect("written");
    fs::write(scratch.path("report.html"), "an older one").expect("written");
    scratch.run(&["advise", name, "--html", "report.html"]).expect(0).says("report.html");
    let page = fs::read_to_string(scratch.path("report.html")).expect("text");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(!page.contains("<img"), "the name of the file is escaped");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;&quot;&amp;&#39;.csv"));
    for word in ["http://", "https://", "src=", "@import", "url("] {
        let found = page.matches(word).count();
        // The name space of SVG; the name of the file, escaped; a mark of the page itself.
        let allowed = match word {
            "http://" => page.matches("http://www.w3.org/2000/svg").count(),
            "src=" => page.matches("img src=x").count(),
            "url(" => page.matches("url(#").count(),
            _ => 0,
        };
        assert_eq!(found, allowed, "{word}");
    }
    let data = page.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let data: Value = serde_json::from_str(data.expect("the data").0).expect("JSON");
    assert_eq!(data["traces"][0]["path"], name);
    let mode = fs::metadata(scratch.path("report.html")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o400, 0o400);
    assert_eq!(names(&scratch, "."), [name, "report.html"]);
}

#[test]
fn a_page_that_cannot_be_written_leaves_nothing() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    fs::create_dir(scratch.path("folder")).expect("a folder");
    let to = |html: &str| scratch.run(&["advise", trace, "--html", html]);
    to("missing/report.html").expect(1).says("missing/report.html").says("--html");
    to("folder").expect(2).says("is no file");
    to("/dev/null").expect(2).says("is no file");
    to("/proc/report.html").expect(1).says("/proc/report.html");
    assert!(names(&scratch, "folder").is_empty());
    // Neither does a page of a trace that turns out to be none; an older one stays.
    fs::write(scratch.path("bad.txt"), "1 x 0\n".repeat(3_000)).expect("written");
    fs::write(scratch.path("old.html"), "an older one").expect("written");
    let arguments = ["advise", "bad.txt", "--format", "arc", "--html", "old.html"];
    scratch.run(&arguments).expect(1).says("bad.txt");
    assert_eq!(fs::read_to_string(scratch.path("old.html")).expect("text"), "an older one");
    assert_eq!(names(&scratch, "."), ["bad.txt", "folder", "mixed.csv", "old.html"]);
}

#[test]
fn what_is_no_trace_is_refused() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    let file = |name: &str, text: &str| {
        fs::write(scratch.path(name), text).expect("written");
    };
    file("empty", "");
    file("prose", "It was\na dark night.\n");
    file("broken", &format!("5 1 0\n{}", "nonsense\n".repeat(50)));
    let run = |arguments: &[&str]| -> Ended {
        let ended = scratch.run(&[&["advise"], arguments].concat());
        assert!(ended.stdout.is_empty(), "nothing is said of what failed: {ended:#?}");
        ended
    };
    run(&[]).expect(2);
    run(&["missing"]).expect(4).says("missing");
    run(&["empty"]).expect(1).says("empty").says("--format");
    run(&["empty", "empty"]).expect(1).says("empty");
    run(&["prose"]).expect(1).says("not recognised").says("blktrace");
    run(&["broken", "--format", "arc"]).expect(1).says("50 of 51 lines");
    run(&[trace, "prose"]).expect(1).says("prose");
    run(&[trace, "--format", "pcap"]).expect(2).says("pcap");
    run(&[trace, "--format", "lirs"]).expect(1).says("not understood as lirs");
    run(&[trace, "--cache-size", "0"]).expect(2).says("no blocks");
    run(&[trace, "--cache-size", "64T"]).expect(2).says("2^32");
    run(&[trace, "--block-size", "0"]).expect(2);
    run(&[trace, "--ssd-mb-s", "0"]).expect(2).says("figure");
    run(&[trace, "--origin-read-us", "-5"]).expect(2);
    run(&[trace, "--keep", "folder"]).expect(2).says("--record");
}

#[test]
fn without_times_nothing_is_said_about_them() {
    let scratch = Scratch::new();
    let lines: String = (0..2_000).map(|line| format!("{} 8 0\n", line % 40 * 24)).collect();
    fs::write(scratch.path("loop.txt"), format!("{lines}what is this\n")).expect("written");
    let ended = scratch.run(&["advise", "loop.txt", "--json"]).expect(0).says("line 2001");
    let report = ended.json();
    assert_eq!(report["traces"][0]["broken_line_count"], 1);
    assert_eq!(report["profile"]["duration_s"], Value::Null);
    assert_eq!(report["profile"]["axis"], "requests");
    assert_eq!(report["profile"]["absorption"], Value::Array(Vec::new()));
    assert_eq!(report["sizes"][0]["writeback"]["drive_writes_per_day"], Value::Null);
    assert_eq!(report["recommendation"]["confidence"], "low");
    scratch.run(&["advise", "loop.txt"]).expect(0).says("no times").says("only 2000 requests");
}

#[test]
fn recording_takes_a_device() {
    let scratch = Scratch::new();
    let trace = mixed(&scratch);
    let record = |arguments: &[&str]| scratch.run(&[&["advise"], arguments].concat());
    record(&[trace, "--record", "1s"]).expect(2).says("is no block device");
    record(&["missing", "--record", "1s"]).expect(4).says("missing");
    record(&[trace, trace, "--record", "1s"]).expect(2).says("one device");
    record(&[trace, "--record", "0s"]).expect(2).says("60s");
}

/// Some block device of this machine. It is only looked at.
fn block_device() -> Option<String> {
    let names = fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
    let mut paths = names.map(|name| format!("/dev/{}", name.to_string_lossy()));
    let is_device =
        |path: &String| fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    paths.find(is_device)
}

#[test]
fn what_recording_lacks_is_named() {
    let Some(device) = block_device() else {
        println!("this machine has no block device");
        return;
    };
    let scratch = Scratch::new();
    scratch.run(&["advise", &device]).expect(2).says("--record 60s");
    let arguments = ["advise", &device, "--record", "1s", "--keep", "kept", "--html", "a.html"];
    let ended = scratch.run_alone(&arguments).expect(1);
    ended.says(&device).says("the program blktrace is missing").says("apt install blktrace");
    assert!(names(&scratch, ".").is_empty(), "neither a page nor a folder was made");
}

#[test]
fn a_recording_that_is_given_up_leaves_nothing_behind() {
    let Some(device) = block_device() else {
        println!("this machine has no block device");
        return;
    };
    let scratch = Scratch::new();
    // In place of blktrace: it ends at once, unless it is to hold on.
    let program = scratch.path("programs/blktrace");
    fs::create_dir(scratch.path("programs")).unwrap();
    fs::create_dir(scratch.path("temporary")).unwrap();
    let script = "#!/bin/sh\n[ -e hold ] || exit 0\n/bin/touch begun\nexec /bin/sleep 1000\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (programs, temporary) = (scratch.path("programs"), scratch.path("temporary"));
    let environment = [("PATH", &*programs), ("TMPDIR", &*temporary)];
    let ended = scratch.run_among(&environment, &["advise", &device, "--record", "1s"]);
    if ended.stderr.contains("cannot record") {
        println!("blktrace could not record here: {}", ended.stderr);
        return;
    }
    fs::write(scratch.path("hold"), []).unwrap();
    let mut has_begun =
        || scratch.path("begun").exists() && fs::read_dir(&temporary).unwrap().count() == 1;
    let arguments = ["advise", &device, "--record", "1000s"];
    let ended = scratch.run_among_and_interrupt(&environment, &arguments, &mut has_begun);
    ended.expect(6).says("given up");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
