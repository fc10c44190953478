//! A cache set from format to detach, through the NBD front end, and what happens when parts of it
//! are missing, changed or taken.

mod harness;

use std::path::{Path, PathBuf};

use forebay_engine::event::DirtyFate;
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_engine::status::{BlockState, VolumeState};
use forebay_host::offline::{
    FillProgress, FormatOptions, OfflineError, create_cache_file, format, read_superblock,
    write_superblock,
};
use forebay_host::set::{OpenedSet, OriginError, SetError, SetOptions, open_without_cache};
use forebay_host::state_file::StateFile;
use forebay_host::{AdminCommand, AdminError, DeviceSpec, OpenedDevice, Signatures};
use harness::{RawClient, Server, filled_file};

const MIB: usize = 1 << 20;
const SET_ID: [u8; 16] = [0x5e; 16];

/// A directory with a formatted cache file.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        create_cache_file(&place.path("cache"), 64 << 20, &mut |_| {}).unwrap();
        let options = FormatOptions {
            label: "test".into(),
            segment_bytes: None,
            signatures: Signatures::Respect,
            set_id: SET_ID,
        };
        format(&place.cache(), &options).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cache(&self) -> DeviceSpec {
        DeviceSpec::plain(self.path("cache"))
    }

    fn options(&self) -> SetOptions {
        SetOptions { state_directory: self.path("state") }
    }

    fn open(&self) -> Result<OpenedSet, SetError> {
        OpenedSet::open(&self.cache(), &self.options())
    }

    fn serve(&self) -> Server {
        let server = Server::start(self.directory.path(), Some(self.open().unwrap()), Vec::new());
        server.handle.serving_wait().unwrap();
        server
    }

    fn mark(&self, volume: &str) -> forebay_host::state_file::VolumeMark {
        let file = StateFile::of_set(&self.path("state"), &SET_ID);
        let state = file.load().unwrap().unwrap();
        state.volumes.into_iter().find(|mark| mark.name == volume).unwrap()
    }
}

fn attach(server: &Server, name: &str, origin: &Path, mode: CacheMode) {
    let command = AdminCommand::Attach {
        name: name.into(),
        origin: DeviceSpec::plain(origin),
        mode,
        order: WritebackOrder::Coalescing,
        logical_block_bytes: 512,
        settings: Box::default(),
    };
    server.handle.command_wait(command).unwrap();
}

/// A set with one writeback volume of 16 MiB, of which one MiB was written and is dirty.
fn dirty_set() -> (Place, Vec<u8>) {
    let place = Place::new();
    let content = filled_file(&place.path("origin"), 16 * MIB);
    let server = place.serve();
    attach(&server, "home", &place.path("origin"), CacheMode::Writeback);
    let mut client = RawClient::connect(&server.socket, "home");
    client.write(4096, &vec![0x77; MIB]).unwrap();
    drop(client);
    assert!(place.mark("home").dirty_possible);
    server.stop().unwrap();
    (place, content)
}

