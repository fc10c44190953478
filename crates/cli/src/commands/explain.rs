//! `forebay explain`: why a block is in the cache or not.

use std::fmt::Write;

use crate::admin::api::{ExplainRequest, Explanation};
use crate::admin::client;
use crate::args::ExplainArguments;
use crate::commands::status::duration_text;
use crate::exit::{Exit, Failure};
use crate::output;

/// Runs the command.
pub(crate) fn run(arguments: &ExplainArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref()).map_err(with_remedy)?;
    let request = ExplainRequest { volume: arguments.name.clone(), offset_bytes: arguments.offset };
    let explanation = client::block_on(async { daemon.explain(&request).await })??;
    if arguments.json {
        return output::print_json(&explanation);
    }
    let mut shown = String::new();
    // Writing to a string cannot fail.
    let _ = text(&mut shown, &explanation);
    output::print(&shown)
}

fn with_remedy(failure: Failure) -> Failure {
    if failure.exit == Exit::NotFound {
        failure.or("only a daemon that serves the cache can tell")
    } else {
        failure
    }
}

fn text(text: &mut String, explanation: &Explanation) -> std::fmt::Result {
    let Explanation { volume, offset_bytes, kind, .. } = explanation;
    let state = match (explanation.is_cached, explanation.is_dirty) {
        (false, _) => "not cached".to_owned(),
        (true, true) => format!("cached, dirty, {kind}"),
        (true, false) => format!("cached, clean, {kind}"),
    };
    writeln!(text, "block at {offset_bytes} of {volume}: {state}")?;
    if let Some(copy) = &explanation.copy {
        let age = duration_text(copy.age_ms_max);
        if copy.is_recovered {
            writeln!(text, "  since       possibly before the daemon started, {age} ago")?;
        } else {
            writeln!(text, "  since       at most {age}")?;
        }
        writeln!(
            text,
            "  place       segment {}, block {}, byte {} of the cache device",
            copy.segment, copy.block, copy.cache_offset_bytes
        )?;
        match &copy.record {
            Some(record) => writeln!(
                text,
                "  record      {}, header in block {}, byte {} of the cache device",
                record.sequence, record.block, record.cache_offset_bytes
            )?,
            None => {
                writeln!(
                    text,
                    "  record      {} at most: its header was not read",
                    copy.sequence_max
                )?;
            }
        }
    }
    if let Some(version) = explanation.version {
        writeln!(text, "  version     {version}")?;
    }
    match (explanation.is_cached, explanation.is_kept) {
        (true, Some(true)) => writeln!(text, "  reclaim     keeps it when its turn comes")?,
        (true, Some(false)) => writeln!(text, "  reclaim     drops it when its turn comes")?,
        _ => {}
    }
    if explanation.is_write_pending {
        writeln!(text, "  pending     a write of it is under way")?;
    }
    match &explanation.last_decision {
        Some(decision) => {
            let verdict = if decision.is_admitted { "went to" } else { "did not go to" };
            let (access, reason) = (&decision.access, &decision.reason);
            let age = duration_text(decision.age_ms);
            writeln!(
                text,
                "  decision    {age} ago a {access} in its 64 KiB {verdict} the cache: {reason}"
            )
        }
        None => writeln!(text, "  decision    none, or not known any more"),
    }
}
