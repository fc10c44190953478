//! `forebay resize`: makes a volume as long as its origin is now.

use std::fmt::Write;

use forebay_host::SizeReach;

use crate::admin::api::Resized;
use crate::admin::client;
use crate::args::ResizeArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::{names, output, size};

/// Runs the command.
pub(crate) fn run(arguments: &ResizeArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let name = arguments.name.as_str();
    // Mostly there is nothing to drain: only a last block that is cut short has to go home first.
    let label = format!("growing `{name}`");
    let work = online::with_drain_progress(&daemon, name, &label, daemon.resize(name));
    let resized = client::block_on(work)??;
    if arguments.json { output::print_json(&resized) } else { output::print(&text(&resized)) }
}

fn text(resized: &Resized) -> String {
    let Resized { name, old_size_bytes, size_bytes, clients } = resized;
    let (old, new) = (size::text(*old_size_bytes), size::text(*size_bytes));
    let mut text = if size_bytes == old_size_bytes {
        format!("volume `{name}` has the size of its origin already: {new} ({size_bytes} bytes)\n")
    } else {
        format!("volume `{name}` has grown from {old} to {new} ({size_bytes} bytes)\n")
    };
    for client in clients {
        let when = match names::parse_size_reach(&client.sees_size) {
            Some(SizeReach::Live) => "sees this size",
            Some(SizeReach::Reconnect) => "sees this size when it connects again",
            Some(SizeReach::Restart) => {
                "keeps its size until it is released, and the daemon stopped and started"
            }
            None => &client.sees_size,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}: {when}", client.client);
    }
    text
}
