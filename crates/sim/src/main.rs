//! The command line of the simulator.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use forebay_sim::fuzz;
use forebay_sim::hunt::{Catch, Kind, hunt};
use forebay_sim::reference::{Fault, Reference};
use forebay_sim::run::run_with;
use forebay_sim::sweep::{Sweep, sweep};
use forebay_sim::under_test::launch_engine;
use forebay_sim::{Plan, RunOptions, TraceMode, run};
use peak_alloc::PeakAlloc;

/// Counts what is allocated: the fuzzers bound it.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const USAGE: &str = "\
forebay-sim run --seed N [--runs M] [--long] [--reference] [--trace | --watch VOLUME:BLOCK]
                [--fail-cache-io N | --fail-origin-io N | --kill-at-io N | --cut-power-at-io N]
    Makes the runs of seeds N to N + M - 1 and stops at the first violation. With --reference the
    pass-through engine runs that the simulator is tested with.
forebay-sim hunt --runs M [--seed S] [--long] [--reference]
    Makes M runs and lists the kinds of violation with the shortest example of each.
forebay-sim sweep [--seed S] [--runs M] [--stride N]
    Fails each operation in turn, kills at each, cuts the power at each, for M small worlds.
forebay-sim fuzz NAME [--seed N] [--cases M]
    Hands damaged bytes to a parser, from seed N on; one case with --seed alone, else those of the
    tests. Without NAME the fuzzers are listed.
The exit code is 0 if all was well, 1 after a violation, 2 if the arguments are wrong.";

struct Arguments(Vec<String>);

impl Arguments {
    fn take_flag(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|argument| argument == name);
        found.map(|index| self.0.remove(index)).is_some()
    }

    fn take_value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(index) = self.0.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if index + 1 >= self.0.len() {
            return Err(format!("{name} needs a value"));
        }
        self.0.remove(index);
        Ok(Some(self.0.remove(index)))
    }

    fn take_number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.take_value(name)? else { return Ok(None) };
        let number = value.parse().map_err(|_| format!("{name} {value} is not a number"))?;
        Ok(Some(number))
    }

    fn finish(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |argument| Err(format!("{argument} is not understood")))
    }
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = if arguments.is_empty() { String::new() } else { arguments.remove(0) };
    let arguments = Arguments(arguments);
    let result = match command.as_str() {
        "run" => run_command(arguments),
        "hunt" => hunt_command(arguments),
        "sweep" => sweep_command(arguments),
        "fuzz" => fuzz_command(arguments),
        _ => Err(USAGE.to_string()),
    };
    result.unwrap_or_else(|message| {
        eprintln!("{message}");
        ExitCode::from(2)
    })
}

/// Writes a line. A reader that has left (`| head`) is no error: the exit code still tells how it
/// went.
fn say(line: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        assert!(error.kind() == ErrorKind::BrokenPipe, "cannot write to stdout: {error}");
    }
}

fn parse_watch(value: &str) -> Result<TraceMode, String> {
    let parsed = value
        .split_once(':')
        .and_then(|(volume, block)| Some((volume.parse().ok()?, block.parse().ok()?)));
    let (volume, block) = parsed.ok_or(format!("--watch {value} is not VOLUME:BLOCK"))?;
    Ok(TraceMode::Watch { volume, block })
}

fn parse_plan(arguments: &mut Arguments) -> Result<Plan, String> {
    type MakePlan = fn(u64) -> Plan;
    let plans: [(&str, MakePlan); 4] = [
        ("--fail-cache-io", Plan::FailCacheIo),
        ("--fail-origin-io", Plan::FailOriginIo),
        ("--kill-at-io", Plan::KillAtIo),
        ("--cut-power-at-io", Plan::CutPowerAtIo),
    ];
    for (name, plan) in plans {
        if let Some(n) = arguments.take_number(name)? {
            return Ok(plan(n));
        }
    }
    Ok(Plan::Seeded)
}

