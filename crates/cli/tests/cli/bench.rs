//! `forebay bench` as an operator runs it.

use std::path::PathBuf;

use crate::support::{Scratch, foreign, has_block_devices, has_tool};

/// Devices small enough for either clock.
const DEVICES: &str = r#"
about = "a test"
[[device]]
name = "disk"
preset = "hdd"
size = "64M"
[[device]]
name = "ssd"
preset = "nvme_ssd"
size = "32M"
[[target]]
name = "ssd"
device = "ssd"
[[target]]
name = "cached"
forebay = { cache = "ssd", origin = "disk", mode = "writeback", set = { policy = "lru" } }
"#;

const PHASES: &str = r#"
[[phase]]
name = "fill"
is_preparation = true
[[phase.job]]
name = "fill"
work = "write"
pattern = "sequential"
size = "8M"
block = "64K"
depth = 4
amount = "8M"
[[phase]]
name = "read"
begins_with = ["kill"]
seconds = 1
[[phase.job]]
name = "reads"
work = "read"
pattern = "zipf"
theta = 1.2
size = "8M"
depth = 4
count = 2
[[phase]]
name = "pause"
seconds = 1
[[phase]]
name = "write"
begins_with = ["restart"]
times = 2
[[phase.job]]
name = "mixed"
work = "mix"
read_percent = 50
pattern = "uniform"
size = "8M"
depth = 4
amount = "1M"
flush_every = 8
"#;

/// A server that ends at once.
const BROKEN: &str = r#"
[[target]]
name = "broken"
nbd = "nbd+unix:///?socket={socket}"
command = ["sh", "-c", "echo there is no {disk} >&2; exit 3"]
"#;

fn plan(scratch: &Scratch, clock: &str, parts: &[&str]) -> String {
    let text = format!("clock = \"{clock}\"\n{}", parts.concat());
    std::fs::write(scratch.path("plan.toml"), text).expect("written");
    "plan.toml".to_owned()
}

/// The phase of a target in what `bench run --json` prints.
fn phase<'a>(summary: &'a serde_json::Value, target: &str, phase: &str) -> &'a serde_json::Value {
    let find = |list: &'a serde_json::Value, name: &str| {
        let mut entries = list.as_array().expect("an array").iter();
        entries.find(|entry| entry["name"] == name).expect("it was measured")
    };
    find(&find(&summary["targets"], target)["phases"], phase)
}

/// What is in the folder of results, but for raw figures.
fn files(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path("out")).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("readable").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_plan_is_measured_in_virtual_time_and_a_run_goes_on() {
    let scratch = Scratch::new();
    let plan = plan(&scratch, "virtual", &[DEVICES, BROKEN, PHASES]);
    let run = ["bench", "run", &plan, "--out", "out"];
    let failed = scratch.run(&run).expect(1);
    let failed = failed.says("broken is no model").says("1 measurements failed").says("cached");
    assert!(failed.stdout.contains("| cached | read | virtual | 1 |"), "{failed:#?}");
    let measured = scratch.path("out/raw/cached-1.json");
    let before = std::fs::metadata(&measured).expect("it was measured").modified().expect("a time");
    let again = scratch.run(&[&run[..], &["--json"]].concat()).expect(1);
    let after = std::fs::metadata(&measured).expect("it is there").modified().expect("a time");
    assert_eq!(before, after, "what was measured is not measured again");
    assert_eq!(phase(&again.json(), "cached", "read")["hit_ratio"]["median"], 1.0);
    let other = scratch.run(&[&run[..], &["--clock", "real"]].concat()).expect(3);
    other.says("clock: there virtual, now real").says("--out");
    scratch.run(&["bench", "report", "out"]).expect(0).says("| cached | read |");
    let page = std::fs::read_to_string(scratch.path("out/report.html")).expect("a page");
    assert!(page.contains("cached") && page.contains("broken is no model"));
    scratch.run(&["bench", "report", "nowhere"]).expect(4);
    let compared = scratch.run(&["bench", "compare", "out", "out"]).expect(0);
    compared.says("In virtual time").says("duration, s");
    let compared = scratch.run(&["bench", "compare", "out", "out", "--json"]).expect(0).json();
    assert_eq!(compared["clock"], "virtual");
    assert_eq!(compared["differences"], serde_json::json!([]));
    assert_eq!(compared["changes"][0]["target"], "ssd", "{compared}");
    drop_what_another_build_measured(&scratch, &run);
    std::fs::write(scratch.path("plan.toml"), "about = 1").expect("written");
    scratch.run(&run).expect(2).says("plan plan.toml");
    scratch.run(&["bench", "run", "no-such-plan"]).expect(4).says("bench list");
}

