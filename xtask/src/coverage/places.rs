//! What was not reached, in as few places as branches allow.
//!
//! A branch of which nothing was reached is one place, however much is inside of it. What else was
//! not reached is one place for each stretch without anything reached in between: the rest of a
//! block behind a `return`, the right side of an `&&`, the error way of a `?`, the way past an
//! `if`.

use serde::Serialize;

use super::regions::{Position, Regions, Span};
use super::syntax::{Arm, ArmKind, Syntax};

/// Code that was not reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Place {
    /// Counted from 1.
    pub(super) line: usize,
    /// The text of that line without the space around it.
    pub(super) text: String,
    /// The function it is in.
    pub(super) function: String,
    pub(super) manner: Manner,
    /// Regions in it.
    pub(super) regions: usize,
}

impl Place {
    /// Whether it is the same place, though perhaps more or less of it was reached.
    pub(super) fn is_same(&self, other: &Place) -> bool {
        (self.line, self.manner) == (other.line, other.manner)
    }
}

/// In which way it was not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Manner {
    Uncalled,
    Unentered,
    AlwaysTrue,
    AlwaysWell,
    Unevaluated,
}

impl Manner {
    pub(super) fn text(self) -> &'static str {
        match self {
            Manner::Uncalled => "never called",
            Manner::Unentered => "never entered",
            Manner::AlwaysTrue => "never false",
            Manner::AlwaysWell => "never an error",
            Manner::Unevaluated => "never evaluated",
        }
    }
}

/// The regions of a file that count, and where those are that were not reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileCoverage {
    pub(super) regions: usize,
    pub(super) reached: usize,
    pub(super) places: Vec<Place>,
}

/// What was reached of a file with `text`.
pub(super) fn examine(text: &str, regions: &Regions, syntax: &Syntax) -> FileCoverage {
    let (not_counted, arms): (Vec<&Arm>, Vec<&Arm>) =
        syntax.arms.iter().partition(|arm| arm.kind == ArmKind::NotCounted);
    let is_counted = |span: &Span| !not_counted.iter().any(|arm| arm.span.holds(span));
    let regions: Vec<(Span, u64)> = regions
        .iter()
        .map(|(span, count)| (*span, *count))
        .filter(|(span, _)| is_counted(span))
        .collect();
    let lines = text.lines().collect();
    let mut finder = Finder { lines, syntax, arms, regions: &regions, places: Vec::new() };
    let unreached = finder.unreached_arms();
    finder.add_arms(&unreached);
    finder.add_others(&unreached);
    FileCoverage {
        regions: regions.len(),
        reached: regions.iter().filter(|(_, count)| *count > 0).count(),
        places: merged(finder.places),
    }
}

struct Finder<'a> {
    lines: Vec<&'a str>,
    syntax: &'a Syntax,
    arms: Vec<&'a Arm>,
    regions: &'a [(Span, u64)],
    places: Vec<Place>,
}

impl<'a> Finder<'a> {
    fn inside(&self, arm: &'a Arm) -> impl Iterator<Item = u64> {
        self.regions.iter().filter(|(span, _)| arm.span.holds(span)).map(|(_, count)| *count)
    }

    /// The pieces of which nothing was reached and that are in no other such piece.
    fn unreached_arms(&self) -> Vec<&'a Arm> {
        let mut found: Vec<&Arm> = Vec::new();
        for arm in &self.arms {
            let is_inside = found.last().is_some_and(|outer| outer.span.holds(&arm.span));
            let has_regions = self.inside(arm).next().is_some();
            if !is_inside && has_regions && self.inside(arm).all(|count| count == 0) {
                found.push(arm);
            }
        }
        found
    }

    fn add_arms(&mut self, arms: &[&'a Arm]) {
        for arm in arms {
            let manner = match arm.kind {
                ArmKind::Function(_) => Manner::Uncalled,
                _ => Manner::Unentered,
            };
            let regions = self.inside(arm).count();
            self.add(arm.head, arm.span, manner, regions);
        }
    }

    /// What was not reached though something of its branch was.
    fn add_others(&mut self, unreached: &[&Arm]) {
        // Branches in which the last region was not reached, and the place that it belongs to.
        let mut open: Vec<(Option<Span>, usize)> = Vec::new();
        for (span, count) in self.regions {
            if unreached.iter().any(|arm| arm.span.holds(span)) {
                continue;
            }
            let branch = self.arms.iter().rev().find(|arm| arm.span.holds(span));
            let branch = branch.map(|arm| arm.span);
            let begun = open.iter().position(|(of, _)| *of == branch);
            let begun = begun.map(|index| open.swap_remove(index).1);
            if *count > 0 {
                continue;
            }
            let manner = self.manner(*span);
            let place = match begun {
                Some(place) if manner == Manner::Unevaluated => {
                    self.places[place].regions += 1;
                    place
                }
                _ => {
                    let head = self.syntax.never_false(*span).unwrap_or(span.start);
                    self.add(head, *span, manner, 1);
                    self.places.len() - 1
                }
            };
            open.push((branch, place));
        }
    }

    fn manner(&self, span: Span) -> Manner {
        if self.syntax.never_false(span).is_some() {
            Manner::AlwaysTrue
        } else if self.text_of(span) == "?" {
            Manner::AlwaysWell
        } else {
            Manner::Unevaluated
        }
    }

    /// The text of `span` in its first line.
    fn text_of(&self, span: Span) -> String {
        let is_one_line = span.start.0 == span.end.0;
        let end = if is_one_line { span.end.1 - 1 } else { usize::MAX };
        self.line(span.start.0).chars().take(end).skip(span.start.1 - 1).collect()
    }

    fn line(&self, number: usize) -> &'a str {
        self.lines.get(number - 1).copied().unwrap_or("")
    }

    fn add(&mut self, head: Position, span: Span, manner: Manner, regions: usize) {
        let text = self.line(head.0).trim().to_owned();
        let function = self.syntax.function_of(span).to_owned();
        self.places.push(Place { line: head.0, text, function, manner, regions });
    }
}

