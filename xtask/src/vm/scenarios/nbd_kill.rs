//! The daemon is killed while a file system on its volume is written to.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// A round takes some ten seconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(60);
/// Files that are synced before a kill, at least.
const FILES: u32 = 20;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "nbd-kill",
    about: "the daemon is killed under load: what was synced is there after its restart",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let rounds = if stage.is_long() { 20 } else { 1 };
    let mut guest = stage.boot()?;
    let kinds: &[&str] = if stage.is_long() { &["ext4", "xfs"] } else { &["ext4"] };
    for kind in kinds {
        let script = format!("nbd-kill.sh {kind} {rounds} {FILES}");
        stage.script(&mut guest, &script, ROUND_TIME_MAX * (rounds + 1))?;
    }
    guest.power_off()
}
