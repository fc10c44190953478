//! What clients can connect to: volumes of the cache set and bare devices, by name.
//!
//! Numbers of exports are never used again within a run, so a client of a detached volume cannot
//! end up at another one.

use forebay_engine::format::SetId;
use forebay_engine::units::VolumeSlot;
use forebay_nbd::ExportInfo;

use super::ShardError;
use super::latency::Latencies;
use crate::device::DeviceId;

/// Smallest preferred block: what costs the engine no merging.
const PREFERRED_BLOCK_BYTES_MIN: u32 = 4096;
/// Largest preferred block that NBD can express.
const PREFERRED_BLOCK_BYTES_MAX: u32 = 32 << 20;

/// Names an export within a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ExportNumber(u32);

/// Where requests to an export go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// To the engine.
    Volume(VolumeSlot),
    /// Straight to a device.
    Bare(DeviceId),
}

/// What an export is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExportFacts {
    pub(crate) name: String,
    /// Spec of the origin or the bare device.
    pub(crate) device: String,
    pub(crate) size_bytes: u64,
    pub(crate) logical_block_bytes: u32,
    pub(crate) optimal_io_bytes: u32,
    pub(crate) is_read_only: bool,
    pub(crate) is_rotational: bool,
    /// Names what is served, over restarts: see [`volume_identity`] and [`device_identity`].
    pub(crate) identity: u64,
}

#[cfg(test)]
impl ExportFacts {
    /// A volume of 64 MiB for tests of front ends.
    pub(crate) fn example() -> ExportFacts {
        ExportFacts {
            name: "home".into(),
            device: "/dev/null".into(),
            size_bytes: 64 << 20,
            logical_block_bytes: 512,
            optimal_io_bytes: 0,
            is_read_only: false,
            is_rotational: false,
            identity: device_identity("/dev/null"),
        }
    }
}

/// What begins every identity, in its upper half: ASCII `frby`.
const IDENTITY_MARK: u64 = 0x6672_6279 << 32;

/// Names a volume of a cache set, with its cache or without.
pub(crate) fn volume_identity(set: &SetId, volume: u64) -> u64 {
    let mut text = b"volume".to_vec();
    text.extend_from_slice(set);
    text.extend_from_slice(&volume.to_le_bytes());
    identity(&text)
}

/// Names a device that is served as it is.
pub(crate) fn device_identity(spec: &str) -> u64 {
    identity(format!("device{spec}").as_bytes())
}

fn identity(text: &[u8]) -> u64 {
    IDENTITY_MARK | crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, text)
}

/// Why a front end cannot have an export for itself.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum NotClaimable {
    /// There is none of this name, but these.
    Unknown { known: Vec<String> },
    /// A front end has it already.
    Taken,
}

/// One export.
pub(crate) struct Export {
    pub(crate) facts: ExportFacts,
    pub(crate) target: Target,
    pub(crate) latencies: Latencies,
    /// Why it cannot be served, if it cannot: its device is missing, or its front end has failed.
    unavailable: Option<String>,
    /// Why it is refused to clients of NBD, if another front end has it.
    taken: Option<&'static str>,
    is_detaching: bool,
    is_removed: bool,
}

impl Export {
    /// Whether its volume is gone. The slot of that may be another one's by now.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Why it cannot be connected to, if it cannot.
    pub(crate) fn unavailable(&self) -> Option<String> {
        let is_detaching = self.is_detaching.then(|| "it is being detached".to_owned());
        self.unavailable.clone().or(is_detaching)
    }
}

/// All exports of a shard.
pub(crate) struct ExportTable {
    exports: Vec<Export>,
    /// What is offered to clients, and the numbers of these exports, in the same order.
    offered: Vec<ExportInfo>,
    offered_numbers: Vec<ExportNumber>,
}

impl ExportTable {
    pub(crate) fn new() -> ExportTable {
        ExportTable { exports: Vec::new(), offered: Vec::new(), offered_numbers: Vec::new() }
    }

    /// Adds an export; offers it to clients unless it is unavailable.
    pub(crate) fn add(
        &mut self,
        facts: ExportFacts,
        target: Target,
        unavailable: Option<String>,
    ) -> Result<ExportNumber, ShardError> {
        let refuse = |reason: String| ShardError::Export { name: facts.name.clone(), reason };
        if self.iter().any(|(_, export)| export.facts.name == facts.name) {
            return Err(refuse("the name is taken".into()));
        }
        info(&facts).validate().map_err(|error| refuse(error.to_string()))?;
        let number = ExportNumber(u32::try_from(self.exports.len()).expect("attaches are few"));
        let latencies = Latencies::new();
        let (is_detaching, is_removed) = (false, false);
        let taken = None;
        let export =
            Export { facts, target, latencies, unavailable, taken, is_detaching, is_removed };
        self.exports.push(export);
        self.offer();
        Ok(number)
    }

