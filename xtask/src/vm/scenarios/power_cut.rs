//! The power of a guest goes while it writes and flushes. See [`Guest::cut_power`] for what that
//! takes away and what it does not.
//!
//! [`Guest::cut_power`]: crate::vm::guest::Guest::cut_power

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::guest::Answer;
use crate::vm::stage::Stage;

/// Time for a script, and for the next file to be reported.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Files that are synced in each round before the power goes, and how many more it may be.
const FILES: u64 = 20;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "power-cut",
    about: "the machine loses power under load: what it reported as synced is there afterwards",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

/// How the file system gets its device, in turn.
const FRONTS: [&str; 2] = ["ublk", "nbd"];

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let rounds = if stage.is_long() { 20 } else { 1 };
    for (turn, kind) in ["ext4", "xfs"].into_iter().enumerate() {
        cut(stage, kind, turn, rounds)?;
    }
    Ok(())
}

/// The fronts take turns from `turn` on.
fn cut(stage: &mut Stage<'_>, kind: &str, turn: usize, rounds: u64) -> anyhow::Result<()> {
    let front = |round: u64| FRONTS[(turn + round as usize) % FRONTS.len()];
    let mut guest = stage.boot()?;
    stage.script(&mut guest, &format!("power-cut.sh new {kind} {}", front(0)), TIME_MAX)?;
    let mut last = 0;
    for round in 0..rounds {
        let goal = last + FILES + round * 7 % FILES;
        guest.send(&format!("sh /vm/power-cut.sh write {}", last + 1))?;
        let deadline = Instant::now() + TIME_MAX;
        while last < goal {
            match guest.answer(deadline)? {
                Answer::Line(line) => last = synced(&line).with_context(|| line.clone())?,
                Answer::Done(status) => bail!("the writer ended with {status}"),
            }
        }
        guest.cut_power();
        println!("  the power went after file {last}");
        guest = stage.boot()?;
        let script = format!("power-cut.sh again {kind} {} {last}", front(round + 1));
        stage.script(&mut guest, &script, TIME_MAX)?;
    }
    guest.power_off()
}

/// The number of the file that a line reports.
fn synced(line: &str) -> Option<u64> {
    line.strip_prefix("synced ")?.parse().ok()
}
