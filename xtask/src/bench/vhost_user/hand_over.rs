//! A request handed to another thread and back by eventfd: the hop that a front end with threads of
//! its own would add to each request, measured alone.

use serde::{Deserialize, Serialize};

use super::client::{self, Client, Figures};
use crate::bench::interrupt;
use crate::bench::plan::Plan;
use crate::bench::progress::Progress;
use crate::bench::spread::Spread;

const DEPTHS: [u32; 2] = [1, 32];

/// A depth with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct Row {
    pub(in super::super) depth: u32,
    samples: Vec<Figures>,
}

impl Row {
    pub(in super::super) fn p50_us(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|figures| figures.p50_us))
    }

    pub(in super::super) fn p99_us(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|figures| figures.p99_us))
    }

    /// Of both threads, for each request.
    pub(in super::super) fn cpu_us(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(Figures::cpu_us))
    }
}

pub(super) fn seconds(plan: Plan) -> u64 {
    DEPTHS.len() as u64 * u64::from(plan.repetitions) * plan.seconds
}

/// All depths.
pub(super) fn measure(
    client: &Client,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = DEPTHS.map(|depth| Row { depth, samples: Vec::new() });
    for repetition in 0..plan.repetitions {
        for row in &mut rows {
            let name = format!("vhost-user/hand-over/{}/{repetition}", row.depth);
            row.samples.push(progress.sample(&name, || sample(client, row.depth, plan.seconds))?);
        }
    }
    for row in &rows {
        println!(
            "  handed to a thread and back, QD{}: p50 {} us, CPU of a request {} us",
            row.depth,
            row.p50_us().map(|spread| spread.text(1)).unwrap_or_default(),
            row.cpu_us().map(|spread| spread.text(2)).unwrap_or_default(),
        );
    }
    Ok(rows.into())
}

fn sample(client: &Client, depth: u32, seconds: u64) -> anyhow::Result<Figures> {
    interrupt::check()?;
    let mut command = client.command(depth, seconds);
    command.arg("--hand-over");
    client::run(command)
}
