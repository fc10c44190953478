//! Data of options and of the replies to them.
//!
//! [`OptionData`] reads what the client sent: every length is checked against the bytes at hand,
//! and strings are borrowed, never copied. The `append_*` functions form replies. What an option
//! does is decided in `handshake.rs`.

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use crate::export::ExportInfo;
use crate::meta_context::MetaContext;
use crate::protocol::{
    InfoBlockSize, InfoExport, OPTION_REPLY_MAGIC, OptionReplyHeader, PAYLOAD_BYTES_MAX,
    STRING_BYTES_MAX, info_code, reply_code,
};

/// Why an option was refused, with words for the person at the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OptionRefusal {
    pub(crate) reply: u32,
    pub(crate) message: &'static str,
}

impl OptionRefusal {
    pub(crate) const fn invalid(message: &'static str) -> OptionRefusal {
        OptionRefusal { reply: reply_code::ERR_INVALID, message }
    }

    pub(crate) const fn too_big(message: &'static str) -> OptionRefusal {
        OptionRefusal { reply: reply_code::ERR_TOO_BIG, message }
    }

    pub(crate) const fn policy(message: &'static str) -> OptionRefusal {
        OptionRefusal { reply: reply_code::ERR_POLICY, message }
    }

    pub(crate) const UNKNOWN_OPTION: OptionRefusal =
        OptionRefusal { reply: reply_code::ERR_UNSUP, message: "option not supported" };
    pub(crate) const UNKNOWN_EXPORT: OptionRefusal =
        OptionRefusal { reply: reply_code::ERR_UNKNOWN, message: "no such export" };
    pub(crate) const SHUTTING_DOWN: OptionRefusal =
        OptionRefusal { reply: reply_code::ERR_SHUTDOWN, message: "server is shutting down" };
    pub(crate) const BLOCK_SIZE_REQUIRED: OptionRefusal = OptionRefusal {
        reply: reply_code::ERR_BLOCK_SIZE_REQD,
        message: "this export needs a client that asks for block sizes",
    };
    pub(crate) const TLS: OptionRefusal =
        OptionRefusal { reply: reply_code::ERR_UNSUP, message: "TLS is not supported" };
}

/// Unread rest of an option's data.
pub(crate) struct OptionData<'a> {
    rest: &'a [u8],
}

impl<'a> OptionData<'a> {
    pub(crate) fn new(data: &'a [u8]) -> OptionData<'a> {
        OptionData { rest: data }
    }

    pub(crate) fn read_u16(&mut self) -> Result<u16, OptionRefusal> {
        self.read_array().map(u16::from_be_bytes)
    }

    pub(crate) fn read_u32(&mut self) -> Result<u32, OptionRefusal> {
        self.read_array().map(u32::from_be_bytes)
    }

    /// A string after its 32-bit length.
    pub(crate) fn read_text(&mut self) -> Result<&'a str, OptionRefusal> {
        let length = self.read_u32()? as usize;
        let Some((text, rest)) = self.rest.split_at_checked(length) else {
            return Err(OptionRefusal::invalid("a string is longer than the option"));
        };
        self.rest = rest;
        check_text(text)
    }

    /// Everything was read.
    pub(crate) fn finish(self) -> Result<(), OptionRefusal> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(OptionRefusal::invalid("the option is longer than its content"))
        }
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], OptionRefusal> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(OptionRefusal::invalid("the option is shorter than its content"));
        };
        self.rest = rest;
        Ok(*head)
    }
}

/// The rules for strings: UTF-8, no NUL, bounded.
pub(crate) fn check_text(bytes: &[u8]) -> Result<&str, OptionRefusal> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(OptionRefusal::too_big("a string is longer than 4096 bytes"));
    }
    if bytes.contains(&0) {
        return Err(OptionRefusal::invalid("a string holds a NUL byte"));
    }
    core::str::from_utf8(bytes).map_err(|_| OptionRefusal::invalid("a string is not UTF-8"))
}

/// Which information INFO or GO asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WantedInfo {
    pub(crate) name: bool,
    pub(crate) description: bool,
    pub(crate) block_size: bool,
}

/// Data of INFO and GO.
pub(crate) fn parse_info(data: &[u8]) -> Result<(&str, WantedInfo), OptionRefusal> {
    let mut data = OptionData::new(data);
    let name = data.read_text()?;
    let count = data.read_u16()?;
    let mut wanted = WantedInfo::default();
    for _ in 0..count {
        match data.read_u16()? {
            info_code::NAME => wanted.name = true,
            info_code::DESCRIPTION => wanted.description = true,
            info_code::BLOCK_SIZE => wanted.block_size = true,
            // EXPORT is sent in any case; what we do not know must be ignored.
            _ => {}
        }
    }
    data.finish()?;
    Ok((name, wanted))
}

/// A reply to `option` with `parts` as its data, one behind the other.
pub(crate) fn append_reply(option: u32, reply: u32, parts: &[&[u8]], output: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        reply: reply.into(),
        length: u32::try_from(length).expect("replies hold a few bounded strings").into(),
    };
    output.extend_from_slice(header.as_bytes());
    for part in parts {
        output.extend_from_slice(part);
    }
}

pub(crate) fn append_ack(option: u32, output: &mut Vec<u8>) {
    append_reply(option, reply_code::ACK, &[], output);
}

pub(crate) fn append_refusal(option: u32, refusal: OptionRefusal, output: &mut Vec<u8>) {
    append_reply(option, refusal.reply, &[refusal.message.as_bytes()], output);
}

pub(crate) fn append_server(option: u32, export: &ExportInfo, output: &mut Vec<u8>) {
    let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
    let name_length = (name.len() as u32).to_be_bytes();
    append_reply(option, reply_code::SERVER, &[&name_length, name, description], output);
}

pub(crate) fn append_meta_context(
    option: u32,
    id: u32,
    context: MetaContext,
    output: &mut Vec<u8>,
) {
    let parts: [&[u8]; 2] = [&id.to_be_bytes(), context.name().as_bytes()];
    append_reply(option, reply_code::META_CONTEXT, &parts, output);
}

/// What INFO and GO tell about an export. Sizes are told unasked too: who does not know them must
/// ignore them.
pub(crate) fn append_infos(
    option: u32,
    export: &ExportInfo,
    flags: u16,
    wanted: WantedInfo,
    output: &mut Vec<u8>,
) {
    let info = InfoExport {
        info: info_code::EXPORT.into(),
        size: export.size_bytes.into(),
        flags: flags.into(),
    };
    append_reply(option, reply_code::INFO, &[info.as_bytes()], output);
    if wanted.name {
        let code = info_code::NAME.to_be_bytes();
        append_reply(option, reply_code::INFO, &[&code, export.name.as_bytes()], output);
    }
    if wanted.description {
        let code = info_code::DESCRIPTION.to_be_bytes();
        append_reply(option, reply_code::INFO, &[&code, export.description.as_bytes()], output);
    }
    append_block_size(option, export, output);
}

pub(crate) fn append_block_size(option: u32, export: &ExportInfo, output: &mut Vec<u8>) {
    let sizes = InfoBlockSize {
        info: info_code::BLOCK_SIZE.into(),
        minimum: export.logical_block_bytes.into(),
        preferred: export.preferred_block_bytes.into(),
        payload_max: PAYLOAD_BYTES_MAX.into(),
    };
    append_reply(option, reply_code::INFO, &[sizes.as_bytes()], output);
}
