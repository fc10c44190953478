//! Licences of all dependencies against the list in `deny.toml`, which cargo-deny reads too.

use anyhow::Context;
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use super::source::Finding;
use crate::workspace::Workspace;

const LIST: &str = "deny.toml";

/// The part of the list that matters here.
#[derive(Deserialize)]
struct List {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

/// Findings for all packages that are not ours.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let text = std::fs::read_to_string(workspace.root().join(LIST))
        .with_context(|| format!("cannot read {LIST}"))?;
    let allowed = allowed_licences(&text)?;
    let mut findings = Vec::new();
    for package in &workspace.metadata.packages {
        if package.source.is_none() {
            continue;
        }
        if let Err(reason) = check_licence(package.license.as_deref(), &allowed) {
            let message = format!("{} {}: {reason}", package.name, package.version);
            findings.push(Finding { path: "Cargo.lock".into(), line: 0, message });
        }
    }
    Ok(findings)
}

fn allowed_licences(text: &str) -> anyhow::Result<Vec<Licensee>> {
    let list: List = toml::from_str(text).with_context(|| format!("cannot parse {LIST}"))?;
    let parse = |name: &String| {
        Licensee::parse(name).with_context(|| format!("{LIST}: {name:?} is no licence"))
    };
    list.licenses.allow.iter().map(parse).collect()
}

fn check_licence(licence: Option<&str>, allowed: &[Licensee]) -> Result<(), String> {
    let licence = licence.ok_or("names no licence")?;
    // The lax mode reads "MIT/Apache-2.0", as older packages write it.
    let expression = Expression::parse_mode(licence, ParseMode::LAX)
        .map_err(|error| format!("the licence {licence:?} cannot be read: {}", error.reason))?;
    let is_allowed =
        expression.evaluate(|required| allowed.iter().any(|licensee| licensee.satisfies(required)));
    if is_allowed { Ok(()) } else { Err(format!("the licence {licence:?} is not in {LIST}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(licence: &str) -> bool {
        let list = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\", \"Unicode-3.0\"]\n";
        let allowed = allowed_licences(list).expect("valid");
        check_licence(Some(licence), &allowed).is_ok()
    }

    #[test]
    fn one_side_of_an_or_and_both_of_an_and_must_be_allowed() {
        assert!(is_allowed("GPL-3.0-only OR MIT"));
        assert!(!is_allowed("GPL-3.0-only AND MIT"));
        assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(!is_allowed("GPL-3.0-only"));
    }

    #[test]
    fn a_package_without_a_licence_is_reported() {
        assert!(check_licence(None, &[]).is_err());
        assert!(check_licence(Some("as is"), &[]).is_err());
    }
}
