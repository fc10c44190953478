//! Places that need not be reached, each with its reason: `exceptions.toml` beside this file.
//!
//! An exception names its place by file, function and the text of the line, not by a number that
//! the next change makes wrong. One whose place is reached, or is not there, is reported.

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
    /// Why the simulator does not reach it, or cannot.
    pub(super) why: String,
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

    /// Why `place` of `file` need not be reached, if it is on the list.
    pub(super) fn reason(&mut self, file: &str, place: &Place) -> Option<String> {
        let is_meant = |exception: &Exception| {
            exception.file == file
                && exception.function == place.function
                && exception.line == place.text
        };
        let index = self.list.iter().position(is_meant)?;
        self.is_needed[index] = true;
        Some(self.list[index].why.clone())
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
        assert_eq!(exceptions.reason("b.rs", &place), None);
        assert_eq!(exceptions.not_needed().count(), 2);
        assert_eq!(exceptions.reason("a.rs", &place).as_deref(), Some("c"));
        let left: Vec<&str> = exceptions.not_needed().map(|entry| entry.why.as_str()).collect();
        assert_eq!(left, ["d"]);
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        assert!(Exceptions::parse("[[exception]]\nfile = \"a.rs\"\nlines = 3\n").is_err());
    }
}
