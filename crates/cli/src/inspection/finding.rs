//! What an inspection found: where, what was expected, what is there.

use forebay_engine::error::Corrupt;
use serde::Serialize;

/// Most findings that are kept; more of them say nothing new.
const FINDINGS_MAX: usize = 1000;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// As a crash may leave it; recovery copes with it.
    Note,
    /// Bytes are not what they were written as.
    Damage,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) place: String,
    pub(crate) what: String,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// All findings of an inspection.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    pub(crate) damage_count: u64,
    pub(crate) note_count: u64,
}

/// A number that is not what it should be.
pub(crate) struct Mismatch {
    pub(crate) what: &'static str,
    pub(crate) expected: u64,
    pub(crate) found: u64,
}

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Note => self.note_count += 1,
            Severity::Damage => self.damage_count += 1,
        }
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        }
    }

    /// Bytes that a decoder refused.
    pub(crate) fn add_corrupt(&mut self, severity: Severity, corrupt: Corrupt) {
        self.add(Finding {
            severity,
            place: corrupt.place.to_string(),
            what: corrupt.field.to_owned(),
            expected: format!("{:#x}", corrupt.expected),
            found: format!("{:#x}", corrupt.found),
        });
    }

    /// A number at a place that is damaged, if it is not what it should be.
    pub(crate) fn add_unless_equal(&mut self, place: &str, mismatch: Mismatch) {
        let Mismatch { what, expected, found } = mismatch;
        if expected != found {
            self.add(Finding {
                severity: Severity::Damage,
                place: place.to_owned(),
                what: what.to_owned(),
                expected: expected.to_string(),
                found: found.to_string(),
            });
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Damage => "damage",
        };
        let Finding { place, what, expected, found, .. } = self;
        write!(f, "{severity}: {place}: {what} is {found}, expected {expected}")
    }
}
