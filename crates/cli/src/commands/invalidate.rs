//! `forebay invalidate`: forgets the clean copies of a volume.

use crate::admin::client;
use crate::args::InvalidateArguments;
use crate::exit::Failure;
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &InvalidateArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let name = &arguments.name;
    client::block_on(daemon.invalidate(name))??;
    output::print(&format!("nothing of volume `{name}` is cached any more\n"))
}
