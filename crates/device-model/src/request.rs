//! What goes into a model and what comes out.

/// Names a request from push to completion. The caller's choice; the model only hands it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestKind {
    /// Read the range.
    Read,
    /// Write the range. Completes in the device's cache where it has one.
    Write,
    /// Write zeroes to the range: a write whose bytes need not cross the bus.
    WriteZeroes,
    /// Make durable what was completed. Offset and length are ignored.
    Flush,
    /// Forget the range: a command without a transfer.
    Discard,
}

/// A request to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What to do.
    pub kind: RequestKind,
    /// First byte. What lies behind the end of the device counts as its end.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u64,
}

/// A completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request.
    pub token: Token,
    /// When it completed: at most the time of the poll that returned it.
    pub at_ns: u64,
}
