//! What server and client agreed on in the handshake.

use crate::export::ExportInfo;
use crate::meta_context::ContextSet;
use crate::protocol::PAYLOAD_BYTES_MAX;

/// Shape of replies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReplyStyle {
    /// One header, then the data of a READ.
    Simple,
    /// Chunks that describe themselves.
    Structured,
}

/// What holds for every request of a connection. Small and constant: a host may copy it to where
/// replies are formed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Place of the chosen export in the list that the host handed in with the last bytes. Zero on
    /// the client.
    pub export_index: usize,
    /// Size of the export when it was chosen. Requests beyond it are refused.
    pub size_bytes: u64,
    /// Alignment that requests must keep.
    pub logical_block_bytes: u32,
    /// Longest READ or WRITE.
    pub payload_bytes_max: u32,
    /// Writes are refused.
    pub is_read_only: bool,
    /// FAST_ZERO was offered.
    pub supports_fast_zero: bool,
    /// Shape of replies.
    pub reply_style: ReplyStyle,
    /// Contexts that every BLOCK_STATUS is answered for.
    pub contexts: ContextSet,
}

impl Session {
    pub(crate) fn new(
        export_index: usize,
        export: &ExportInfo,
        reply_style: ReplyStyle,
        contexts: ContextSet,
    ) -> Session {
        Session {
            export_index,
            size_bytes: export.size_bytes,
            logical_block_bytes: export.logical_block_bytes,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            is_read_only: export.is_read_only,
            supports_fast_zero: export.supports_fast_zero && !export.is_read_only,
            reply_style,
            contexts,
        }
    }
}
