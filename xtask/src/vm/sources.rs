//! Where packages of the distribution's backports come from: the machine's own mirror.
//!
//! The sources of the machine stay as they are. A private list has those of its entries that are
//! the distribution's own, and one more for the backports at the same mirror, so that this needs no
//! address of its own and works behind whatever mirror or proxy the machine is set up for.

use std::fmt;
use std::path::Path;

use anyhow::Context;

/// Folder of apt's configuration.
const APT_FOLDER: &str = "/etc/apt";

/// One suite at one mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Source {
    uri: String,
    suite: String,
    components: String,
    /// File of the key, where the entry names one.
    signed_by: Option<String>,
}

impl fmt::Display for Source {
    /// As a line of `sources.list`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deb ")?;
        if let Some(key) = &self.signed_by {
            write!(f, "[signed-by={key}] ")?;
        }
        write!(f, "{} {} {}", self.uri, self.suite, self.components)
    }
}

/// The release of this distribution, such as `bookworm`.
pub(crate) fn codename() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/etc/os-release").context("cannot read os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("os-release has no VERSION_CODENAME; Debian has")?.trim_matches('"').to_owned())
}

/// The suite of the backports of a release.
pub(crate) fn backports(codename: &str) -> String {
    format!("{codename}-backports")
}

/// The text of a list with the release's own sources and its backports.
pub(crate) fn private_list(codename: &str) -> anyhow::Result<String> {
    let mut sources = Vec::new();
    let folder = Path::new(APT_FOLDER);
    if let Ok(text) = std::fs::read_to_string(folder.join("sources.list")) {
        sources.extend(parse_lines(&text));
    }
    let parts = folder.join("sources.list.d").read_dir().into_iter().flatten();
    for path in parts.filter_map(Result::ok).map(|entry| entry.path()) {
        let text = || std::fs::read_to_string(&path).unwrap_or_default();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(parse_lines(&text())),
            Some("sources") => sources.extend(parse_stanzas(&text())),
            _ => {}
        }
    }
    with_backports(sources, codename).with_context(|| {
        format!("the apt sources of this machine have no mirror for the suite {codename}")
    })
}

/// `None` if no source has the release itself.
fn with_backports(mut sources: Vec<Source>, codename: &str) -> Option<String> {
    let suite = backports(codename);
    let family = format!("{codename}-");
    sources.retain(|source| {
        let is_ours = source.suite == codename || source.suite.starts_with(&family);
        is_ours && source.suite != suite && !source.uri.starts_with("cdrom:")
    });
    let mirror = sources.iter().find(|source| source.suite == codename)?;
    sources.push(Source { suite, ..mirror.clone() });
    Some(sources.iter().map(|source| format!("{source}\n")).collect())
}

/// Entries of the one-line form.
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let mut rest = line.split('#').next()?.trim().strip_prefix("deb ")?.trim_start();
    let mut signed_by = None;
    if let Some(bracket) = rest.strip_prefix('[') {
        let (options, after) = bracket.split_once(']')?;
        let key = options.split_whitespace().find_map(|word| word.strip_prefix("signed-by="));
        signed_by = key.map(str::to_owned);
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    let components = words.collect::<Vec<_>>().join(" ");
    Some(Source { uri, suite, components, signed_by })
}

/// Entries of the form with a field a line, a stanza each.
fn parse_stanzas(text: &str) -> Vec<Source> {
    text.split("\n\n").flat_map(parse_stanza).collect()
}

fn parse_stanza(text: &str) -> Vec<Source> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).filter(|value| !value.is_empty())
    };
    let words = |name| field(name).unwrap_or_default().split_whitespace().map(str::to_owned);
    if field("Enabled") == Some("no") || !words("Types").any(|kind| kind == "deb") {
        return Vec::new();
    }
    let components = field("Components").unwrap_or_default().to_owned();
    // A key may also stand in the stanza itself; then apt must know it by other means.
    let signed_by = field("Signed-By").filter(|key| key.starts_with('/')).map(str::to_owned);
    let mut sources = Vec::new();
    for uri in words("URIs") {
        for suite in words("Suites") {
            let (uri, components, signed_by) = (uri.clone(), components.clone(), signed_by.clone());
            sources.push(Source { uri, suite, components, signed_by });
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANZAS: &str = "Types: deb\n# a comment\nURIs: http://mirror.example/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /keys/debian.gpg\n\
        \nTypes: deb\nURIs: http://other.example\nSuites: nodistro\nComponents: main\n\
        \nTypes: deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n\
        \nEnabled: no\nTypes: deb\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n";

    #[test]
    fn the_backports_are_at_the_mirror_of_the_release() {
        let list = with_backports(parse_stanzas(STANZAS), "bookworm").unwrap();
        let mirror = "[signed-by=/keys/debian.gpg] http://mirror.example/debian";
        let line = |suite| format!("deb {mirror} {suite} main contrib\n");
        let suites = ["bookworm", "bookworm-updates", "bookworm-backports"];
        assert_eq!(list, suites.map(line).concat());
        assert_eq!(with_backports(parse_stanzas(STANZAS), "trixie"), None);
    }

    #[test]
    fn lists_of_one_line_each_are_understood() {
        let text = "# deb http://a.example/debian bookworm main\n\
            deb http://b.example/debian bookworm main non-free # ours\n\
            deb [arch=amd64 signed-by=/k.gpg] http://b.example/security bookworm-security main\n\
            deb http://b.example/debian bookworm-backports main\n\
            deb-src http://b.example/debian bookworm main\n\
            deb cdrom:[Debian]/ bookworm main\n";
        let list = with_backports(parse_lines(text), "bookworm").unwrap();
        assert_eq!(
            list,
            "deb http://b.example/debian bookworm main non-free\n\
             deb [signed-by=/k.gpg] http://b.example/security bookworm-security main\n\
             deb http://b.example/debian bookworm-backports main non-free\n"
        );
    }
}
