//! A volume takes over the size that its origin has now.
//!
//! A thread of its own looks at the origin: a file on a lost server may keep whoever asks waiting,
//! and the loop must not. Then the engine makes the new size durable, and only when it has said so
//! do exports show it ([`Running::refresh_sizes`]), on whatever way it came to be in the table.
//! Clients that cannot be told before they come again are named in the answer.
//!
//! Deliberately absent: growing by itself. An origin that is longer than its volume, because
//! somebody extended it by mistake or for another purpose, changes nothing until an operator says
//! so; starts and the status tell of it.

use std::fs::File;
use std::io;
use std::thread;

use forebay_engine::event::{Command, CommandId};
use forebay_engine::units::{SECTOR_BYTES, VolumeId, VolumeSlot};

use super::exports::ExportNumber;
use super::handle::{AdminError, CommandAnswer, CommandDone, Message, Resized};
use super::run::Running;
use super::served_set::{CommandKind, PendingCommand};
use crate::frontend::FrontEnd;

/// What a thread has found out.
pub(crate) struct Measured {
    id: CommandId,
    /// Of this volume; another one may have its name by now.
    volume: VolumeId,
    slot: VolumeSlot,
    size: io::Result<u64>,
    answer: CommandAnswer,
}

/// An answer that waits for a front end to be done.
pub(super) struct PendingSize {
    export: ExportNumber,
    resized: Resized,
    answer: CommandAnswer,
}

impl Running {
    /// Begins with a look at the origin.
    pub(super) fn resize(&mut self, id: CommandId, name: &str, answer: CommandAnswer) {
        let file = match self.find_origin(name) {
            Ok((slot, volume, file)) => file.map(|file| (slot, volume, file)),
            Err(error) => return answer.send(Err(error)),
        };
        let (slot, volume, file) = match file {
            Ok(found) => found,
            Err(source) => {
                let volume = name.to_owned();
                return answer.send(Err(AdminError::OriginSize { volume, source }));
            }
        };
        let handle = self.handle.clone();
        let spawned = thread::Builder::new().name("size".into()).spawn(move || {
            let size = crate::probe::size_of_file(&file);
            let measured = Measured { id, volume, slot, size, answer };
            handle.send(Message::Measured(Box::new(measured)));
        });
        if let Err(error) = spawned {
            // Whoever asked is told that nobody answers, since the closure is dropped.
            tracing::error!(%error, "the size of the origin of `{name}` cannot be looked at");
        }
    }

    fn find_origin(
        &self,
        name: &str,
    ) -> Result<(VolumeSlot, VolumeId, io::Result<File>), AdminError> {
        let set = self.set.as_ref().ok_or(AdminError::NoCacheSet)?;
        let unknown = || AdminError::NoSuchVolume { name: name.to_owned() };
        let slot = set.slot_named(name).ok_or_else(unknown)?;
        let volume = set.engine.superblock().volume(slot).ok_or_else(unknown)?.id;
        let gone = || AdminError::Engine(forebay_engine::event::CommandError::NoSuchVolume);
        let device = set.origin(slot).ok_or_else(gone)?;
        Ok((slot, volume, self.devices.opened(device).file().try_clone()))
    }

    /// The size of an origin is known.
    pub(super) fn handle_measured(&mut self, measured: Measured) {
        let Measured { id, volume, slot, size, answer } = measured;
        let set = self.set.as_mut().expect("the volume was in a set");
        let stored = set.engine.superblock().volume(slot).filter(|stored| stored.id == volume);
        let sizes = stored.zip(set.engine.volume_size_bytes(slot));
        let Some((stored, size_bytes)) = sizes else {
            let gone = forebay_engine::event::CommandError::NoSuchVolume;
            return answer.send(Err(AdminError::Engine(gone)));
        };
        let name = stored.name.clone();
        let found_bytes = match size {
            // As at an attach: bytes behind the last whole sector are not served.
            Ok(found) => found / SECTOR_BYTES as u64 * SECTOR_BYTES as u64,
            Err(source) => {
                return answer.send(Err(AdminError::OriginSize { volume: name, source }));
            }
        };
        if found_bytes < size_bytes {
            let device = stored.origin_path.clone();
            let volume = name;
            let error = AdminError::OriginSmaller { volume, device, found_bytes, size_bytes };
            return answer.send(Err(error));
        }
        let kind = CommandKind::Resize { slot, old_bytes: size_bytes, new_bytes: found_bytes };
        set.commands.push(PendingCommand { id, kind, answer });
        let command = Command::Grow { volume: slot, size_bytes: found_bytes };
        set.engine.handle_command(self.now, id, command);
    }

    /// The new size is durable. Answers when all that can be told of it are.
    pub(super) fn end_resize(
        &mut self,
        slot: VolumeSlot,
        (old_bytes, new_bytes): (u64, u64),
        answer: CommandAnswer,
    ) {
        let resized = Resized { old_bytes, new_bytes, clients: Vec::new() };
        let Some(export) = self.exports.of_volume(slot) else {
            let resized = Some(resized);
            return answer.send(Ok(CommandDone { resized, ..CommandDone::default() }));
        };
        self.pending_sizes.push(PendingSize { export, resized, answer });
        self.answer_sizes();
    }

    /// Answers those for whom no front end is at work any more.
    pub(super) fn answer_sizes(&mut self) {
        let front = &self.front;
        let done: Vec<_> = self
            .pending_sizes
            .extract_if(.., |pending| !front.is_resizing(pending.export))
            .collect();
        for PendingSize { export, mut resized, answer } in done {
            resized.clients = self.front.size_reach(export);
            let resized = Some(resized);
            answer.send(Ok(CommandDone { resized, ..CommandDone::default() }));
        }
    }

    /// Shows clients the sizes that volumes in service have.
    pub(super) fn refresh_sizes(&mut self) {
        let set = self.set.as_ref().expect("events come from the engine");
        let sizes: Vec<(VolumeSlot, u64)> = set
            .engine
            .volume_ids()
            .filter_map(|(slot, _)| Some((slot, set.engine.volume_size_bytes(slot)?)))
            .collect();
        for (slot, size_bytes) in sizes {
            let Some(export) = self.exports.of_volume(slot) else { continue };
            if self.exports[export].facts.size_bytes == size_bytes {
                continue;
            }
            self.exports.resize(export, size_bytes);
            let (front, mut context) = self.front();
            front.resize(&mut context, export);
        }
    }
}
