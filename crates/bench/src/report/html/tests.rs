use super::*;
use crate::folder::Folder;
use crate::report::page::first_load;
use crate::virtual_time;

/// Two phases of the same name, of different targets, and one that only the cache does.
const PLAN: &str = r#"
    about = "Reads & </script><b>writes</b>"
    source = "somebody's \"<img src=x>\""
    clock = "virtual"
    repetitions = 2
    device = [
        { name = "disk", preset = "hdd", size = "4G", at = 0 },
        { name = "ssd", preset = "sata_ssd", size = "1G" },
    ]
    [[target]]
    name = "bare"
    title = "SSD <alone>"
    device = "ssd"
    [[target]]
    name = "cached"
    forebay = { cache = "ssd", cache_size = "256M", origin = "disk", mode = "writeback" }
    [[target]]
    name = "later"
    title = "not yet"
    device = "disk"
    [[phase]]
    name = "run"
    only = ["cached"]
    seconds = 2
    job = [{ name = "a", work = "write", pattern = "uniform", size = "16M", depth = 8 }]
    [[phase]]
    name = "run"
    only = ["bare", "later"]
    seconds = 1
    job = [{ name = "a", work = "write", pattern = "uniform", size = "16M", depth = 8 }]
    [[phase]]
    name = "again"
    only = ["cached"]
    seconds = 1
    job = [{ name = "a", work = "read", pattern = "uniform", size = "16M", depth = 8 }]
    [[published]]
    title = "other </script>"
    iops = 1500
    remark = "<!-- a remark"
    [[bound]]
    text = "<i>at</i> once"
    of = { target = "cached", phase = "run", figure = "iops" }
    over_value = 1e9
    at_least = 1
    [[bound]]
    text = "again"
    of = { target = "cached", phase = "again", figure = "hit_ratio" }
    at_most = 1
    [[bound]]
    text = "later"
    of = { target = "later", phase = "run", figure = "iops" }
    at_least = 1155
"#;

fn machine() -> Machine {
    Machine {
        version: "1.2.3".to_owned(),
        unix_time_s: 1_500_000_000,
        processors: "Some <model>, 2 of them".to_owned(),
        memory_bytes: 8 << 30,
        kernel: "Linux 6".to_owned(),
        clock: None,
        devices: None,
        fio: None,
    }
}

/// The page of a folder in which targets were measured, failed, or are missing.
fn page_of(measured: &[&str], failed: &[&str]) -> String {
    let place = tempfile::tempdir().expect("a folder");
    let plan = Plan::parse(PLAN).expect("a plan");
    let folder = Folder::create(place.path(), PLAN, &[], &machine()).expect("a folder");
    for target in &plan.targets {
        if measured.contains(&target.name.as_str()) {
            let result = virtual_time::run(&plan, target, 1, &mut |_| ());
            folder.save(&result.expect("devices have models")).expect("written");
        }
        if failed.contains(&target.name.as_str()) {
            folder.save_failure(target, 2, "no </script> device\n<here>").expect("written");
        }
    }
    let summary = Summary::of(&folder, &plan).expect("a summary");
    html(&summary, &plan, &folder.machine().expect("a machine"))
}

/// The JSON that the script gets.
fn data(page: &str) -> serde_json::Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let from = page.find(begin).expect("it is there") + begin.len();
    let length = page[from..].find("</script>").expect("it ends");
    serde_json::from_str(&page[from..from + length]).expect("JSON")
}

#[test]
fn a_page_has_every_target_measured_or_not() {
    let page = page_of(&["bare", "cached"], &["cached"]);
    for text in ["SSD &lt;alone&gt;", "<b>cached</b>", "<b>not yet</b>", "other &lt;/script&gt;"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("not measured yet"));
    assert!(page.contains("1 of 2 repetitions"));
    assert!(page.contains("Failed: no &lt;/script&gt; device\n&lt;here&gt;"));
    assert!(page.contains("Virtual time."));
    assert!(page.contains("Fri, 14 Jul 2017 02:40:00 GMT"));
    assert_eq!(page.matches("<span class=\"badge virtual\">").count(), 2 + 3, "targets and rows");
    assert_eq!(page.matches("<span class=\"badge real\">").count(), 1, "what was published");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
}

#[test]
fn what_somebody_chose_is_text() {
    let page = page_of(&["bare"], &["cached"]);
    // Those of the page itself.
    assert_eq!(page.matches("</script>").count(), 2);
    for markup in ["<img", "<b>writes", "<alone>", "<here>", "<model>"] {
        assert!(!page.contains(markup), "{markup}");
    }
    let data = data(&page);
    assert_eq!(data["targets"][0]["title"], "SSD <alone>");
    assert_eq!(data["published"][0]["remark"], "<!-- a remark");
    assert!(data["markdown"].as_str().expect("text").contains("</script><b>writes</b>"));
}

#[test]
fn a_page_refers_to_nothing_outside_itself() {
    for text in [TEMPLATE, STYLE, SCRIPT] {
        assert_eq!(first_load(text), None);
    }
    let page = page_of(&[], &[]);
    for word in ["http:", "https:"] {
        // The name space of SVG is a name and is not fetched.
        let places = page.match_indices(word).map(|(at, _)| &page[at..]);
        let outside: Vec<&str> = places
            .filter(|place| !place.starts_with("http://www.w3.org/2000/svg\""))
            .filter_map(|place| place.lines().next())
            .collect();
        assert!(outside.is_empty(), "{outside:?}");
    }
}

