//! ext4 and xfs on a volume that the kernel's own NBD client has connected.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// Far more than it takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(180);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "nbd",
    about: "ext4 and xfs by the kernel's client: fio with verification, trim, detach",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let fio_size = if stage.is_long() { "96M" } else { "16M" };
    let mut guest = stage.boot()?;
    for kind in ["ext4", "xfs"] {
        stage.script(&mut guest, &format!("nbd.sh {kind} {fio_size}"), TIME_MAX)?;
    }
    guest.power_off()
}
