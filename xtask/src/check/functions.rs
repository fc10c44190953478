//! Lengths of functions and files.
//!
//! A function counts from its `fn` line to its closing brace. A file counts without what only tests
//! compile; a file that only tests compile has no limit of its own.

use std::path::Path;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::source::{Finding, Source, is_cfg_test};

/// Lines a function may have.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines a file may have without its tests.
const FILE_LINES_MAX: usize = 1000;

/// A function that may be longer.
struct Exception {
    path: &'static str,
    function: &'static str,
    /// Why cutting it would make it harder to read.
    #[expect(dead_code, reason = "for the reader of the list")]
    reason: &'static str,
}

/// Functions that may be longer. An entry that is no longer needed is a finding.
const EXCEPTIONS: &[Exception] = &[];

/// Findings in all `sources`.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    check_with(sources, EXCEPTIONS)
}

fn check_with(sources: &[Source], exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_used = vec![false; exceptions.len()];
    for source in sources {
        let mut lengths = Lengths::default();
        lengths.visit_file(&source.syntax);
        for function in &lengths.functions {
            if function.line_count <= FUNCTION_LINES_MAX {
                continue;
            }
            let is_meant = |exception: &Exception| {
                Path::new(exception.path) == source.path && exception.function == function.name
            };
            if let Some(index) = exceptions.iter().position(is_meant) {
                is_used[index] = true;
                continue;
            }
            let (name, count) = (&function.name, function.line_count);
            let message =
                format!("function {name} has {count} lines; the limit is {FUNCTION_LINES_MAX}");
            findings.push(source.finding(function.line, message));
        }
        let line_count = source.text.lines().count() - lengths.test_line_count;
        if !source.is_test() && line_count > FILE_LINES_MAX {
            let message = format!(
                "the file has {line_count} lines without its tests; the limit is {FILE_LINES_MAX}"
            );
            findings.push(source.finding(0, message));
        }
    }
    for (exception, is_used) in exceptions.iter().zip(is_used) {
        if !is_used {
            findings.push(Finding {
                path: exception.path.into(),
                line: 0,
                message: format!("the exception for {} is not needed", exception.function),
            });
        }
    }
    findings
}

/// A function and its length.
struct Function {
    name: String,
    line: usize,
    line_count: usize,
}

/// What the walk over a file finds.
#[derive(Default)]
struct Lengths {
    functions: Vec<Function>,
    /// Lines of items that only tests compile.
    test_line_count: usize,
    /// How many of such items the walk is inside of.
    test_depth: usize,
}

impl Lengths {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let line_count = block.brace_token.span.close().end().line + 1 - line;
        self.functions.push(Function { name: signature.ident.to_string(), line, line_count });
    }
}

fn line_count(span: Span) -> usize {
    span.end().line + 1 - span.start().line
}

impl<'ast> Visit<'ast> for Lengths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &[][..],
        };
        if !attributes.iter().any(is_cfg_test) {
            visit::visit_item(self, item);
            return;
        }
        if self.test_depth == 0 {
            self.test_line_count += line_count(item.span());
        }
        self.test_depth += 1;
        visit::visit_item(self, item);
        self.test_depth -= 1;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::parse_for_test;
    use super::*;

    fn function(name: &str, line_count: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    let _ = 1;\n".repeat(line_count - 2))
    }

    fn messages(sources: &[Source], exceptions: &[Exception]) -> Vec<String> {
        check_with(sources, exceptions).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_function_of_seventy_lines_is_the_longest() {
        let text = format!("/// Doc.\n{}\n{}", function("fits", 70), function("long", 71));
        let sources = [parse_for_test("src/a.rs", &text)];
        let expected = "src/a.rs:73: function long has 71 lines; the limit is 70";
        assert_eq!(messages(&sources, &[]), [expected]);
    }

    #[test]
    fn methods_and_functions_in_tests_count_too() {
        let text = format!(
            "impl A {{ {} }}\n#[cfg(test)]\nmod tests {{ {} }}\n",
            function("method", 80),
            function("test", 90)
        );
        assert_eq!(messages(&[parse_for_test("src/a.rs", &text)], &[]).len(), 2);
    }

    #[test]
    fn an_exception_holds_for_its_function_alone_and_must_be_needed() {
        let exception = Exception { path: "src/a.rs", function: "long", reason: "a table" };
        let long = [parse_for_test("src/a.rs", &function("long", 80))];
        assert!(messages(&long, &[exception]).is_empty());
        let exception = Exception { path: "src/a.rs", function: "long", reason: "a table" };
        let short = [parse_for_test("src/a.rs", &function("long", 20))];
        assert_eq!(
            messages(&short, &[exception]),
            ["src/a.rs: the exception for long is not needed"]
        );
    }

    #[test]
    fn tests_do_not_count_into_the_length_of_a_file() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    // Line.\n".repeat(900));
        let text = format!("{}{tests}", "// Line.\n".repeat(999));
        assert!(messages(&[parse_for_test("src/a.rs", &text)], &[]).is_empty());
        let text = format!("{}{tests}", "// Line.\n".repeat(1001));
        let expected = "src/a.rs: the file has 1001 lines without its tests; the limit is 1000";
        assert_eq!(messages(&[parse_for_test("src/a.rs", &text)], &[]), [expected]);
        assert!(messages(&[parse_for_test("tests/a.rs", &text)], &[]).is_empty());
    }
}
