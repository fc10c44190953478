//! Random operations of the file system exerciser, on a volume and on a plain file.

use std::time::Duration;

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::stage::Stage;

/// For three kinds of target; half a minute where nothing else is going on.
const ONCE_TIME_MAX: Duration = Duration::from_secs(240);
/// For a thousand operations on each, which take some seconds.
const THOUSAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Of each kind of target; a kill comes early among them.
const OPERATIONS: u32 = 400;
const LONG_OPERATIONS: u32 = 20_000;
/// For a kill under each.
const KILL_TIME_MAX: Duration = Duration::from_secs(30);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "fsx",
    about: "random operations on files and on the device, compared with a plain file",
    system: System::Busybox,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (operations, kills) = if stage.is_long() { (LONG_OPERATIONS, 20) } else { (OPERATIONS, 1) };
    let mut guest = stage.boot()?;
    let time_max =
        ONCE_TIME_MAX + THOUSAND_TIME_MAX * operations.div_ceil(1000) + KILL_TIME_MAX * kills;
    stage.script(&mut guest, &format!("fsx.sh ublk {operations} {kills}"), time_max)?;
    stage.script(&mut guest, &format!("fsx.sh nbd {operations} 0"), time_max)?;
    guest.power_off()
}
