//! `forebay stop`: ends a daemon, after draining its volumes if asked to.

use crate::admin::api::Status;
use crate::admin::client::{self, AdminClient};
use crate::args::StopArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &StopArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let work = async {
        let status = daemon.status().await?;
        if arguments.drain {
            drain_all(&daemon, &status).await?;
        }
        daemon.stop().await?;
        Ok::<_, Failure>(status.pid)
    };
    let pid = client::block_on(work)??;
    output::print(&format!("daemon {pid} has stopped\n"))
}

async fn drain_all(daemon: &AdminClient, status: &Status) -> Result<(), Failure> {
    for export in &status.exports {
        let Some(volume) = &export.volume else { continue };
        // What has nothing to write back needs no origin.
        if export.unavailable.is_some() && volume.dirty_bytes == 0 {
            continue;
        }
        let name = export.name.as_str();
        let label = format!("draining `{name}`");
        let work = online::with_drain_progress(daemon, name, &label, daemon.drain(name));
        work.await.map_err(|failure| {
            failure.or("the daemon goes on; stop it without --drain to keep its dirty data")
        })?;
    }
    Ok(())
}
