//! Where something is measured.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::process::Command;

use forebay_bench::machine::{DevicesFolder, Machine};
use forebay_bench::plan::Clock;
use rustix::system;

use crate::exit::Failure;

/// The program that runs, also if its file has been replaced since.
const PROGRAM: &str = "/proc/self/exe";

/// This machine and this program, now, for results in this time; in real time with the folder for
/// files in place of devices. What cannot be found out of the machine is left empty.
pub(super) fn examine(clock: Clock, devices: Option<&Path>) -> Result<Machine, Failure> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let name = system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Ok(Machine {
        version: format!("{}, build {:016x}", env!("CARGO_PKG_VERSION"), build()?),
        unix_time_s: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        processors: format!("{}, {count} of them", model.as_deref().unwrap_or("processors")),
        memory_bytes: system::sysinfo().totalram * u64::from(system::sysinfo().mem_unit),
        kernel: format!("{} {}", text(name.sysname()), text(name.release())),
        clock: Some(clock),
        devices: devices.map(DevicesFolder::examine).transpose()?,
        fio: (clock == Clock::Real).then(fio_version).flatten(),
    })
}

/// What fio says, if it is there; plans of programs do without.
fn fio_version() -> Option<String> {
    let output = Command::new("fio").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// What tells builds apart that have one version. Only a build compares it with its own, so it may
/// change with the compiler's library.
fn build() -> Result<u64, Failure> {
    let program = std::fs::read(PROGRAM)
        .map_err(|error| Failure::failed(format!("cannot read {PROGRAM}: {error}")))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&program);
    Ok(hasher.finish())
}