#[test]
fn a_set_from_format_to_detach() {
    let place = Place::new();
    let mut content = filled_file(&place.path("origin"), 16 * MIB);
    let server = place.serve();
    attach(&server, "home", &place.path("origin"), CacheMode::Writeback);
    let mut client = RawClient::connect(&server.socket, "home");
    assert!(client.read(8 << 20, 1 << 16).unwrap() == content[8 * MIB..][..1 << 16]);
    client.write(512, &[0x77; 8192]).unwrap();
    content[512..512 + 8192].fill(0x77);
    assert!(client.read(0, 1 << 16).unwrap() == content[..1 << 16]);
    let refused = server.handle.command_wait(AdminCommand::Detach {
        volume: "home".into(),
        dirty: DirtyFate::WrittenBack,
    });
    let Err(AdminError::ClientsConnected { peers, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(peers.len(), 1);
    let status = server.handle.status_wait().unwrap();
    let volume = status.exports[0].volume.as_ref().unwrap();
    assert_eq!(volume.state, VolumeState::Serving);
    assert!(volume.dirty_blocks >= 2, "{volume:?}");
    assert!(status.exports[0].latency.write.count == 1);
    let map = server.handle.block_map_wait("home", 0..3).unwrap();
    assert!(map.iter().any(|(_, _, state)| *state == BlockState::Dirty), "{map:?}");
    server.stop().unwrap();
    drop(client);

    let server = place.serve();
    let mut client = RawClient::connect(&server.socket, "home");
    assert!(client.read(0, 1 << 20).unwrap() == content[..MIB]);
    drop(client);
    server.handle.command_wait(AdminCommand::Drain { volume: "home".into() }).unwrap();
    assert!(std::fs::read(place.path("origin")).unwrap() == content);
    while server
        .handle
        .command_wait(AdminCommand::Detach { volume: "home".into(), dirty: DirtyFate::WrittenBack })
        .is_err_and(|error| matches!(error, AdminError::ClientsConnected { .. }))
    {}
    let status = server.handle.status_wait().unwrap();
    assert!(status.exports.is_empty());
    // The origin is free again, and so is its name.
    attach(&server, "home", &place.path("origin"), CacheMode::Writethrough);
    server.stop().unwrap();
    assert_eq!(read_superblock(&place.path("cache")).unwrap().slots().count(), 1);
}

#[test]
fn a_second_process_is_refused_both_devices() {
    let place = Place::new();
    filled_file(&place.path("origin"), MIB);
    let server = place.serve();
    attach(&server, "home", &place.path("origin"), CacheMode::Writeback);
    let error = place.open().unwrap_err();
    assert!(matches!(error, SetError::Cache(_)), "{error}");
    assert!(error.to_string().contains("cache"), "{error}");
    let again = AdminCommand::Attach {
        name: "again".into(),
        origin: DeviceSpec::plain(place.path("origin")),
        mode: CacheMode::Writeback,
        order: WritebackOrder::Coalescing,
        logical_block_bytes: 512,
        settings: Box::default(),
    };
    assert!(matches!(server.handle.command_wait(again), Err(AdminError::Origin(_))));
    server.stop().unwrap();
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let place = Place::new();
    filled_file(&place.path("origin"), MIB);
    let server = place.serve();
    let command = AdminCommand::Attach {
        name: "a/b".into(),
        origin: DeviceSpec::plain(place.path("origin")),
        mode: CacheMode::Writeback,
        order: WritebackOrder::Coalescing,
        logical_block_bytes: 512,
        settings: Box::default(),
    };
    assert!(matches!(server.handle.command_wait(command), Err(AdminError::BadVolume { .. })));
    let command = AdminCommand::Drain { volume: "nobody".into() };
    assert!(matches!(server.handle.command_wait(command), Err(AdminError::NoSuchVolume { .. })));
    server.stop().unwrap();
}

#[test]
fn a_missing_origin_keeps_one_volume_out_of_service_and_its_data() {
    let (place, mut content) = dirty_set();
    std::fs::rename(place.path("origin"), place.path("elsewhere")).unwrap();
    let set = place.open().unwrap();
    assert_eq!(set.unavailable().len(), 1);
    assert!(set.unavailable()[0].error.to_string().contains("origin"));
    let server = Server::start(place.directory.path(), Some(set), Vec::new());
    server.handle.serving_wait().unwrap();
    let status = server.handle.status_wait().unwrap();
    assert!(status.exports[0].unavailable.is_some());
    server.stop().unwrap();
    std::fs::rename(place.path("elsewhere"), place.path("origin")).unwrap();
    let server = place.serve();
    let mut client = RawClient::connect(&server.socket, "home");
    content[4096..4096 + MIB].fill(0x77);
    assert!(client.read(0, 2 << 20).unwrap() == content[..2 * MIB]);
    server.stop().unwrap();
}

#[test]
fn a_shrunk_origin_is_refused() {
    let (place, _) = dirty_set();
    let file = std::fs::OpenOptions::new().write(true).open(place.path("origin")).unwrap();
    file.set_len(8 << 20).unwrap();
    let set = place.open().unwrap();
    let error = &set.unavailable()[0].error;
    assert!(matches!(error, OriginError::Shrunk { .. }), "{error}");
}

#[test]
fn without_its_cache_device_a_set_is_served_only_if_the_loss_is_accepted() {
    let (place, content) = dirty_set();
    let open = |accepted: &[String]| open_without_cache(&SET_ID, accepted, &place.options());
    let error = open(&[]).unwrap_err();
    assert!(matches!(&error, SetError::DirtyPossible { volumes } if volumes == &["home"]));
    assert!(matches!(
        open_without_cache(&[1; 16], &[], &place.options()),
        Err(SetError::UnknownSet { .. })
    ));
    let exports = open(&["home".to_owned()]).unwrap();
    assert!(place.mark("home").served_without_cache);
    let server = Server::start(place.directory.path(), None, exports);
    let mut client = RawClient::connect(&server.socket, "home");
    assert!(client.read(0, 2 << 20).unwrap() == content[..2 * MIB]);
    client.write(0, &[0x12; 512]).unwrap();
    server.stop().unwrap();
    drop(client);
    // The device is back: what it holds of the volume is outdated and must not be seen.
    let server = place.serve();
    let mut client = RawClient::connect(&server.socket, "home");
    let read = client.read(0, 2 << 20).unwrap();
    assert!(read[..512].iter().all(|byte| *byte == 0x12));
    assert!(read[512..] == content[512..2 * MIB]);
    server.stop().unwrap();
    assert!(!place.mark("home").served_without_cache);
}

/// A daemon that has the cache device knows nothing of it, and must not say that it was not so.
#[test]
fn a_daemon_does_not_forget_that_another_one_served_without_the_cache() {
    let (place, mut content) = dirty_set();
    std::fs::rename(place.path("origin"), place.path("elsewhere")).unwrap();
    let server = place.serve();
    std::fs::rename(place.path("elsewhere"), place.path("origin")).unwrap();
    let exports = open_without_cache(&SET_ID, &["home".to_owned()], &place.options()).unwrap();
    let other = tempfile::tempdir().unwrap();
    let without = Server::start(other.path(), None, exports);
    let mut client = RawClient::connect(&without.socket, "home");
    client.write(0, &[0x12; 512]).unwrap();
    client.write(8192, &[0x34; 4096]).unwrap();
    drop(client);
    without.stop().unwrap();
    // It saves what it knows.
    filled_file(&place.path("second"), MIB);
    attach(&server, "second", &place.path("second"), CacheMode::Writethrough);
    server.stop().unwrap();
    assert!(place.mark("home").served_without_cache);
    let server = place.serve();
    let mut client = RawClient::connect(&server.socket, "home");
    content[..512].fill(0x12);
    content[8192..12288].fill(0x34);
    assert!(client.read(0, 2 << 20).unwrap() == content[..2 * MIB]);
    server.stop().unwrap();
}

#[test]
fn either_place_of_the_superblock_is_enough() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let path = place.path("cache");
    let superblock = read_superblock(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 65536], 0).unwrap();
    let copy = read_superblock(&path).unwrap();
    assert_eq!(copy.encode(), superblock.encode());
    // The update begins with the place that is damaged.
    assert_eq!(superblock.write_order(), [superblock.geometry.copy_offset, 0]);
    assert_eq!(copy.write_order(), [0, superblock.geometry.copy_offset]);
    file.write_all_at(&[0xff; 65536], superblock.geometry.copy_offset).unwrap();
    let error = read_superblock(&path).unwrap_err();
    assert!(matches!(error, OfflineError::Superblock { .. }), "{error}");
    assert!(error.to_string().contains("magic"), "{error}");
    drop(file);
    let device = OpenedDevice::open_cache(&place.cache()).unwrap();
    write_superblock(&device, &superblock).unwrap();
    assert_eq!(read_superblock(&path).unwrap(), superblock);
}

