//! The report as a page: one file with everything in it.
//!
//! The page is made of `report.html`, `report.css` and `report.js` beside this file. What the
//! advisor found is in it as JSON, from which the script draws; text and table are there without
//! it, too. Names of files are the only thing in it that somebody else chose: they are escaped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_advisor::advice::{Recommendation, Report, Verdict};
use forebay_bench::report::page::{Content, escaped, filled, prose};

use super::text::{percent, wear_text};
use super::{Document, Source};
use crate::exit::Failure;
use crate::size;

const TEMPLATE: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Where the page goes. The file takes its place only when it is whole.
pub(super) struct Page {
    path: PathBuf,
}

impl Page {
    /// Finds out whether a page can be written here; nothing of that stays.
    pub(super) fn create(path: &Path) -> Result<Page, Failure> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(Failure::usage(format!(
                "{} is no file; --html names one to write the report to",
                path.display()
            )));
        }
        let page = Page { path: path.to_owned() };
        page.temporary()?.close().map_err(|error| failed(path, &error))?;
        Ok(page)
    }

    /// Writes the page.
    pub(super) fn write(self, document: &Document) -> Result<(), Failure> {
        let page = page(document)?;
        let mut file = self.temporary()?;
        let written = file.write_all(page.as_bytes()).and_then(|()| file.flush());
        written.map_err(|error| failed(&self.path, &error))?;
        file.persist(&self.path).map_err(|error| failed(&self.path, &error.error))?;
        Ok(())
    }

    /// A file beside the page, with the rights that a new file gets.
    fn temporary(&self) -> Result<tempfile::NamedTempFile, Failure> {
        let directory = match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write the report to {}: {error}", path.display()))
        .or("--html names a file in a folder that may be written")
}

/// The whole page.
fn page(document: &Document) -> Result<String, Failure> {
    let json = serde_json::to_string(document)
        .map_err(|error| Failure::failed(format!("cannot form JSON: {error}")))?;
    let report = &document.report;
    let advice = &report.recommendation;
    let title = title(&document.traces);
    let parts = [
        ("{{sources}}", sources(&document.traces)),
        ("{{title}}", escaped(&title)),
        ("{{verdict}}", verdict_class(advice.verdict).to_owned()),
        ("{{headline}}", prose(&advice.headline)),
        ("{{advice}}", advice_text(advice)),
        ("{{table}}", table(report)),
        ("{{figures}}", figures(report)),
    ];
    let content = Content {
        title: &format!("Cache advice: {title}"),
        body: &filled(TEMPLATE, &parts),
        style: STYLE,
        script: SCRIPT,
        data: &json,
        without_script: "Charts need JavaScript; the advice and the table do not.",
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(content.page())
}

fn title(traces: &[Source]) -> String {
    let name = |path: &str| {
        let name = Path::new(path).file_name();
        name.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
    };
    match traces {
        [trace] => name(&trace.path),
        [trace, rest @ ..] => format!("{} and {} more", name(&trace.path), rest.len()),
        [] => String::new(),
    }
}

fn sources(traces: &[Source]) -> String {
    let source = |trace: &Source| {
        let broken = match trace.broken_line_count {
            0 => String::new(),
            count => format!(", {count} broken lines left out"),
        };
        format!("<li><code>{}</code> ({}{broken})</li>", escaped(&trace.path), trace.format)
    };
    traces.iter().map(source).collect()
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::WorthIt => "yes",
        Verdict::Marginal => "little",
        Verdict::NotWorthIt => "no",
    }
}

fn advice_text(advice: &Recommendation) -> String {
    let mut html = format!(
        "<dt>Size</dt><dd>{}</dd><dt>Mode</dt><dd>{}</dd>",
        prose(&advice.size_reason),
        prose(&advice.mode_reason)
    );
    if !advice.remarks.is_empty() {
        let remarks = advice.remarks.iter().map(|text| format!("<p>{}</p>", prose(text)));
        html.push_str(&format!("<dt>Also</dt><dd>{}</dd>", remarks.collect::<String>()));
    }
    let doubts = advice.doubts.iter().map(|doubt| format!("<p>{}</p>", prose(&doubt.text)));
    html.push_str(&format!(
        "<dt>Confidence</dt><dd><p class=\"confidence {0}\">{0}</p>{1}</dd>",
        advice.confidence.name(),
        doubts.collect::<String>()
    ));
    html
}

fn table(report: &Report) -> String {
    let choice = report.recommendation.choice;
    let row = |(index, size): (usize, &forebay_advisor::advice::SizeOutcome)| {
        let class = if index == choice.size_index { " class=\"chosen\"" } else { "" };
        let wear = size.mode(choice.mode).drive_writes_per_day;
        format!(
            "<tr{class} data-index=\"{index}\"><th scope=\"row\">{}</th><td>{}</td><td>{}</td>\
             <td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{}</td><td>{}</td></tr>",
            size::text(size.cache_bytes),
            percent(size.hit_ratio),
            percent(size.read_hit_ratio),
            percent(size.lru_hit_ratio),
            size.writeback.speedup,
            size.writethrough.speedup,
            size.writeonly.speedup,
            size::text(size.mode(choice.mode).cache_written_bytes),
            wear.map_or_else(|| "–".to_owned(), wear_text),
        )
    };
    report.sizes.iter().enumerate().map(row).collect()
}

fn figures(report: &Report) -> String {
    let figures = &report.figures;
    let rows = [
        ("SSD, small random read", figures.ssd_read_us, "µs"),
        ("SSD, small write", figures.ssd_write_us, "µs"),
        ("SSD, long transfers", figures.ssd_mb_s, "MB/s"),
        ("Origin, small random read", figures.origin_read_us, "µs"),
        ("Origin, small random write", figures.origin_write_us, "µs"),
        ("Origin, small request in a stream", figures.origin_stream_us, "µs"),
        ("Origin, long transfers", figures.origin_mb_s, "MB/s"),
    ];
    let row = |(name, value, unit)| {
        format!("<tr><th scope=\"row\">{name}</th><td>{value} {unit}</td></tr>")
    };
    rows.map(row).concat()
}

#[cfg(test)]
mod tests {
    use forebay_bench::report::page::first_load;

    use super::*;

    #[test]
    fn names_of_files_cannot_become_markup() {
        let name = "</script><img src=x onerror='a(\"b\")'>&amp;";
        let source = Source { path: name.to_owned(), format: "arc", broken_line_count: 0 };
        assert!(!sources(std::slice::from_ref(&source)).contains("<img"));
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for text in [TEMPLATE, STYLE, SCRIPT] {
            assert_eq!(first_load(text), None);
        }
    }
}
