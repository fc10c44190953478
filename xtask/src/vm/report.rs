//! What scenarios found, counted.

/// Results of scenarios.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    /// Findings that are as they should be; a scenario may have many.
    pub(crate) passed_count: usize,
    /// Scenarios that ended with a failure, each with its reason.
    pub(crate) failed: Vec<String>,
    /// Scenarios that could not be run, each with what is missing.
    pub(crate) skipped: Vec<String>,
}

impl Report {
    pub(crate) fn fail(&mut self, scenario: &str, why: &str) {
        self.failed.push(format!("vm {scenario}: {why}"));
    }

    pub(crate) fn skip(&mut self, scenario: &str, missing: &str) {
        self.skipped.push(format!("vm {scenario}: {missing}"));
    }
}

/// What a line of a script says about what it tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding<'a> {
    Ok,
    /// What was tried, and why it is not as it should be.
    Failed(&'a str),
}

/// `None`: the line is for the reader.
pub(crate) fn parse_finding(line: &str) -> Option<Finding<'_>> {
    if line.starts_with("ok ") {
        return Some(Finding::Ok);
    }
    line.strip_prefix("FAILED ").map(Finding::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_a_mark_are_findings() {
        assert_eq!(parse_finding("ok ext4: sound"), Some(Finding::Ok));
        assert_eq!(parse_finding("FAILED fio: status 1"), Some(Finding::Failed("fio: status 1")));
        for line in ["okay", " ok indented", "FAILED", "fio FAILED ", ""] {
            assert_eq!(parse_finding(line), None);
        }
    }
}
