//! A machine with systemd whose `/home` is a volume, set up as README.md says, through reboots, the
//! death of its daemon, and boots on which a device is missing or is another one.
//!
//! What the devices hold after each end of the machine is looked at from outside.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{CACHE, ORIGIN, Scenario, System};
use crate::vm::disk::Disk;
use crate::vm::guest::Guest;
use crate::vm::stage::Stage;

/// For one part of the script: half a minute where nothing else is going on, and a minute more for
/// a boot that waits for a device.
const PART_TIME_MAX: Duration = Duration::from_secs(300);
/// For a shutdown: some seconds. What hangs is given up by systemd after 90 s, and found by its
/// state.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(150);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "boot",
    about: "systemd mounts a volume at boot: reboots, a warm cache, devices missing or swapped",
    system: System::Systemd,
    disks: &[CACHE, ORIGIN],
    run,
};

fn run(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "boot.sh first-use", PART_TIME_MAX)?;
    guest.shut_down("systemctl reboot", SHUTDOWN_TIME_MAX)?;
    is_in_order(stage, "devices after a reboot")?;
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "boot.sh clean-end", PART_TIME_MAX)?;
    stage.script(&mut guest, "boot.sh warm reboot", PART_TIME_MAX)?;
    stage.script(&mut guest, "boot.sh kill", PART_TIME_MAX)?;
    if stage.is_long() {
        guest = run_long(stage, guest)?;
    }
    guest.shut_down("systemctl poweroff", SHUTDOWN_TIME_MAX)?;
    is_in_order(stage, "devices at the end")
}

/// What needs many boots, or boots that wait for a device: systemd gives one up after 90 s.
fn run_long(stage: &mut Stage<'_>, mut guest: Guest) -> anyhow::Result<Guest> {
    stage.script(&mut guest, "boot.sh service", PART_TIME_MAX * 2)?;
    stage.script(&mut guest, "boot.sh require", PART_TIME_MAX)?;
    guest.shut_down("systemctl poweroff", SHUTDOWN_TIME_MAX)?;
    is_in_order(stage, "devices after a shutdown")?;

    let mut guest = stage.boot()?;
    stage.script(&mut guest, "boot.sh warm required", PART_TIME_MAX)?;
    stage.script(&mut guest, "boot.sh allow", PART_TIME_MAX)?;
    guest.shut_down("systemctl poweroff", SHUTDOWN_TIME_MAX)?;
    is_in_order(stage, "devices after a boot that waited for them")?;

    let swapped = [CACHE.named(ORIGIN.name), ORIGIN.named(CACHE.name)];
    boot_on(stage, "swapped", [(swapped[0], CACHE.name), (swapped[1], ORIGIN.name)])?;
    boot_on(stage, "no-cache", [(ORIGIN, ORIGIN.name)])?;
    boot_on(stage, "no-origin", [(CACHE, CACHE.name)])?;

    let mut guest = stage.boot()?;
    stage.script(&mut guest, "boot.sh warm right-devices", PART_TIME_MAX)?;
    stage.script(&mut guest, "boot.sh write", PART_TIME_MAX)?;
    guest.cut_power();
    println!("  the power went");
    let mut guest = stage.boot()?;
    stage.script(&mut guest, "boot.sh after-cut", PART_TIME_MAX)?;
    stage.script(&mut guest, "boot.sh warm power-cut", PART_TIME_MAX)?;
    Ok(guest)
}

/// Boots with `disks`, each with the content of the named one of the scenario, and has the script
/// look at what came of that. Nothing may be written to an origin that cannot be served, nor to a
/// cache device that is not one.
fn boot_on<const N: usize>(
    stage: &mut Stage<'_>,
    part: &str,
    disks: [(Disk, &str); N],
) -> anyhow::Result<()> {
    // The mark of a recovery may be written to a cache device that is served without its origin.
    let is_untouched = |name: &str| part != "no-origin" || name != CACHE.name;
    let watched: Vec<&str> =
        [CACHE.name, ORIGIN.name].into_iter().filter(|n| is_untouched(n)).collect();
    for name in &watched {
        let copy = stage.path_of(&format!("{name}.before"));
        std::fs::copy(stage.path_of(name), copy).context("no copy of a disk")?;
    }
    let disks = disks.map(|(disk, content)| (disk, stage.path_of(content)));
    let mut guest = stage.boot_on(disks.into())?;
    stage.script(&mut guest, &format!("boot.sh {part}"), PART_TIME_MAX)?;
    guest.shut_down("systemctl poweroff", SHUTDOWN_TIME_MAX)?;
    for name in &watched {
        let before = stage.path_of(&format!("{name}.before"));
        let mut compare = Command::new("cmp");
        compare.arg("-s").arg(stage.path_of(name)).arg(&before);
        let is_same = compare.status().context("cannot run cmp")?.success();
        ensure!(is_same, "{part}: something was written to the device `{name}`");
        std::fs::remove_file(before).context("cannot remove a copy")?;
    }
    stage.ok(&format!("{part}: devices are as they were"));
    Ok(())
}

/// Nothing stands behind the checkpoint of the daemon, and the file system was unmounted.
fn is_in_order(stage: &mut Stage<'_>, name: &str) -> anyhow::Result<()> {
    let (cache, origin) = (stage.path_of(CACHE.name), stage.path_of(ORIGIN.name));
    let mut check = Command::new(stage.forebay());
    let found = output(check.arg("check").arg(&cache).arg("--json"))?;
    for wanted in ["\"is_clean\": true", "\"new_record_count\": 0", "\"dirty_block_count\": 0"] {
        ensure!(found.contains(wanted), "{name}: not {wanted}: {found}");
    }
    // In writethrough the origin alone is the volume.
    let found = output(Command::new("e2fsck").args(["-f", "-n"]).arg(Path::new(&origin)))?;
    ensure!(!found.contains("journal"), "{name}: was not unmounted: {found}");
    stage.ok(name);
    Ok(())
}

/// Runs a command that has to succeed; returns what it says.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = command.env("PATH", path).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(text)
}
