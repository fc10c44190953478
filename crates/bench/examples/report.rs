//! Runs a plan in virtual time by the library alone, and writes its page: for work on the report,
//! without building the program.
//!
//! ```text
//! cargo run -p forebay-bench --example report -- PLAN.toml FOLDER
//! ```

use std::path::Path;

use forebay_bench::folder::{Folder, Machine, Outcome};
use forebay_bench::plan::Plan;
use forebay_bench::summary::Summary;
use forebay_bench::{report, virtual_time};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [plan, out] = &arguments[..] else { return Err("give a plan and a folder".into()) };
    let text = std::fs::read_to_string(plan)?;
    let plan = Plan::parse(&text)?;
    let machine = Machine { version: env!("CARGO_PKG_VERSION").to_owned(), ..Machine::default() };
    let folder = Folder::create(Path::new(out), &text, &machine)?;
    for repetition in 1..=plan.repetitions {
        for target in &plan.targets {
            if folder.outcome(target, repetition)? != Outcome::Missing {
                continue;
            }
            match virtual_time::run(&plan, target, repetition, &mut |_| ()) {
                Ok(result) => folder.save(&result)?,
                Err(error) => folder.save_failure(target, repetition, &error.to_string())?,
            }
        }
    }
    let summary = Summary::of(&folder, &plan)?;
    folder.write("report.html", report::html(&summary, &plan, &machine).as_bytes())?;
    Ok(())
}
