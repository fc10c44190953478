//! The host state file: what must survive the loss of a cache device (rule 10 of the design).
//!
//! One small JSON file per cache set in a state directory. It tells a later start, which may find
//! no cache device or an old one, that dirty data may exist only there, or that a volume was
//! written without its cache. It is replaced as a whole: written under a temporary name, synced,
//! renamed, and the directory synced, so that a crash leaves the old or the new content and never a
//! mix.
//!
//! A daemon and one that serves a set without its cache may both save; a lock of the directory
//! keeps them apart, and each looks first at what the other one has said.
//!
//! Saving is synchronous and takes as long as two flushes of the disk below. The loop waits for it:
//! it happens when a volume begins to be dirty and when the table changes, not with requests.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_engine::format::SetId;
use forebay_engine::options::{CacheMode, HostMark};
use forebay_engine::units::VolumeId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of the file's layout.
const STATE_VERSION: u32 = 1;
/// Longest state file that is read: far more than all slots of a volume table need.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// How often, and after what pause each, the lock for saving is tried: longer than the flushes of
/// another process take, and not so long that the loop could not wait for it.
const LOCK_TRIES_MAX: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What is remembered of a cache set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostState {
    version: u32,
    /// Identity of the set, 32 hexadecimal digits.
    set_id: String,
    /// Spec of the cache device when the set was last opened.
    pub cache_device: String,
    /// Label of the set.
    pub label: String,
    /// Volumes by slot.
    pub volumes: Vec<VolumeMark>,
}

/// What is remembered of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMark {
    /// Identity of the volume on its set.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Spec of the origin.
    pub origin: String,
    /// Smallest unit that clients may address.
    pub logical_block_bytes: u32,
    /// Cache mode.
    #[serde(with = "mode_name")]
    pub mode: CacheMode,
    /// Dirty data may exist that only the cache device has.
    pub dirty_possible: bool,
    /// The origin was written while the cache device was not there: its copies are outdated.
    pub served_without_cache: bool,
}

/// Why a state file cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// Reading, writing, syncing or renaming failed.
    #[error("cannot {what} the host state file {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is not what this version writes.
    #[error(
        "the host state file {} cannot be understood ({source}); \
         if no dirty data can exist for its cache set, remove it", path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Its version or its set is another one.
    #[error(
        "the host state file {}: {field} is {found}, expected {expected}", path.display()
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Which field.
        field: &'static str,
        /// As it should be.
        expected: String,
        /// As it is.
        found: String,
    },
}

/// A set's identity as text: 32 hexadecimal digits.
#[must_use]
pub fn set_id_text(set_id: &SetId) -> String {
    set_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The identity that [`set_id_text`] wrote.
#[must_use]
pub fn parse_set_id(text: &str) -> Option<SetId> {
    let digits = text.as_bytes();
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut set_id = [0; 16];
    for (byte, pair) in set_id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(set_id)
}

impl HostState {
    /// Nothing known yet of a set.
    #[must_use]
    pub fn new(set_id: &SetId) -> HostState {
        HostState {
            version: STATE_VERSION,
            set_id: set_id_text(set_id),
            cache_device: String::new(),
            label: String::new(),
            volumes: Vec::new(),
        }
    }

    /// The set.
    #[must_use]
    pub fn set_id(&self) -> SetId {
        parse_set_id(&self.set_id).expect("checked when it was made or read")
    }

    /// What is remembered of a volume.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Option<&VolumeMark> {
        self.volumes.iter().find(|volume| volume.id == id.0)
    }

    /// What the engine is told of a volume when it opens.
    pub(crate) fn host_mark(&self, id: VolumeId) -> HostMark {
        match self.volume(id) {
            Some(mark) if mark.served_without_cache => HostMark::ServedWithoutCache,
            _ => HostMark::None,
        }
    }

    /// Brings the volumes up to date with a volume table, given as marks that say nothing. What is
    /// remembered of each stays, also of those that the table does not name and that may still come
    /// back.
    pub(crate) fn update(
        &mut self,
        table: Vec<VolumeMark>,
        may_come_back: impl Fn(VolumeId) -> bool,
    ) {
        let mut volumes = table;
        for mark in &mut volumes {
            let old = self.volume(VolumeId(mark.id));
            mark.dirty_possible = old.is_some_and(|old| old.dirty_possible);
            mark.served_without_cache = old.is_some_and(|old| old.served_without_cache);
        }
        for old in self.volumes.drain(..) {
            let is_named = volumes.iter().any(|mark| mark.id == old.id);
            if !is_named && may_come_back(VolumeId(old.id)) {
                volumes.push(old);
            }
        }
        self.volumes = volumes;
    }

    /// What is remembered of a volume, to be changed.
    pub(crate) fn volume_mut(&mut self, id: VolumeId) -> Option<&mut VolumeMark> {
        self.volumes.iter_mut().find(|volume| volume.id == id.0)
    }
}

