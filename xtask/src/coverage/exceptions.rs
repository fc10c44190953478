//! Places that need not be reached, each with its reason: `exceptions.toml` beside this file.
//!
//! An exception names its place by file, function and the text of the line, not by a number that
//! the next change makes wrong. One whose place is reached, or is not there, is reported.
//!
//! A place that random runs reach seldom names the scripted test that reaches it instead. Such a
//! place may be reached by the simulator, too; whether the test does is measured.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::places::Place;

/// Where the list is, from the root of the workspace on.
const LIST: &str = "xtask/src/coverage/exceptions.toml";

/// A place that need not be reached.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    /// From the folder of the engine's sources on.
    pub(super) file: String,
    pub(super) function: String,
    /// The text of the line without the space around it.
    pub(super) line: String,
    /// Why the simulator does not reach it, or cannot; of a place with a test, what it takes.
    pub(super) why: String,
    /// A scripted test of the engine that reaches it: its program and its name, as in
    /// `rules::rule_07_blanks::name`.
    pub(super) test: Option<String>,
}

/// The list, and which of it was needed.
pub(super) struct Exceptions {
    list: Vec<Exception>,
    is_needed: Vec<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    exception: Vec<Exception>,
}

impl Exceptions {
    pub(super) fn read(root: &Path) -> anyhow::Result<Exceptions> {
        let text = std::fs::read_to_string(root.join(LIST))
            .with_context(|| format!("cannot read {LIST}"))?;
        Exceptions::parse(&text).with_context(|| format!("in {LIST}"))
    }

    fn parse(text: &str) -> anyhow::Result<Exceptions> {
        let list = toml::from_str::<List>(text)?.exception;
        let is_needed = vec![false; list.len()];
        Ok(Exceptions { list, is_needed })
    }

    /// The tests that are named.
    pub(super) fn tests(&self) -> BTreeSet<&str> {
        self.list.iter().filter_map(|exception| exception.test.as_deref()).collect()
    }

    /// Notes exceptions that name a test and a line that `file` with this text has: the simulator
    /// may reach those, too.
    pub(super) fn note_lines(&mut self, file: &str, text: &str) {
        for (exception, is_needed) in self.list.iter().zip(&mut self.is_needed) {
            let is_rare = exception.test.is_some() && exception.file == file;
            *is_needed |= is_rare && text.lines().any(|line| line.trim() == exception.line);
        }
    }

    /// The exception that `place` of `file` is, if it is on the list.
    pub(super) fn find(&mut self, file: &str, place: &Place) -> Option<Exception> {
        let is_meant = |exception: &Exception| {
            exception.file == file
                && exception.function == place.function
                && exception.line == place.text
        };
        let index = self.list.iter().position(is_meant)?;
        self.is_needed[index] = true;
        Some(self.list[index].clone())
    }

    /// Those whose place was reached or is not there.
    pub(super) fn not_needed(&self) -> impl Iterator<Item = &Exception> {
        self.list.iter().zip(&self.is_needed).filter(|(_, is)| !**is).map(|(entry, _)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::Manner;
    use super::*;

    #[test]
    fn an_exception_is_found_by_its_text_and_known_as_needed() {
        let entry = |function: &str, why: &str| {
            let place = format!("file = 'a.rs'\nfunction = '{function}'\nline = 'b();'\n");
            format!("[[exception]]\n{place}why = '{why}'\n")
        };
        let text = entry("f", "c") + &entry("g", "d");
        let mut exceptions = Exceptions::parse(&text).expect("parses");
        let manner = Manner::Unevaluated;
        let (text, function) = ("b();".to_owned(), "f".to_owned());
        let place = Place { line: 7, text, function, manner, regions: 1 };
        assert_eq!(exceptions.find("b.rs", &place), None);
        assert_eq!(exceptions.not_needed().count(), 2);
        assert_eq!(exceptions.find("a.rs", &place).expect("listed").why, "c");
        let left: Vec<&str> = exceptions.not_needed().map(|entry| entry.why.as_str()).collect();
        assert_eq!(left, ["d"]);
    }

    #[test]
    fn an_exception_with_a_test_is_needed_as_long_as_its_line_is_there() {
        let text = "[[exception]]\nfile = 'a.rs'\nfunction = 'f'\nline = 'b();'\nwhy = 'c'\n\
                    test = 'rules::a::b'\n";
        let mut exceptions = Exceptions::parse(text).expect("parses");
        assert_eq!(exceptions.tests().into_iter().collect::<Vec<_>>(), ["rules::a::b"]);
        exceptions.note_lines("a.rs", "fn f() {\n    c();\n}\n");
        exceptions.note_lines("b.rs", "fn f() {\n    b();\n}\n");
        assert_eq!(exceptions.not_needed().count(), 1);
        exceptions.note_lines("a.rs", "fn f() {\n    b();\n}\n");
        assert_eq!(exceptions.not_needed().count(), 0);
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        assert!(Exceptions::parse("[[exception]]\nfile = \"a.rs\"\nlines = 3\n").is_err());
    }
}
