//! Requests a second over time, of plans of `forebay bench` in virtual time.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::experiments;
use crate::workspace::Workspace;

const SIZE: (u32, u32) = (900, 420);
/// Colours that are told apart without red and green, on light and dark pages.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 90, 160), RGBColor(200, 80, 0), RGBColor(110, 60, 150), RGBColor(90, 90, 90)];
const PUBLISHED: RGBColor = RGBColor(150, 150, 150);
const FRAME: RGBColor = RGBColor(170, 170, 170);

/// What a chart is drawn from.
#[derive(Serialize, Deserialize)]
struct Experiment {
    /// What anybody can run to get it.
    command: String,
    /// Caches, second by second.
    caches: Vec<Series>,
    /// Bare devices, and what others published: a mean.
    devices: Vec<Level>,
    published: Vec<Level>,
}

#[derive(Serialize, Deserialize)]
struct Series {
    title: String,
    requests: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct Level {
    title: String,
    iops: f64,
    /// From where on the axis to where it is said of; without, of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    span: Option<[f64; 2]>,
}

impl Level {
    fn span(&self, seconds: usize) -> [f64; 2] {
        self.span.unwrap_or([0.0, seconds as f64])
    }
}

/// The data of the plan `zipf`, without what comes after its half hour: nothing happens any more.
pub(super) fn zipf(forebay: Option<&Path>) -> anyhow::Result<String> {
    data("zipf", 1, forebay)
}

/// The data of the plan `writes`.
pub(super) fn writes(forebay: Option<&Path>) -> anyhow::Result<String> {
    data("writes", usize::MAX, forebay)
}

/// Runs a plan once, and keeps what a chart shows of so many of a target's phases. What
/// `cargo xtask bench experiments` of the same build has measured is not measured again. Without a
/// program `forebay` it is built.
fn data(plan: &str, phases_max: usize, forebay: Option<&Path>) -> anyhow::Result<String> {
    let workspace = Workspace::load()?;
    let forebay = forebay.map_or_else(|| workspace.build_forebay(), |path| Ok(path.to_owned()))?;
    let out = experiments::folder(&workspace, plan);
    let mut run = std::process::Command::new(forebay);
    run.args(["bench", "run", plan, "--repetitions", "1", "--replace", "--json", "--out"]).arg(out);
    let summary: Value = serde_json::from_str(&super::output(&mut run)?).context("no summary")?;
    let command = format!("forebay bench run {plan} --repetitions 1");
    Ok(serde_json::to_string(&of_summary(&summary, command, phases_max)?)? + "\n")
}

/// What a chart shows of what `bench run --json` prints. Targets that take samples of a cache are
/// caches.
fn of_summary(summary: &Value, command: String, phases_max: usize) -> anyhow::Result<Experiment> {
    let list = |value: &Value, key: &str| -> anyhow::Result<Vec<Value>> {
        value[key].as_array().cloned().with_context(|| format!("no list {key}"))
    };
    let title = |value: &Value| value["title"].as_str().unwrap_or_default().to_owned();
    let (mut caches, mut devices) = (Vec::new(), Vec::new());
    // Where phases lie on the axis.
    let mut spans = vec![(Value::Null, None)];
    for target in list(summary, "targets")? {
        let mut phases = list(&target, "phases")?;
        phases.truncate(phases_max);
        let is_cache = phases.iter().any(|phase| !phase["cache_written_bytes"].is_null());
        if is_cache {
            let mut requests = Vec::new();
            for phase in &phases {
                let from = requests.len() as f64;
                let samples = list(phase, "samples")?;
                requests.extend(samples.iter().filter_map(|sample| sample["requests"].as_u64()));
                spans.push((phase["name"].clone(), Some([from, requests.len() as f64])));
            }
            caches.push(Series { title: title(&target), requests });
        } else if let Some(iops) = phases.first().and_then(|phase| phase["iops"]["median"].as_f64())
        {
            devices.push(Level { title: title(&target), iops: iops.round(), span: None });
        }
    }
    let level = |entry: &Value| {
        let (_, span) = spans.iter().find(|(phase, _)| *phase == entry["phase"])?;
        Some(Level { title: title(entry), iops: entry["iops"].as_f64()?, span: *span })
    };
    // Those of bare devices are what the models are fitted to.
    let is_cache = |level: &Level| !level.title.contains("alone");
    let published = list(summary, "published")?;
    let published = published.iter().filter_map(level).filter(is_cache).collect();
    Ok(Experiment { command, caches, devices, published })
}

pub(super) fn draw_zipf(data: &str) -> anyhow::Result<String> {
    draw(
        data,
        "Random reads by Zipf's law, 2 x 2 GiB, from an empty cache and from one full of junk",
    )
}

pub(super) fn draw_writes(data: &str) -> anyhow::Result<String> {
    draw(data, "Random writes at depth 32 into a cache of 16 GiB, until it is full and beyond")
}

fn draw(data: &str, title: &str) -> anyhow::Result<String> {
    let experiment: Experiment = serde_json::from_str(data).context("no data of a chart")?;
    let seconds = experiment.caches.iter().map(|series| series.requests.len()).max().unwrap_or(1);
    let levels = experiment.devices.iter().chain(&experiment.published).map(|level| level.iops);
    let values = experiment.caches.iter().flat_map(|series| &series.requests);
    let values = values.filter(|requests| **requests > 0).map(|requests| *requests as f64);
    let (least, most) = levels.chain(values).fold((f64::MAX, 1.0), |(least, most), value| {
        (f64::min(least, value), f64::max(most, value))
    });
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(24)
            .caption(title, ("sans-serif", 17))
            .x_label_area_size(38)
            .y_label_area_size(68)
            .build_cartesian_2d(0.0..seconds as f64, (least * 0.7..most * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("seconds")
            .y_desc("requests a second, in virtual time")
            .x_labels(12)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .label_style(("sans-serif", 13))
            .draw()?;
        let ends = |level: &Level| level.span(seconds).map(|second| (second, level.iops));
        for level in &experiment.published {
            let style = PUBLISHED.stroke_width(1);
            chart.draw_series(DashedLineSeries::new(ends(level), 3, 4, style))?;
            let [from, to] = level.span(seconds);
            let at = (from + (to - from) * 0.35, level.iops);
            let label = format!("published: {}, {:.0}", level.title, level.iops);
            chart.draw_series([Text::new(label, at, ("sans-serif", 11).into_font())])?;
        }
        let styles = COLOURS.into_iter().cycle();
        for (series, colour) in experiment.caches.iter().zip(styles.clone()) {
            let style = colour.stroke_width(2);
            // A second without requests lies below the axis.
            let point = |(second, requests): (usize, &u64)| (second as f64 + 1.0, *requests as f64);
            let points = series.requests.iter().enumerate().map(point);
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(series.title.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        for (level, colour) in experiment.devices.iter().zip(styles.skip(2)) {
            let style = colour.stroke_width(1);
            chart
                .draw_series(DashedLineSeries::new(ends(level), 8, 4, style))?
                .label(level.title.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE.mix(0.85))
            .border_style(FRAME)
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
    }
    Ok(super::ended(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_caches_over_time_and_all_else_as_levels() {
        let summary = serde_json::json!({
            "targets": [
                {"title": "disk", "phases": [
                    {"iops": {"median": 99.6}, "cache_written_bytes": null, "samples": []}]},
                {"title": "cache", "phases": [
                    {"name": "a", "cache_written_bytes": {"median": 1.0},
                        "samples": [{"requests": 7}]},
                    {"name": "b", "cache_written_bytes": null, "samples": [{"requests": 8}]},
                    {"name": "c", "cache_written_bytes": null, "samples": [{"requests": 9}]}]}],
            "published": [
                {"title": "SSD alone", "iops": 5.0}, {"title": "other", "iops": 6.0},
                {"title": "then", "iops": 6.5, "phase": "b"},
                {"title": "later", "iops": 7.0, "phase": "c"}, {"title": "time", "iops": null}]});
        let experiment = of_summary(&summary, "a command".to_owned(), 2).expect("a summary");
        let data = serde_json::to_string(&experiment).expect("JSON");
        assert_eq!(
            data,
            "{\"command\":\"a command\",\"caches\":[{\"title\":\"cache\",\"requests\":[7,8]}],\
             \"devices\":[{\"title\":\"disk\",\"iops\":100.0}],\
             \"published\":[{\"title\":\"other\",\"iops\":6.0},\
             {\"title\":\"then\",\"iops\":6.5,\"span\":[1.0,2.0]}]}"
        );
        let text = draw_zipf(&data).expect("it can be drawn");
        for word in ["cache", "disk", "published: other, 6"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(of_summary(&Value::Null, String::new(), 1).is_err());
        assert!(draw_writes("{}").is_err());
    }
}
