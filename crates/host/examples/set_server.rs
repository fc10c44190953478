//! Makes a cache set of two devices and serves it over NBD, to try and to measure by hand. What the
//! cache device held before is gone.
//!
//! ```sh
//! cargo run --release -p forebay-host --example set_server -- \
//!     unix:/tmp/s.sock /dev/shm/cache /dev/shm/origin writeback
//! ```

use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_host::offline::{FormatOptions, format};
use forebay_host::set::{OpenedSet, SetOptions};
use forebay_host::{AdminCommand, Shard, ShardOptions, Signatures};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, cache, origin, mode] = arguments.as_slice() else {
        return Err("usage: set_server unix:SOCKET|tcp:PORT CACHE ORIGIN MODE".into());
    };
    let mode = match mode.as_str() {
        "writeback" => CacheMode::Writeback,
        "writethrough" => CacheMode::Writethrough,
        "writearound" => CacheMode::Writearound,
        "writeonly" => CacheMode::Writeonly,
        "passthrough" => CacheMode::Passthrough,
        _ => return Err("no such mode".into()),
    };
    let cache = cache.parse()?;
    let state = tempfile::tempdir()?;
    let options = FormatOptions {
        label: "trial".into(),
        segment_bytes: None,
        signatures: Signatures::Overwrite,
        set_id: [7; 16],
    };
    format(&cache, &options)?;
    let set = OpenedSet::open(&cache, &SetOptions { state_directory: state.path().into() })?;
    let options = ShardOptions { listen: vec![listen.parse()?], ..ShardOptions::default() };
    let shard = Shard::new(options, Some(set), Vec::new())?;
    let handle = shard.handle();
    let thread = std::thread::spawn(move || shard.run());
    handle.serving_wait()?;
    let (name, origin) = ("disk".to_owned(), origin.parse()?);
    handle.command_wait(AdminCommand::Attach {
        name,
        origin,
        mode,
        order: WritebackOrder::Coalescing,
        logical_block_bytes: 512,
        settings: Box::default(),
    })?;
    println!("serving");
    for _ in std::io::stdin().lines() {
        println!("{:#?}", handle.status_wait()?);
    }
    thread.join().expect("the shard does not panic")?;
    Ok(())
}
