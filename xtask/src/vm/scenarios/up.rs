//! Block devices by `forebay up`, with each front end of the kernel, and over a boot.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// A part takes some twenty seconds where nothing else is going on.
const PART_TIME_MAX: Duration = Duration::from_secs(240);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "up",
    about: "up and down by ublk and by nbd, daemons killed between, a cache warm after a boot",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let mut guest = stage.boot()?;
    for part in ["ublk", "nbd"] {
        stage.script(&mut guest, &format!("up.sh {part}"), PART_TIME_MAX)?;
    }
    guest.power_off()?;
    // A new kernel, with its ublk driver again.
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "up.sh warm", PART_TIME_MAX)?;
    guest.power_off()?;
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "up.sh again", PART_TIME_MAX)?;
    guest.power_off()
}