/// One process at a time saves states of a directory. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct StateLock {
    directory: File,
}

/// Where a set's state is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file of a set in a state directory.
    #[must_use]
    pub fn of_set(directory: &Path, set_id: &SetId) -> StateFile {
        StateFile { path: directory.join(format!("{}.json", set_id_text(set_id))) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; `None` if there is none yet.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn load(&self) -> Result<Option<HostState>, StateFileError> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("read", source)),
            Ok(metadata) if metadata.len() > STATE_BYTES_MAX => {
                let source = io::Error::from(io::ErrorKind::FileTooLarge);
                return Err(self.failed("read", source));
            }
            Ok(_) => {}
        }
        let bytes = fs::read(&self.path).map_err(|source| self.failed("read", source))?;
        let state: HostState = serde_json::from_slice(&bytes)
            .map_err(|source| StateFileError::Content { path: self.path.clone(), source })?;
        let mismatch = |field, expected: String, found: String| StateFileError::Mismatch {
            path: self.path.clone(),
            field,
            expected,
            found,
        };
        if state.version != STATE_VERSION {
            let (expected, found) = (STATE_VERSION.to_string(), state.version.to_string());
            return Err(mismatch("version", expected, found));
        }
        let name = self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let expected = name.unwrap_or_default();
        if parse_set_id(&state.set_id).is_none() || state.set_id != expected {
            return Err(mismatch("set_id", expected, state.set_id));
        }
        Ok(Some(state))
    }

    /// Replaces it. When this returns, the new content survives a power cut.
    ///
    /// # Errors
    /// If any step fails; the old content then stands, or the new one, whole.
    pub fn save(&self, state: &HostState) -> Result<(), StateFileError> {
        self.replace(&self.lock()?, state)
    }

    /// Keeps other processes from saving, so that what is loaded now holds until it is replaced.
    ///
    /// # Errors
    /// If another process does not end its own, or the directory cannot be opened.
    pub(crate) fn lock(&self) -> Result<StateLock, StateFileError> {
        let failed = |source| self.failed("lock", source);
        fs::create_dir_all(self.directory()).map_err(|source| self.failed("create", source))?;
        let directory = File::open(self.directory()).map_err(failed)?;
        let mut tries = 1;
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK || tries == LOCK_TRIES_MAX {
                return Err(failed(error.into()));
            }
            tries += 1;
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(StateLock { directory })
    }

    /// As [`StateFile::save`], by who has the lock.
    pub(crate) fn replace(
        &self,
        lock: &StateLock,
        state: &HostState,
    ) -> Result<(), StateFileError> {
        let temporary = self.path.with_extension("json.new");
        let mut bytes = serde_json::to_vec_pretty(state)
            .map_err(|source| StateFileError::Content { path: self.path.clone(), source })?;
        bytes.push(b'\n');
        let mut file = File::create(&temporary).map_err(|source| self.failed("write", source))?;
        file.write_all(&bytes).map_err(|source| self.failed("write", source))?;
        // The content must be there before the name is: a rename may be durable first otherwise.
        file.sync_all().map_err(|source| self.failed("sync", source))?;
        fs::rename(&temporary, &self.path).map_err(|source| self.failed("rename", source))?;
        lock.directory.sync_all().map_err(|source| self.failed("sync", source))
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Removes it, durably.
    ///
    /// # Errors
    /// If it cannot be removed. That there is none is no error.
    pub fn remove(&self) -> Result<(), StateFileError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(self.failed("remove", source)),
            Ok(()) => File::open(self.directory())
                .and_then(|directory| directory.sync_all())
                .map_err(|source| self.failed("sync", source)),
        }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> StateFileError {
        StateFileError::Io { path: self.path.clone(), what, source }
    }
}

