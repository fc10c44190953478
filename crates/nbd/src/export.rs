//! What a host offers to clients.

use alloc::string::String;

use thiserror::Error;

use crate::protocol::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, transmission_flag};
use crate::session::ReplyStyle;

/// An export, as the host describes it. The protocol code copies what it needs when a client
/// chooses the export, so later changes reach later connections only, but
/// for the size, see [`crate::ServerConnection::resize`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Name that clients ask for. The empty name is the default export; if there is none of that
    /// name and only one export, that one is the default.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Size: a multiple of the logical block.
    pub size_bytes: u64,
    /// Smallest unit and alignment of requests: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Unit that costs no merging: a power of two from the logical block to 32 MiB, usually 4096
    /// or the optimal I/O size of the origin.
    pub preferred_block_bytes: u32,
    /// Every write is refused.
    pub is_read_only: bool,
    /// The client should sort its requests.
    pub is_rotational: bool,
    /// A flush on one connection covers what was answered on all of them.
    pub supports_multi_conn: bool,
    /// Write zeroes can promise to be faster than writing: the host answers such a request quickly
    /// or with [`crate::ReplyError::NotSupported`].
    pub supports_fast_zero: bool,
    /// Words for the person at a client that asks for it, if it is not to be had now: another front
    /// end has it. Such an export is not listed.
    pub refusal: Option<&'static str>,
}

/// An export that cannot be offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ExportError {
    /// The protocol's bound on strings.
    #[error("name or description of {bytes} bytes; at most {STRING_BYTES_MAX} are allowed")]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Strings hold no NUL.
    #[error("name or description with a NUL byte")]
    TextHoldsNul,
    /// Not 512 or 4096.
    #[error("logical block of {found_bytes} bytes; 512 and 4096 are allowed")]
    LogicalBlock {
        /// As given.
        found_bytes: u32,
    },
    /// Not a power of two in range.
    #[error(
        "preferred block of {found_bytes} bytes; \
         a power of two from the logical block to 32 MiB is allowed"
    )]
    PreferredBlock {
        /// As given.
        found_bytes: u32,
    },
    /// The last bytes could not be reached.
    #[error("size of {size_bytes} bytes is no multiple of the logical block")]
    Size {
        /// As given.
        size_bytes: u64,
    },
}

impl ExportInfo {
    /// Whether clients can be served from this description. A host checks each export once, before
    /// it offers it; the server asserts it.
    pub fn validate(&self) -> Result<(), ExportError> {
        for text in [&self.name, &self.description] {
            if text.len() > STRING_BYTES_MAX {
                return Err(ExportError::TextTooLong { bytes: text.len() });
            }
            if text.contains('\0') {
                return Err(ExportError::TextHoldsNul);
            }
        }
        if !matches!(self.logical_block_bytes, 512 | 4096) {
            return Err(ExportError::LogicalBlock { found_bytes: self.logical_block_bytes });
        }
        let preferred = self.preferred_block_bytes;
        if !preferred.is_power_of_two()
            || preferred < self.logical_block_bytes
            || preferred > PAYLOAD_BYTES_MAX
        {
            return Err(ExportError::PreferredBlock { found_bytes: preferred });
        }
        if !self.size_bytes.is_multiple_of(u64::from(self.logical_block_bytes)) {
            return Err(ExportError::Size { size_bytes: self.size_bytes });
        }
        Ok(())
    }

    /// What the client is told it may do.
    pub(crate) fn transmission_flags(&self, style: ReplyStyle) -> u16 {
        use transmission_flag as flag;
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        if self.is_read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES;
            if self.supports_fast_zero {
                flags |= flag::SEND_FAST_ZERO;
            }
        }
        if self.is_rotational {
            flags |= flag::ROTATIONAL;
        }
        if self.supports_multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        if style == ReplyStyle::Structured {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// Whether a client that never heard of block sizes can use the export: the protocol lets it
    /// assume that multiples of 512 are safe.
    pub(crate) fn serves_default_blocks(&self) -> bool {
        self.logical_block_bytes <= 512
    }
}

/// The export that a client means by `name`, and its place in the list.
pub(crate) fn find<'a>(exports: &'a [ExportInfo], name: &str) -> Option<(usize, &'a ExportInfo)> {
    let exact = exports.iter().enumerate().find(|(_, export)| export.name == name);
    let found = match exports {
        [only] if name.is_empty() => exact.or(Some((0, only))),
        _ => exact,
    };
    if let Some((_, export)) = found {
        assert_eq!(export.validate(), Ok(()));
    }
    found
}
