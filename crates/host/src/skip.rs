//! Tests that cannot run here say so, where people and machines see it.

use std::io::Write;

/// Says that a test is skipped because `missing` is missing, and notes it in the file that
/// `FOREBAY_SKIP_LOG` names.
pub(crate) fn skip(test: &str, missing: &str) {
    let line = format!("SKIPPED {test}: {missing}");
    println!("{line}");
    if let Some(path) = std::env::var_os("FOREBAY_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(log, "{line}").unwrap();
    }
}
