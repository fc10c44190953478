//! `forebay-sim models`: what others have published of devices, and what the models make of it.

use clap::Args;
use forebay_sim::models::figures;

use super::{CommandResult, Verdict, say};

/// Print published figures of real devices beside those of the models, in virtual time.
///
/// Exit code 1 says that one of them is more than a tenth away.
#[derive(Args, Debug)]
pub(crate) struct Options {}

/// Runs the command.
pub(crate) fn run() -> CommandResult {
    say("| source | device | work | unit | published | modelled | ratio |");
    say("| --- | --- | --- | --- | --: | --: | --: |");
    let mut is_good = true;
    for figure in figures() {
        let decimals = if figure.published < 10.0 { 3 } else { 0 };
        say(format_args!(
            "| {} | {} | {} | {} | {:.decimals$} | {:.decimals$} | {:.2} |",
            figure.source,
            figure.device,
            figure.work,
            figure.unit,
            figure.published,
            figure.modelled,
            figure.ratio()
        ));
        is_good &= figure.is_near();
    }
    Ok(if is_good { Verdict::Good } else { Verdict::Violation })
}
