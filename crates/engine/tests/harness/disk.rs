//! A device with a volatile write cache.

/// A completed write that no flush has covered.
pub(crate) struct Unflushed {
    number: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Disk {
    /// What reads see.
    pub(crate) seen: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<Unflushed>,
    /// Number of the next write.
    next: u64,
}

fn put(target: &mut [u8], offset: u64, bytes: &[u8]) {
    let from = usize::try_from(offset).expect("devices are small");
    target[from..from + bytes.len()].copy_from_slice(bytes);
}

impl Disk {
    /// A device on which everything is durable.
    pub(crate) fn new(bytes: Vec<u8>) -> Disk {
        Disk { durable: bytes.clone(), seen: bytes, ..Disk::default() }
    }

    pub(crate) fn range(&self, offset: u64, length: u64) -> &[u8] {
        let from = usize::try_from(offset).expect("devices are small");
        &self.seen[from..from + usize::try_from(length).expect("devices are small")]
    }

    /// What a power cut would leave, if it took everything that it may.
    pub(crate) fn durable(&self) -> &[u8] {
        &self.durable
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        put(&mut self.seen, offset, &bytes);
        self.unflushed.push(Unflushed { number: self.next, offset, bytes });
        self.next += 1;
    }

    /// What a flush that begins now has to cover.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.next
    }

    pub(crate) fn flush(&mut self, mark: u64) {
        for write in &self.unflushed {
            if write.number < mark {
                put(&mut self.durable, write.offset, &write.bytes);
            }
        }
        self.unflushed.retain(|write| write.number >= mark);
    }

    /// Keeps what is durable and, of the rest, what `keeps` names.
    pub(crate) fn cut_power(&mut self, mut keeps: impl FnMut(&Unflushed) -> bool) {
        for write in std::mem::take(&mut self.unflushed) {
            if keeps(&write) {
                put(&mut self.durable, write.offset, &write.bytes);
            }
        }
        self.seen = self.durable.clone();
    }

    /// Changes bytes behind everybody's back, durably.
    pub(crate) fn damage(&mut self, offset: u64, bytes: &[u8]) {
        put(&mut self.seen, offset, bytes);
        put(&mut self.durable, offset, bytes);
    }

    /// Makes the device longer by these bytes, durably.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.seen.extend_from_slice(bytes);
        self.durable.extend_from_slice(bytes);
    }

    /// Flips a bit of each byte of a range, durably.
    pub(crate) fn rot(&mut self, offset: u64, length: u64) {
        let bytes: Vec<u8> = self.range(offset, length).iter().map(|byte| byte ^ 1).collect();
        self.damage(offset, &bytes);
    }
}