/// All states in a directory, sorted by file name. Files of other names are passed over.
///
/// # Errors
/// If the directory or one of the files cannot be read. A directory that is not there holds none.
pub fn list_states(directory: &Path) -> Result<Vec<HostState>, StateFileError> {
    let failed = |source| StateFileError::Io { path: directory.to_owned(), what: "list", source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
        Ok(entries) => entries,
    };
    let mut set_ids = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if let Some(stem) = path.file_stem().filter(|_| is_json)
            && let Some(set_id) = parse_set_id(&stem.to_string_lossy())
        {
            set_ids.push(set_id);
        }
    }
    set_ids.sort_unstable();
    let mut states = Vec::new();
    for set_id in set_ids {
        states.extend(StateFile::of_set(directory, &set_id).load()?);
    }
    Ok(states)
}

/// Cache modes by name.
mod mode_name {
    use forebay_engine::options::CacheMode;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [(CacheMode, &str); 5] = [
        (CacheMode::Writeback, "writeback"),
        (CacheMode::Writethrough, "writethrough"),
        (CacheMode::Writearound, "writearound"),
        (CacheMode::Writeonly, "writeonly"),
        (CacheMode::Passthrough, "passthrough"),
    ];

    pub(super) fn serialize<S: Serializer>(mode: &CacheMode, to: S) -> Result<S::Ok, S::Error> {
        let (_, name) = NAMES.iter().find(|(known, _)| known == mode).expect("all modes");
        to.serialize_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CacheMode, D::Error> {
        let name = String::deserialize(from)?;
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(mode, _)| *mode).ok_or_else(|| D::Error::custom(format!("mode `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> HostState {
        let mut state = HostState::new(&[0xab; 16]);
        state.cache_device = "/dev/nvme0n1p4".into();
        state.label = "big one".into();
        state.volumes.push(VolumeMark {
            id: 7,
            name: "home".into(),
            origin: "hdd:/dev/sdb".into(),
            logical_block_bytes: 512,
            mode: CacheMode::Writeonly,
            dirty_possible: true,
            served_without_cache: false,
        });
        state
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::of_set(&directory.path().join("not/yet/there"), &[0xab; 16]);
        assert_eq!(file.load().unwrap(), None);
        file.save(&example()).unwrap();
        assert_eq!(file.load().unwrap(), Some(example()));
        assert_eq!(list_states(file.path().parent().unwrap()).unwrap(), [example()]);
        file.remove().unwrap();
        assert_eq!(file.load().unwrap(), None);
        file.remove().unwrap();
    }

    #[test]
    fn what_is_remembered_of_a_volume_stays_as_long_as_it_may_come_back() {
        let mut state = example();
        state.volumes[0].served_without_cache = true;
        let remembered = state.volumes[0].clone();
        let named = VolumeMark {
            name: "house".into(),
            dirty_possible: false,
            served_without_cache: false,
            ..remembered.clone()
        };
        state.update(vec![named], |_| false);
        assert_eq!(state.volumes, [VolumeMark { name: "house".into(), ..remembered.clone() }]);
        let other = VolumeMark { id: 8, name: "other".into(), ..remembered };
        state.update(vec![other.clone()], |id| id == VolumeId(7));
        let marks = |state: &HostState, id| state.volume(VolumeId(id)).map(|v| v.dirty_possible);
        assert_eq!([marks(&state, 7), marks(&state, 8)], [Some(true), Some(false)]);
        state.update(vec![other], |_| false);
        assert_eq!([marks(&state, 7), marks(&state, 8)], [None, Some(false)]);
    }

    #[test]
    fn a_save_that_fails_leaves_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::of_set(directory.path(), &[0xab; 16]);
        file.save(&example()).unwrap();
        // The temporary name is taken by a directory, so the save fails before the rename.
        fs::create_dir(file.path().with_extension("json.new")).unwrap();
        let mut newer = example();
        newer.volumes[0].dirty_possible = false;
        assert!(matches!(file.save(&newer), Err(StateFileError::Io { what: "write", .. })));
        assert_eq!(file.load().unwrap(), Some(example()));
    }

    #[test]
    fn one_process_at_a_time_saves() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::of_set(directory.path(), &[0xab; 16]);
        let lock = file.lock().unwrap();
        assert!(matches!(file.save(&example()), Err(StateFileError::Io { what: "lock", .. })));
        assert_eq!(file.load().unwrap(), None);
        file.replace(&lock, &example()).unwrap();
        drop(lock);
        file.save(&example()).unwrap();
    }

    #[test]
    fn a_torn_temporary_file_of_a_crash_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::of_set(directory.path(), &[0xab; 16]);
        file.save(&example()).unwrap();
        fs::write(file.path().with_extension("json.new"), "{\"version\":").unwrap();
        assert_eq!(file.load().unwrap(), Some(example()));
        assert_eq!(list_states(directory.path()).unwrap(), [example()]);
        file.save(&example()).unwrap();
    }