#[test]
fn a_job_file_that_cannot_be_read_is_not_found_or_wrong() {
    let scratch = Scratch::new();
    let plan =
        plan(&scratch, "virtual", &[DEVICES, "[[phase]]\nname = \"jobs\"\nfio = \"jobs\"\n"]);
    let run = ["bench", "run", &plan, "--out", "out"];
    scratch.run(&run).expect(4).says("cannot read jobs");
    std::fs::create_dir(scratch.path("jobs")).expect("made");
    scratch.run(&run).expect(2).says("cannot read jobs");
}

#[test]
fn a_run_goes_on_when_nobody_reads_any_more_what_it_says() {
    let scratch = Scratch::new();
    plan(&scratch, "virtual", &[DEVICES, BROKEN, PHASES]);
    // Of the target that fails it says so at once, and in the end.
    let script = r#"("$0" bench run plan.toml --out out 2>&1 >/dev/null; echo $? >status) | :"#;
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let shell = std::process::Command::new("sh")
        .current_dir(scratch.path(""))
        .args(["-c", script, forebay])
        .status();
    assert!(shell.expect("there is a shell").success());
    assert_eq!(std::fs::read_to_string(scratch.path("status")).expect("written"), "1\n");
    assert!(scratch.path("out/raw/cached-1.json").exists());
}

/// A folder of another build is not continued silently, and can be made anew.
fn drop_what_another_build_measured(scratch: &Scratch, run: &[&str]) {
    let path = scratch.path("out/machine.json");
    let ours = std::fs::read_to_string(&path).expect("it says where");
    let (before, _) = ours.split_once(", build ").expect("it says by which build");
    let version = before.rsplit('"').next().expect("a version");
    let other = ours.replace(&format!("\"{version}, build "), "\"0.0.1, build ");
    std::fs::write(&path, &other).expect("written");
    let measured = scratch.path("out/raw/cached-1.json");
    std::fs::write(scratch.path("out/raw/ssd-9.failed"), "of old").expect("written");
    let refused = scratch.run(run).expect(3).says("forebay: there 0.0.1, build ");
    refused.says(&format!("now {version}, build ")).says("--out").says("--replace");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), other);
    scratch.run(&["bench", "report", "out"]).expect(0).says("| cached | read |");
    std::fs::write(&measured, "{}").expect("written");
    scratch.run(&[run, &["--replace"]].concat()).expect(1).says("| cached | read |");
    let again = std::fs::read_to_string(&measured).expect("it was measured");
    assert!(again.contains("\"cached\""), "{again}");
    assert!(!scratch.path("out/raw/ssd-9.failed").exists());
    let stamp = std::fs::read_to_string(&path).expect("it is there");
    assert!(stamp.contains(&format!("\"{version}, build ")), "{stamp}");
}

/// One that is kept, and one that no disk keeps.
const BOUNDS: &str = r#"
[[bound]]
text = "reads are hits"
of = { target = "cached", phase = "read", figure = "hit_ratio" }
at_least = 1
[[bound]]
text = "reads over the SSD's"
of = { target = "cached", phase = "read", figure = "iops", first_seconds = 1 }
over = [{ target = "ssd", phase = "read", figure = "iops" }]
at_least = 1e6
"#;

#[test]
fn what_is_measured_beside_others_comes_out_as_one_after_another() {
    let scratch = Scratch::new();
    let plan = plan(&scratch, "virtual", &[DEVICES, PHASES]);
    let results = |jobs: &str| {
        scratch.run(&["bench", "run", &plan, "--out", jobs, "--jobs", jobs]).expect(0);
        ["ssd", "cached"].map(|target| {
            let path = scratch.path(&format!("{jobs}/raw/{target}-1.json"));
            let text = std::fs::read_to_string(path).expect("it was measured");
            let mut result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert!(result["wall_s"].take().is_number());
            result
        })
    };
    assert_eq!(results("1"), results("2"));
    let real = ["bench", "run", &plan, "--out", "out", "--clock", "real", "--jobs", "2"];
    scratch.run(&real).expect(2).says("one after another");
    assert!(!scratch.path("out").exists());
}

