//! The NBD front end over bare devices, with foreign clients and with rude ones.

mod harness;
#[path = "../src/skip.rs"]
mod skip;

use std::io::Write;
use std::path::Path;

use forebay_host::{
    Access, AdminCommand, AdminError, BareExport, DeviceSpec, ListenAddress, ShardOptions,
};
use harness::{
    DISCONNECT, FLUSH, READ, RawClient, Server, WRITE, filled_file, qemu_io, run_tool, run_well,
};
use skip::skip;

const MIB: usize = 1 << 20;

struct Disk {
    directory: tempfile::TempDir,
    content: Vec<u8>,
}

impl Disk {
    fn new(bytes: usize) -> Disk {
        Disk::within(tempfile::tempdir().unwrap(), bytes)
    }

    fn within(directory: tempfile::TempDir, bytes: usize) -> Disk {
        let content = filled_file(&directory.path().join("disk"), bytes);
        Disk { directory, content }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn export(&self, access: Access) -> BareExport {
        let spec = DeviceSpec::plain(self.path().join("disk"));
        BareExport::open("disk", &spec, access).unwrap()
    }

    fn serve(&self) -> Server {
        Server::start(self.path(), None, vec![self.export(Access::ReadWrite)])
    }

    fn on_disk(&self) -> Vec<u8> {
        std::fs::read(self.path().join("disk")).unwrap()
    }
}

#[test]
fn nbdinfo_understands_what_is_offered() {
    let disk = Disk::new(4 * MIB);
    let server = disk.serve();
    let Some(text) = run_well("nbdinfo", &[&server.uri("disk")]) else {
        return skip("nbdinfo_understands_what_is_offered", "nbdinfo");
    };
    for expected in [
        "export-size: 4194304",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "x-forebay:cache",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    let map = run_well("nbdinfo", &["--map", &server.uri("disk")]).unwrap();
    assert!(map.split_whitespace().eq(["0", "4194304", "0", "data"]), "{map}");
    let list = run_well("nbdinfo", &["--list", &server.uri("")]).unwrap();
    assert!(list.contains("export=\"disk\""), "{list}");
    assert!(!run_tool("nbdinfo", &[&server.uri("nope")]).unwrap().status.success());
    server.stop().unwrap();
}

/// Copies a disk out and another one in, and compares.
fn copy_both_ways(test: &str, disk: &Disk) {
    let server = disk.serve();
    let out = disk.path().join("out");
    let out_text = out.display().to_string();
    if run_well("nbdcopy", &[&server.uri("disk"), &out_text]).is_none() {
        return skip(test, "nbdcopy");
    }
    assert!(std::fs::read(&out).unwrap() == disk.content);
    let other: Vec<u8> = disk.content.iter().map(|byte| byte ^ 0xff).collect();
    std::fs::write(&out, &other).unwrap();
    run_well("nbdcopy", &["--flush", "--connections=4", &out_text, &server.uri("disk")]).unwrap();
    server.stop().unwrap();
    assert!(disk.on_disk() == other);
}

#[test]
fn nbdcopy_copies_out_and_in() {
    copy_both_ways("nbdcopy_copies_out_and_in", &Disk::new(48 * MIB));
}

#[test]
fn nbdcopy_copies_a_disk_in_memory() {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(directory) => {
            let disk = Disk::within(directory, 24 * MIB + 512);
            copy_both_ways("nbdcopy_copies_a_disk_in_memory", &disk);
        }
        Err(_) => skip("nbdcopy_copies_a_disk_in_memory", "/dev/shm"),
    }
}

#[test]
fn qemu_io_writes_parts_of_blocks_zeroes_and_discards() {
    let disk = Disk::new(32 * MIB);
    let server = disk.serve();
    let commands = [
        "write -P 0x11 0 64k",
        "write -P 0x22 512 512",
        "read -P 0x11 0 512",
        "read -P 0x22 512 512",
        "read -P 0x11 1024 63k",
        "write -f -P 0x33 8k 4k",
        "read -P 0x33 8k 4k",
        "write -z 4096 8192",
        "read -P 0 4096 8192",
        "write -z -u 32k 16k",
        "read -P 0 32k 16k",
        "discard 48k 16k",
        "write -P 0x44 1048064 20M",
        "read -P 0x44 1048064 20M",
        "aio_write -P 0x55 24M 1M",
        "aio_write -P 0x66 25M 1M",
        "aio_flush",
        "read -P 0x55 24M 1M",
        "read -P 0x66 25M 1M",
        "flush",
    ];
    if qemu_io(&server.uri("disk"), &commands).is_none() {
        return skip("qemu_io_writes_parts_of_blocks_zeroes_and_discards", "qemu-io");
    }
    server.stop().unwrap();
    let found = disk.on_disk();
    assert!(found[512..1024].iter().all(|byte| *byte == 0x22));
    assert!(found[4096..12288].iter().all(|byte| *byte == 0));
    assert!(found[30 * MIB..] == disk.content[30 * MIB..]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let disk = Disk::new(16 * MIB);
    let server = disk.serve();
    let uri = format!("--uri={}", server.uri("disk"));
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        uri.as_str(),
        "--rw=randwrite",
        "--bsrange=512-128k",
        "--blockalign=512",
        "--size=16m",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randrepeat=1",
        "--fsync=50",
    ];
    match run_tool("fio", &arguments) {
        None => skip("fio_verifies_what_it_wrote", "fio"),
        Some(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            if text.contains("engine nbd not loadable") {
                skip("fio_verifies_what_it_wrote", "fio's nbd engine");
            } else {
                assert!(output.status.success(), "{text}");
            }
        }
    }
    let latency = server.handle.status_wait().unwrap().exports[0].latency;
    assert_eq!(latency.write.count > 0, latency.flush.count > 0);
    server.stop().unwrap();
}

#[test]
fn tcp_on_a_port_of_the_kernels_choice() {
    let disk = Disk::new(MIB);
    let options =
        ShardOptions { listen: vec!["tcp:0".parse().unwrap()], ..ShardOptions::default() };
    let bare = vec![disk.export(Access::ReadWrite)];
    let server = Server::start_with(disk.path(), options, None, bare);
    let Some(ListenAddress::Tcp(address)) = server.addresses.get(1) else { panic!("no address") };
    let uri = format!("nbd://{address}/disk");
    if qemu_io(&uri, &["write -P 9 0 8k", "read -P 9 0 8k"]).is_none() {
        return skip("tcp_on_a_port_of_the_kernels_choice", "qemu-io");
    }
    server.stop().unwrap();
}

#[test]
fn a_read_only_export_refuses_writes_and_does_not_change() {
    let disk = Disk::new(MIB);
    let server = Server::start(disk.path(), None, vec![disk.export(Access::ReadOnly)]);
    let mut client = RawClient::connect(&server.socket, "disk");
    assert_eq!(client.write(0, &[7; 4096]), Err(1));
    assert!(client.read(0, 4096).unwrap() == disk.content[..4096]);
    server.stop().unwrap();
    assert!(disk.on_disk() == disk.content);
}

#[test]
fn the_largest_request_at_the_most_awkward_place() {
    let disk = Disk::new(40 * MIB);
    let server = disk.serve();
    let mut client = RawClient::connect(&server.socket, "disk");
    let length = 32 * MIB;
    let read = client.read(512, length as u32).unwrap();
    assert!(read == disk.content[512..512 + length]);
    client.write(1024, &read).unwrap();
    assert!(client.read(1024, length as u32).unwrap() == read);
    assert_eq!(client.read(0, length as u32 + 512), Err(22));
    drop(client);
    server.stop().unwrap();
    assert!(disk.on_disk()[1024..1024 + length] == read);
}

#[test]
fn what_lies_beyond_the_end_is_refused_and_the_connection_goes_on() {
    let disk = Disk::new(MIB);
    let server = disk.serve();
    let mut client = RawClient::connect(&server.socket, "disk");
    assert_eq!(client.size_bytes, MIB as u64);
    assert_eq!(client.read(MIB as u64, 512), Err(22));
    assert_eq!(client.write(MIB as u64 - 512, &[1; 1024]), Err(28));
    assert_eq!(client.read(1, 512), Err(22));
    client.send(99, 5, 0, 0);
    assert_eq!(client.reply(), (22, 5));
    assert!(client.read(MIB as u64 - 512, 512).is_ok());
    client.send(FLUSH, 6, 0, 0);
    assert_eq!(client.reply(), (0, 6));
    client.send(DISCONNECT, 7, 0, 0);
    assert!(client.is_closed());
    server.stop().unwrap();
}

/// Who reads no replies is not read any more, whatever the requests are.
#[test]
fn requests_that_are_refused_come_to_a_bound_too() {
    use std::io::ErrorKind;
    const BYTES_MAX: usize = 64 * MIB;
    let disk = Disk::new(MIB);
    let server = disk.serve();
    let mut client = RawClient::connect(&server.socket, "disk");
    client.stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let header = RawClient::header(99, 5, 0, 0);
    let many = header.repeat(64);
    let mut sent = 0;
    let stopped = loop {
        // A part of a header may be left; the server waits for the rest of it.
        match client.stream.write(&many[sent % header.len()..]) {
            Ok(bytes) if sent < BYTES_MAX => sent += bytes,
            Ok(_) => break false,
            Err(error) => {
                break matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    };
    assert!(stopped, "{sent} bytes were taken");
    let whole = sent.div_ceil(header.len());
    let rest = header[header.len() - (whole * header.len() - sent)..].to_vec();
    let mut writer = client.stream.try_clone().unwrap();
    let end = std::thread::spawn(move || writer.write_all(&rest).unwrap());
    for _ in 0..whole {
        assert_eq!(client.reply(), (22, 5));
    }
    end.join().unwrap();
    assert!(client.read(0, 4096).is_ok());
    drop(client);
    server.stop().unwrap();
}

#[test]
fn rude_clients_leave_nothing_behind() {
    let disk = Disk::new(8 * MIB);
    let server = disk.serve();
    let connect = || RawClient::connect(&server.socket, "disk");
    // Garbage instead of a handshake, and instead of a request.
    let mut stranger = std::os::unix::net::UnixStream::connect(&server.socket).unwrap();
    stranger.write_all(&[0xff; 4096]).unwrap();
    let mut garbage = connect();
    garbage.stream.write_all(&[0xee; 4096]).unwrap();
    assert!(garbage.is_closed());
    // Gone in the middle of a header, of a small payload, of a large payload, of replies.
    let mut client = connect();
    client.stream.write_all(&RawClient::header(WRITE, 1, 0, 4096)[..9]).unwrap();
    drop(client);
    for length in [4096u32, 4 << 20] {
        let mut client = connect();
        client.send(WRITE, 1, 0, length);
        client.stream.write_all(&vec![5; length as usize / 2]).unwrap();
        drop(client);
    }
    let mut client = connect();
    for cookie in 0..64 {
        client.send(READ, cookie, 0, 1 << 20);
    }
    drop(client);
    // Nobody else notices, nothing is written by halves, and all memory comes back.
    let mut witness = connect();
    assert!(witness.read(0, 1 << 20).unwrap() == disk.content[..MIB]);
    drop(witness);
    drop(stranger);
    // The server learns of a closed socket in its own time; each question takes a turn of its loop.
    let is_clean = || {
        let status = server.handle.status_wait().unwrap();
        status.connections.is_empty() && status.memory.clients.used_bytes == 0
    };
    assert!((0..100_000).any(|_| is_clean()), "{:?}", server.handle.status_wait());
    server.stop().unwrap();
    assert!(disk.on_disk() == disk.content);
}

#[test]
fn clients_that_do_not_read_cannot_keep_the_memory_from_others() {
    let disk = Disk::new(8 * MIB);
    let server = disk.serve();
    // Five clients ask for more than all memory together and take nothing.
    let mut lazy: Vec<RawClient> = Vec::new();
    for _ in 0..5 {
        let mut client = RawClient::connect(&server.socket, "disk");
        for cookie in 0..32 {
            client.send(READ, cookie, 0, 1 << 20);
        }
        lazy.push(client);
    }
    let mut witness = RawClient::connect(&server.socket, "disk");
    for round in 0..8u64 {
        let read = witness.read(round << 20, 1 << 20).unwrap();
        assert!(read == disk.content[round as usize * MIB..][..MIB]);
    }
    let mut slow = RawClient::connect(&server.socket, "disk");
    slow.write(0, &vec![3; 6 << 20]).unwrap();
    drop(lazy);
    server.stop().unwrap();
}

#[test]
fn a_deep_queue_of_small_requests_is_answered_in_full() {
    let disk = Disk::new(4 * MIB);
    let server = disk.serve();
    let mut client = RawClient::connect(&server.socket, "disk");
    let mut sender = client.stream.try_clone().unwrap();
    let count = 2000u64;
    let thread = std::thread::spawn(move || {
        for cookie in 0..count {
            let header = RawClient::header(READ, cookie, cookie % 1024 * 4096, 4096);
            sender.write_all(&header).unwrap();
        }
    });
    let mut seen = vec![false; count as usize];
    for _ in 0..count {
        let (error, cookie) = client.reply();
        assert_eq!(error, 0);
        let mut data = vec![0; 4096];
        std::io::Read::read_exact(&mut client.stream, &mut data).unwrap();
        let place = (cookie % 1024 * 4096) as usize;
        assert!(data == disk.content[place..place + 4096]);
        assert!(!std::mem::replace(&mut seen[cookie as usize], true));
    }
    thread.join().unwrap();
    let status = server.handle.status_wait().unwrap();
    assert_eq!(status.exports[0].latency.read_miss.count, count);
    assert_eq!(status.connections[0].requests, count);
    assert_eq!(status.connections[0].export.as_deref(), Some("disk"));
    assert!(status.connections[0].peer.contains(&format!("pid {}", std::process::id())));
    server.stop().unwrap();
}

#[test]
fn more_clients_than_allowed_are_turned_away() {
    let disk = Disk::new(MIB);
    let options = ShardOptions { connections_max: 2, ..ShardOptions::default() };
    let bare = vec![disk.export(Access::ReadWrite)];
    let server = Server::start_with(disk.path(), options, None, bare);
    let mut first = RawClient::connect(&server.socket, "disk");
    let _second = RawClient::connect(&server.socket, "disk");
    let mut third = std::os::unix::net::UnixStream::connect(&server.socket).unwrap();
    let mut nothing = Vec::new();
    assert_eq!(std::io::Read::read_to_end(&mut third, &mut nothing).unwrap(), 0);
    assert!(first.read(0, 4096).is_ok());
    server.stop().unwrap();
}

#[test]
fn stopping_closes_clients_and_frees_socket_and_device() {
    let disk = Disk::new(MIB);
    let server = disk.serve();
    let socket = server.socket.clone();
    let mut client = RawClient::connect(&socket, "disk");
    assert!(client.read(0, 512).is_ok());
    let handle = server.handle.clone();
    assert!(matches!(
        handle.command_wait(AdminCommand::Drain { volume: "disk".into() }),
        Err(AdminError::NoCacheSet)
    ));
    server.stop().unwrap();
    assert!(client.is_closed());
    assert!(!socket.exists());
    assert!(handle.status_wait().is_err());
    disk.serve().stop().unwrap();
}
