//! What the commands that speak to a daemon have in common: long work with progress, and Ctrl-C.

use std::future::Future;
use std::time::Duration;

use crate::admin::api::Volume;
use crate::admin::client::AdminClient;
use crate::commands::status_text::extents_text;
use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};

/// How often the daemon is asked how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Waits for `work`, which writes back the dirty data of a volume, and shows how far it is. Ctrl-C
/// drops the work: the daemon sees its client gone and gives the command up.
pub(crate) async fn with_drain_progress<T>(
    daemon: &AdminClient,
    volume: &str,
    label: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut most = dirty_bytes(daemon, volume).await.unwrap_or(0);
    let mut progress = (most > 0).then(|| Progress::start(label, Unit::Bytes, most));
    // One for all of the loop: a signal that comes while the daemon is asked would be lost to a new
    // one.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(work, interrupted);
    let result = loop {
        tokio::select! {
            biased;
            result = &mut work => break result,
            signal = &mut interrupted => {
                let failure = match signal {
                    Ok(()) => Failure::new(
                        Exit::Cancelled,
                        format!("{label} was cancelled; what was written back stays clean"),
                    ),
                    Err(error) => Failure::failed(format!("cannot watch signals: {error}")),
                };
                break Err(failure);
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {
                if let Some(dirty) = dirty_bytes(daemon, volume).await {
                    // Clients may write while the volume is drained.
                    if dirty > most {
                        most = dirty;
                        progress = Some(Progress::start(label, Unit::Bytes, most));
                    }
                    if let Some(progress) = &mut progress {
                        progress.set(most - dirty);
                    }
                }
            }
        }
    };
    if let Some(progress) = progress {
        progress.finish();
    }
    match result {
        Err(failure) if failure.exit == Exit::Failed => {
            Err(with_failed_extents(daemon, volume, failure).await)
        }
        result => result,
    }
}

/// Adds which extents the origin did not take.
async fn with_failed_extents(daemon: &AdminClient, name: &str, failure: Failure) -> Failure {
    let volume = volume(daemon, name).await;
    match volume.and_then(|volume| extents_text(&volume.failed_extents)) {
        Some(extents) => failure.or(format!("not taken by the origin: {extents}")),
        None => failure,
    }
}

async fn dirty_bytes(daemon: &AdminClient, name: &str) -> Option<u64> {
    Some(volume(daemon, name).await?.dirty_bytes)
}

/// What the daemon says of a volume.
pub(crate) async fn volume(daemon: &AdminClient, name: &str) -> Option<Volume> {
    let status = daemon.status().await.ok()?;
    status.exports.into_iter().find(|export| export.name == name)?.volume
}
