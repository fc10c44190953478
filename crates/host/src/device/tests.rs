//! Device I/O on files, files in memory, loop devices and slowed devices.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_engine::io::{IoError, IoId, IoKind, IoResult, Slices};
use forebay_engine::payload::{BufferId, BufferRange};

use super::{Access, DeviceId, DeviceTable, IoOwner, OpenedDevice, Surroundings};
use crate::buffer_pool::{BufferPool, Owner};
use crate::clock::Clock;
use crate::device_spec::DeviceSpec;
use crate::probe::{DeviceKind, OpenError};
use crate::ring::{Ring, Token};
use crate::shard::MemoryOptions;
use crate::skip::skip;

/// A ring, memory and devices, driven one operation at a time.
struct Workbench {
    ring: Ring,
    devices: DeviceTable,
    pool: BufferPool,
    clock: Clock,
}

impl Workbench {
    fn new() -> Workbench {
        Workbench::with_limit(u64::MAX)
    }

    /// Operations are late after so many milliseconds.
    fn with_limit(limit_ms: u64) -> Workbench {
        let options = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
        let pool = BufferPool::new(options).unwrap();
        let mut ring = Ring::new().unwrap();
        let (start, bytes) = pool.memory();
        // SAFETY: the pool outlives the ring: it stands behind it.
        unsafe { ring.register_buffers(start, bytes) };
        Workbench { ring, devices: DeviceTable::new(limit_ms, None), pool, clock: Clock::start() }
    }

    fn add(&mut self, device: OpenedDevice) -> DeviceId {
        self.devices.add(&mut self.ring, device).unwrap()
    }

    fn buffer(&mut self, bytes: usize) -> BufferRange {
        let buffer: BufferId = self.pool.allocate_for(Owner::Clients, bytes).unwrap();
        BufferRange { buffer, offset: 0, length: bytes as u32 }
    }

    /// Runs one operation to its end.
    fn run(&mut self, device: DeviceId, kind: IoKind) -> IoResult {
        let now = self.clock.now();
        let around = &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now };
        self.devices.start(around, device, kind, IoOwner::Engine(IoId(5)));
        self.finish()
    }

    /// Waits for the end of the operation under way.
    fn finish(&mut self) -> IoResult {
        let mut completions = Vec::new();
        while !self.devices.has_finished() {
            self.ring.wait(Some(Duration::from_millis(1))).unwrap();
            self.ring.take_completions(&mut completions);
            let now = self.clock.now();
            for completion in completions.drain(..) {
                let Token::Device(index) = completion.token else { panic!("a device operation") };
                let around = &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now };
                self.devices.handle_completion(around, index, completion.result);
            }
            self.devices.handle_time(now);
        }
        let mut finished = Vec::new();
        self.devices.swap_finished(&mut finished);
        assert_eq!(finished.len(), 1);
        assert_eq!(finished[0].owner, IoOwner::Engine(IoId(5)));
        finished[0].result
    }

    fn write(&mut self, device: DeviceId, offset_bytes: u64, byte: u8, length: usize) -> IoResult {
        let range = self.buffer(length);
        self.pool.slice_mut(range).fill(byte);
        let slices = Slices::One(range);
        self.run(device, IoKind::Write { offset_bytes, slices })
    }

    fn read(&mut self, device: DeviceId, offset_bytes: u64, length: usize) -> Vec<u8> {
        let range = self.buffer(length);
        self.pool.slice_mut(range).fill(0xaa);
        let slices = Slices::One(range);
        self.run(device, IoKind::Read { offset_bytes, slices }).unwrap();
        self.pool.slice_mut(range).to_vec()
    }
}

#[test]
fn an_operation_that_does_not_end_in_time_is_counted_once_and_seen_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let spec = file_of(&directory.path().join("disk"), 8 << 20);
    let mut bench = Workbench::with_limit(0);
    let device = bench.add(OpenedDevice::open_bare(&spec, Access::ReadWrite).unwrap());
    // Longer than what is done at once on a file in memory.
    let slices = Slices::One(bench.buffer(2 << 20));
    let now = bench.clock.now();
    let around = &mut Surroundings { ring: &mut bench.ring, pool: &bench.pool, now };
    let write = IoKind::Write { offset_bytes: 0, slices };
    bench.devices.start(around, device, write, IoOwner::Engine(IoId(5)));
    for _ in 0..2 {
        bench.devices.handle_time(now);
        let report = &bench.devices.report(now.after_ms(7))[0];
        let counts = (report.operations_in_flight, report.late_in_flight, report.late_count);
        assert_eq!((counts, report.oldest_ms), ((1, 1, 1), 7));
    }
    assert_eq!(bench.devices.next_wakeup(), None, "it is told of once");
    bench.finish().unwrap();
    let report = &bench.devices.report(now)[0];
    let counts = (report.operations_in_flight, report.late_in_flight, report.late_count);
    assert_eq!((counts, report.oldest_ms), ((0, 0, 1), 0));
}

