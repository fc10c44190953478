//! `forebay drain`: writes everything back and stays clean.

use crate::admin::client;
use crate::args::DrainArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &DrainArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let name = arguments.name.as_str();
    let label = format!("draining `{name}`");
    let work = online::with_drain_progress(&daemon, name, &label, daemon.drain(name));
    client::block_on(work)??;
    output::print(&format!("volume `{name}` is clean and goes on in writethrough\n"))
}