#[test]
fn a_missed_bound_is_told_and_is_no_failure() {
    let scratch = Scratch::new();
    let plan = plan(&scratch, "virtual", &[DEVICES, PHASES, BOUNDS]);
    let run = scratch.run(&["bench", "run", &plan, "--out", "out"]).expect(0);
    run.says("| reads are hits | at least 1 | 1.000 | met |")
        .says("| **missed** |")
        .says("1 of 2 bounds missed, 1 met.");
    let summary = scratch.run(&["bench", "report", "out", "--json"]).expect(0).json();
    let bounds = summary["bounds"].as_array().expect("an array");
    let verdicts: Vec<&serde_json::Value> = bounds.iter().map(|bound| &bound["verdict"]).collect();
    assert_eq!(verdicts, ["met", "missed"]);
    assert_eq!(bounds[0]["limit"], serde_json::json!({"at_least": 1.0}));
    assert_eq!(bounds[0]["value"], 1.0);
    for report in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(scratch.path("out").join(report)).expect("a report");
        assert!(text.contains("1 of 2 bounds missed, 1 met."), "{report}");
    }
    let bad = self::plan(&scratch, "virtual", &[DEVICES, PHASES, &BOUNDS.replace("hit_", "luck_")]);
    scratch.run(&["bench", "run", &bad]).expect(2).says("luck_ratio");
}

/// What the first repetition of a target came to.
fn first_result(scratch: &Scratch, target: &str) -> serde_json::Value {
    let path = scratch.path("out/raw").join(format!("{target}-1.json"));
    let raw = std::fs::read_to_string(path).expect("a result");
    serde_json::from_str(&raw).expect("JSON")
}

