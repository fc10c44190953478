//! Dirty data and rates after a burst, as the simulator computes them.

use std::ops::Range;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Deserialize;

use crate::replay;

/// What the simulator is asked for. A sample in five seconds is as much as a chart can show.
const ARGUMENTS: [&str; 4] = ["step-response", "--json", "--every", "5"];

const SIZE: (u32, u32) = (900, 620);
/// Height of the upper panel.
const UPPER: u32 = 320;
const MIB: f64 = (1u64 << 20) as f64;
const KIB: f64 = 1024.0;
/// Colours that are told apart without red and green, on light and dark pages.
const DIRTY: RGBColor = RGBColor(0, 90, 160);
const TARGET: RGBColor = RGBColor(200, 80, 0);
const CLIENT: RGBColor = RGBColor(130, 130, 130);
const PHASE: RGBColor = RGBColor(170, 170, 170);

/// What the simulator prints.
#[derive(Deserialize)]
struct StepResponse {
    stream_begins_second: u64,
    stream_ends_second: u64,
    samples: Columns,
}

#[derive(Deserialize)]
struct Columns {
    second: Vec<u64>,
    dirty_bytes: Vec<u64>,
    target_bytes: Vec<u64>,
    controller_bytes_per_second: Vec<u64>,
    written_bytes_per_second: Vec<u64>,
    written_back_bytes_per_second: Vec<u64>,
}

/// What the simulator prints.
pub(super) fn data() -> anyhow::Result<String> {
    let mut command = replay::simulator()?;
    super::output(command.args(ARGUMENTS))
}

/// The chart of what `forebay-sim step-response --json` prints.
pub(super) fn draw(data: &str) -> anyhow::Result<String> {
    let response: StepResponse =
        serde_json::from_str(data).context("the simulator prints what is not understood")?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (upper, lower) = area.split_vertically(UPPER);
        draw_dirty(&upper, &response)?;
        draw_rates(&lower, &response)?;
        area.present()?;
    }
    Ok(super::ended(&text))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a panel.
struct Line<'a> {
    name: &'static str,
    style: ShapeStyle,
    values: &'a [u64],
}

/// What a panel shows.
struct Panel<'a> {
    title: &'static str,
    unit: &'static str,
    unit_bytes: f64,
    most: f64,
    lines: Vec<Line<'a>>,
}

fn draw_dirty(area: &Area<'_>, response: &StepResponse) -> anyhow::Result<()> {
    let samples = &response.samples;
    let most = samples.dirty_bytes.iter().max().copied().unwrap_or(0) as f64 / MIB;
    let lines = vec![
        Line {
            name: "target (writeback_percent)",
            style: TARGET.stroke_width(2),
            values: &samples.target_bytes,
        },
        Line { name: "dirty", style: DIRTY.stroke_width(2), values: &samples.dirty_bytes },
    ];
    let title = "Dirty data after a burst, beside a steady writer";
    draw_panel(
        area,
        response,
        Panel { title, unit: "MiB", unit_bytes: MIB, most: most * 1.1, lines },
    )
}

fn draw_rates(area: &Area<'_>, response: &StepResponse) -> anyhow::Result<()> {
    let samples = &response.samples;
    let rates = samples.controller_bytes_per_second.iter();
    // The burst is far beyond.
    let most = rates.max().copied().unwrap_or(0) as f64 / KIB;
    let lines = vec![
        Line {
            name: "written by the client",
            style: CLIENT.stroke_width(2),
            values: &samples.written_bytes_per_second,
        },
        Line {
            name: "rate of the controller",
            style: TARGET.stroke_width(3),
            values: &samples.controller_bytes_per_second,
        },
        Line {
            name: "written home",
            style: DIRTY.stroke_width(1),
            values: &samples.written_back_bytes_per_second,
        },
    ];
    let title = "Rates, mean of five seconds (the burst is cut off)";
    draw_panel(
        area,
        response,
        Panel { title, unit: "KiB/s", unit_bytes: KIB, most: most * 1.2, lines },
    )
}

fn draw_panel(area: &Area<'_>, response: &StepResponse, panel: Panel<'_>) -> anyhow::Result<()> {
    let Panel { title, unit, unit_bytes, most, lines } = panel;
    let seconds = &response.samples.second;
    let end = seconds.last().copied().unwrap_or(1) as f64;
    let (xs, ys): (Range<f64>, Range<f64>) = (0.0..end, 0.0..most);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(24)
        .caption(title, ("sans-serif", 17))
        .x_label_area_size(38)
        .y_label_area_size(58)
        .build_cartesian_2d(xs, ys)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds")
        .y_desc(unit)
        .x_labels(14)
        .y_labels(6)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    for at in [response.stream_begins_second, response.stream_ends_second] {
        let line = [(at as f64, 0.0), (at as f64, most)];
        chart.draw_series(DashedLineSeries::new(line, 4, 4, PHASE.stroke_width(1)))?;
    }
    for Line { name, style, values } in lines {
        let value = |bytes: &u64| (*bytes as f64 / unit_bytes).min(most);
        let points = seconds.iter().zip(values).map(|(at, bytes)| (*at as f64, value(bytes)));
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(PHASE)
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_simulator_does_not_print_is_an_error() {
        assert!(draw("{}").is_err());
    }
}