/// In the order of lines. What a branch binds stands before it, on its line: it is part of it.
fn merged(mut places: Vec<Place>) -> Vec<Place> {
    places.sort_by_key(|place| (place.line, place.manner == Manner::Unevaluated));
    let mut merged: Vec<Place> = Vec::new();
    for place in places {
        match merged.last_mut() {
            Some(last) if last.line == place.line && place.manner == Manner::Unevaluated => {
                last.regions += place.regions;
            }
            _ => merged.push(place),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Regions are marked in the text: ‹ and › stand around one that was reached, « and » around
    /// one that was not.
    fn examine_marked(marked: &str) -> FileCoverage {
        let mut text = String::new();
        let mut regions = Regions::new();
        let mut open = Vec::new();
        let (mut line, mut column) = (1, 1);
        for character in marked.chars() {
            match character {
                '‹' | '«' => open.push((line, column)),
                '›' | '»' => {
                    let start = open.pop().expect("an opening mark");
                    let span = Span { start, end: (line, column) };
                    regions.insert(span, u64::from(character == '›'));
                }
                _ => {
                    text.push(character);
                    (line, column) =
                        if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
                }
            }
        }
        let syntax = Syntax::parse(Path::new("a.rs"), &text).expect("parses");
        examine(&text, &regions, &syntax)
    }

    fn places(coverage: &FileCoverage) -> Vec<(usize, Manner, usize)> {
        let places = coverage.places.iter();
        places.map(|place| (place.line, place.manner, place.regions)).collect()
    }

    #[test]
    fn a_branch_is_one_place_and_its_binding_belongs_to_it() {
        let coverage = examine_marked(
            "‹fn a()› {\n    for «b» in ‹c› «{\n        «d»;\n        if «e» «{ f(); }»\n    \
             }»\n}\n",
        );
        assert_eq!((coverage.regions, coverage.reached), (7, 2));
        assert_eq!(places(&coverage), [(2, Manner::Unentered, 5)]);
        assert_eq!(coverage.places[0].text, "for b in c {");
        assert_eq!(coverage.places[0].function, "a");
    }

    #[test]
    fn a_function_is_one_place_at_its_signature() {
        let coverage = examine_marked("/// Text.\n«fn a()» {\n    «b()»\n}\n");
        assert_eq!(places(&coverage), [(2, Manner::Uncalled, 2)]);
    }

    #[test]
    fn the_rest_of_a_block_is_one_place_and_each_arm_one_of_its_own() {
        let coverage = examine_marked(
            "‹fn a()› {\n    match ‹b› {\n        0 => «c()»,\n        1 => «d()»,\n        \
             _ => ‹e()›,\n    }\n    «f()»;\n    «g()»;\n}\n",
        );
        let expected =
            [(3, Manner::Unentered, 1), (4, Manner::Unentered, 1), (7, Manner::Unevaluated, 2)];
        assert_eq!(places(&coverage), expected);
    }

    #[test]
    fn ways_that_have_no_text_are_named() {
        let coverage = examine_marked("‹fn a()› {\n    if ‹b› {\n        ‹c()›«?»;\n    «}»\n}\n");
        let expected = [(2, Manner::AlwaysTrue, 1), (3, Manner::AlwaysWell, 1)];
        assert_eq!(places(&coverage), expected);
    }

    #[test]
    fn what_states_that_it_is_never_reached_does_not_count() {
        let coverage = examine_marked(
            "‹fn a()› {\n    match ‹b› {\n        0 => ‹c()›,\n        _ => «unreachable!()»,\n    \
             }\n}\n",
        );
        assert_eq!((coverage.regions, coverage.reached), (3, 3));
        assert!(coverage.places.is_empty());
    }
}
