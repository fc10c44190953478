//! `forebay-sim fuzz`: damaged bytes for whatever reads a cache device.

use clap::Args;
use forebay_sim::fuzz;

use super::{CommandResult, Verdict, parse_seed, say};

/// Hand damaged bytes to a parser. Without NAME the fuzzers are listed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim fuzz                                    which there are
  forebay-sim fuzz device                             the cases of the tests
  forebay-sim fuzz device --seed 536                  one case
  forebay-sim fuzz device --seed 1 --cases 10000")]
pub(crate) struct Options {
    /// The fuzzer
    name: Option<String>,
    /// Seed of the first case [default: 0]
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    seed: Option<u64>,
    /// How many cases [default: one with --seed, else those of the tests]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    cases: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let Some(target) = options.name.as_deref().and_then(fuzz::find) else {
        let list = fuzz::TARGETS.map(|target| format!("  {:<12} {}", target.name, target.about));
        return Err(format!("fuzz needs one of these names:\n{}", list.join("\n")));
    };
    let default_cases = if options.seed.is_some() { 1 } else { target.test_cases };
    let cases = options.cases.unwrap_or(default_cases);
    match target.run(options.seed.unwrap_or(0), cases) {
        Ok(reached) => {
            say(format_args!("{}: {cases} cases, all good", target.name));
            for (what, count) in reached.iter() {
                say(format_args!("  {count:>8} {what}"));
            }
            Ok(Verdict::Good)
        }
        Err(bad) => {
            say(bad);
            Ok(Verdict::Violation)
        }
    }
}
