//! Advice from what the kernel records of a disk, with blktrace itself.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// Far more than it takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(180);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "record",
    about: "advise records a disk: every request that fio makes, and no other",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "record.sh", TIME_MAX)?;
    guest.power_off()
}
