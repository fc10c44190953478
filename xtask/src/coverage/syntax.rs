//! Where a file branches, by its syntax: regions are too small to be listed one by one.

use std::path::Path;

use anyhow::Context;
use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::regions::{Position, Span};

/// Macros that say that control does not come here.
const ASSERTING_MACROS: [&str; 2] = ["unreachable", "panic"];

/// Macros that say what always holds; that nothing of it ever fails is no branch.
const HOLDING_MACROS: [&str; 3] = ["assert", "assert_eq", "assert_ne"];

/// The function that asks for a planted defect; it is a constant in other builds.
const DEFECT_QUESTION: &str = "has_defect";

/// Traits whose functions only make text for people.
const TEXT_TRAITS: [&str; 2] = ["Debug", "Display"];

/// A piece of code that is entered or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Arm {
    pub(super) span: Span,
    /// The place that tells a reader best which piece it is.
    pub(super) head: Position,
    pub(super) kind: ArmKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ArmKind {
    /// A function of this name.
    Function(String),
    /// A branch, a loop's body, a closure.
    Block,
    /// It states that it is never entered, is there in a build with planted defects alone, or only
    /// makes text for people.
    NotCounted,
}

/// What a file says of its branches.
#[derive(Default)]
pub(super) struct Syntax {
    /// Every piece comes before those inside of it.
    pub(super) arms: Vec<Arm>,
    /// Of each `if` without `else`: where it begins, by the end of its block.
    pub(super) ifs_without_else: Vec<(Position, Position)>,
}

impl Syntax {
    pub(super) fn parse(path: &Path, text: &str) -> anyhow::Result<Syntax> {
        let file = syn::parse_file(text).with_context(|| format!("in {}", path.display()))?;
        let mut syntax = Syntax::default();
        syntax.visit_file(&file);
        syntax.arms.sort_by(|a, b| {
            a.span.start.cmp(&b.span.start).then_with(|| b.span.end.cmp(&a.span.end))
        });
        Ok(syntax)
    }

    /// The `if` whose condition is never false if the region `span` is not reached.
    pub(super) fn never_false(&self, span: Span) -> Option<Position> {
        let is_brace = span.start.0 == span.end.0 && span.start.1 + 1 == span.end.1;
        let found = self.ifs_without_else.iter().find(|(_, end)| is_brace && *end == span.end);
        found.map(|(start, _)| *start)
    }

    /// The name of the innermost function around `span`.
    pub(super) fn function_of(&self, span: Span) -> &str {
        let around = self.arms.iter().filter(|arm| arm.span.holds(&span));
        let mut names = around.filter_map(|arm| match &arm.kind {
            ArmKind::Function(name) => Some(name.as_str()),
            _ => None,
        });
        names.next_back().unwrap_or("")
    }

    fn add(&mut self, node: &impl Spanned, head: Position, kind: ArmKind) {
        self.arms.push(Arm { span: span_of(node), head, kind });
    }

    fn add_function(&mut self, node: &impl Spanned, signature: &syn::Signature) {
        let head = position(signature.fn_token.span.start());
        self.add(node, head, ArmKind::Function(signature.ident.to_string()));
    }
}

/// Where `node` begins.
fn start_of(node: &impl Spanned) -> Position {
    span_of(node).start
}

/// Of an `else`: its first statement, for `} else {` tells nothing.
fn head_of_else(other: &syn::Expr) -> Position {
    match other {
        syn::Expr::Block(block) => block.block.stmts.first().map_or(start_of(other), start_of),
        _ => start_of(other),
    }
}

fn span_of(node: &impl Spanned) -> Span {
    let span = node.span();
    Span { start: position(span.start()), end: position(span.end()) }
}

/// Columns are counted in characters by both sides, here from 0.
fn position(place: LineColumn) -> Position {
    (place.line, place.column + 1)
}

fn is_asserting(invocation: &syn::Macro) -> bool {
    let name = invocation.path.segments.last();
    name.is_some_and(|name| ASSERTING_MACROS.iter().any(|asserting| name.ident == asserting))
}

