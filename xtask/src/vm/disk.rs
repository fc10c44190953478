//! Disks of a guest, as a scenario describes them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A disk on the virtio bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Disk {
    /// What the guest finds it by: the serial number in `/sys/block/*/serial`.
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
    pub(crate) speed: Speed,
}

/// How fast it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Speed {
    /// As fast as this machine emulates it, which is some thousand requests a second.
    Memory,
    /// Throttled by QEMU.
    Throttled { requests_per_second: u32, bytes_per_second: u64 },
}

impl Disk {
    /// The same disk under another name, where it shall be taken for another one.
    pub(crate) fn named(self, name: &'static str) -> Disk {
        Disk { name, ..self }
    }

    /// Makes an empty disk in `folder`.
    pub(crate) fn make(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(self.name);
        let file = File::create(&path);
        file.and_then(|file| file.set_len(self.bytes))
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// What QEMU is told of it.
    pub(crate) fn options(&self, path: &Path) -> [String; 4] {
        let name = self.name;
        let mut drive = format!(
            "id={name},if=none,format=raw,cache=writeback,discard=unmap,file={}",
            path.display()
        );
        if let Speed::Throttled { requests_per_second, bytes_per_second } = self.speed {
            drive.push_str(&format!(",throttling.iops-total={requests_per_second}"));
            drive.push_str(&format!(",throttling.bps-total={bytes_per_second}"));
        }
        let device = format!("virtio-blk-pci,drive={name},serial={name}");
        ["-drive".to_owned(), drive, "-device".to_owned(), device]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_with_rates_is_throttled() {
        let speed = Speed::Throttled { requests_per_second: 250, bytes_per_second: 1_000_000 };
        let slow = Disk { name: "origin", bytes: 1 << 20, speed };
        let options = slow.options(Path::new("/x/origin"));
        assert!(
            options[1]
                .ends_with("file=/x/origin,throttling.iops-total=250,throttling.bps-total=1000000")
        );
        assert_eq!(options[3], "virtio-blk-pci,drive=origin,serial=origin");
        let fast = Disk { speed: Speed::Memory, ..slow };
        assert!(!fast.options(Path::new("/x/origin"))[1].contains("throttling"));
    }
}
