//! Where time goes by function: what perf sampled in the guest.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{DEPTHS, Target, from_line};
use crate::bench::document::table;

/// What a processor runs that has nothing to do; its samples are left out.
const IDLE: [&str; 4] = ["default_idle", "pv_native_safe_halt", "native_safe_halt", "acpi_idle"];
/// Rows of the table: the functions that take most of any column.
const ROWS: usize = 30;
/// Ways to a volume that are profiled.
const TARGETS: [Target; 2] = [Target::Ublk, Target::Nbd];

/// A share of samples, as a line of the script has it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Share {
    target: Target,
    depth: u32,
    percent: f64,
    /// Name of the process.
    program: String,
    /// The kernel, or the file of a program or library.
    object: String,
    function: String,
}

impl FromStr for Share {
    type Err = anyhow::Error;

    /// `NAME=VALUE` by `NAME=VALUE`, then percent, program, object and function.
    fn from_str(text: &str) -> anyhow::Result<Share> {
        #[derive(Deserialize)]
        struct Phase {
            target: Target,
            depth: u32,
        }
        let Phase { target, depth } = from_line(text)?;
        let figures = text.splitn(3, ' ').nth(2).context("no figures")?;
        let mut fields = figures.split(';').map(str::trim);
        let mut field = |what: &str| fields.next().with_context(|| format!("no {what} in: {text}"));
        let percent = field("percent")?.trim_end_matches('%').parse().context("percent")?;
        let (program, object) = (field("program")?, field("object")?.to_owned());
        // Threads of the kernel have numbers behind their names.
        let program = program.split_once('/').map_or(program, |(name, _)| name).to_owned();
        // `[k]` or `[.]` says in which mode it runs, which the object says, too.
        let function = field("function")?;
        let function = function.split_once(' ').map_or(function, |(_, name)| name).trim();
        let function = without_hash(function).to_owned();
        Ok(Share { target, depth, percent, program, object, function })
    }
}

impl Share {
    fn is_idle(&self) -> bool {
        IDLE.iter().any(|name| self.function.starts_with(name))
    }

    /// Who runs it: the program, or the kernel on its behalf.
    fn place(&self) -> String {
        let is_kernel = self.object.starts_with('[');
        if is_kernel { format!("{}, in the kernel", self.program) } else { self.program.clone() }
    }
}

/// A name without the number that the compiler puts behind it.
fn without_hash(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

/// The functions that take most, and what share of the busy time they take over each way; empty if
/// nothing was profiled.
pub(super) fn text(shares: &[Share]) -> String {
    let columns: Vec<(Target, u32)> =
        DEPTHS.into_iter().flat_map(|depth| TARGETS.map(|target| (target, depth))).collect();
    let place = |share: &Share| columns.iter().position(|c| *c == (share.target, share.depth));
    // Functions with a small share have no line, so what is busy is what is not idle.
    let mut busy = vec![100.0; columns.len()];
    let mut rows: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for share in shares {
        let Some(column) = place(share) else { continue };
        if share.is_idle() {
            busy[column] -= share.percent;
            continue;
        }
        let row = rows.entry((share.place(), share.function.clone()));
        row.or_insert_with(|| vec![0.0; columns.len()])[column] += share.percent;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    for (_, percents) in &mut rows {
        for (percent, busy) in percents.iter_mut().zip(&busy) {
            *percent *= if *busy > 0.0 { 100.0 / busy } else { 0.0 };
        }
    }
    let most = |percents: &[f64]| percents.iter().copied().fold(0.0, f64::max);
    rows.sort_by(|(_, a), (_, b)| most(b).total_cmp(&most(a)));
    if rows.is_empty() {
        return String::new();
    }
    let title = |(target, depth): &(Target, u32)| format!("{}, QD{depth}", target.short());
    let titles: Vec<String> = columns.iter().map(title).collect();
    let header: Vec<&str> =
        ["function", "of"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let cells = rows.into_iter().take(ROWS).map(|((place, function), percents)| {
        // What perf printed no line for took little.
        let cell = |percent: &f64| match percent {
            0.0 => "–".to_owned(),
            percent => format!("{percent:.1}"),
        };
        let percents = percents.iter().map(cell);
        [format!("`{function}`"), place].into_iter().chain(percents).collect()
    });
    table(&header, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        "target=ublk depth=1 40.00%;swapper/1;[kernel.kallsyms];[k] default_idle ;- -",
        "target=ublk depth=1 45.00%;forebay;forebay;[.] forebay::a::b::h0123456789abcdef",
        "target=ublk depth=1 15.00%;fio;[kernel.kallsyms];[k] io_submit",
        "target=nbd depth=32 10.00%;fio;libc.so.6;[.] memcpy",
    ];

    #[test]
    fn lines_of_the_script_are_shares_of_the_busy_time() {
        let shares: Vec<Share> = LINES.iter().map(|line| line.parse().expect("a line")).collect();
        let text = text(&shares);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows[..3],
            [
                "| `forebay::a::b` | forebay | 75.0 | – | – | – |",
                "| `io_submit` | fio, in the kernel | 25.0 | – | – | – |",
                "| `memcpy` | fio | – | – | – | 10.0 |",
            ],
            "{text}"
        );
        assert!("target=ublk depth=1 x;a;b;c".parse::<Share>().is_err());
        assert!("target=ublk depth=1 1%;a".parse::<Share>().is_err());
    }

    #[test]
    fn without_a_profile_there_is_no_table() {
        assert_eq!(text(&[]), "");
    }
}
