//! What the figures were measured on and with.

use std::process::Command;

use serde::{Deserialize, Serialize};

use super::document::GIB;
use super::forebay::Program;
use super::interrupt;
use super::spread::number;
use crate::workspace::Workspace;

/// Size of a core's second-level cache, as `1024K`. The third level serves several cores.
const CORE_CACHE: &str = "/sys/devices/system/cpu/cpu0/cache/index2/size";

/// The machine and the versions of what ran.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Day of the run, in UTC.
    pub(super) date: String,
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    /// The largest cache that a core has to itself, where the kernel tells; else 0.
    #[serde(default)]
    pub(super) core_cache_bytes: u64,
    pub(super) kernel: String,
    /// Mean numbers of runnable processes over 1, 5 and 15 minutes, before the run.
    pub(super) load: String,
    /// Programs, each with its version.
    pub(super) versions: Vec<String>,
    /// Name of the machine; tells it from others, and stands in no document.
    #[serde(skip)]
    pub(super) host: String,
    /// Commit of the source.
    pub(super) commit: String,
}

impl Machine {
    /// Looks around, and asks the programs of a bench with servers for their versions.
    pub(super) fn examine_with(workspace: &Workspace, program: &Program) -> Machine {
        let version = |name: &str| first_line(Command::new(name).arg("--version"));
        let versions = vec![
            first_line(program.command().arg("--version")),
            version("nbdkit"),
            version("qemu-nbd"),
            version("fio"),
        ];
        let versions = versions.into_iter().filter(|version| !version.is_empty()).collect();
        Machine { versions, ..Machine::examine(workspace) }
    }

    /// Looks around; what cannot be found out is left empty.
    pub(super) fn examine(workspace: &Workspace) -> Machine {
        let mut commit = Command::new("git");
        commit.args(["describe", "--always", "--dirty"]).current_dir(workspace.root());
        Machine {
            date: first_line(Command::new("date").args(["--utc", "+%Y-%m-%d"])),
            processor: value_in("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            memory_bytes: kib(&value_in("/proc/meminfo", "MemTotal")) * 1024,
            core_cache_bytes: kib(&read(CORE_CACHE).replace('K', " ")) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            versions: Vec::new(),
            host: read("/proc/sys/kernel/hostname").trim().to_owned(),
            commit: first_line(&mut commit),
        }
    }

    /// Two items of a list in Markdown, for the head of a document.
    pub(super) fn items(&self) -> String {
        format!(
            "- {}, {} cores, {} GiB of memory, Linux {}\n\
             - load before the run (1, 5, 15 minutes): {}\n",
            self.processor,
            self.cores,
            number(self.memory_bytes as f64 / GIB, 1),
            self.kernel,
            self.load,
        )
    }

    /// Memory that programs can have at present; 0 if that cannot be found out.
    pub(super) fn available_bytes() -> u64 {
        kib(&value_in("/proc/meminfo", "MemAvailable")) * 1024
    }
}

/// The first line of what a command prints; nothing if it fails.
pub(super) fn first_line(command: &mut Command) -> String {
    let text = interrupt::capture(command).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
fn value_in(path: &str, name: &str) -> String {
    let text = read(path);
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let value = pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    value.unwrap_or_default().to_owned()
}

/// The number in `number kB`.
fn kib(text: &str) -> u64 {
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}
