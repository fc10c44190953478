//! What a cache of somebody else says of its reads: a command that the plan names tells it.

use std::process::Command;

use super::RealError;
use super::server::{describe, output};
use crate::result::HitCounts;

/// Asks the command, which is given word by word; `None` if there is none.
pub(super) fn ask(words: &[String]) -> Result<Option<HitCounts>, RealError> {
    let Some((name, arguments)) = words.split_first() else { return Ok(None) };
    let mut command = Command::new(name);
    command.args(arguments);
    let text = output(&mut command)?;
    let counts = parse(&text).ok_or_else(|| RealError::Program {
        name: describe(&command),
        what: "does not print two numbers, of hits and of misses".to_owned(),
        messages: text.trim().to_owned(),
    });
    counts.map(Some)
}

/// Two numbers, and nothing else.
fn parse(text: &str) -> Option<HitCounts> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (hits, misses) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    numbers.next().is_none().then_some(HitCounts { hits, misses })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Result<Option<HitCounts>, RealError> {
        ask(&["printf".to_owned(), text.to_owned()])
    }

    #[test]
    fn two_numbers_are_hits_and_misses() {
        let counts = Some(HitCounts { hits: 30, misses: 10 });
        assert_eq!(printed("30 10\\n").unwrap(), counts);
        assert_eq!(printed("30\\n10\\n").unwrap(), counts);
        assert_eq!(ask(&[]).unwrap(), None);
    }

    #[test]
    fn anything_else_is_an_error_that_shows_it() {
        for text in ["30", "30 10 5", "30 -10", "no cache"] {
            let error = printed(text).unwrap_err().to_string();
            assert!(error.contains("two numbers") && error.ends_with(text), "{error}");
        }
        let error = ask(&["false".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("ended with"), "{error}");
    }
}
