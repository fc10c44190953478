//! Known signatures on a device: what a format must not overwrite unless it is forced to.
//!
//! A table of offsets and magic numbers, read in two pieces of the device: its first 512 KiB and
//! its last 128 KiB. It answers the question "does this device belong to somebody", not "which
//! version of what is it": one signature per owner is enough. `blkid` knows more; it may be
//! missing.

use std::fs::File;
use std::io;

/// Bytes read at the start: covers the first two labels of ZFS.
const HEAD_BYTES: u64 = 512 * 1024;
/// Bytes read at the end: covers the superblock of md 0.90, which lies 64 to 128 KiB before the
/// end.
const TAIL_BYTES: u64 = 128 * 1024;

/// A signature that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundSignature {
    /// What it belongs to.
    pub owner: &'static str,
    /// Where it is, in bytes from the start of the device.
    pub offset_bytes: u64,
}

/// Where a magic number is.
#[derive(Clone, Copy)]
enum Place {
    /// Bytes from the start.
    Start(u64),
    /// Any of `count` places from `first` on, `step` bytes apart.
    Repeated { first: u64, step: u64, count: u64 },
    /// Bytes before the end.
    End(u64),
    /// Where md 0.90 puts its superblock: the last whole 64 KiB but one.
    EndOf64KiB,
    /// Where md 1.0 puts its superblock: 8 KiB before the end, rounded down to 4 KiB.
    EndOf4KiB,
}

struct Signature {
    owner: &'static str,
    place: Place,
    magic: &'static [u8],
}

const fn at(offset: u64, owner: &'static str, magic: &'static [u8]) -> Signature {
    Signature { owner, place: Place::Start(offset), magic }
}

const fn in_place(place: Place, owner: &'static str, magic: &'static [u8]) -> Signature {
    Signature { owner, place, magic }
}