fn run_command(mut arguments: Arguments) -> Result<ExitCode, String> {
    let seed = arguments.take_number("--seed")?.ok_or("run needs --seed")?;
    let runs = arguments.take_number("--runs")?.unwrap_or(1);
    let long = arguments.take_flag("--long");
    let plan = parse_plan(&mut arguments)?;
    let trace = match (arguments.take_flag("--trace"), arguments.take_value("--watch")?) {
        (true, _) => TraceMode::Full,
        (false, Some(value)) => parse_watch(&value)?,
        (false, None) => TraceMode::Ring,
    };
    let is_reference = arguments.take_flag("--reference");
    arguments.finish()?;
    for seed in seed..seed + runs {
        let options = RunOptions { long, trace, plan };
        let outcome = if is_reference {
            run_with(seed, options, &Reference::launcher(Fault::None))
        } else {
            run(seed, options)
        };
        for line in &outcome.trace {
            say(line);
        }
        if outcome.failure.is_some() {
            say(&outcome);
            return Ok(ExitCode::FAILURE);
        }
        if runs == 1 {
            say(&outcome);
            for (name, number) in outcome.stats.named() {
                say(format_args!("  {number:>8} {name}"));
            }
        }
    }
    if runs > 1 {
        say(format_args!("{runs} runs, all good"));
    }
    Ok(ExitCode::SUCCESS)
}

fn hunt_command(mut arguments: Arguments) -> Result<ExitCode, String> {
    let seed = arguments.take_number("--seed")?.unwrap_or(1);
    let runs = arguments.take_number("--runs")?.ok_or("hunt needs --runs")?;
    let options = RunOptions { long: arguments.take_flag("--long"), ..RunOptions::default() };
    let is_reference = arguments.take_flag("--reference");
    arguments.finish()?;
    let caught = if is_reference {
        hunt(seed, runs, options, &Reference::launcher(Fault::None))
    } else {
        hunt(seed, runs, options, &launch_engine)
    };
    print_catch(&caught);
    Ok(if caught.bad_runs == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_catch(caught: &Catch) {
    say(format_args!("{} runs, {} with a violation; per run:", caught.runs, caught.bad_runs));
    for (name, total) in &caught.totals {
        say(format_args!("  {:>10.3} {name}", *total as f64 / caught.runs.max(1) as f64));
    }
    let mut kinds: Vec<(&String, &Kind)> = caught.kinds.iter().collect();
    kinds.sort_by_key(|(_, kind)| kind.shortest.events);
    for (name, kind) in kinds {
        say(format_args!("{:>6}x {name}", kind.count));
        say(&kind.shortest);
    }
}

fn sweep_command(mut arguments: Arguments) -> Result<ExitCode, String> {
    let seed = arguments.take_number("--seed")?.unwrap_or(1);
    let runs = arguments.take_number("--runs")?.unwrap_or(1);
    let stride = arguments.take_number("--stride")?.unwrap_or(1).max(1);
    arguments.finish()?;
    for seed in seed..seed + runs {
        for kind in Sweep::ALL {
            match sweep(seed, kind, stride, &launch_engine) {
                Ok(count) => say(format_args!("seed {seed} {kind:?}: {count} runs, all good")),
                Err(outcome) => {
                    for line in &outcome.trace {
                        say(line);
                    }
                    say(&outcome);
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn fuzz_command(mut arguments: Arguments) -> Result<ExitCode, String> {
    let seed = arguments.take_number("--seed")?;
    let cases = arguments.take_number("--cases")?;
    let name = if arguments.0.is_empty() { String::new() } else { arguments.0.remove(0) };
    arguments.finish()?;
    let Some(target) = fuzz::find(&name) else {
        let list = fuzz::TARGETS.map(|target| format!("  {:<12} {}", target.name, target.about));
        return Err(format!("fuzz needs one of these names:\n{}", list.join("\n")));
    };
    let cases = cases.unwrap_or(if seed.is_some() { 1 } else { target.test_cases });
    match target.run(seed.unwrap_or(0), cases) {
        Ok(reached) => {
            say(format_args!("{}: {cases} cases, all good", target.name));
            for (what, count) in reached.iter() {
                say(format_args!("  {count:>8} {what}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(bad) => {
            say(bad);
            Ok(ExitCode::FAILURE)
        }
    }
}
