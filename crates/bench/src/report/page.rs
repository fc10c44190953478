//! What pages of ours are made of: one file each, with everything in it.
//!
//! A page is made of templates with named places. Data is in it as JSON, from which a script
//! draws; text and tables are there without it, too. `page.html`, `page.css` and `page.js` beside
//! this file are what all pages have in common: colours, layout, numbers for people, and charts.
//!
//! Invariants:
//! - What somebody else chose (names of files, titles, remarks) goes through [`escaped`] into
//!   markup, and as JSON, without a character that means something in markup, into a script. It is
//!   text there.
//! - A page refers to nothing outside itself.

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What a page has of its own.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// What its window is called, as plain text.
    pub title: &'a str,
    /// Markup below the beginning of the page.
    pub body: &'a str,
    /// Rules that come after those of all pages.
    pub style: &'a str,
    /// Runs after the script of all pages, which leaves what it has in `page`.
    pub script: &'a str,
    /// JSON, in `page.data`.
    pub data: &'a str,
    /// What is missing where no script runs, as markup.
    pub without_script: &'a str,
    /// The version of forebay that the page is of.
    pub version: &'a str,
}

impl Content<'_> {
    /// The whole page.
    #[must_use]
    pub fn page(&self) -> String {
        let parts = [
            ("{{title}}", escaped(self.title)),
            ("{{page-style}}", STYLE.to_owned()),
            ("{{style}}", self.style.to_owned()),
            ("{{body}}", self.body.to_owned()),
            ("{{version}}", escaped(self.version)),
            ("{{without-script}}", self.without_script.to_owned()),
            ("{{data}}", script_safe(self.data)),
            ("{{page-script}}", SCRIPT.to_owned()),
            ("{{script}}", self.script.to_owned()),
        ];
        filled(TEMPLATE, &parts)
    }
}

/// Puts the parts in their places, which are written `{{name}}`. What a part holds is not looked at
/// again.
///
/// # Panics
///
/// If the template has a place that is not among the parts.
#[must_use]
pub fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some(at) = rest.find("{{") {
        page.push_str(&rest[..at]);
        rest = &rest[at..];
        let part = parts.iter().find(|(place, _)| rest.starts_with(place));
        let (place, text) = part.expect("the template has known places only");
        page.push_str(text);
        rest = &rest[place.len()..];
    }
    page.push_str(rest);
    page
}

/// Text as it may stand in an element or a quoted attribute.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A paragraph's text, escaped, in which no line ends between a number and its unit.
#[must_use]
pub fn prose(text: &str) -> String {
    let units = ["%", "B", "KiB", "MiB", "GiB", "TiB", "s", "min", "h"];
    let mut prose = String::new();
    for word in text.split_whitespace() {
        let is_unit = units.contains(&word.trim_end_matches(['.', ',', ':', ';', ')']));
        let has_number = prose.ends_with(|character: char| character.is_ascii_digit());
        let space = if is_unit && has_number { "&nbsp;" } else { " " };
        if !prose.is_empty() {
            prose.push_str(space);
        }
        prose.push_str(&escaped(word));
    }
    prose
}

/// JSON as it may stand in a `script` element: nothing in it can end the element or begin a
/// comment.
fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// The first place at which a text of a page would load something from elsewhere, up to the end of
/// its line; `None` if there is none. For tests of pages.
#[must_use]
pub fn first_load(text: &str) -> Option<&str> {
    let words = ["src=", "href=\"http", "url(", "@import", "fetch(", "XMLHttpRequest", "import("];
    // A mark of the page itself: the clip of a chart.
    let is_inside = |place: &str| place.starts_with("url(#");
    let places = words.iter().flat_map(|word| text.match_indices(word));
    let first = places
        .map(|(at, _)| &text[at..])
        .filter(|place| !is_inside(place))
        .max_by_key(|place| place.len())?;
    first.lines().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        let name = "</script><img src=x onerror='a(\"b\")'>&amp;";
        let html = escaped(name);
        assert!(!html.contains(['<', '>', '"', '\'']), "{html}");
        let json = script_safe(&serde_json::to_string(name).expect("text"));
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), name);
    }

    #[test]
    fn a_unit_stays_with_its_number() {
        assert_eq!(
            prose("takes 5 % of 3 GiB,\nnot <all> %"),
            "takes 5&nbsp;% of 3&nbsp;GiB, not &lt;all&gt; %"
        );
    }

    #[test]
    fn parts_are_put_in_their_places_once() {
        let parts = [("{{a}}", "{{b}}".to_owned()), ("{{b}}", "x".to_owned())];
        assert_eq!(filled("<{{a}}|{{b}}>", &parts), "<{{b}}|x>");
    }

    #[test]
    fn what_all_pages_have_loads_nothing_from_elsewhere() {
        for text in [TEMPLATE, STYLE, SCRIPT] {
            assert_eq!(first_load(text), None);
        }
        assert_eq!(first_load("a\n<img src=\"x\">\nurl(y)"), Some("src=\"x\">"));
        assert_eq!(first_load("a { clip-path: url(#clip); }"), None);
    }
}
