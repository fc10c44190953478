//! Rules on names and lines: width, leftovers, and the words that we do not use.
//!
//! The vocabulary is the table "Not used" of the style guide, as far as a machine can tell a right
//! use from a wrong one. It holds in `crates`, for identifiers and comments alike.

use std::path::Path;

use super::source::{Finding, Source};

/// Columns of a line.
const COLUMNS_MAX: usize = 100;

/// Names for a file that holds whatever found no better place.
const EMPTY_NAMES: [&str; 8] =
    ["util", "utils", "helper", "helpers", "manager", "common", "misc", "shared"];

/// Marks of unfinished work. Cut in two so that this file does not hold them.
const LEFTOVER_MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

/// A phrase that we do not use.
struct Phrase {
    /// Words in a row, in lower case.
    words: &'static [&'static str],
    /// The word that makes it right again if it follows.
    unless_before: Option<&'static str>,
    /// What to write.
    instead: &'static str,
}

const fn phrase(words: &'static [&'static str], instead: &'static str) -> Phrase {
    Phrase { words, unless_before: None, instead }
}

const fn clean_as_a_verb(words: &'static [&'static str]) -> Phrase {
    Phrase { words, unless_before: Some("up"), instead: "write back, drain or demote" }
}

const PHRASES: &[Phrase] = &[
    phrase(&["lba"], "a byte offset, a sector or a block"),
    phrase(&["backing", "device"], "origin"),
    phrase(&["backing", "store"], "origin"),
    phrase(&["caching", "device"], "cache device"),
    phrase(&["a", "sync"], "flush"),
    phrase(&["the", "sync"], "flush"),
    phrase(&["each", "sync"], "flush"),
    phrase(&["every", "sync"], "flush"),
    clean_as_a_verb(&["cleans"]),
    clean_as_a_verb(&["cleaned"]),
    clean_as_a_verb(&["cleaning"]),
    clean_as_a_verb(&["cleaner"]),
    clean_as_a_verb(&["to", "clean"]),
];

/// The finding on the name of a file or of a folder on its path, if any.
pub(crate) fn check_file_name(path: &Path) -> Option<Finding> {
    let is_empty_name = |part: &Path| {
        part.file_stem()
            .and_then(|stem| stem.to_str())
            .is_some_and(|stem| EMPTY_NAMES.contains(&stem))
    };
    let part =
        path.components().map(|part| Path::new(part.as_os_str())).find(|p| is_empty_name(p))?;
    let message = format!("{:?} says nothing about what is inside", part.display().to_string());
    Some(Finding { path: path.to_owned(), line: 0, message })
}

/// Findings on the lines of `source`.
pub(crate) fn check_lines(source: &Source) -> Vec<Finding> {
    let has_vocabulary = source.path.starts_with("crates");
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let message = format!("the line has {columns} columns; the limit is {COLUMNS_MAX}");
            findings.push(source.finding(index + 1, message));
        }
        for mark in LEFTOVER_MARKS {
            if line.contains(mark) {
                findings.push(source.finding(index + 1, format!("leftover {mark}")));
            }
        }
        if has_vocabulary {
            for message in unused_phrases(line) {
                findings.push(source.finding(index + 1, message));
            }
        }
    }
    findings
}

fn unused_phrases(line: &str) -> Vec<String> {
    let words: Vec<String> = line
        .split(|character: char| !character.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let mut messages = Vec::new();
    for phrase in PHRASES {
        for start in 0..words.len() {
            let rest = &words[start..];
            let is_meant = rest.len() >= phrase.words.len()
                && rest.iter().zip(phrase.words).all(|(word, wanted)| word == wanted);
            let next = rest.get(phrase.words.len()).map(String::as_str);
            if is_meant && (next.is_none() || next != phrase.unless_before) {
                let instead = phrase.instead;
                messages.push(format!("write {instead} for {:?}", phrase.words.join(" ")));
            }
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::super::source::parse_for_test;
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check_lines(&parse_for_test(path, text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_line_has_a_hundred_columns_at_most() {
        let text = format!("// {}\n// {}\n", "ä".repeat(97), "ä".repeat(98));
        let expected = "xtask/src/a.rs:2: the line has 101 columns; the limit is 100";
        assert_eq!(messages("xtask/src/a.rs", &text), [expected]);
    }

    #[test]
    fn marks_of_unfinished_work_are_found_in_comments() {
        let text = format!("fn a() {{}} // {}: later\n", LEFTOVER_MARKS[0]);
        assert_eq!(messages("xtask/src/a.rs", &text).len(), 1);
    }

    #[test]
    fn words_that_we_do_not_use_are_found_in_names_and_comments() {
        let found = |line: &str| !unused_phrases(line).is_empty();
        assert!(found("let start_lba = 0;"));
        assert!(found("/// The backing device."));
        assert!(found("/// Cleans the oldest blocks."));
        assert!(found("fn wait_for_the_sync() {}"));
        assert!(!found("/// Cleaned up by the kernel."));
        assert!(!found("/// A clean block; sync_all makes it durable."));
        assert!(!found("let albatross = 1;"));
    }

    #[test]
    fn the_vocabulary_holds_in_crates_alone() {
        assert_eq!(messages("crates/host/src/a.rs", "// lba\n").len(), 1);
        assert!(messages("xtask/src/a.rs", "// lba\n").is_empty());
    }

    #[test]
    fn files_are_named_after_what_they_hold() {
        let is_found = |path: &str| check_file_name(Path::new(path)).is_some();
        assert!(is_found("crates/host/src/utils.rs"));
        assert!(is_found("crates/cli/tests/common/mod.rs"));
        assert!(!is_found("crates/host/src/ring.rs"));
        assert!(!is_found("docs/common-questions.md"));
    }
}
