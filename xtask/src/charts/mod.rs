//! `cargo xtask charts`: charts of what is computed in virtual time, as SVG, with their data.
//!
//! Invariants:
//! - A chart is a function of its data, and the data of the program's arguments: who draws it
//!   again gets the same bytes. Tests hold data and chart to that.
//!
//! Figures of this machine are not drawn here: they are the bench's.

mod experiments;
mod step_response;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Where charts are, from the root on.
const FOLDER: &str = "docs/charts";

/// Which charts to draw.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Charts to draw; all of them if none is named, which takes minutes
    #[arg(value_name = "NAME", value_parser = ["step-response", "zipf", "writes"])]
    names: Vec<String>,
    /// Compute nothing: draw from the data that is there
    #[arg(long)]
    redraw: bool,
}

/// A chart.
struct Chart {
    /// Of its files, which end in `.json` and `.svg`.
    name: &'static str,
    /// Computes its data, with a program `forebay` if one is there already.
    data: fn(Option<&Path>) -> anyhow::Result<String>,
    draw: fn(&str) -> anyhow::Result<String>,
}

const CHARTS: [Chart; 3] = [
    Chart { name: "step-response", data: |_| step_response::data(), draw: step_response::draw },
    Chart { name: "zipf", data: experiments::zipf, draw: experiments::draw_zipf },
    Chart { name: "writes", data: experiments::writes, draw: experiments::draw_writes },
];

/// Draws these anew, of what `forebay` computes.
pub(crate) fn draw(names: &[&str], forebay: &Path) -> anyhow::Result<Outcome> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    draw_with(&Options { names, redraw: false }, Some(forebay))
}

/// Computes data and draws.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    draw_with(options, None)
}

fn draw_with(options: &Options, forebay: Option<&Path>) -> anyhow::Result<Outcome> {
    let workspace = Workspace::load()?;
    let folder = workspace.root().join(FOLDER);
    std::fs::create_dir_all(&folder).context("cannot make the folder of charts")?;
    let is_chosen =
        |chart: &&Chart| options.names.is_empty() || options.names.iter().any(|n| n == chart.name);
    for Chart { name, data, draw } in CHARTS.iter().filter(is_chosen) {
        let path = folder.join(format!("{name}.json"));
        let data = if options.redraw {
            std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
        } else {
            let data = data(forebay)?;
            write(&path, &data)?;
            data
        };
        write(&folder.join(format!("{name}.svg")), &draw(&data)?)?;
    }
    Ok(Outcome::Passed)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// What a command prints.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = process::describe(command);
    println!("$ {name}");
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name} prints no text"))
}

/// A text whose lines end where they should for those who look at a difference.
fn ended(text: &str) -> String {
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That the data is what is computed is a test of who computes it.
    #[test]
    fn each_chart_is_drawn_from_the_data_beside_it() {
        for Chart { name, draw, .. } in CHARTS {
            let committed = |kind: &str| {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FOLDER);
                std::fs::read_to_string(folder.join(format!("{name}.{kind}"))).expect("it is there")
            };
            let drawn = draw(&committed("json")).expect("it can be drawn");
            assert!(drawn == committed("svg"), "draw it again: cargo xtask charts {name}");
        }
    }
}
