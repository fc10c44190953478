//! Which crate may depend on which, and that every dependency is accounted for.

use std::collections::{BTreeSet, HashMap};

use cargo_metadata::{DependencyKind, Package, PackageId};

use super::source::Finding;
use crate::workspace::Workspace;

/// What a member may depend on.
struct Rule {
    member: &'static str,
    /// Members, for any purpose.
    members: &'static [&'static str],
    /// Other crates in the product itself; `None`: any. Tests may use more.
    others: Option<&'static [&'static str]>,
}

/// A new member needs a new rule, not merely a new topic.
const RULES: &[Rule] = &[
    Rule {
        member: "forebay-engine",
        members: &[],
        others: Some(&[
            "crc-fast",
            "hashbrown",
            "rustc-hash",
            "safe_arch",
            "thiserror",
            "zerocopy",
        ]),
    },
    Rule { member: "forebay-nbd", members: &[], others: Some(&["thiserror", "zerocopy"]) },
    Rule { member: "forebay-device-model", members: &[], others: Some(&[]) },
    Rule {
        member: "forebay-host",
        members: &["forebay-engine", "forebay-nbd", "forebay-device-model", "forebay-advisor"],
        others: None,
    },
    Rule { member: "forebay-advisor", members: &["forebay-engine"], others: None },
    Rule {
        member: "forebay-bench",
        members: &["forebay-engine", "forebay-device-model"],
        others: None,
    },
    Rule {
        member: "forebay-sim",
        members: &["forebay-engine", "forebay-nbd", "forebay-device-model"],
        others: None,
    },
    Rule {
        member: "forebay-cli",
        members: &[
            "forebay-host",
            "forebay-advisor",
            "forebay-bench",
            "forebay-sim",
            "forebay-engine",
            "forebay-nbd",
            "forebay-device-model",
        ],
        others: None,
    },
    Rule { member: "xtask", members: &[], others: None },
];

/// Async runtimes and what brings one along: only for the administrative side.
const RUNTIMES: [&str; 5] = ["tokio", "axum", "async-std", "smol", "async-global-executor"];
/// The one member that may have a runtime.
const RUNTIME_MEMBER: &str = "forebay-cli";

/// Where each direct dependency is named with its reason.
const DOCUMENT: &str = "docs/dependencies.md";

/// Findings in all manifests.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let members = workspace.members();
    let names: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let mut findings = Vec::new();
    let mut others = BTreeSet::new();
    for package in members {
        let path = workspace.path_of(package);
        let mut report = |message: String| {
            findings.push(Finding { path: path.clone(), line: 0, message });
        };
        let edges: Vec<Edge<'_>> = package.dependencies.iter().map(Edge::new).collect();
        for message in check_member(package.name.as_str(), &edges, &names) {
            report(message);
        }
        for runtime in runtimes_below(workspace, package) {
            report(format!("{runtime} comes along; a runtime is only for {RUNTIME_MEMBER}"));
        }
        others.extend(edges.iter().map(|edge| edge.name).filter(|name| !names.contains(name)));
    }
    let document = std::fs::read_to_string(workspace.root().join(DOCUMENT)).ok();
    let messages = check_document(document.as_deref(), &others);
    findings.extend(messages.into_iter().map(|message| Finding {
        path: DOCUMENT.into(),
        line: 0,
        message,
    }));
    Ok(findings)
}

/// A dependency as a manifest names it.
struct Edge<'a> {
    name: &'a str,
    is_for_tests: bool,
}

impl<'a> Edge<'a> {
    fn new(dependency: &'a cargo_metadata::Dependency) -> Edge<'a> {
        let is_for_tests = dependency.kind == DependencyKind::Development;
        Edge { name: dependency.name.as_str(), is_for_tests }
    }
}

/// What is wrong with the dependencies of `member`; `members` are the names of all.
fn check_member(member: &str, edges: &[Edge<'_>], members: &BTreeSet<&str>) -> Vec<String> {
    let Some(rule) = RULES.iter().find(|rule| rule.member == member) else {
        return vec![format!("{member} has no rule in xtask/src/check/dependencies.rs")];
    };
    let mut messages = Vec::new();
    for edge in edges {
        let name = edge.name;
        if members.contains(name) {
            if !rule.members.contains(&name) {
                messages.push(format!("{member} must not depend on {name}"));
            }
        } else if !edge.is_for_tests && rule.others.is_some_and(|others| !others.contains(&name)) {
            messages.push(format!("{name} is not on the fixed list of {member}"));
        }
    }
    messages
}

/// Runtimes that the product side of `package` brings along, if it may not have one.
fn runtimes_below(workspace: &Workspace, package: &Package) -> Vec<String> {
    if package.name.as_str() == RUNTIME_MEMBER {
        return Vec::new();
    }
    let Some(resolve) = &workspace.metadata.resolve else { return Vec::new() };
    let nodes: HashMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut reached = BTreeSet::from([&package.id]);
    let mut open = vec![&package.id];
    while let Some(id) = open.pop() {
        let Some(node) = nodes.get(id) else { continue };
        let is_normal = |dependency: &&cargo_metadata::NodeDep| {
            dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        for dependency in node.deps.iter().filter(is_normal) {
            if reached.insert(&dependency.pkg) {
                open.push(&dependency.pkg);
            }
        }
    }
    let names = reached.into_iter().map(|id| workspace.metadata[id].name.to_string());
    names.filter(|name| RUNTIMES.contains(&name.as_str())).collect()
}

/// What `document` lacks of `others`.
fn check_document(document: Option<&str>, others: &BTreeSet<&str>) -> Vec<String> {
    let Some(document) = document else {
        return vec!["missing; it names each dependency with its reason".to_owned()];
    };
    let is_missing = |name: &&&str| !document.contains(&format!("`{name}`"));
    let message = |name: &&str| format!("does not name `{name}`");
    others.iter().filter(is_missing).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(member: &str, edge: Edge<'_>) -> Vec<String> {
        let members = RULES.iter().map(|rule| rule.member).collect();
        check_member(member, &[edge], &members)
    }

    fn product(name: &str) -> Edge<'_> {
        Edge { name, is_for_tests: false }
    }

    fn tests(name: &str) -> Edge<'_> {
        Edge { name, is_for_tests: true }
    }

    #[test]
    fn the_engine_has_a_fixed_list_but_its_tests_have_not() {
        assert!(check("forebay-engine", product("zerocopy")).is_empty());
        let expected = "rand is not on the fixed list of forebay-engine";
        assert_eq!(check("forebay-engine", product("rand")), [expected]);
        assert!(check("forebay-engine", tests("proptest")).is_empty());
    }

    #[test]
    fn members_depend_in_one_direction_even_for_tests() {
        assert!(check("forebay-host", product("forebay-nbd")).is_empty());
        let expected = "forebay-engine must not depend on forebay-sim";
        assert_eq!(check("forebay-engine", tests("forebay-sim")), [expected]);
        assert_eq!(check("forebay-advisor", product("forebay-nbd")).len(), 1);
    }

    #[test]
    fn a_member_without_a_rule_is_reported() {
        assert_eq!(check("forebay-extra", product("libc")).len(), 1);
    }

    #[test]
    fn the_document_names_every_dependency_in_code_quotes() {
        let others = BTreeSet::from(["libc", "syn"]);
        assert_eq!(
            check_document(Some("| `libc` | calls |, syn"), &others),
            ["does not name `syn`"]
        );
        assert_eq!(check_document(None, &others).len(), 1);
    }
}