#[test]
fn what_a_device_is_asked_for_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let spec = file_of(&directory.path().join("disk"), 8 << 20);
    let mut bench = Workbench::new();
    let device = bench.add(OpenedDevice::open_bare(&spec, Access::ReadWrite).unwrap());
    bench.write(device, 0, 1, 8192).unwrap();
    bench.write(device, 1 << 20, 2, 4096).unwrap();
    bench.read(device, 4096, 4096);
    bench.run(device, IoKind::Flush).unwrap();
    let asked = bench.devices.report(bench.clock.now())[0].asked;
    assert_eq!((asked.read_count, asked.read_bytes), (1, 4096));
    assert_eq!((asked.write_count, asked.written_bytes), (2, 12_288));
}

fn file_of(path: &Path, bytes: u64) -> DeviceSpec {
    std::fs::File::create_new(path).unwrap().set_len(bytes).unwrap();
    DeviceSpec::plain(path)
}

/// What every device must do, whatever is behind it.
fn check_all_operations(device: OpenedDevice) {
    let mut bench = Workbench::new();
    let size = device.facts().size_bytes;
    let device = bench.add(device);
    bench.write(device, 8192, 0x11, 12288).unwrap();
    assert_eq!(bench.read(device, 8192, 12288), vec![0x11; 12288]);
    bench.write(device, size - 4096, 0x22, 4096).unwrap();
    assert_eq!(bench.read(device, size - 4096, 4096), vec![0x22; 4096]);
    bench.run(device, IoKind::Flush).unwrap();
    for may_unmap in [false, true] {
        bench.write(device, 0, 0x33, 16384).unwrap();
        let zero = IoKind::WriteZeroes { offset_bytes: 4096, length_bytes: 8192, may_unmap };
        bench.run(device, zero).unwrap();
        let read = bench.read(device, 0, 16384);
        assert!(read[..4096].iter().chain(&read[12288..]).all(|byte| *byte == 0x33));
        assert!(read[4096..12288].iter().all(|byte| *byte == 0));
    }
    let (offset_bytes, length_bytes) = (65536, 65536);
    bench.run(device, IoKind::Discard { offset_bytes, length_bytes }).unwrap();
    check_vectored(&mut bench, device);
    check_the_end(&mut bench, device, size);
    assert!(bench.devices.is_idle());
    bench.devices.remove(&mut bench.ring, device);
}

/// More pieces than one system call takes, and of unlike length.
fn check_vectored(bench: &mut Workbench, device: DeviceId) {
    let pieces: Vec<BufferRange> = (0..1500u32)
        .map(|index| {
            let range = bench.buffer(8192).slice(512 * (index % 8), 512 + 512 * (index % 2));
            bench.pool.slice_mut(range).fill(index as u8);
            range
        })
        .collect();
    let slices = Slices::Many(pieces.clone());
    let total = slices.total_bytes();
    bench.run(device, IoKind::Write { offset_bytes: 1 << 20, slices: slices.clone() }).unwrap();
    for piece in &pieces {
        bench.pool.slice_mut(*piece).fill(0xaa);
    }
    bench.run(device, IoKind::Read { offset_bytes: 1 << 20, slices }).unwrap();
    for (index, piece) in (0u32..).zip(&pieces) {
        assert!(bench.pool.slice_mut(*piece).iter().all(|byte| *byte == index as u8), "{index}");
    }
    let whole = bench.read(device, 1 << 20, total.next_multiple_of(4096) as usize);
    assert!(whole[..512].iter().all(|byte| *byte == 0));
    assert!(whole[512..1536].iter().all(|byte| *byte == 1));
}

fn check_the_end(bench: &mut Workbench, device: DeviceId, size: u64) {
    let range = bench.buffer(8192);
    let slices = Slices::One(range);
    let result = bench.run(device, IoKind::Read { offset_bytes: size - 4096, slices });
    assert_eq!(result, Err(IoError::Media), "a read behind the end must not succeed");
}

#[test]
fn a_file_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let spec = file_of(&directory.path().join("disk"), 16 << 20);
    let device = OpenedDevice::open_bare(&spec, Access::ReadWrite).unwrap();
    if device.facts().kind != DeviceKind::File {
        skip("a_file_on_disk", "the directory for temporary files is not on a disk");
        return;
    }
    assert!(device.facts().has_volatile_cache);
    check_all_operations(device);
}

