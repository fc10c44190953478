//! Which model a device of a plan is.

use forebay_device_model::{HardDisk, Model, Placement, Remote, Ssd};
use serde::{Deserialize, Serialize};

use super::Device;

/// A kind of device, whose model is fitted to published figures; `forebay-sim models` shows how
/// well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A server disk with 7,200 revolutions a minute.
    Hdd,
    /// A SATA SSD of 2017.
    SataSsd,
    /// A SATA SSD of 128 GB, of about 2013.
    SmallSataSsd,
    /// An NVMe SSD of 2019.
    NvmeSsd,
    /// A volume of a cloud.
    CloudVolume,
}

impl Preset {
    /// Whether distance costs time on it.
    #[must_use]
    pub fn is_rotational(self) -> bool {
        self == Preset::Hdd
    }
}

/// The model of a device; `None` if it has no preset.
#[must_use]
pub fn model(device: &Device) -> Option<Model> {
    Some(match device.preset? {
        Preset::Hdd => {
            let preset = HardDisk::server_7200();
            let spread = match (preset.placement, device.files) {
                (Placement::Spread { piece_bytes, .. }, Some(file_count)) => {
                    Placement::Spread { piece_bytes, file_count }
                }
                (placement, _) => placement,
            };
            let band = |start_bytes| Placement::Band { start_bytes };
            Model::HardDisk(HardDisk {
                placement: device.at.map_or(spread, band),
                queue_depth: device.queue_depth.unwrap_or(preset.queue_depth),
                ..preset
            })
        }
        Preset::SataSsd => Model::Ssd(Ssd::sata_2017()),
        Preset::SmallSataSsd => Model::Ssd(Ssd::sata_128gb()),
        Preset::NvmeSsd => Model::Ssd(Ssd::nvme_2019()),
        Preset::CloudVolume => Model::Remote(Remote::cloud_volume()),
    })
}
