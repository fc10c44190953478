//! Where something is measured.

use forebay_bench::folder::Machine;
use rustix::system;

/// This machine, now. What cannot be found out is left empty.
pub(super) fn examine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let name = system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Machine {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_time_s: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        processors: format!("{}, {count} of them", model.as_deref().unwrap_or("processors")),
        memory_bytes: system::sysinfo().totalram * u64::from(system::sysinfo().mem_unit),
        kernel: format!("{} {}", text(name.sysname()), text(name.release())),
    }
}