#[test]
fn a_file_in_memory() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        skip("a_file_in_memory", "/dev/shm");
        return;
    };
    let spec = file_of(&directory.path().join("disk"), 16 << 20);
    let device = OpenedDevice::open_bare(&spec, Access::ReadWrite).unwrap();
    assert_eq!(device.facts().kind, DeviceKind::MemoryFile);
    check_all_operations(device);
}

#[test]
fn a_slowed_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    file_of(&path, 16 << 20);
    let spec: DeviceSpec = format!("iops:2000:{}", path.display()).parse().unwrap();
    let device = OpenedDevice::open_origin(&spec).unwrap();
    assert!(device.origin_facts().is_rotational);
    let clock = Clock::start();
    check_all_operations(device);
    // At least ten transfers of half a millisecond each.
    assert!(clock.now().0 > 5_000_000);
}

/// A loop device over a file, until it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn over(path: &Path) -> Option<LoopDevice> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !name.is_empty()).then_some(LoopDevice(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    file_of(&path, 16 << 20);
    let Some(device) = LoopDevice::over(&path) else {
        skip("a_block_device", "losetup, or the right to use it");
        return;
    };
    let spec: DeviceSpec = device.0.parse().unwrap();
    let opened = OpenedDevice::open_bare(&spec, Access::ReadWrite).unwrap();
    assert_eq!(opened.facts().kind, DeviceKind::BlockDevice);
    assert_eq!(opened.facts().size_bytes, 16 << 20);
    let error = OpenedDevice::open_origin(&spec).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. } | OpenError::Locked { .. }), "{error}");
    check_all_operations(opened);
    // The file behind it belongs to the loop device.
    let error = OpenedDevice::open_origin(&DeviceSpec::plain(&path)).unwrap_err();
    assert!(error.to_string().contains("loop"), "{error}");
}

#[test]
fn a_cache_file_stays_allocated_whatever_is_discarded() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    crate::offline::create_cache_file(&path, 8 << 20, &mut |_| {}).unwrap();
    let device = OpenedDevice::open_cache(&DeviceSpec::plain(&path)).unwrap();
    assert!(!device.cache_facts().supports_discard);
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let before = allocated();
    assert!(before >= 8 << 20, "{before}");
    let mut bench = Workbench::new();
    let device = bench.add(device);
    bench.write(device, 0, 0x44, 1 << 20).unwrap();
    let (offset_bytes, length_bytes) = (0, 4 << 20);
    bench.run(device, IoKind::Discard { offset_bytes, length_bytes }).unwrap();
    let kind = IoKind::WriteZeroes { offset_bytes, length_bytes, may_unmap: true };
    bench.run(device, kind).unwrap();
    assert_eq!(bench.read(device, 0, 4096), vec![0; 4096]);
    bench.run(device, IoKind::Flush).unwrap();
    assert!(allocated() >= before);
}

#[test]
fn a_second_opener_is_refused_and_told_which_device() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let spec = file_of(&path, 1 << 20);
    let first = OpenedDevice::open_origin(&spec).unwrap();
    let error = OpenedDevice::open_cache(&spec).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }));
    assert!(error.to_string().contains(&path.display().to_string()));
    drop(first);
    let reader = OpenedDevice::open_bare(&spec, Access::ReadOnly).unwrap();
    let second_reader = OpenedDevice::open_bare(&spec, Access::ReadOnly).unwrap();
    assert!(OpenedDevice::open_origin(&spec).is_err());
    drop((reader, second_reader));
    OpenedDevice::open_origin(&spec).unwrap();
}

#[test]
fn what_is_no_device_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| OpenedDevice::open_origin(&DeviceSpec::plain(path)).unwrap_err();
    assert!(matches!(open(directory.path()), OpenError::NotADevice { .. }));
    assert!(matches!(open(Path::new("/dev/null")), OpenError::NotADevice { .. }));
    assert!(matches!(open(&directory.path().join("none")), OpenError::Open { .. }));
    let empty = directory.path().join("empty");
    file_of(&empty, 100);
    assert!(matches!(open(&empty), OpenError::Empty { .. }));
}

#[test]
fn an_odd_tail_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let spec = file_of(&directory.path().join("disk"), 8192 + 512 + 100);
    let device = OpenedDevice::open_origin(&spec).unwrap();
    assert_eq!(device.facts().size_bytes, 8192 + 512);
    assert_eq!(device.facts().odd_tail_bytes, 100);
}
