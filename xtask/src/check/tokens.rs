//! Rules on the tokens of a file: `unsafe` only in the host, no leftovers of development, nothing
//! that would make two runs of a seed differ.
//!
//! Tokens, and not text or syntax: comments and strings do not count, the insides of macros do.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::source::{Finding, Source};

/// The one folder whose code may be unsafe.
const UNSAFE_FOLDER: &str = "crates/host";
/// Macros that must not stay in the source.
const LEFTOVER_MACROS: [&str; 3] = ["dbg", "todo", "unimplemented"];
/// Whose runs are functions of their seeds, but for the commands that look at the clock.
const SEEDED_FOLDER: &str = "crates/sim/src";
const SEEDED_EXCEPT: &str = "crates/sim/src/commands";
/// What differs from run to run: clocks, and maps in an order of chance.
const UNSEEDED: [&str; 5] = ["HashMap", "HashSet", "RandomState", "Instant", "SystemTime"];
/// Crates that must name no clock, thread, file or randomly seeded map: the compiler sees to it.
const NO_STD_ROOTS: [&str; 2] = ["crates/engine/src/lib.rs", "crates/device-model/src/lib.rs"];

/// Findings in `source`.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let may_be_unsafe = source.path.starts_with(UNSAFE_FOLDER);
    let is_seeded =
        source.path.starts_with(SEEDED_FOLDER) && !source.path.starts_with(SEEDED_EXCEPT);
    walk(&source.tokens, &mut |line, word, is_macro| {
        if is_seeded && UNSEEDED.contains(&word) {
            findings.push(source.finding(line, format!("{word} in what a seed decides")));
        }
        if word == "unsafe" && !may_be_unsafe {
            findings.push(source.finding(line, format!("unsafe outside of {UNSAFE_FOLDER}")));
        }
        if is_macro && LEFTOVER_MACROS.contains(&word) {
            findings.push(source.finding(line, format!("leftover {word}!")));
        }
    });
    let is_no_std = |attribute: &syn::Attribute| attribute.path().is_ident("no_std");
    if NO_STD_ROOTS.iter().any(|root| Path::new(root) == source.path)
        && !source.syntax.attrs.iter().any(is_no_std)
    {
        findings.push(source.finding(0, "the crate must be #![no_std]"));
    }
    findings
}

/// Calls `visit` with line, text and "is followed by an exclamation mark" of each identifier.
fn walk(tokens: &TokenStream, visit: &mut impl FnMut(usize, &str, bool)) {
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => walk(&group.stream(), visit),
            TokenTree::Ident(ident) => {
                let is_macro = matches!(
                    tokens.peek(),
                    Some(TokenTree::Punct(mark)) if mark.as_char() == '!'
                );
                visit(ident.span().start().line, &ident.to_string(), is_macro);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::parse_for_test;
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&parse_for_test(path, text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn unsafe_code_is_for_the_host_alone() {
        let text = "fn a() {\n    unsafe { b() }\n}\n";
        assert_eq!(
            messages("crates/nbd/src/a.rs", text),
            ["crates/nbd/src/a.rs:2: unsafe outside of crates/host"]
        );
        assert!(messages("crates/host/src/a.rs", text).is_empty());
        assert_eq!(messages("xtask/src/a.rs", "m! { unsafe fn a() {} }").len(), 1);
        let harmless = "#![forbid(unsafe_code)]\n/// unsafe\nfn a() { b(\"unsafe\") }\n";
        assert!(messages("crates/nbd/src/a.rs", harmless).is_empty());
    }

    #[test]
    fn leftover_macros_are_found_anywhere() {
        let text = "fn a() { vec![dbg!(1)]; }\nfn b() { todo!() }\nfn todo() { todo() }\n";
        assert_eq!(
            messages("crates/cli/src/a.rs", text),
            ["crates/cli/src/a.rs:1: leftover dbg!", "crates/cli/src/a.rs:2: leftover todo!"]
        );
    }

    #[test]
    fn a_run_of_the_simulator_names_no_clock_and_no_random_order() {
        let text = "use std::collections::HashMap;\nfn a() { Instant::now() }\n";
        let found = messages("crates/sim/src/world.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("world.rs:1: HashMap in what a seed decides"), "{found:?}");
        assert!(messages("crates/sim/src/commands/hunt.rs", text).is_empty());
        assert!(messages("crates/host/src/clock.rs", text).is_empty());
    }

    #[test]
    fn the_engine_stays_without_std() {
        let path = "crates/engine/src/lib.rs";
        assert_eq!(messages(path, "mod a;"), [format!("{path}: the crate must be #![no_std]")]);
        assert!(messages(path, "#![no_std]\nmod a;").is_empty());
    }
}
