//! `forebay drain`: writes everything back and stays clean.

use forebay_engine::status::VolumeState;
use serde::Serialize;

use crate::admin::client::{self, AdminClient};
use crate::args::DrainArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::{names, output, size};

/// What `--status --json` prints.
#[derive(Serialize)]
struct DrainStatus {
    name: String,
    /// As in `forebay status`.
    state: String,
    cache_mode: String,
    dirty_bytes: u64,
    /// How fast dirty data goes home; absent if nothing was measured.
    writeback_bytes_per_second: Option<u64>,
    /// Absent if no drain is under way or nobody knows.
    seconds_left: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(arguments: &DrainArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let name = arguments.name.as_str();
    if arguments.status {
        let status = client::block_on(drain_status(&daemon, name))??;
        return if arguments.json {
            output::print_json(&status)
        } else {
            output::print(&text(&status))
        };
    }
    let label = format!("draining `{name}`");
    let work = online::with_drain_progress(&daemon, name, &label, daemon.drain(name));
    client::block_on(work)??;
    output::print(&format!("volume `{name}` is clean and goes on in writethrough\n"))
}

async fn drain_status(daemon: &AdminClient, name: &str) -> Result<DrainStatus, Failure> {
    let status = daemon.status().await?;
    let rate = status.cache_set.and_then(|set| set.writeback_bytes_per_second);
    let export = status.exports.into_iter().find(|export| export.name == name);
    let Some(volume) = export.and_then(|export| export.volume) else {
        return Err(Failure::not_found(format!("the daemon serves no volume `{name}`"))
            .or("`forebay status` lists them"));
    };
    let is_draining = volume.state == DRAINING;
    let seconds_left = rate.filter(|_| is_draining).map(|rate| volume.dirty_bytes.div_ceil(rate));
    Ok(DrainStatus {
        name: name.to_owned(),
        state: volume.state,
        cache_mode: volume.cache_mode,
        dirty_bytes: volume.dirty_bytes,
        writeback_bytes_per_second: rate,
        seconds_left,
    })
}

/// The state of a volume while its dirty data is written back for a command.
const DRAINING: &str = names::volume_state_name(VolumeState::Draining);

fn text(status: &DrainStatus) -> String {
    let DrainStatus { name, state, cache_mode, dirty_bytes, .. } = status;
    let dirty = size::text(*dirty_bytes);
    if state != DRAINING {
        return format!("volume `{name}` is not draining: {state}, {cache_mode}, {dirty} dirty\n");
    }
    let rate = status.writeback_bytes_per_second;
    let rate = rate.map(|rate| format!(" at {}/s", size::text(rate))).unwrap_or_default();
    let left = status.seconds_left.map(|left| format!(", {left} s left")).unwrap_or_default();
    format!("volume `{name}` is draining: {dirty} to go{rate}{left}\n")
}
