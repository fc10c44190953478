//! Writes down what goes to the devices and what clients are told; see [`crate::recording`].
//!
//! Each entry is one `write` on the recording before the thing itself happens: what the kernel has
//! taken survives the death of this process, so nothing is kept here beyond the entry at hand.
//! Nothing is flushed: a recording is read on the machine that made it, and is not meant to survive
//! a power cut. It slows the daemon down; it is a tool for tests.
//!
//! If the recording cannot be written, that is logged once and it ends there, with a prefix of what
//! happened, which is as good a recording as any. Devices and clients notice nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use forebay_engine::io::{IoKind, Slices};
use forebay_engine::payload::BufferRange;
use forebay_engine::request::{Durability, RequestKind};
use forebay_engine::units::BLOCK_BYTES;

use super::open::{OpenedDevice, Role};
use super::table::{DeviceId, Finished, IoOwner};
use crate::buffer_pool::BufferPool;
use crate::frontend::{ClientReply, ClientRequest};
use crate::recording::{Detail, DeviceRole, Header, Kind, RecordingError, file_header};
use crate::shard::exports::{ExportFacts, ExportNumber};

/// A recording under way.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// `None` once writing has failed.
    file: Option<File>,
    path: PathBuf,
    sequence: u64,
    /// Numbers in the recording.
    devices: HashMap<DeviceId, u32>,
    device_count: u32,
    exports: HashMap<ExportNumber, u32>,
    /// Begins of operations, and requests, that have not ended.
    operations: HashMap<IoOwner, u64>,
    requests: HashMap<u32, u64>,
    /// Memory for the entry at hand.
    entry: Vec<u8>,
}

