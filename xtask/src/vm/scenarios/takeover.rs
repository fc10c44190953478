//! A volume as a block device of the kernel, whose daemon is replaced by another one.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// For all that is done once; half a minute where nothing else is going on.
const ONCE_TIME_MAX: Duration = Duration::from_secs(240);
/// For a takeover under load, and a successor that is killed: some ten seconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(60);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "takeover",
    about: "a daemon is replaced under load, without an error of its block device",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let rounds = if stage.is_long() { 20 } else { 2 };
    let mut guest = stage.boot()?;
    let script = format!("takeover.sh {rounds}");
    stage.script(&mut guest, &script, ONCE_TIME_MAX + ROUND_TIME_MAX * rounds)?;
    guest.power_off()
}
