//! Traces in files: a header, the events of a run as text, and how the run ended.
//!
//! The header says which format and program it is of and with which arguments the run was made:
//!
//! ```text
//! forebay-sim trace 1 of version 0.1.0: run --seed 7
//! ```
//!
//! The format is raised whenever events are written differently. What a seed does may change with
//! every change of the code; that is what a replay shows.

use std::path::Path;

/// Format of the files.
const FORMAT: u32 = 1;
const NAME: &str = "forebay-sim trace ";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A run as it was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    /// Arguments of `forebay-sim`, the command first.
    pub(crate) arguments: String,
    /// Events and end.
    pub(crate) lines: Vec<String>,
}

/// The lines of events, one by one; an event may have several.
pub(crate) fn lines(events: &[String], end: &str) -> Vec<String> {
    let end = std::iter::once(end);
    events.iter().map(String::as_str).chain(end).flat_map(str::lines).map(str::to_owned).collect()
}

/// Writes a file; says what is wrong otherwise.
pub(crate) fn write(path: &Path, recorded: &Recorded) -> Result<(), String> {
    let mut text = format!("{NAME}{FORMAT} of version {VERSION}: {}\n", recorded.arguments);
    for line in &recorded.lines {
        text += line;
        text += "\n";
    }
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Reads a file; says what is wrong otherwise.
pub(crate) fn read(path: &Path) -> Result<Recorded, String> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    parse(&String::from_utf8_lossy(&bytes)).map_err(|text| format!("{name} {text}"))
}

fn parse(text: &str) -> Result<Recorded, String> {
    let mut lines = text.lines();
    let header = lines.next().and_then(|line| line.strip_prefix(NAME));
    let header = header.ok_or_else(|| format!("is no trace: it does not begin with `{NAME}`"))?;
    let parts = header.split_once(" of version ").and_then(|(format, rest)| {
        let (version, arguments) = rest.split_once(": ")?;
        Some((format, version, arguments))
    });
    let (format, version, arguments) =
        parts.ok_or("is no trace: its first line lacks format, version or arguments".to_owned())?;
    if format != FORMAT.to_string() {
        return Err(format!("is a trace of format {format}, this program reads format {FORMAT}"));
    }
    if version != VERSION {
        return Err(format!(
            "was recorded by forebay-sim {version}, and this is {VERSION}: replay it with that one"
        ));
    }
    let lines = lines.map(str::to_owned).collect();
    Ok(Recorded { arguments: arguments.to_owned(), lines })
}

/// Where two runs first differ, for people; lines are counted as in the file.
pub(crate) fn first_difference(recorded: &[String], now: &[String]) -> Option<String> {
    let at = recorded.iter().zip(now).position(|(a, b)| a != b);
    let at = at.or_else(|| {
        let shorter = recorded.len().min(now.len());
        (recorded.len() != now.len()).then_some(shorter)
    })?;
    let show = |lines: &[String]| lines.get(at).cloned().unwrap_or("nothing: it ends".to_owned());
    // The header is line 1.
    let line = at + 2;
    Some(format!("line {line} differs\n  recorded: {}\n  now:      {}", show(recorded), show(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_no_trace_of_this_version_is_refused() {
        let good = format!("{NAME}{FORMAT} of version {VERSION}: run --seed 7\na\nb\n");
        let recorded = parse(&good).unwrap();
        assert_eq!(recorded.arguments, "run --seed 7");
        assert_eq!(recorded.lines, ["a", "b"]);
        let bad = [
            (String::new(), "is no trace"),
            ("\u{fffd}ELF".to_owned(), "is no trace"),
            (format!("{NAME}1\n"), "lacks"),
            (good.replace("trace 1", "trace 2"), "format 2"),
            (good.replace(VERSION, "9.9.9"), "9.9.9"),
        ];
        for (text, expected) in bad {
            let message = parse(&text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn the_first_line_that_differs_is_named() {
        let recorded = strings(&["a", "b", "c"]);
        assert_eq!(first_difference(&recorded, &recorded), None);
        let changed = first_difference(&recorded, &strings(&["a", "x", "c"])).unwrap();
        assert!(changed.starts_with("line 3 differs"), "{changed}");
        let shorter = first_difference(&recorded, &strings(&["a"])).unwrap();
        assert!(shorter.starts_with("line 3 differs") && shorter.contains("it ends"), "{shorter}");
        assert!(first_difference(&strings(&["a"]), &recorded).unwrap().contains("now:      b"));
    }
}
