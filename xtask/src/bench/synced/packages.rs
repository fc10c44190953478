//! dpkg: unpacking packages that were made here, one call after the other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use super::super::interrupt;
use super::Count;

/// Packages that are made; each is unpacked again when all were.
const PACKAGES: u32 = 40;
/// Files in each, and their size.
const FILES: u32 = 12;
const FILE_BYTES: usize = 8 << 10;

/// Makes the packages in `folder`.
pub(super) fn make(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let context = || format!("cannot make packages in {}", folder.display());
    let tree = folder.join("tree");
    let control = tree.join("DEBIAN");
    std::fs::create_dir_all(&control).with_context(context)?;
    (0..PACKAGES)
        .map(|number| {
            let text = format!(
                "Package: bench-{number}\nVersion: 1\nArchitecture: all\n\
                 Maintainer: bench <bench@localhost>\nDescription: files to unpack\n"
            );
            std::fs::write(control.join("control"), text).with_context(context)?;
            let files = tree.join("usr");
            std::fs::create_dir_all(files.join(format!("share/bench-{number}")))
                .with_context(context)?;
            for file in 0..FILES {
                let path = files.join(format!("share/bench-{number}/file-{file}"));
                let content = vec![(number + file) as u8; FILE_BYTES];
                std::fs::write(path, content).with_context(context)?;
            }
            let package = folder.join(format!("bench-{number}.deb"));
            let mut command = Command::new("dpkg-deb");
            // Uncompressed: no CPU time that would hide the device.
            command.args(["-Znone", "--root-owner-group", "--build"]).arg(&tree).arg(&package);
            interrupt::capture(&mut command)?;
            std::fs::remove_dir_all(&files).with_context(context)?;
            Ok(package)
        })
        .collect()
}

/// Unpacks packages below `folder` for so many seconds, one at a time.
pub(super) fn unpack(folder: &Path, packages: &[PathBuf], seconds: u64) -> anyhow::Result<Count> {
    let root = folder.join("root");
    let database = root.join("var/lib/dpkg");
    let context = || format!("cannot make {}", database.display());
    std::fs::create_dir_all(database.join("info")).with_context(context)?;
    std::fs::create_dir_all(database.join("updates")).with_context(context)?;
    std::fs::write(database.join("status"), "").with_context(context)?;
    let mut count = Count::default();
    let began = Instant::now();
    for package in packages.iter().cycle() {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.display())).arg("--log=/dev/null");
        let before = Instant::now();
        interrupt::capture(command.arg("--unpack").arg(package))?;
        count.latencies_ms.push(before.elapsed().as_secs_f64() * 1e3);
        if began.elapsed().as_secs() >= seconds {
            break;
        }
    }
    count.seconds = began.elapsed().as_secs_f64();
    Ok(count)
}
