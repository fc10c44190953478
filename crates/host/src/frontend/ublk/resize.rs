//! A device at work gets the size that its volume has grown to, where the driver can do that.
//!
//! Elsewhere, and after a failure, a device keeps its size as long as it lives: until it is removed
//! by a stop while nobody uses it, and made anew by the next start. A device that is taken over has
//! the size that its predecessor gave it, so it is looked at when it comes to life, too.

use super::control::Control;
use super::device::Phase;
use super::error::{UblkError, block_path};
use super::lifecycle::{Progress, Task};
use super::request::Geometry;
use super::{UblkFrontEnd, abi};
use crate::shard::exports::{ExportNumber, ExportTable};

impl UblkFrontEnd {
    /// The size of an export is another.
    pub(super) fn note_size(&mut self, exports: &ExportTable, export: ExportNumber) {
        for index in 0..self.devices.len() {
            if self.devices[index].export == export {
                self.devices[index].wanted.geometry = Geometry::of(&exports[export].facts);
                self.begin_resize(index);
            }
        }
    }

    /// Tells the driver of a new size, if there is one and it can be told.
    pub(super) fn begin_resize(&mut self, index: usize) {
        let can_resize = self.can_resize;
        let device = &mut self.devices[index];
        let sectors = device.wanted.geometry.sectors;
        let is_due = device.phase == Phase::Live && sectors > device.shown_sectors;
        if !is_due || !can_resize || device.is_resizing {
            return;
        }
        // Before the driver knows: requests behind the old end come as soon as it does.
        device.accept_up_to(sectors);
        device.is_resizing = true;
        let (number, name) = (device.number, device.wanted.name.clone());
        self.spawn(index, Task::Resize, move |tell| {
            let updated = Control::open().and_then(|mut control| {
                control.update_size(number, sectors).map_err(|source| UblkError::Command {
                    command: abi::Operation::UpdateSize.name(),
                    name,
                    source,
                })
            });
            tell(Progress::Resized(updated.map(|()| sectors)));
        });
    }

    /// The driver has answered.
    pub(super) fn on_resized(&mut self, index: usize, result: Result<u64, UblkError>) {
        let device = &mut self.devices[index];
        device.is_resizing = false;
        let path = block_path(device.number);
        match result {
            Ok(sectors) => {
                device.shown_sectors = sectors;
                tracing::info!(device = path, sectors, "has grown");
                // It may have grown again meanwhile.
                self.begin_resize(index);
            }
            Err(error) => {
                tracing::warn!(%error, device = path, "keeps its size until it is made anew");
            }
        }
    }
}