impl Recorder {
    /// Begins a recording in a new file.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub(crate) fn create(path: &Path) -> Result<Recorder, RecordingError> {
        let failed = |source| RecordingError::Io { path: path.to_owned(), what: "make", source };
        let mut file =
            OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        file.write_all(&file_header()).map_err(failed)?;
        tracing::warn!(file = %path.display(), "recording all writes; this is slow");
        Ok(Recorder {
            file: Some(file),
            path: path.to_owned(),
            sequence: 0,
            devices: HashMap::new(),
            device_count: 0,
            exports: HashMap::new(),
            operations: HashMap::new(),
            requests: HashMap::new(),
            entry: Vec::new(),
        })
    }

    /// A device is put to work.
    pub(super) fn add_device(&mut self, id: DeviceId, device: &OpenedDevice) {
        let role = match device.role() {
            Role::Cache => DeviceRole::Cache,
            Role::Origin => DeviceRole::Origin,
            Role::Bare | Role::BareReadOnly => DeviceRole::Bare,
        };
        let header = Header {
            detail: Detail::of_role(role),
            length_bytes: device.facts().size_bytes,
            ..Header::new(Kind::Device)
        };
        self.append(&header, device.spec().to_string().as_bytes());
        self.devices.insert(id, self.device_count);
        self.device_count += 1;
    }

    /// A device is about to get an operation.
    pub(super) fn begin(&mut self, pool: &BufferPool, id: DeviceId, kind: &IoKind, owner: IoOwner) {
        let object = self.devices[&id];
        let (offset_bytes, length_bytes) = kind.extent_bytes();
        let of = |kind| Header { object, offset_bytes, length_bytes, ..Header::new(kind) };
        let sequence = match kind {
            IoKind::Read { .. } => return,
            IoKind::Write { slices, .. } => self.append_data(&of(Kind::BeginWrite), pool, slices),
            IoKind::Flush => self.append(&of(Kind::BeginFlush), &[]),
            IoKind::Discard { .. } => self.append(&of(Kind::BeginDiscard), &[]),
            IoKind::WriteZeroes { may_unmap, .. } => {
                let header = of(Kind::BeginWriteZeroes);
                let detail = if *may_unmap { header.detail.and_may_unmap() } else { header.detail };
                self.append(&Header { detail, ..header }, &[])
            }
        };
        self.operations.insert(owner, sequence);
    }

    /// Whoever waits for an operation is about to be told of its end.
    pub(super) fn end(&mut self, finished: &Finished) {
        // Reads, and what was refused because its device is not there, have not begun here.
        if let Some(ends) = self.operations.remove(&finished.owner) {
            let detail = Detail::of_io(finished.result);
            self.append(&Header { detail, ends, ..Header::new(Kind::End) }, &[]);
        }
    }

    /// A client's request is about to be carried out.
    pub(crate) fn request(
        &mut self,
        pool: &BufferPool,
        request: &ClientRequest,
        export: &ExportFacts,
    ) {
        let (offset_bytes, length_bytes) = (request.offset_bytes, request.length_bytes);
        let (kind, durability, data) = match request.kind {
            RequestKind::Read { .. } | RequestKind::Prefetch => return,
            RequestKind::Write { buffer, durability } => {
                let offset = (offset_bytes % BLOCK_BYTES as u64) as u32;
                let length = length_bytes as u32;
                let range = BufferRange { buffer, offset, length };
                (Kind::RequestWrite, durability, Some(range))
            }
            RequestKind::Flush => (Kind::RequestFlush, Durability::Completed, None),
            RequestKind::Discard { durability } => (Kind::RequestDiscard, durability, None),
            RequestKind::WriteZeroes { durability, .. } => {
                (Kind::RequestWriteZeroes, durability, None)
            }
        };
        let mut detail = Detail::of_durability(durability);
        if let RequestKind::WriteZeroes { may_unmap: true, .. } = request.kind {
            detail = detail.and_may_unmap();
        }
        let object = self.export(request.export, export);
        let header = Header { detail, object, offset_bytes, length_bytes, ..Header::new(kind) };
        let sequence = match data {
            Some(range) => self.append_data(&header, pool, &Slices::One(range)),
            None => self.append(&header, &[]),
        };
        self.requests.insert(request.number, sequence);
    }

    /// A client is about to be answered.
    pub(crate) fn answer(&mut self, reply: &ClientReply) {
        if let Some(ends) = self.requests.remove(&reply.number) {
            let detail = Detail::of_answer(reply.result);
            self.append(&Header { detail, ends, ..Header::new(Kind::Answer) }, &[]);
        }
    }

    /// The number of an export; the first time it gets an entry.
    fn export(&mut self, number: ExportNumber, facts: &ExportFacts) -> u32 {
        if let Some(known) = self.exports.get(&number) {
            return *known;
        }
        let length_bytes = facts.size_bytes;
        let header = Header { length_bytes, ..Header::new(Kind::Export) };
        self.append(&header, facts.name.as_bytes());
        let next = u32::try_from(self.exports.len()).expect("exports are few");
        self.exports.insert(number, next);
        next
    }

    fn append_data(&mut self, header: &Header, pool: &BufferPool, slices: &Slices) -> u64 {
        let mut data = Vec::with_capacity(slices.total_bytes() as usize);
        for range in slices.as_slice() {
            data.extend_from_slice(pool.slice(*range));
        }
        self.append(header, &data)
    }

    /// Writes an entry; returns its sequence number.
    fn append(&mut self, header: &Header, payload: &[u8]) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        if let Some(file) = &mut self.file {
            self.entry.clear();
            self.entry.extend_from_slice(&header.encode(sequence, payload));
            self.entry.extend_from_slice(payload);
            if let Err(error) = file.write_all(&self.entry) {
                self.stop(&error);
            }
        }
        sequence
    }

    fn stop(&mut self, error: &io::Error) {
        self.file = None;
        let (path, entries) = (self.path.display(), self.sequence);
        tracing::error!(
            "cannot write the recording {path}: {error}; it ends after {entries} entries, and the \
             daemon goes on without it"
        );
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::io::IoId;

    use super::*;
    use crate::recording::{Entry, Operation, RecordingReader};
    use crate::shard::MemoryOptions;

    #[test]
    fn a_recording_that_cannot_be_written_ends_and_nobody_else_notices() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("recording");
        let mut recorder = Recorder::create(&path).unwrap();
        let options = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
        let pool = BufferPool::new(options).unwrap();
        let disk = directory.path().join("disk");
        std::fs::write(&disk, [0; 8192]).unwrap();
        let spec = crate::DeviceSpec::plain(&disk);
        let id = DeviceId(0);
        recorder.add_device(id, &OpenedDevice::open_origin(&spec).unwrap());
        let flush = |recorder: &mut Recorder, number: u64| {
            let owner = IoOwner::Engine(IoId(number));
            recorder.begin(&pool, id, &IoKind::Flush, owner);
            recorder.end(&Finished { owner, result: Ok(()) });
        };
        flush(&mut recorder, 1);
        // A descriptor that cannot be written through.
        recorder.file = Some(File::open(&path).unwrap());
        flush(&mut recorder, 2);
        flush(&mut recorder, 3);
        assert!(recorder.file.is_none());
        let entries: Vec<Entry> =
            RecordingReader::open(&path).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1], Entry::Begin { device: 0, operation: Operation::Flush });
        assert_eq!(entries[2], Entry::End { begin: 1, result: Ok(()) });
    }
}
