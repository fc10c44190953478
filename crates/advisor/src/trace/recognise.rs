//! Which format a file has, from how it begins.

use super::device::Devices;
use super::format::{Parser, is_blktrace, is_iolog, is_oracle_general};
use super::{Format, LineError};

/// Lines that are tried at most.
const LINES_MAX: usize = 200;
/// Text formats without a signature; a line belongs to at most one of them.
const CANDIDATES: [Format; 7] = [
    Format::Arc,
    Format::Biosnoop,
    Format::Blkparse,
    Format::Cloudphysics,
    Format::Disksim,
    Format::Lirs,
    Format::Msr,
];

/// The format of a file that begins with `sample`, if it is clear: by a signature, else the one
/// that most lines are understood as, if that is more than half of them.
pub(super) fn recognise(sample: &[u8]) -> Option<Format> {
    if is_blktrace(sample) {
        return Some(Format::Blktrace);
    }
    if is_iolog(sample) {
        return Some(Format::Fio);
    }
    let end = sample.iter().rposition(|byte| *byte == b'\n').map_or(sample.len(), |at| at + 1);
    let lines =
        sample[..end].split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    // A line that is no text is a broken one, as long as most are text.
    let lines: Vec<Option<&str>> = lines.take(LINES_MAX).map(text_of).collect();
    let text: Vec<&str> = lines.iter().copied().flatten().collect();
    if 2 * text.len() <= lines.len() {
        return is_oracle_general(sample).then_some(Format::OracleGeneral);
    }
    let understood = |format: &Format| understood_count(*format, sample, &text);
    let best = CANDIDATES.into_iter().max_by_key(understood)?;
    (2 * understood(&best) > lines.len()).then_some(best)
}

/// A line, if it is text.
fn text_of(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?;
    let is_control = |c: char| c.is_control() && !c.is_whitespace();
    (!text.contains(is_control)).then_some(text)
}

/// Lines that hold a request, read as `format`, and those that belong to it without one.
fn understood_count(format: Format, sample: &[u8], lines: &[&str]) -> usize {
    let Parser::Lines(mut parser) = Parser::new(format, sample, 1) else { return 0 };
    let mut devices = Devices::default();
    let mut requests = 0;
    let mut others = 0;
    for line in lines {
        match parser.read(line, &mut devices) {
            Ok(Some(_)) | Err(LineError::Range { .. }) => requests += 1,
            Ok(None) => others += 1,
            Err(_) => {}
        }
    }
    // A format of which every line says nothing is none.
    if requests == 0 { 0 } else { requests + others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised() {
        for (sample, format) in [
            ("3050771 25 0\n2461851 8 0\n", Format::Arc),
            ("3050771 25 0 1\n2461851 8 0 2\n", Format::Arc),
            ("1\n2\n*\n3\n", Format::Lirs),
            ("938513000 4 264719034 16 0\n", Format::Disksim),
            ("version,time,op,size,lbn\n1,5633898,2a,512,42932745\n", Format::Cloudphysics),
            ("128166372003061629,hm,0,Read,383496192,32768,413\n", Format::Msr),
            ("fio version 3 iolog\n0 /mnt/f add\n", Format::Fio),
            (
                "TIME(s)     COMM           PID    DISK    T SECTOR     BYTES  LAT(ms)\n\
                 0.000004001 supervise      1950   xvda1   W 13092560   4096      0.74\n",
                Format::Biosnoop,
            ),
            ("8,0 3 3 0.000002197 697 Q W 223490 + 8 [kjournald]\n", Format::Blkparse),
        ] {
            assert_eq!(recognise(sample.as_bytes()), Some(format), "{sample}");
        }
    }

    #[test]
    fn other_files_are_not() {
        for sample in ["", "hello\nworld\n", "a,b,c\n1,2,3\n", "1 2\n3 4\n", "\n\n\n"] {
            assert_eq!(recognise(sample.as_bytes()), None, "{sample}");
        }
        assert_eq!(recognise(&[0; 4096]), None);
        assert_eq!(recognise(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0\x01\0\0\0"), None);
    }

    #[test]
    fn a_few_broken_lines_do_not_hide_the_format() {
        assert_eq!(recognise(b"# a comment\n1 2 0\n2 2 0\n"), Some(Format::Arc));
        assert_eq!(recognise(b"# a comment\n1 2 0\n"), None, "half of the lines");
        assert_eq!(recognise(b"\xff\xfe\n1 2 0\n2 2 0\n"), Some(Format::Arc));
        assert_eq!(recognise(b"1 2 0\n2 2 0\n1 \x01 0\n"), Some(Format::Arc));
        assert_eq!(recognise(b"\xff\xfe\n1 2 0\n"), None, "half of the lines");
    }
}
