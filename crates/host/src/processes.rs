//! Other processes of this machine, as `/proc` tells of them.

use std::fmt;
use std::fs;
use std::path::Path;

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    number: u32,
    /// Of its program; empty if it has just ended.
    name: String,
}

impl Process {
    /// The process of this number, if it lives.
    pub(crate) fn living(number: u32) -> Option<Process> {
        let name = fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
        Some(Process { number, name: name.trim_end().to_owned() })
    }

    /// Name of its program.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " ({})", self.name) }
    }
}

/// Other processes that have something open of which `is_meant` says so. It gets a link in `/proc`,
/// to be opened or asked about, and the path that stands in it, which may be one of another mount
/// or of nothing at all.
pub fn others_with(is_meant: impl Fn(&Path, &Path) -> bool) -> impl Iterator<Item = Process> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let others = numbers.filter(move |number: &u32| *number != own);
    others.filter_map(move |number| {
        // A process that has just ended has no list.
        let descriptors = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten();
        let mut links = descriptors.filter_map(|descriptor| Some(descriptor.ok()?.path()));
        let has_it =
            links.any(|link| fs::read_link(&link).is_ok_and(|target| is_meant(&link, &target)));
        has_it.then(|| Process::living(number).unwrap_or(Process { number, name: String::new() }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_just_ended_is_a_number() {
        assert_eq!(Process { number: 7, name: String::new() }.to_string(), "7");
    }
}
