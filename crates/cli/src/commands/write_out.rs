//! `forebay write-out`: what a daemon has done by a process of its own.

use forebay_host::write_out_disk;

use crate::args::WriteOutArguments;
use crate::exit::Failure;

/// Runs the command.
pub(crate) fn run(arguments: &WriteOutArguments) -> Result<(), Failure> {
    let device = &arguments.device;
    write_out_disk(device)
        .map_err(|error| Failure::failed(format!("cannot write out {}: {error}", device.display())))
}