/// Whether all that `expression` does is to say that control does not come to it.
fn states_unreachable(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Macro(invocation) => is_asserting(&invocation.mac),
        syn::Expr::Block(block) => block_states_unreachable(&block.block),
        _ => false,
    }
}

fn block_states_unreachable(block: &syn::Block) -> bool {
    match block.stmts.as_slice() {
        [syn::Stmt::Macro(statement)] => is_asserting(&statement.mac),
        [syn::Stmt::Expr(expression, _)] => states_unreachable(expression),
        _ => false,
    }
}

/// The kind of a piece that consists of `expression`.
fn kind_of(expression: &syn::Expr) -> ArmKind {
    if states_unreachable(expression) { ArmKind::NotCounted } else { ArmKind::Block }
}

fn kind_of_block(block: &syn::Block) -> ArmKind {
    if block_states_unreachable(block) { ArmKind::NotCounted } else { ArmKind::Block }
}

/// Whether an expression asks for a planted defect.
struct DefectQuestion {
    of: Asked,
    asks: bool,
}

/// What is asked of a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// Whether it is there.
    Presence,
    /// That, or whether it is not there.
    Either,
}

impl<'ast> Visit<'ast> for DefectQuestion {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.asks |= path.segments.last().is_some_and(|name| name.ident == DEFECT_QUESTION);
        visit::visit_path(self, path);
    }

    /// Without the defect is as everybody has it.
    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        if self.of == Asked::Either || !matches!(expression.op, syn::UnOp::Not(_)) {
            visit::visit_expr_unary(self, expression);
        }
    }
}

fn asks(expression: &syn::Expr, of: Asked) -> bool {
    let mut question = DefectQuestion { of, asks: false };
    question.visit_expr(expression);
    question.asks
}

fn asks_for_defect(expression: &syn::Expr) -> bool {
    asks(expression, Asked::Presence)
}

