//! `forebay stop`: ends a daemon, after draining its volumes if asked to.

use crate::admin::client::{self, AdminClient};
use crate::args::StopArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &StopArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let pid = client::block_on(stop(&daemon, arguments.drain))??;
    output::print(&format!("daemon {pid} has stopped\n"))
}

async fn stop(daemon: &AdminClient, drains: bool) -> Result<u32, Failure> {
    let status = daemon.status().await?;
    if drains {
        for export in status.exports.iter().filter(|export| export.volume.is_some()) {
            let name = export.name.as_str();
            if export.unavailable.is_some() && export.volume.as_ref().is_some_and(is_clean) {
                continue;
            }
            let label = format!("draining `{name}`");
            online::with_drain_progress(daemon, name, &label, daemon.drain(name)).await.map_err(
                |failure| {
                    Failure::new(failure.exit, format!("volume `{name}`: {failure}"))
                        .or("the daemon goes on; stop it without --drain to keep its dirty data")
                },
            )?;
        }
    }
    daemon.stop().await?;
    Ok(status.pid)
}

fn is_clean(volume: &crate::admin::api::Volume) -> bool {
    volume.dirty_bytes == 0
}
