//! The bounds of the experiments, in docs/performance.md: all bounds stand in one document, though
//! each set is measured by a run of its own. They are copied from the documents of those runs,
//! which renew them here.

use std::path::Path;

use anyhow::Context;

/// Documents that have bounds, beside each other, and what they are about.
const DOCUMENTS: [(&str, &str); 3] = [
    ("experiments.md", "the published experiments, in virtual time"),
    ("real-experiments.md", "those on a real machine"),
    ("kernel-caches.md", "over the caches of the kernel, in a guest"),
];
/// The document that they are copied to.
const PERFORMANCE: &str = "performance.md";
/// What stands around them there.
const BEGIN: &str = "<!-- bounds of the experiments -->\n";
const END: &str = "<!-- end of the bounds of the experiments -->\n";
/// The first line of a table of bounds.
const HEADER: &str = "| work | bound | measured | verdict |";

/// The part of docs/performance.md, from the documents in this folder.
pub(super) fn section(docs: &Path) -> String {
    let parts = DOCUMENTS.map(|(name, about)| {
        let text = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
        format!("### {about}\n\n{}", bounds(name, &text))
    });
    format!(
        "{BEGIN}## Bounds of the experiments\n\nAs their documents have them, each of a run of its \
         own.\n\n{}{END}",
        parts.concat()
    )
}

/// Puts what the documents in this folder say now into docs/performance.md.
///
/// # Errors
///
/// If that has no place for it, or cannot be written.
pub(super) fn renew(docs: &Path) -> anyhow::Result<()> {
    let path = docs.join(PERFORMANCE);
    let old = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let new = renewed(&old, &section(docs)).with_context(|| {
        format!("{} has no bounds of experiments: `cargo xtask bench` writes it", path.display())
    })?;
    if new != old {
        super::write(&path, &new)?;
    }
    Ok(())
}

fn renewed(old: &str, section: &str) -> Option<String> {
    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{section}{after}"))
}

/// The table of bounds of a document, and when it was measured.
fn bounds(name: &str, document: &str) -> String {
    let when = document.lines().find(|line| line.starts_with("on ") && line.contains("at commit"));
    let from_table = document.lines().skip_while(|line| *line != HEADER);
    let table: Vec<&str> = from_table.take_while(|line| line.starts_with('|')).collect();
    let (Some(when), [_, _, rows @ ..]) = (when, &table[..]) else {
        return "Not measured.\n\n".to_owned();
    };
    let met = rows.iter().filter(|row| row.ends_with("| met |")).count();
    let when = when.trim_end_matches('.').trim_end_matches(',');
    let all = rows.len();
    format!("[{name}]({name}), {when}: {met} of {all} met.\n\n{}\n\n", table.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bounds::Limit;
    use crate::bench::experiments;

    const MEASURED: &str = "# Experiments\n\non 2026-01-02, at commit `abc`.\n\n## Bounds\n\n\
        | work | bound | measured | verdict |\n| --- | ---: | ---: | ---: |\n\
        | a | at least 1 | 2 | met |\n| b | at least 1 | 0 | **missed** |\n\n| other | table |\n";

    #[test]
    fn bounds_are_copied_with_their_run() {
        let text = bounds("experiments.md", MEASURED);
        let first = "[experiments.md](experiments.md), on 2026-01-02, at commit `abc`: 1 of 2 met.";
        assert!(text.starts_with(first), "{text}");
        assert!(text.contains("| b | at least 1 | 0 | **missed** |"), "{text}");
        assert!(!text.contains("other"), "{text}");
        assert_eq!(bounds("experiments.md", ""), "Not measured.\n\n");
    }

    #[test]
    fn a_document_is_renewed_between_the_marks_and_nowhere_else() {
        let docs = tempfile::tempdir().expect("a folder");
        let path = docs.path().join(PERFORMANCE);
        std::fs::write(docs.path().join("experiments.md"), MEASURED).expect("written");
        std::fs::write(&path, format!("a\n{BEGIN}old\n{END}b\n")).expect("written");
        renew(docs.path()).expect("it has a place for it");
        let text = std::fs::read_to_string(&path).expect("it was written");
        assert!(text.starts_with("a\n") && text.ends_with("b\n"), "{text}");
        assert!(text.contains("1 of 2 met") && !text.contains("old"), "{text}");
        std::fs::write(&path, "nothing").expect("written");
        assert!(renew(docs.path()).is_err());
    }

    #[derive(serde::Deserialize)]
    struct Plan {
        #[serde(default)]
        bound: Vec<PlanBound>,
    }

    /// Of a bound what a document says before it is measured.
    #[derive(serde::Deserialize)]
    struct PlanBound {
        text: String,
        at_least: Option<f64>,
        at_most: Option<f64>,
    }

    impl PlanBound {
        fn cells(&self) -> String {
            let limit = self.at_least.map(Limit::AtLeast).or(self.at_most.map(Limit::AtMost));
            format!("| {} | {} |", self.text, limit.expect("it has one").text(""))
        }
    }

    /// Figures are measured seldom, and plans change meanwhile.
    #[test]
    fn documents_in_the_repository_have_the_bounds_of_their_plans() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is there");
        let planned = |plan: &&str| {
            let text = read(&format!("bench/plans/{plan}.toml"));
            let plan: Plan = toml::from_str(&text).expect("a plan");
            plan.bound.iter().map(PlanBound::cells).collect::<Vec<_>>()
        };
        let of_plans = [&experiments::PLANS[..], &experiments::REAL_PLANS, &["kernel-caches"]];
        for ((name, _), plans) in DOCUMENTS.into_iter().zip(of_plans) {
            let document = read(&format!("docs/{name}"));
            let from_table = document.lines().skip_while(|line| *line != HEADER).skip(2);
            let mut rows = from_table.take_while(|line| line.starts_with('|'));
            for bound in plans.iter().flat_map(planned) {
                let row = rows.next().unwrap_or_default();
                assert!(row.starts_with(&bound), "{name}: {row}; planned: {bound}");
            }
            assert_eq!(rows.next(), None, "{name}: not planned any more");
        }
    }

    #[test]
    fn bounds_in_the_repository_are_those_of_their_documents() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
        let old = std::fs::read_to_string(docs.join(PERFORMANCE)).expect("it is there");
        assert!(renewed(&old, &section(docs)).expect("it has a place for them") == old);
    }
}
