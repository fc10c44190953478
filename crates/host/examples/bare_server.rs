//! Serves one device over NBD without a cache, to try and to measure the front end by hand.
//!
//! ```sh
//! cargo run --release -p forebay-host --example bare_server -- unix:/tmp/s.sock /dev/shm/disk
//! ```

use forebay_host::{Access, BareExport, Shard, ShardOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, device] = arguments.as_slice() else {
        return Err("usage: bare_server unix:SOCKET|tcp:PORT DEVICE".into());
    };
    let export = BareExport::open("disk", &device.parse()?, Access::ReadWrite)?;
    let options = ShardOptions { listen: vec![listen.parse()?], ..ShardOptions::default() };
    let shard = Shard::new(options, None, vec![export])?;
    for address in shard.addresses() {
        println!("listening on {address}");
    }
    shard.run()?;
    Ok(())
}