    /// The export of this name, for a front end that wants it for itself.
    pub(crate) fn claimable(&self, name: &str) -> Result<ExportNumber, NotClaimable> {
        let Some(number) = self.named(name) else {
            let known = self.iter().map(|(_, export)| export.facts.name.clone()).collect();
            return Err(NotClaimable::Unknown { known });
        };
        if self[number].taken.is_some() { Err(NotClaimable::Taken) } else { Ok(number) }
    }

    /// Gives an export to one front end alone; clients of others are told why.
    pub(crate) fn claim(&mut self, number: ExportNumber, why: &'static str) {
        self.exports[number.0 as usize].taken = Some(why);
        self.offer();
    }

    /// Notes why an export cannot be served.
    pub(crate) fn make_unavailable(&mut self, number: ExportNumber, why: String) {
        self.exports[number.0 as usize].unavailable = Some(why);
        self.offer();
    }

    /// Takes an export away from clients that connect later.
    pub(crate) fn remove(&mut self, number: ExportNumber) {
        self.exports[number.0 as usize].is_removed = true;
        self.offer();
    }

    /// Hides an export from clients that connect later.
    pub(crate) fn begin_detach(&mut self, number: ExportNumber) {
        self.exports[number.0 as usize].is_detaching = true;
        self.offer();
    }

    /// Shows an export again whose detach has failed, if it was available before.
    pub(crate) fn cancel_detach(&mut self, number: ExportNumber) {
        self.exports[number.0 as usize].is_detaching = false;
        self.offer();
    }

    /// Changes the size that later clients see.
    pub(crate) fn resize(&mut self, number: ExportNumber, size_bytes: u64) {
        let facts = &mut self.exports[number.0 as usize].facts;
        facts.size_bytes = size_bytes;
        self.offer();
    }

    /// The size that clients of an export see: up to its last whole logical block.
    pub(crate) fn shown_size_bytes(&self, number: ExportNumber) -> u64 {
        info(&self[number].facts).size_bytes
    }

    fn offer(&mut self) {
        self.offered.clear();
        self.offered_numbers.clear();
        for (number, export) in (0..).map(ExportNumber).zip(&self.exports) {
            let is_hidden = export.is_removed || export.is_detaching;
            if !is_hidden && export.unavailable.is_none() {
                self.offered.push(ExportInfo { refusal: export.taken, ..info(&export.facts) });
                self.offered_numbers.push(number);
            }
        }
    }

    /// What the handshake shows to clients.
    pub(crate) fn offered(&self) -> &[ExportInfo] {
        &self.offered
    }

    /// The export at a place in [`ExportTable::offered`].
    pub(crate) fn number_at(&self, place: usize) -> ExportNumber {
        self.offered_numbers[place]
    }

    /// Exports that were not removed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExportNumber, &Export)> {
        (0..).map(ExportNumber).zip(&self.exports).filter(|(_, export)| !export.is_removed)
    }

    /// The export of a volume.
    pub(crate) fn of_volume(&self, slot: VolumeSlot) -> Option<ExportNumber> {
        let target = Target::Volume(slot);
        self.iter().find(|(_, export)| export.target == target).map(|(number, _)| number)
    }

    /// Exports of volumes in slots that are not in use any more.
    pub(crate) fn of_departed(&self, is_used: impl Fn(VolumeSlot) -> bool) -> Vec<ExportNumber> {
        let is_departed = |export: &Export| match export.target {
            Target::Volume(slot) => !is_used(slot),
            Target::Bare(_) => false,
        };
        self.iter().filter(|(_, export)| is_departed(export)).map(|(number, _)| number).collect()
    }

    /// The export of a name.
    pub(crate) fn named(&self, name: &str) -> Option<ExportNumber> {
        self.iter().find(|(_, export)| export.facts.name == name).map(|(number, _)| number)
    }

    /// Forgets all latencies.
    pub(crate) fn reset_counters(&mut self) {
        for export in &mut self.exports {
            export.latencies.reset();
        }
    }
}

impl std::ops::Index<ExportNumber> for ExportTable {
    type Output = Export;

    fn index(&self, number: ExportNumber) -> &Export {
        &self.exports[number.0 as usize]
    }
}

