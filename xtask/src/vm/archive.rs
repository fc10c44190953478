//! An archive in the `newc` form of cpio, which the kernel unpacks into its first file system.
//!
//! The form is documented in the kernel's `initramfs-buffer-format`. Everything belongs to root and
//! has no time, so that equal files make equal archives. Nothing is compressed: an emulated
//! processor unpacks far more slowly than the archive is read.

use std::io::{self, Write};

/// What each header begins with.
const MAGIC: &str = "070701";
/// Name of the entry that ends an archive.
const LAST_NAME: &str = "TRAILER!!!";
/// Headers and contents begin at multiples of this many bytes.
const ALIGNMENT_BYTES: usize = 4;

const FOLDER_MODE: u32 = 0o040_755;
const PROGRAM_MODE: u32 = 0o100_755;
const LINK_MODE: u32 = 0o120_777;

/// An archive that is being written.
pub(crate) struct Archive<W: Write> {
    output: W,
    entry_count: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(output: W) -> Archive<W> {
        Archive { output, entry_count: 0 }
    }

    /// A folder; the ones above it must be there already.
    pub(crate) fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, FOLDER_MODE, b"")
    }

    /// A file that can be run.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM_MODE, content)
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK_MODE, target.as_bytes())
    }

    /// Ends the archive, and returns what it was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(LAST_NAME, 0, b"")?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        assert!(!name.starts_with('/'), "names begin below the root");
        self.entry_count += 1;
        let length = |bytes: usize| {
            u32::try_from(bytes).map_err(|_| io::Error::other(format!("{name} is too large")))
        };
        let (content_bytes, name_bytes) = (length(content.len())?, length(name.len() + 1)?);
        let link_count = 1;
        // Inode, mode, user, group, links, time, size, four device numbers, name, checksum.
        let fields =
            [self.entry_count, mode, 0, 0, link_count, 0, content_bytes, 0, 0, 0, 0, name_bytes, 0];
        let mut header = MAGIC.to_owned();
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.aligned(header.as_bytes())?;
        self.aligned(content)
    }

    fn aligned(&mut self, bytes: &[u8]) -> io::Result<()> {
        let padding = bytes.len().next_multiple_of(ALIGNMENT_BYTES) - bytes.len();
        self.output.write_all(bytes)?;
        self.output.write_all(&[0; ALIGNMENT_BYTES][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_in_hexadecimal_digits_a_name_and_a_content() {
        let mut archive = Archive::new(Vec::new());
        archive.file("init", b"#!/bin/sh\n").unwrap();
        let bytes = archive.finish().unwrap();
        let header = "070701\
            00000001000081ed00000000000000000000000100000000\
            0000000a000000000000000000000000000000000000000500000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        // 110 bytes of header and 5 of name are filled up to 116.
        assert_eq!(&bytes[110..116], b"init\0\0"[..].get(..6).unwrap());
        assert_eq!(&bytes[116..128], b"#!/bin/sh\n\0\0");
        assert!(bytes[128..].starts_with(b"070701"));
    }

    #[test]
    fn every_part_is_aligned_and_the_trailer_is_last() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("bin").unwrap();
        archive.link("bin/sh", "busybox").unwrap();
        archive.file("x", b"y").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % ALIGNMENT_BYTES, 0);
        let starts = bytes.windows(6).enumerate().filter(|(_, part)| part == b"070701");
        let starts: Vec<usize> = starts.map(|(start, _)| start).collect();
        assert_eq!(starts.len(), 4);
        assert!(starts.iter().all(|start| start % ALIGNMENT_BYTES == 0));
        assert!(bytes[starts[3]..].windows(11).any(|part| part == b"TRAILER!!!\0"));
    }
}
