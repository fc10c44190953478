//! A slow origin with a cache in front of it, or served bare.
//!
//! The origin is a model of a slow device on top of a file in RAM, so that it is the same each
//! time; the cache is a file on the disk. Both are served by the same front end, and each set is
//! made anew, so that a phase begins with an empty log.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::forebay::{self, Daemon, Order, Program, Set};
use super::ground::Ground;
use super::server::Server;

/// A slow device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Origin {
    HardDisk,
    Throttled,
}

impl Origin {
    pub(super) const ALL: [Origin; 2] = [Origin::HardDisk, Origin::Throttled];

    pub(super) fn title(self) -> &'static str {
        match self {
            Origin::HardDisk => "emulated hard disk",
            Origin::Throttled => "250 transfers a second",
        }
    }

    /// As `forebay attach` takes it.
    fn device(self, file: &Path) -> String {
        match self {
            Origin::HardDisk => format!("hdd:{}", file.display()),
            Origin::Throttled => format!("iops:250:{}", file.display()),
        }
    }
}

/// Whether the origin's file is there as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// So many bytes from its beginning on are; what is behind them is holes.
    Written(u64),
    /// Takes RAM only for what is written home.
    Holes,
}

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) origin_bytes: u64,
    pub(super) fill: Fill,
    pub(super) cache_bytes: u64,
}

impl Sizes {
    /// Bytes that the RAM file system must have room for.
    pub(super) fn ram_bytes(self) -> u64 {
        let bytes = match self.fill {
            Fill::Written(bytes) => bytes,
            Fill::Holes => self.origin_bytes,
        };
        bytes + bytes / 8
    }

    /// Bytes that the disk must have room for.
    pub(super) fn disk_bytes(self) -> u64 {
        self.cache_bytes / 4 * 5
    }
}

/// What a part on slow origins is measured with.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) program: &'a Program,
    /// For the origin.
    pub(super) ram: &'a Ground,
    /// For the cache.
    pub(super) disk: &'a Ground,
}

impl Bench<'_> {
    /// Serves the bare origin; its URI comes with it.
    pub(super) fn serve_bare(
        &self,
        origin: Origin,
        sizes: Sizes,
    ) -> anyhow::Result<(Server, String)> {
        self.serve_file(&self.device(origin, sizes)?)
    }

    /// Serves a device without a cache.
    pub(super) fn serve_file(&self, device: &str) -> anyhow::Result<(Server, String)> {
        let (socket, log) = (self.ram.path("bare.nbd"), self.ram.path("bare.log"));
        let server = self.program.serve_bare(device, &socket, &log)?;
        Ok((server, forebay::uri(forebay::VOLUME, &socket)))
    }

    /// Serves the origin behind an empty cache.
    pub(super) fn serve_cached(
        &self,
        origin: Origin,
        order: Order,
        sizes: Sizes,
    ) -> anyhow::Result<Daemon> {
        let device = self.device(origin, sizes)?;
        let cache = self.disk.path(&format!("cache-{}.img", sizes.cache_bytes));
        let origin = Path::new(&device);
        let set = Set { cache: &cache, origin, bytes: sizes.cache_bytes, order };
        self.program.make_set(set)?;
        self.program.serve(&cache, self.disk)
    }

    fn device(&self, origin: Origin, sizes: Sizes) -> anyhow::Result<String> {
        let bytes = sizes.origin_bytes;
        let file = match sizes.fill {
            Fill::Written(written) => {
                let path = self.ram.file(&format!("origin-{written}.img"), written)?;
                std::fs::File::options().write(true).open(&path)?.set_len(bytes)?;
                path
            }
            Fill::Holes => {
                // Made anew each time: what an earlier phase wrote takes RAM.
                let path = self.ram.path("holes.img");
                std::fs::File::create(&path)?.set_len(bytes)?;
                path
            }
        };
        Ok(origin.device(&file))
    }
}

/// Mean of a few values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
