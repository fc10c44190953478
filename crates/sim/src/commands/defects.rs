//! `forebay-sim defects`: how many runs it takes to find each deliberate defect of the engine.

use clap::Args;

use super::{CommandResult, parse_seed};

/// Plant each deliberate defect of the engine and make runs until one has a violation.
///
/// Needs a build with --features planted-defects.
#[derive(Args, Debug)]
#[cfg_attr(not(feature = "planted-defects"), allow(dead_code))]
#[command(after_help = "\
Exit codes:
  0  all were found
  1  some were not
  2  the arguments are wrong, or the build has no defects

Examples:
  forebay-sim defects
  forebay-sim defects --only FuaAsPlainWrite --finds 10")]
pub(crate) struct Options {
    /// Plant only this defect; also one of those that are not known to be found
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Seed of the first run for each defect
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// Most runs for each defect
    #[arg(long, value_name = "N", default_value = "20000",
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds_max: u64,
    /// Go on until so many runs have found the defect, to learn how many it takes on average
    #[arg(long, value_name = "K", default_value = "1",
          value_parser = clap::value_parser!(u64).range(1..))]
    finds: u64,
    /// Print a list in JSON at the end and nothing else
    #[arg(long)]
    json: bool,
}

/// Without the feature the engine has no defects to look for.
#[cfg(not(feature = "planted-defects"))]
pub(crate) fn run(_options: &Options) -> CommandResult {
    let build = "cargo run --release -p forebay-sim --features planted-defects -- defects";
    Err(format!("this build has no deliberate defects; build with them: {build}"))
}

#[cfg(feature = "planted-defects")]
pub(crate) use planted::run;

#[cfg(feature = "planted-defects")]
mod planted {
    use forebay_engine::defects::Defect;
    use forebay_sim::planted::{Finding, Search, search_all};

    use super::{CommandResult, Options};
    use crate::commands::{Verdict, say, seeds};

    /// Runs the command.
    pub(crate) fn run(options: &Options) -> CommandResult {
        let seeds = seeds(options.seed, options.seeds_max)?;
        let search = Search { seeds, finds: options.finds };
        let defects = chosen(options.only.as_deref())?;
        let searches: Vec<_> = defects.iter().map(|defect| (*defect, search.clone())).collect();
        let findings = search_all(&searches, |finding| {
            if !options.json {
                say(finding);
            }
        });
        let found = findings.iter().filter(|finding| finding.first.is_some()).count();
        if options.json {
            let lines: Vec<String> = findings.iter().map(json).collect();
            say(format_args!("[\n{}\n]", lines.join(",\n")));
        } else {
            say(format_args!("{found} of {} found", findings.len()));
        }
        Ok(if found == findings.len() { Verdict::Good } else { Verdict::Violation })
    }

    fn chosen(only: Option<&str>) -> Result<Vec<Defect>, String> {
        let Some(only) = only else {
            let is_sought = |defect: &&Defect| !Defect::ELUSIVE.contains(defect);
            return Ok(Defect::ALL.iter().filter(is_sought).copied().collect());
        };
        if let Some(defect) = Defect::ALL.iter().find(|defect| defect.name() == only) {
            return Ok(vec![*defect]);
        }
        let names: Vec<&str> = Defect::ALL.iter().map(|defect| defect.name()).collect();
        Err(format!("--only {only} is none of {}", names.join(", ")))
    }

    /// Everything in it is ASCII, which Rust and JSON quote alike.
    fn json(finding: &Finding) -> String {
        let Finding { defect, runs, finds, first } = finding;
        let (name, rule, text) = (defect.name(), defect.rule(), defect.text());
        let kind = finding.kind().map_or("null".to_owned(), |kind| format!("{kind:?}"));
        let (after, seed) = match first {
            Some((after, outcome)) => (after.to_string(), outcome.seed.to_string()),
            None => ("null".to_owned(), "null".to_owned()),
        };
        format!(
            "  {{\"defect\": {name:?}, \"rule\": {rule:?}, \"text\": {text:?}, \
             \"found_after\": {after}, \"seed\": {seed}, \"kind\": {kind}, \"runs\": {runs}, \
             \"finds\": {finds}}}"
        )
    }
}
