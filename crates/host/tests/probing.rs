//! Devices that belong to somebody are recognised, and a format refuses them unless it is forced.

#[path = "../src/skip.rs"]
mod skip;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_host::offline::{FormatOptions, OfflineError, format, read_superblock};
use forebay_host::probe::{OpenError, check_signatures};
use forebay_host::{DeviceSpec, Signatures};

const DISK_BYTES: u64 = 320 << 20;

fn blank(directory: &Path) -> PathBuf {
    let path = directory.join("disk");
    std::fs::File::create(&path).unwrap().set_len(DISK_BYTES).unwrap();
    path
}

fn owner_of(path: &Path) -> Option<&'static str> {
    match check_signatures(path) {
        Ok(()) => None,
        Err(OpenError::Signature { found, .. }) => Some(found.owner),
        Err(error) => panic!("{error}"),
    }
}

fn options(signatures: Signatures) -> FormatOptions {
    FormatOptions { label: "test".into(), segment_bytes: None, signatures, set_id: [9; 16] }
}

/// Lets a tool write its signature, and looks for it. Returns whether the tool is there.
fn check_tool(tool: &str, arguments: &[&str], expected: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = blank(directory.path());
    assert_eq!(owner_of(&path), None);
    match Command::new(tool).args(arguments).arg(&path).output() {
        Ok(output) => assert!(output.status.success(), "{tool}: {output:?}"),
        Err(_) => return false,
    }
    let owner = owner_of(&path).unwrap_or_else(|| panic!("{tool} left no known signature"));
    assert!(owner.contains(expected), "{tool}: found {owner}");
    let spec = DeviceSpec::plain(&path);
    let error = format(&spec, &options(Signatures::Respect)).unwrap_err();
    assert!(matches!(error, OfflineError::Open(OpenError::Signature { .. })), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
    format(&spec, &options(Signatures::Overwrite)).unwrap();
    assert_eq!(read_superblock(&path).unwrap().label, "test");
    assert_eq!(owner_of(&path), Some("forebay cache device"));
    true
}

macro_rules! tool_tests {
    ($($name:ident: $tool:literal $arguments:expr, $expected:literal;)*) => {
        $(#[test]
        fn $name() {
            if !check_tool($tool, &$arguments, $expected) {
                skip::skip(stringify!($name), $tool);
            }
        })*
    };
}

tool_tests! {
    ext4: "mkfs.ext4" ["-q", "-F"], "ext4";
    xfs: "mkfs.xfs" ["-q", "-f"], "XFS";
    btrfs: "mkfs.btrfs" ["-q", "-f"], "Btrfs";
    vfat: "mkfs.vfat" [], "FAT";
    swap: "mkswap" [], "swap";
    luks: "cryptsetup" ["luksFormat", "-q", "--key-file", "/etc/hostname"], "LUKS";
}

#[test]
fn partition_tables() {
    let directory = tempfile::tempdir().unwrap();
    for (label, expected) in [("gpt", "GPT"), ("dos", "MBR")] {
        let path = blank(directory.path());
        let script = format!("printf 'label: {label}\\n,\\n' | sfdisk -q {}", path.display());
        let Ok(output) = Command::new("sh").args(["-c", &script]).output() else {
            skip::skip("partition_tables", "sh");
            return;
        };
        if !output.status.success() {
            skip::skip("partition_tables", "sfdisk");
            return;
        }
        assert!(owner_of(&path).unwrap().contains(expected));
    }
}

#[test]
fn signatures_at_unusual_places() {
    let directory = tempfile::tempdir().unwrap();
    let last = DISK_BYTES;
    let cases: [(u64, &[u8], &str); 9] = [
        (512, b"LABELONE", "LVM2"),
        (4096, b"\xfc\x4e\x2b\xa9", "md 1.2"),
        (last - 8192, b"\xfc\x4e\x2b\xa9", "md 1.0"),
        (last - 65536, b"\xfc\x4e\x2b\xa9", "md 0.90"),
        (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
        (128 << 10, b"\x0c\xb1\xba\x00\x00\x00\x00\x00", "ZFS"),
        (0x400, b"\x10\x20\xf5\xf2", "F2FS"),
        (3, b"NTFS    ", "NTFS"),
        (last - 512, b"EFI PART", "GPT"),
    ];
    for (offset, magic, expected) in cases {
        let path = blank(directory.path());
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(magic, offset).unwrap();
        let owner = owner_of(&path).unwrap_or_else(|| panic!("{expected} is not recognised"));
        assert!(owner.contains(expected), "{expected}: found {owner}");
    }
}

#[test]
fn devices_of_any_size_can_be_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    for bytes in [1, 511, 512, 4095, 4096, 65_535, 131_072, 524_288, 1_000_000] {
        std::fs::write(&path, vec![0x5a; bytes]).unwrap();
        assert_eq!(owner_of(&path), None);
    }
}
