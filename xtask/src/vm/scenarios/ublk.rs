//! A volume as a block device of the kernel, whose server is killed, stopped and refused.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// For all that is done once; a minute and a half where nothing else is going on.
const ONCE_TIME_MAX: Duration = Duration::from_secs(360);
/// For a kill under load, three at a takeover and one at a start: some ten seconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(60);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "ublk",
    about: "a block device by the ublk driver outlives its server, without an error",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let rounds = if stage.is_long() { 20 } else { 2 };
    let mut guest = stage.boot()?;
    let script = format!("ublk.sh {rounds}");
    stage.script(&mut guest, &script, ONCE_TIME_MAX + ROUND_TIME_MAX * rounds)?;
    guest.power_off()
}
