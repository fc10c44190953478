//! Messages as bytes. The numbers are written down a second time here, from the protocol's
//! document, so that a wrong constant in the crate does not go unseen.

/// Bytes under construction.
#[derive(Clone, Default)]
pub(crate) struct Wire(pub(crate) Vec<u8>);

impl Wire {
    pub(crate) fn new() -> Wire {
        Wire::default()
    }

    pub(crate) fn u16(mut self, value: u16) -> Wire {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Wire {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Wire {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Wire {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A string behind its length.
    pub(crate) fn text(self, text: &str) -> Wire {
        self.u32(text.len() as u32).bytes(text.as_bytes())
    }
}

pub(crate) fn greeting() -> Vec<u8> {
    Wire::new().bytes(b"NBDMAGICIHAVEOPT").u16(3).0
}

pub(crate) fn option(code: u32, data: &[u8]) -> Vec<u8> {
    Wire::new().bytes(b"IHAVEOPT").u32(code).u32(data.len() as u32).bytes(data).0
}

#[derive(Clone, Copy)]
pub(crate) struct OptionReply {
    pub(crate) option: u32,
    pub(crate) reply: u32,
}

impl OptionReply {
    pub(crate) fn with(self, data: &[u8]) -> Vec<u8> {
        Wire::new()
            .u64(0x0003_e889_0455_65a9)
            .u32(self.option)
            .u32(self.reply)
            .u32(data.len() as u32)
            .bytes(data)
            .0
    }
}

pub(crate) fn ack(option: u32) -> Vec<u8> {
    OptionReply { option, reply: 1 }.with(&[])
}

/// Data of INFO and GO.
pub(crate) fn go_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let wire = Wire::new().text(name).u16(infos.len() as u16);
    infos.iter().fold(wire, |wire, info| wire.u16(*info)).0
}

/// Data of the metadata context options.
pub(crate) fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let wire = Wire::new().text(name).u32(queries.len() as u32);
    queries.iter().fold(wire, |wire, query| wire.text(query)).0
}

#[derive(Clone, Copy, Default)]
pub(crate) struct RawRequest {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl RawRequest {
    pub(crate) fn bytes(self) -> Vec<u8> {
        Wire::new()
            .u32(0x2560_9513)
            .u16(self.flags)
            .u16(self.command)
            .u64(self.cookie)
            .u64(self.offset)
            .u32(self.length)
            .0
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct RawChunk {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
}

impl RawChunk {
    pub(crate) fn with(self, payload: &[u8]) -> Vec<u8> {
        Wire::new()
            .u32(0x668e_33ef)
            .u16(self.flags)
            .u16(self.kind)
            .u64(self.cookie)
            .u32(payload.len() as u32)
            .bytes(payload)
            .0
    }
}

pub(crate) fn simple_reply(error: u32, cookie: u64) -> Vec<u8> {
    Wire::new().u32(0x6744_6698).u32(error).u64(cookie).0
}
