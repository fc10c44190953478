//! `forebay detach`: drains a volume and takes it off its cache device.

use crate::admin::api::DetachRequest;
use crate::admin::client;
use crate::args::DetachArguments;
use crate::commands::{discard_dirty, online};
use crate::exit::Failure;
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &DetachArguments) -> Result<(), Failure> {
    if arguments.discard_dirty {
        return discard_dirty::run(arguments);
    }
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let name = arguments.name.as_str();
    let label = format!("detaching `{name}`");
    let request = DetachRequest { volume: name.to_owned(), discard_dirty: false };
    let work = online::with_drain_progress(&daemon, name, &label, daemon.detach(&request));
    let _detached = client::block_on(work)??;
    output::print(&format!("volume `{name}` is detached; its origin holds all of it\n"))
}
