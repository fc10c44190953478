//! Is the alarm connected? Looks for each deliberate defect of the engine with ordinary runs.

use std::convert::Infallible;
use std::fmt;
use std::ops::RangeInclusive;

use forebay_engine::defects::{Defect, plant};

use crate::cores::on_all_cores;
use crate::run::{Outcome, RunOptions, run};

/// How long to look for a defect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Search {
    /// Seeds of the runs.
    pub seeds: RangeInclusive<u64>,
    /// The search ends when so many runs have had a violation.
    pub finds: u64,
}

/// What a search came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was planted.
    pub defect: Defect,
    /// Runs made.
    pub runs: u64,
    /// Runs with a violation.
    pub finds: u64,
    /// The first run with a violation, and how many runs it took to come to it.
    pub first: Option<(u64, Outcome)>,
}

impl Finding {
    /// The kind of the first violation.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        let failure = self.first.as_ref()?.1.failure.as_ref()?;
        Some(&failure.violation.kind)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.defect.name();
        let (Some((runs, outcome)), Some(kind)) = (&self.first, self.kind()) else {
            return write!(f, "{name}: NOT FOUND in {} runs", self.runs);
        };
        write!(f, "{name}: after {runs} runs, seed {}: {kind}", outcome.seed)?;
        if self.finds > 1 {
            write!(f, " ({} of {} runs)", self.finds, self.runs)?;
        }
        Ok(())
    }
}

/// Plants one defect in this thread and makes runs until it is found.
#[must_use]
pub fn search(defect: Defect, search: &Search) -> Finding {
    let mut finding = Finding { defect, runs: 0, finds: 0, first: None };
    plant(Some(defect));
    for seed in search.seeds.clone() {
        let outcome = run(seed, RunOptions::default());
        finding.runs += 1;
        if outcome.failure.is_none() {
            continue;
        }
        finding.finds += 1;
        finding.first.get_or_insert((finding.runs, outcome));
        if finding.finds == search.finds {
            break;
        }
    }
    plant(None);
    finding
}

/// Makes all `searches`, as many at a time as there are cores. `report` gets each finding as it
/// comes; the answer is in the order of `searches`.
pub fn search_all(searches: &[(Defect, Search)], mut report: impl FnMut(&Finding)) -> Vec<Finding> {
    let mut findings = Vec::new();
    let new_worker = || |(defect, options): &(Defect, Search)| search(*defect, options);
    let Ok(()) = on_all_cores(searches.iter(), new_worker, |finding| {
        report(&finding);
        findings.push(finding);
        Ok::<(), Infallible>(())
    });
    findings.sort_by_key(|finding| searches.iter().position(|(d, _)| *d == finding.defect));
    findings
}