#[test]
fn a_truncated_cache_device_is_refused() {
    let place = Place::new();
    let file = std::fs::OpenOptions::new().write(true).open(place.path("cache")).unwrap();
    file.set_len(32 << 20).unwrap();
    let error = place.open().unwrap_err();
    assert!(matches!(error, SetError::Truncated { .. }), "{error}");
}

#[test]
fn a_cache_file_is_written_in_full_and_never_over_another_file() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let mut last = FillProgress { done_bytes: 0, total_bytes: 0 };
    create_cache_file(&path, 9 << 20, &mut |progress| {
        assert!(progress.done_bytes > last.done_bytes);
        last = progress;
    })
    .unwrap();
    assert_eq!(last, FillProgress { done_bytes: 9 << 20, total_bytes: 9 << 20 });
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 9 << 20);
    assert!(metadata.blocks() * 512 >= 9 << 20);
    assert!(create_cache_file(&path, 1 << 20, &mut |_| {}).is_err());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 9 << 20);
}

#[test]
fn the_smallest_device_says_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    create_cache_file(&path, 1 << 20, &mut |_| {}).unwrap();
    let options = FormatOptions {
        label: String::new(),
        segment_bytes: None,
        signatures: Signatures::Respect,
        set_id: SET_ID,
    };
    let error = format(&DeviceSpec::plain(&path), &options).unwrap_err();
    assert!(matches!(error, OfflineError::Geometry { .. }), "{error}");
}