/// Sources: the formats' own headers in the Linux kernel, and their manuals for the others. The
/// more telling come first: many boot sectors also carry the MBR's two bytes.
const SIGNATURES: &[Signature] = &[
    at(8, "forebay cache device", &forebay_engine::format::superblock::MAGIC),
    at(0x438, "ext2, ext3 or ext4", b"\x53\xef"),
    at(0, "XFS", b"XFSB"),
    at(0x1_0040, "Btrfs", b"_BHRfS_M"),
    at(0x400, "F2FS", b"\x10\x20\xf5\xf2"),
    at(0x400, "EROFS", b"\xe2\xe1\xf5\xe0"),
    at(0x406, "NILFS2", b"\x34\x34"),
    at(0x400, "HFS+", b"H+\x00\x04"),
    at(0x400, "HFSX", b"HX\x00\x05"),
    at(32, "APFS", b"NXSB"),
    at(0x8000, "JFS", b"JFS1"),
    at(0x1_0034, "ReiserFS", b"ReIsEr"),
    at(0x1_0000, "GFS2", b"\x01\x16\x19\x70"),
    in_place(Place::Repeated { first: 512, step: 512, count: 8 }, "OCFS2", b"OCFSV2"),
    at(0, "SquashFS", b"hsqs"),
    at(0x8001, "ISO 9660", b"CD001"),
    at(0x8001, "UDF", b"BEA01"),
    at(3, "NTFS", b"NTFS    "),
    at(3, "exFAT", b"EXFAT   "),
    at(3, "BitLocker", b"-FVE-FS-"),
    at(54, "FAT", b"FAT1"),
    at(82, "FAT", b"FAT32   "),
    in_place(Place::Repeated { first: 0, step: 512, count: 4 }, "LVM2", b"LABELONE"),
    at(0, "Linux RAID (md 1.1)", b"\xfc\x4e\x2b\xa9"),
    at(4096, "Linux RAID (md 1.2)", b"\xfc\x4e\x2b\xa9"),
    in_place(Place::EndOf4KiB, "Linux RAID (md 1.0)", b"\xfc\x4e\x2b\xa9"),
    in_place(Place::EndOf64KiB, "Linux RAID (md 0.90)", b"\xfc\x4e\x2b\xa9"),
    in_place(Place::End(1024), "Intel RAID", b"Intel Raid ISM Cfg Sig. "),
    in_place(Place::End(512), "DDF RAID", b"\xde\x11\xde\x11"),
    in_place(Place::End(4096), "DRBD", b"\x83\x74\x02\x6b"),
    at(0, "LUKS", b"LUKS\xba\xbe"),
    in_place(Place::Repeated { first: 0x4000, step: 0x4000, count: 4 }, "LUKS2", b"SKUL\xba\xbe"),
    in_place(Place::Repeated { first: 4086, step: 4096, count: 16 }, "swap", b"SWAPSPACE2"),
    in_place(Place::Repeated { first: 4086, step: 4096, count: 16 }, "swap", b"SWAP-SPACE"),
    in_place(Place::Repeated { first: 4086, step: 4096, count: 16 }, "hibernation", b"S1SUSPEND"),
    at(4120, "bcache", b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    at(4120, "bcachefs", b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    // Magic 0o6142003 and 27022010 in the kernel's dm-cache and dm-thin, little-endian.
    at(32, "dm-cache metadata", b"\x03\xc4\x18\x00\x00\x00\x00\x00"),
    at(32, "dm-thin metadata", b"\xba\x52\x9c\x01\x00\x00\x00\x00"),
    at(0, "dm-writecache", b"\x21\x93\x48\x23"),
    at(0, "VDO", b"dmvdo001"),
    at(0, "Ceph BlueStore", b"bluestore block device"),
    at(32, "Oracle ASM", b"ORCLDISK"),
    // The uberblocks of ZFS's first two labels, in either byte order.
    in_place(ZFS_UBERBLOCKS, "ZFS", b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    in_place(ZFS_UBERBLOCKS, "ZFS", b"\x00\x00\x00\x00\x00\xba\xb1\x0c"),
    at(512, "GPT partition table", b"EFI PART"),
    at(4096, "GPT partition table", b"EFI PART"),
    in_place(Place::End(512), "GPT partition table (backup)", b"EFI PART"),
    in_place(Place::End(4096), "GPT partition table (backup)", b"EFI PART"),
    at(510, "MBR partition table or boot sector", b"\x55\xaa"),
];

/// 128 KiB to 512 KiB: between the uberblock arrays lies the second label's name list.
const ZFS_UBERBLOCKS: Place = Place::Repeated { first: 128 * 1024, step: 1024, count: 384 };

impl Place {
    /// The offsets at which to look on a device of this size.
    fn offsets(self, size_bytes: u64) -> impl Iterator<Item = u64> {
        let (first, step, count) = match self {
            Place::Start(offset) => (Some(offset), 1, 1),
            Place::Repeated { first, step, count } => (Some(first), step, count),
            Place::End(before) => (size_bytes.checked_sub(before), 1, 1),
            Place::EndOf64KiB => ((size_bytes & !0xffff).checked_sub(0x1_0000), 1, 1),
            Place::EndOf4KiB => (size_bytes.checked_sub(0x2000).map(|end| end & !0xfff), 1, 1),
        };
        first.into_iter().flat_map(move |first| (0..count).map(move |i| first + i * step))
    }
}

/// The first known signature on the device, if there is one.
///
/// # Errors
/// If the device cannot be read. The file must be open without `O_DIRECT`.
pub(crate) fn find_signature(file: &File, size_bytes: u64) -> io::Result<Option<FoundSignature>> {
    let head = read_piece(file, 0, size_bytes.min(HEAD_BYTES))?;
    let tail_start = size_bytes.saturating_sub(TAIL_BYTES);
    let tail = read_piece(file, tail_start, size_bytes - tail_start)?;
    for signature in SIGNATURES {
        let length = signature.magic.len();
        for offset_bytes in signature.place.offsets(size_bytes) {
            let found = bytes_at(&head, 0, offset_bytes, length)
                .or_else(|| bytes_at(&tail, tail_start, offset_bytes, length));
            if found == Some(signature.magic) {
                return Ok(Some(FoundSignature { owner: signature.owner, offset_bytes }));
            }
        }
    }
    Ok(None)
}

fn bytes_at(piece: &[u8], piece_start: u64, offset: u64, length: usize) -> Option<&[u8]> {
    let start = usize::try_from(offset.checked_sub(piece_start)?).ok()?;
    piece.get(start..start.checked_add(length)?)
}

fn read_piece(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).expect("pieces are small")];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    /// Sizes around the pieces that are read and the places that are counted from the end.
    fn size() -> impl Strategy<Value = u64> {
        let near = prop::sample::select(vec![0, 4096, 65536, TAIL_BYTES, HEAD_BYTES, 1 << 20]);
        (near, -2i64..=2)
            .prop_map(|(near, sectors): (u64, i64)| near.saturating_add_signed(sectors * 512))
    }

    proptest! {
        /// No content and no size is too odd to be looked at, and what was found is there.
        #[test]
        fn what_is_found_is_there(
            size_bytes in size(),
            pieces in prop::collection::vec((any::<u32>(), any::<[u8; 16]>()), 0..20),
        ) {
            let file = tempfile::tempfile().unwrap();
            file.set_len(size_bytes).unwrap();
            for (place, bytes) in pieces.iter().filter(|_| size_bytes >= 16) {
                let at = u64::from(*place) % (size_bytes - 15);
                file.write_all_at(bytes, at).unwrap();
            }
            if let Some(found) = find_signature(&file, size_bytes).unwrap() {
                let is_there = SIGNATURES.iter().any(|signature| {
                    let mut bytes = vec![0; signature.magic.len()];
                    file.read_exact_at(&mut bytes, found.offset_bytes).is_ok()
                        && bytes == signature.magic
                        && signature.owner == found.owner
                });
                prop_assert!(is_there, "{found:?}");
            }
        }

        /// Each magic number is found at each of its places, alone on a device of any size.
        #[test]
        fn what_is_there_is_found(
            size_bytes in size(),
            index in 0..SIGNATURES.len(),
            nth in any::<prop::sample::Index>(),
        ) {
            let signature = &SIGNATURES[index];
            let length = signature.magic.len() as u64;
            let fits = |offset: &u64| offset + length <= size_bytes;
            let places: Vec<u64> = signature.place.offsets(size_bytes).filter(fits).collect();
            prop_assume!(!places.is_empty());
            let file = tempfile::tempfile().unwrap();
            file.set_len(size_bytes).unwrap();
            let offset = *nth.get(&places);
            file.write_all_at(signature.magic, offset).unwrap();
            let found = find_signature(&file, size_bytes).unwrap();
            prop_assert!(found.is_some(), "{} at {offset} of {size_bytes}", signature.owner);
        }
    }

    /// A device that is smaller than it says is an error and not a device without signatures.
    #[test]
    fn a_device_that_ends_early_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(find_signature(&file, 1 << 20).is_err());
    }
}