#[test]
fn a_plan_is_measured_on_this_machine_and_nothing_is_left() {
    if !has_tool("bench on this machine", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let plan = plan(&scratch, "real", &[DEVICES, BROKEN, PHASES]);
    let run = ["bench", "run", &plan, "--out", "out", "--json"];
    let ended = scratch.run(&run).expect(1).says("there is no nbd+unix://");
    let ended = ended.says("1 measurements failed");
    let summary = ended.json();
    for target in ["ssd", "cached"] {
        for name in ["read", "write"] {
            let phase = phase(&summary, target, name);
            assert!(phase["iops"]["median"].as_f64().expect("a rate") > 0.0, "{phase}");
        }
        let samples = phase(&summary, target, "read")["samples"].as_array().expect("an array");
        assert_eq!(samples.len(), 1);
    }
    let read = phase(&summary, "cached", "read");
    // The daemon was killed, and has what was written before.
    assert_eq!(read["hit_ratio"]["median"], 1.0, "{read}");
    assert!(read["cpu_us"]["median"].as_f64().expect("a time") > 0.0, "{read}");
    let raw = first_result(&scratch, "cached");
    let write = &raw["phases"][3];
    let job = &write["jobs"][0];
    let requests = job["reads"].as_u64().expect("a count") + job["writes"].as_u64().expect("one");
    // 1 MiB in blocks of 4 KiB, twice.
    assert_eq!((requests, job["bytes"].as_u64()), (512, Some(2 << 20)), "{write}");
    assert_eq!(write["cache"]["write_bytes"], 4096 * job["writes"].as_u64().expect("a count"));
    let devices = write["devices"].as_array().expect("an array");
    let ssd = devices.iter().find(|device| device["name"] == "ssd").expect("the cache device");
    let written = |count: &serde_json::Value| count["written_bytes"].as_u64().expect("a count");
    assert!(written(ssd) >= 4096 * job["writes"].as_u64().expect("a count"), "{write}");
    assert!(devices.iter().any(|device| device["name"] == "disk"), "{write}");
    let origin = &phase(&summary, "cached", "write")["origin_bytes"];
    assert!(origin["median"].is_number(), "{origin}");
    let left = files(&scratch);
    assert!(left.iter().all(|name| !name.starts_with("devices")), "{left:?}");
}

/// Work on a mounted file system, and jobs of a file on a file of it.
const PROGRAMS: &str = r#"
[[phase]]
name = "write"
times = 2
memory_max = "16M"
program = ["sh", "-euc", '''
date +%N >> "$0/times"
head -c 4M /dev/urandom > "$0/file"
sha256sum < "$0/file" > "$0/sum"
sync --file-system "$0"
''', "{mount}"]
[[phase]]
name = "read"
begins_with = ["restart"]
program = ["sh", "-euc", '''
test $(wc -l < "$0/times") = 2
sha256sum --check --status "$0/sum" < "$0/file"
''', "{mount}"]
[[phase]]
name = "jobs"
fio = "reads.fio"
[[phase]]
name = "jobs after a kill"
begins_with = ["kill"]
fio = "reads.fio"
"#;

const READS: &str = "
[global]
ioengine=libaio
bs=4k
[reads]
rw=randread
size=1M
iodepth=4
numjobs=2
";

#[test]
fn programs_and_job_files_work_on_a_mounted_file_system() {
    let test = "bench on a file system";
    if !(has_tool(test, "fio") && has_tool(test, "mkfs.ext4") && has_block_devices(test)) {
        return;
    }
    let scratch = Scratch::new();
    std::fs::write(scratch.path("reads.fio"), READS).expect("written");
    let plan = plan(&scratch, "real", &["file_system = \"ext4\"\n", DEVICES, PROGRAMS]);
    let run = ["bench", "run", &plan, "--out", "out", "--json"];
    let summary = scratch.run(&run).expect(0).json();
    for target in ["ssd", "cached"] {
        let write = phase(&summary, target, "write");
        let run_s = write["run_s"]["median"].as_f64().expect("a time");
        let seconds = write["seconds"]["median"].as_f64().expect("a time");
        assert!(run_s > 0.0 && (2.0 * run_s - seconds).abs() < 1e-6, "{write}");
        assert!(write["iops"].is_null(), "{write}");
        for name in ["jobs", "jobs after a kill"] {
            let jobs = phase(&summary, target, name);
            assert!(jobs["iops"]["median"].as_f64().expect("a rate") > 0.0, "{jobs}");
        }
    }
    let cached = phase(&summary, "cached", "write");
    assert!(cached["cache_written_bytes"]["median"].as_f64() >= Some(f64::from(8 << 20)));
    assert!(
        !foreign("cat", &["/proc/mounts"]).contains(&scratch.path("out").display().to_string())
    );
    let report = scratch.run(&["bench", "report", "out"]).expect(0);
    report.says("mean run s").says("| cached | jobs |");
    std::fs::write(scratch.path("reads.fio"), READS.replace("4k", "8k")).expect("written");
    scratch.run(&run).expect(3).says("results of another plan");
    let other = ["bench", "run", &plan, "--out", "other", "--clock", "virtual"];
    scratch.run(&other).expect(1).says("it needs the real clock");
}

#[test]
fn a_device_of_the_operator_is_written_over_only_if_he_says_so() {
    if !has_tool("bench on a device", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let device = scratch.path("mine");
    let path = device.display().to_string();
    std::fs::write(&device, vec![7; 32 << 20]).expect("written");
    let devices = DEVICES.replace("preset = \"nvme_ssd\"", &format!("path = \"{path}\""));
    let plan = plan(&scratch, "real", &[&devices, PHASES]);
    let run = ["bench", "run", &plan, "--out", "out", "--only", "cached"];
    let content = |path: &PathBuf| std::fs::read(path).expect("readable");
    scratch.run(&run).expect(1).says(&format!("--overwrite {path} allows that"));
    assert!(content(&device).iter().all(|byte| *byte == 7));
    scratch.run(&[&run[..], &["--overwrite", &path]].concat()).expect(0).says("| cached | read");
    assert!(content(&device).iter().any(|byte| *byte != 7));
}

/// A target on which another build takes the place of the program.
const REBUILT: &str = r#"
[[target]]
name = "rebuilt"
nbd = "nbd+unix:///?socket={socket}"
command = ["sh", "-c", "mv \"$0\" mine && chmod +x mine; exit 3", "OTHER"]
"#;

/// The least that can be measured.
const SHORT: &str = r#"
[[phase]]
name = "read"
[[phase.job]]
name = "reads"
work = "read"
pattern = "sequential"
size = "1M"
amount = "1M"
"#;

#[test]
fn a_run_has_one_build_whatever_takes_the_place_of_the_program() {
    if !has_tool("bench and another build", "fio") {
        return;
    }
    let mut scratch = Scratch::new();
    scratch.run_from_copy("mine");
    let other = scratch.path("other");
    std::fs::write(&other, "#!/bin/sh\nexit 9\n").expect("written");
    let rebuilt = REBUILT.replace("mine", &scratch.path("mine").display().to_string());
    let rebuilt = rebuilt.replace("OTHER", &other.display().to_string());
    // The target comes before those that it spoils.
    let devices = DEVICES.replacen("[[target]]", &format!("{rebuilt}[[target]]"), 1);
    let plan = plan(&scratch, "real", &[&devices, SHORT]);
    let ended = scratch.run(&["bench", "run", &plan, "--out", "out"]).expect(1);
    let ended = ended.says("1 measurements failed");
    assert!(std::fs::read(scratch.path("mine")).expect("it is there").starts_with(b"#!"));
    assert!(scratch.path("out/raw/cached-1.json").exists(), "{ended:#?}");
}

/// A bare device that is reached as a cache is.
const SERVED: &str = r#"
[[target]]
name = "served"
device = "ssd"
is_served = true
"#;

#[test]
fn a_bare_device_is_reached_over_nbd_if_the_plan_says_so() {
    if !has_tool("bench on a served device", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let plan = plan(&scratch, "real", &[DEVICES, SERVED, SHORT]);
    let run = ["bench", "run", &plan, "--out", "out", "--only", "ssd", "--only", "served"];
    scratch.run(&run).expect(0);
    let devices = |target: &str| {
        let raw = first_result(&scratch, target);
        raw["phases"][0]["devices"].as_array().expect("an array").clone()
    };
    // A server counts what it reads; nobody does of a file.
    assert_eq!(devices("ssd"), Vec::<serde_json::Value>::new());
    let served = devices("served");
    let read = served.iter().map(|device| device["read_bytes"].as_u64().expect("a count"));
    assert!(read.sum::<u64>() >= 1 << 20, "{served:?}");
}

#[test]
fn a_run_goes_on_only_with_devices_in_the_same_folder() {
    if !has_tool("bench in another folder", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let plan = plan(&scratch, "real", &[DEVICES, SHORT]);
    for folder in ["one", "other"] {
        std::fs::create_dir(scratch.path(folder)).expect("made");
    }
    let run = ["bench", "run", &plan, "--out", "out", "--only", "ssd"];
    let in_folder = |folder: &str| scratch.run(&[&run[..], &["--dir", folder]].concat());
    in_folder("one").expect(0);
    in_folder("./one").expect(0);
    let (one, other) = (scratch.path("one"), scratch.path("other"));
    let refused = in_folder("other").expect(3).says("--dir").says("--replace");
    let refused = refused.says(&format!("devices: there {} on device ", one.display()));
    refused.says(&format!("now {} on device ", other.display()));
    scratch.run(&run).expect(3).says("--dir");
    in_folder("nowhere").expect(1).says("nowhere");
    scratch.run(&["bench", "report", "out"]).expect(0);
}

#[test]
fn an_export_that_is_there_already_is_written_to_only_if_the_operator_says_so() {
    if !has_tool("bench on an export", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let device = scratch.path("theirs");
    std::fs::write(&device, vec![7; 32 << 20]).expect("written");
    let server = scratch.serve_what(&["--bare", &format!("vol={}", device.display())]);
    let uri = &server.uri;
    let theirs = format!("[[target]]\nname = \"theirs\"\nnbd = \"{uri}\"\n");
    let plan = plan(&scratch, "real", &[DEVICES, &theirs, PHASES]);
    let run = ["bench", "run", &plan, "--out", "out", "--only", "theirs"];
    let content = |path: &PathBuf| std::fs::read(path).expect("readable");
    let refused = scratch.run(&run).expect(1);
    refused.says(&format!("target theirs: what is on {uri} would be lost; --overwrite {uri}"));
    assert!(content(&device).iter().all(|byte| *byte == 7));
    scratch.run(&[&run[..], &["--overwrite", uri]].concat()).expect(0).says("| theirs | read");
    assert!(content(&device).iter().any(|byte| *byte != 7));
}

#[test]
fn an_interrupted_run_ends_what_it_has_started_and_goes_on() {
    if !has_tool("bench interrupted", "fio") {
        return;
    }
    let scratch = Scratch::new();
    let long = PHASES.replacen("seconds = 1", "seconds = 50", 1);
    let plan = plan(&scratch, "real", &[DEVICES, &long]);
    let run = ["bench", "run", &plan, "--out", "out", "--only", "cached"];
    let mut jobs = None;
    let ended = scratch.run_and_interrupt(&run, &mut || {
        // Until the phase of 50 seconds has begun.
        let name = files_if_any(&scratch).into_iter().find(|name| name.starts_with("devices"));
        let path = name.map(|name| scratch.path("out").join(name).join("jobs.fio"));
        let text = path.and_then(|path| std::fs::read_to_string(path).ok());
        jobs = text.filter(|text| text.contains("runtime=50"));
        jobs.is_some()
    });
    let ended = ended.expect(6).says("interrupted").says("it goes on");
    assert!(jobs.is_some(), "{ended:#?}");
    let left = files(&scratch);
    assert!(left.iter().all(|name| !name.starts_with("devices")), "{left:?}");
    assert!(!scratch.path("out/raw/cached-1.failed").exists());
    assert!(!scratch.path("out/raw/cached-1.json").exists());
}

fn files_if_any(scratch: &Scratch) -> Vec<String> {
    if scratch.path("out").exists() { files(scratch) } else { Vec::new() }
}