#[test]
fn phases_of_one_name_stand_side_by_side() {
    let data = data(&page_of(&["bare", "cached"], &[]));
    let names: Vec<&str> = data["phases"]
        .as_array()
        .expect("phases")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert_eq!(names, ["run", "again"]);
    assert_eq!(data["phases"][0]["work"].as_array().map(Vec::len), Some(2), "two phases of it");
    let places = |target: usize| -> Vec<u64> {
        let phases = data["targets"][target]["phases"].as_array().expect("phases");
        phases.iter().filter_map(|phase| phase["place"].as_u64()).collect()
    };
    assert_eq!((places(0), places(1), places(2)), (vec![0], vec![0, 1], vec![]));
}

#[test]
fn all_samples_of_the_first_repetition_are_there() {
    let data = data(&page_of(&["cached"], &[]));
    let phase = &data["targets"][1]["phases"][0];
    let samples = &phase["samples"];
    assert_eq!(samples["second"], serde_json::json!([1, 2]));
    let requests = samples["requests"].as_array().expect("a column");
    let sum: u64 = requests.iter().filter_map(serde_json::Value::as_u64).sum();
    let iops = phase["iops"]["median"].as_f64().expect("IOPS");
    assert!((iops - sum as f64 / 2.0).abs() < 0.5, "{iops}, {sum}");
    assert_eq!(phase["write_us"].as_array().map(Vec::len), Some(PERCENTILES.len()));
}

#[test]
fn a_folder_without_results_has_a_page() {
    let page = page_of(&[], &["bare", "cached", "later"]);
    assert!(page.contains("Nothing has been measured yet."));
    assert_eq!(page.matches("<tr class=\"failed\">").count(), 3);
    assert_eq!(data(&page)["phases"], serde_json::json!([]));
}

#[test]
fn a_date_that_there_is_not_is_left_out() {
    for unix_time_s in [0, DATES_END_S, u64::MAX] {
        assert!(!machine_text(&Machine { unix_time_s, ..machine() }).contains("GMT"));
    }
    assert!(machine_text(&Machine { unix_time_s: DATES_END_S - 1, ..machine() }).contains("GMT"));
    assert_eq!(machine_text(&Machine::default()), "");
}

#[test]
fn a_reason_of_several_repetitions_stands_once() {
    let failures = ["no device", "full", "no device"].map(str::to_owned).to_vec();
    let target = TargetSummary {
        name: String::new(),
        title: String::new(),
        clock: None,
        measured: 0,
        failures,
        phases: Vec::new(),
    };
    assert_eq!(reasons(&target), ["no device (2 repetitions)", "full"]);
}

#[test]
fn two_clocks_are_told_apart() {
    let target = |title: &str, clock| TargetSummary {
        name: title.to_owned(),
        title: title.to_owned(),
        clock,
        measured: 1,
        failures: Vec::new(),
        phases: Vec::new(),
    };
    let mut summary = Summary {
        about: String::new(),
        source: String::new(),
        repetitions: 1,
        published: Vec::new(),
        targets: vec![target("one", Some(Clock::Real))],
        bounds: Vec::new(),
    };
    assert!(clock_text(&summary).contains("Real time."));
    summary.targets.push(target("two", Some(Clock::Virtual)));
    let text = clock_text(&summary);
    assert!(text.contains("models of devices: two.") && text.contains("below: one."), "{text}");
}

#[test]
fn bounds_have_their_verdicts_and_their_texts_are_text() {
    let page = page_of(&["bare", "cached"], &[]);
    for text in [
        "1 of 3 bounds missed, 1 met, 1 not measured.",
        "<tr class=\"missed\"><th scope=\"row\">&lt;i&gt;at&lt;/i&gt; once</th>\
         <td>at least 1</td>",
        "<td>missed</td></tr>",
        "<tr class=\"met\"><th scope=\"row\">again</th><td>at most 1</td>",
        "<tr class=\"absent\"><th scope=\"row\">later</th><td>at least 1,155</td><td>–</td>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let markdown = data(&page)["markdown"].as_str().expect("text").to_owned();
    assert!(markdown.contains("| <i>at</i> once | at least 1 |"), "{markdown}");
}

/// The summary of a plan of which nothing was measured.
fn unmeasured(plan: &Plan) -> Summary {
    let place = tempfile::tempdir().expect("a folder");
    let folder = Folder::create(place.path(), PLAN, &[], &machine()).expect("a folder");
    Summary::of(&folder, plan).expect("a summary")
}

#[test]
fn a_plan_without_bounds_has_no_part_about_them() {
    let plan = PLAN.split("[[bound]]").next().expect("what stands before");
    let plan = Plan::parse(plan).expect("a plan");
    let summary = unmeasured(&plan);
    assert!(summary.bounds.is_empty());
    assert!(!html(&summary, &plan, &machine()).contains("<h2 id=\"bounds\">"));
    assert!(!markdown::table(&summary).contains("**Bounds**"));
}

#[test]
fn medians_are_spoken_of_only_where_there_are_several_values() {
    let plan = Plan::parse(PLAN).expect("a plan");
    let mut summary = unmeasured(&plan);
    // Two repetitions were asked for.
    for (measured, is_said) in [(1, false), (2, true)] {
        summary.targets[0].measured = measured;
        assert_eq!(markdown::table(&summary).contains("Medians"), is_said);
        let page = html(&summary, &plan, &machine());
        // The page has the table for the clipboard, too.
        assert_eq!(page.matches("Medians of the repetitions").count(), if is_said { 2 } else { 0 });
        assert_eq!(page.contains("Bars are medians"), is_said);
    }
}