impl std::ops::IndexMut<ExportNumber> for ExportTable {
    fn index_mut(&mut self, number: ExportNumber) -> &mut Export {
        &mut self.exports[number.0 as usize]
    }
}

fn info(facts: &ExportFacts) -> ExportInfo {
    let preferred = facts
        .optimal_io_bytes
        .checked_next_power_of_two()
        .unwrap_or(PREFERRED_BLOCK_BYTES_MIN)
        .clamp(PREFERRED_BLOCK_BYTES_MIN, PREFERRED_BLOCK_BYTES_MAX);
    let unit = u64::from(facts.logical_block_bytes);
    ExportInfo {
        name: facts.name.clone(),
        description: String::new(),
        // Bytes behind the last whole logical block cannot be addressed.
        size_bytes: facts.size_bytes / unit * unit,
        logical_block_bytes: facts.logical_block_bytes,
        preferred_block_bytes: preferred,
        is_read_only: facts.is_read_only,
        is_rotational: facts.is_rotational,
        // All connections of an export end in one engine or one device, in one thread.
        supports_multi_conn: true,
        supports_fast_zero: false,
        refusal: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> ExportFacts {
        ExportFacts {
            name: name.into(),
            device: "/dev/null".into(),
            size_bytes: 10_000 * 512,
            logical_block_bytes: 4096,
            optimal_io_bytes: 96 << 10,
            is_read_only: false,
            is_rotational: true,
            identity: device_identity("/dev/null"),
        }
    }

    #[test]
    fn numbers_survive_the_removal_of_others() {
        let mut table = ExportTable::new();
        let first = table.add(facts("a"), Target::Volume(VolumeSlot(0)), None).unwrap();
        let second = table.add(facts("b"), Target::Volume(VolumeSlot(1)), None).unwrap();
        assert!(table.add(facts("b"), Target::Volume(VolumeSlot(2)), None).is_err());
        table.remove(first);
        assert_eq!(table.offered().len(), 1);
        assert_eq!(table.number_at(0), second);
        assert_eq!(table.named("a"), None);
        let again = table.add(facts("a"), Target::Volume(VolumeSlot(0)), None).unwrap();
        assert_ne!(again, first);
        assert_eq!(table.of_volume(VolumeSlot(0)), Some(again));
    }

    #[test]
    fn volumes_that_are_not_there_any_more_are_found() {
        let mut table = ExportTable::new();
        let first = table.add(facts("a"), Target::Volume(VolumeSlot(0)), None).unwrap();
        let second = table.add(facts("b"), Target::Volume(VolumeSlot(1)), None).unwrap();
        assert_eq!(table.of_departed(|slot| slot == VolumeSlot(1)), [first]);
        table.remove(first);
        assert_eq!(table.of_departed(|slot| slot == VolumeSlot(1)), []);
        assert_eq!(table.of_departed(|_| false), [second]);
    }

    #[test]
    fn what_is_offered_fits_the_protocol() {
        let mut table = ExportTable::new();
        table.add(facts("a"), Target::Volume(VolumeSlot(0)), None).unwrap();
        let offered = &table.offered()[0];
        assert_eq!(offered.size_bytes, 1250 * 4096);
        assert_eq!(offered.preferred_block_bytes, 128 << 10);
    }

    #[test]
    fn what_another_front_end_has_is_refused_with_the_reason() {
        let mut table = ExportTable::new();
        let number = table.add(facts("a"), Target::Volume(VolumeSlot(0)), None).unwrap();
        table.claim(number, "taken");
        assert_eq!(table.offered()[0].refusal, Some("taken"));
        assert_eq!(table.number_at(0), number);
    }

    #[test]
    fn identities_tell_volumes_and_devices_apart() {
        let set: SetId = [7; 16];
        let all = [
            volume_identity(&set, 1),
            volume_identity(&set, 2),
            volume_identity(&[8; 16], 1),
            device_identity("/dev/sda"),
            device_identity("/dev/sdb"),
        ];
        for (place, identity) in all.iter().enumerate() {
            assert_eq!(identity >> 32, 0x6672_6279);
            assert!(!all[..place].contains(identity));
        }
    }

    #[test]
    fn an_unavailable_export_is_listed_and_not_offered() {
        let mut table = ExportTable::new();
        let slot = Target::Volume(VolumeSlot(0));
        table.add(facts("a"), slot, Some("the disk is gone".into())).unwrap();
        assert!(table.offered().is_empty());
        assert_eq!(table.iter().count(), 1);
    }
}