    #[test]
    fn foreign_content_is_refused_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::of_set(directory.path(), &[0xab; 16]);
        fs::write(file.path(), "not json").unwrap();
        assert!(matches!(file.load(), Err(StateFileError::Content { .. })));
        let other = StateFile::of_set(directory.path(), &[0xcd; 16]);
        other.save(&example()).unwrap();
        let error = other.load().unwrap_err();
        assert!(matches!(error, StateFileError::Mismatch { field: "set_id", .. }), "{error}");
    }

    /// Damage to a file: places in parts of its length, and what is put there.
    fn damage() -> impl Strategy<Value = Vec<(f64, Vec<u8>)>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..8),
            "[0-9]{1,30}|-1|1e999|null|true|\\\\u[dD]800|[\\[{\"]{1,200}"
                .prop_map(String::into_bytes),
        ];
        prop::collection::vec((0.0..1.0, piece), 0..4)
    }

    proptest! {
        /// Whatever stands in the file: no panic, the message names the file, and what is
        /// understood is saved and loaded as the same.
        #[test]
        fn a_damaged_file_is_refused_by_name_or_means_what_it_says(
            damage in damage(),
            is_cut in any::<bool>(),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let file = StateFile::of_set(directory.path(), &[0xab; 16]);
            file.save(&example()).unwrap();
            let mut bytes = fs::read(file.path()).unwrap();
            for (place, piece) in damage {
                let at = (place * bytes.len() as f64) as usize;
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece);
                if is_cut {
                    bytes.truncate(at);
                }
            }
            fs::write(file.path(), &bytes).unwrap();
            match file.load() {
                Ok(state) => {
                    let state = state.expect("the file is there");
                    prop_assert_eq!(state.set_id(), [0xab; 16]);
                    file.save(&state).unwrap();
                    prop_assert_eq!(file.load().unwrap(), Some(state));
                }
                Err(error) => {
                    let text = error.to_string();
                    prop_assert!(text.contains(&file.path().display().to_string()), "{text}");
                    prop_assert!(list_states(directory.path()).is_err());
                    prop_assert_eq!(fs::read(file.path()).unwrap(), bytes);
                }
            }
        }
    }
}