impl<'ast> Visit<'ast> for Syntax {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add_function(function, &function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add_function(function, &function.sig);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.add_function(function, &function.sig);
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if name.is_some_and(|name| TEXT_TRAITS.iter().any(|text| name.ident == text)) {
            self.add(item, start_of(item), ArmKind::NotCounted);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        let head = position(expression.if_token.span.start());
        let then = &expression.then_branch;
        let is_defect = asks_for_defect(&expression.cond);
        let kind = if is_defect { ArmKind::NotCounted } else { kind_of_block(then) };
        self.add(then, head, kind);
        match &expression.else_branch {
            Some((_, other)) => {
                self.add(other, head_of_else(other), kind_of(other));
            }
            None => {
                let end = span_of(then).end;
                self.ifs_without_else.push((head, end));
                if asks(&expression.cond, Asked::Either) {
                    // The way past it, whose region is the closing brace.
                    let span = Span { start: (end.0, end.1 - 1), end };
                    self.arms.push(Arm { span, head, kind: ArmKind::NotCounted });
                }
            }
        }
        visit::visit_expr_if(self, expression);
    }

    /// Of `a && has_defect(D)` and its like: what only a defect evaluates, or only it would ask.
    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        let is_defect = match expression.op {
            syn::BinOp::And(_) => {
                asks_for_defect(&expression.left) || asks_for_defect(&expression.right)
            }
            syn::BinOp::Or(_) => asks_for_defect(&expression.right),
            _ => false,
        };
        if is_defect {
            let right = &expression.right;
            self.add(right, start_of(right), ArmKind::NotCounted);
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_stmt_macro(&mut self, statement: &'ast syn::StmtMacro) {
        let name = statement.mac.path.segments.last();
        if name.is_some_and(|name| HOLDING_MACROS.iter().any(|holding| name.ident == holding)) {
            self.add(statement, start_of(statement), ArmKind::NotCounted);
        }
        visit::visit_stmt_macro(self, statement);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        // A guard may be reached though the body is not.
        let guard = arm.guard.as_ref().map(|(_, guard)| guard.as_ref());
        let is_defect = guard.is_some_and(asks_for_defect);
        let kind = if is_defect { ArmKind::NotCounted } else { kind_of(&arm.body) };
        self.add(arm, start_of(&arm.pat), kind.clone());
        self.add(&arm.body, start_of(&arm.pat), kind);
        visit::visit_arm(self, arm);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some((_, diverge)) = local.init.as_ref().and_then(|init| init.diverge.as_ref()) {
            self.add(diverge, start_of(local), kind_of(diverge));
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_for_loop(&mut self, expression: &'ast syn::ExprForLoop) {
        self.add(&expression.body, start_of(expression), ArmKind::Block);
        visit::visit_expr_for_loop(self, expression);
    }

    fn visit_expr_while(&mut self, expression: &'ast syn::ExprWhile) {
        self.add(&expression.body, start_of(expression), ArmKind::Block);
        visit::visit_expr_while(self, expression);
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.add(closure, start_of(closure), kind_of(&closure.body));
        visit::visit_expr_closure(self, closure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax(text: &str) -> Syntax {
        Syntax::parse(Path::new("a.rs"), text).expect("parses")
    }

    #[test]
    fn pieces_are_found_with_their_kinds_and_outer_ones_come_first() {
        let text = "fn a(x: u8) {\n    match x {\n        0 => b(),\n        _ => unreachable!(),\n\
                    }\n}\n";
        let syntax = syntax(text);
        let kinds: Vec<&ArmKind> = syntax.arms.iter().map(|arm| &arm.kind).collect();
        let function = ArmKind::Function("a".to_owned());
        let (block, not_counted) = (&ArmKind::Block, &ArmKind::NotCounted);
        assert_eq!(kinds, [&function, block, block, not_counted, not_counted]);
        assert_eq!(syntax.arms[2].span, Span { start: (3, 14), end: (3, 17) });
        assert_eq!(syntax.arms[2].head, (3, 9));
        assert_eq!(syntax.function_of(syntax.arms[2].span), "a");
    }

    #[test]
    fn the_way_past_an_if_is_its_closing_brace() {
        let syntax =
            syntax("fn a() {\n    if b {\n        c();\n    }\n    if d { e() } else { f() }\n}\n");
        let brace = |line, column| Span { start: (line, column), end: (line, column + 1) };
        assert_eq!(syntax.never_false(brace(4, 5)), Some((2, 5)));
        assert_eq!(syntax.never_false(brace(5, 16)), None);
        assert_eq!(syntax.never_false(Span { start: (4, 1), end: (4, 6) }), None);
    }

    #[test]
    fn what_a_planted_defect_does_is_not_counted() {
        let kind = |condition: &str| {
            let syntax = syntax(&format!("fn a() {{ if {condition} {{ c() }} }}\n"));
            syntax.arms[1].kind.clone()
        };
        assert_eq!(kind("b && has_defect(D)"), ArmKind::NotCounted);
        assert_eq!(kind("b && !has_defect(D)"), ArmKind::Block);
    }

    #[test]
    fn ways_that_only_a_planted_defect_takes_are_not_counted() {
        let not_counted = |text: &str| {
            let syntax = syntax(&format!("fn a() {{ {text} }}\n"));
            let arms = syntax.arms.iter().filter(|arm| arm.kind == ArmKind::NotCounted);
            arms.map(|arm| (arm.span.start.1, arm.span.end.1)).collect::<Vec<_>>()
        };
        assert_eq!(not_counted("if !has_defect(D) { c() }"), [(34, 35)]);
        assert_eq!(not_counted("if b { c() }"), []);
        assert_eq!(not_counted("has_defect(D) && b()"), [(27, 30)]);
        assert_eq!(not_counted("b() && has_defect(D)"), [(17, 30)]);
        assert_eq!(not_counted("b() || has_defect(D)"), [(17, 30)]);
        assert_eq!(not_counted("b() && c()"), []);
        assert_eq!(not_counted("assert!(b || c);"), [(10, 26)]);
    }

    #[test]
    fn text_for_people_is_not_counted() {
        let syntax = syntax("impl core::fmt::Debug for A { fn fmt(&self) { b() } }\n");
        assert_eq!(syntax.arms[0].kind, ArmKind::NotCounted);
    }
}
