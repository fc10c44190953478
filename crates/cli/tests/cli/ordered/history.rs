//! What clients wrote and were told, and whether an origin alone is a state at a flush point.
//!
//! Moments are counted, not timed. No two writes of a block are ever under way at once, so of each
//! block it is known which write came after which.
//!
//! A flush point is an answered flush, or an answered write with FUA. It covers what was answered
//! before it was sent, and itself. In order the origin holds all that some flush point covers, and
//! any part of what was written until the next one. So of any write that is there it follows:
//! every flush point that was answered before that write was sent is there as a whole. What a
//! point covers may be there as a later write of the same block.

/// The unit that no crash may mix.
const SECTOR_BYTES: usize = 512;
pub(super) const BLOCK_BYTES: usize = 4096;
/// No such moment: it has not come.
const NEVER: u64 = u64::MAX;

/// A write of one block.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) block: u32,
    /// Not later than the server got it.
    pub(super) sent: u64,
    /// Not earlier than the server answered it.
    pub(super) answered: u64,
    pub(super) is_forced: bool,
}

/// An answered flush, or an answered write with FUA.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushPoint {
    pub(super) sent: u64,
    pub(super) answered: u64,
}

/// What one client did.
#[derive(Clone, Default, Debug)]
pub(super) struct Log {
    pub(super) writes: Vec<Write>,
    pub(super) points: Vec<FlushPoint>,
}

impl Log {
    /// A write is sent; returns its index.
    pub(super) fn send(&mut self, block: u32, sent: u64, is_forced: Forced) -> usize {
        let is_forced = is_forced == Forced::Yes;
        self.writes.push(Write { block, sent, answered: NEVER, is_forced });
        self.writes.len() - 1
    }

    /// A write is answered.
    pub(super) fn answer(&mut self, index: usize, answered: u64) {
        let write = &mut self.writes[index];
        write.answered = answered;
        if write.is_forced {
            self.points.push(FlushPoint { sent: write.sent, answered });
        }
    }
}

/// Whether a write has FUA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forced {
    Yes,
    No,
}

/// The content of a block with the write of this number; zero stands for none.
pub(super) fn content(block: u32, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    for sector in 0..(BLOCK_BYTES / SECTOR_BYTES) as u64 {
        bytes.extend_from_slice(&sector_content(block, sector, number));
    }
    bytes
}

fn sector_content(block: u32, sector: u64, number: u64) -> [u8; SECTOR_BYTES] {
    let place = u64::from(block) << 8 | sector;
    let mut bytes = [0; SECTOR_BYTES];
    if number > 0 {
        for pair in bytes.chunks_exact_mut(16) {
            pair[..8].copy_from_slice(&number.to_le_bytes());
            pair[8..].copy_from_slice(&place.to_le_bytes());
        }
    }
    bytes
}

/// How far an origin is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Flush points of which everything is there.
    pub(super) points_home: usize,
    /// All that were answered.
    pub(super) points: usize,
    /// Blocks with a write that no such flush point covers: part of the next epoch.
    pub(super) blocks_ahead: usize,
}

/// All clients together. Write `index` of client `client` has the number
/// `index * clients + client + 1`.
pub(super) struct History<'a> {
    logs: &'a [Log],
    /// When each flush point was answered, in order.
    answered: Vec<u64>,
    /// Flush points by when they were sent, each with the first moment at which it or one that was
    /// sent later was answered.
    covers: Vec<(u64, u64)>,
    /// Numbers of the writes of each block, in order.
    of_block: Vec<Vec<u64>>,
}

/// A write of a block that a flush point covers and that is not there.
struct Missing {
    covered: u64,
    text: String,
}

impl<'a> History<'a> {
    pub(super) fn new(logs: &'a [Log], blocks: u32) -> History<'a> {
        let points = || logs.iter().flat_map(|log| &log.points);
        let mut answered: Vec<u64> = points().map(|point| point.answered).collect();
        answered.sort_unstable();
        let mut covers: Vec<_> = points().map(|point| (point.sent, point.answered)).collect();
        covers.sort_unstable();
        let mut first = NEVER;
        for (_, answered) in covers.iter_mut().rev() {
            first = first.min(*answered);
            *answered = first;
        }
        let mut of_block = vec![Vec::new(); blocks as usize];
        for (client, log) in logs.iter().enumerate() {
            for (index, write) in log.writes.iter().enumerate() {
                of_block[write.block as usize].push((index * logs.len() + client) as u64 + 1);
            }
        }
        History { logs, answered, covers, of_block }
    }

    fn write(&self, number: u64) -> &Write {
        let (index, client) = ((number - 1) as usize / self.logs.len(), number - 1);
        &self.logs[client as usize % self.logs.len()].writes[index]
    }

    /// When the first flush point that covers a write was answered.
    fn covered(&self, write: &Write) -> u64 {
        if write.answered == NEVER {
            return NEVER;
        }
        let later = self.covers.partition_point(|(sent, _)| *sent < write.answered);
        let point = self.covers.get(later).map_or(NEVER, |(_, answered)| *answered);
        if write.is_forced { point.min(write.answered) } else { point }
    }

    /// Checks that `origin` is a state at a flush point, with any part of the epoch that follows.
    pub(super) fn judge(&self, origin: &[u8]) -> Result<Standing, String> {
        let mut newest = (0, String::from("nothing"));
        let mut missing = Missing { covered: NEVER, text: String::new() };
        let mut held = Vec::new();
        for (block, bytes) in (0..).zip(origin.chunks_exact(BLOCK_BYTES)) {
            for (sector, bytes) in (0..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                let age = self.age(block, number);
                let age = age.filter(|_| bytes == sector_content(block, sector, number));
                let Some(age) = age else {
                    return Err(format!("block {block}, sector {sector}: {:?}", &bytes[..16]));
                };
                if number > 0 && self.write(number).sent > newest.0 {
                    newest = (self.write(number).sent, self.describe(number));
                }
                self.look_for(&self.of_block[block as usize][age..], number, &mut missing);
                held.push(number);
            }
        }
        if missing.covered < newest.0 {
            let ahead = newest.1;
            return Err(format!("{}; but {ahead} is on the origin already", missing.text));
        }
        let is_ahead = |numbers: &&[u64]| {
            let is_new = |number: u64| self.covered(self.write(number)) >= missing.covered;
            // Zeroes are nobody's write.
            numbers.iter().any(|number| *number > 0 && is_new(*number))
        };
        Ok(Standing {
            points_home: self.answered.partition_point(|moment| *moment < missing.covered),
            points: self.answered.len(),
            blocks_ahead: held.chunks(BLOCK_BYTES / SECTOR_BYTES).filter(is_ahead).count(),
        })
    }

    /// How many writes a block has up to this one, itself included. `None` if it is none of them.
    fn age(&self, block: u32, number: u64) -> Option<usize> {
        if number == 0 {
            return Some(0);
        }
        let writes = &self.of_block[block as usize];
        writes.iter().position(|other| *other == number).map(|index| index + 1)
    }

    /// Looks among the later writes of a block for one that was covered earlier than `missing`.
    fn look_for(&self, later: &[u64], found: u64, missing: &mut Missing) {
        for number in later {
            let covered = self.covered(self.write(*number));
            if covered < missing.covered {
                let text = self.describe(*number);
                let found = if found == 0 { String::from("zeroes") } else { self.describe(found) };
                missing.covered = covered;
                missing.text = format!(
                    "{found} is still on the origin, though a flush point that was answered at \
                     moment {covered} covers {text}"
                );
            }
        }
    }

    fn describe(&self, number: u64) -> String {
        let write = self.write(number);
        format!("write {number} ({write:?})")
    }
}

/// Two clients, and an origin of three blocks with these writes.
fn judge_small(points: &[(u64, u64)], on_origin: [u64; 3]) -> Result<Standing, String> {
    let write = |block, sent, answered| Write { block, sent, answered, is_forced: false };
    let mut logs = [Log::default(), Log::default()];
    // Numbers 1 and 3; 2 and 4. The last was never answered.
    logs[0].writes = vec![write(0, 1, 2), write(0, 7, 8)];
    logs[1].writes = vec![write(1, 3, 4), write(1, 9, NEVER)];
    let point = |(sent, answered): &(u64, u64)| FlushPoint { sent: *sent, answered: *answered };
    logs[0].points = points.iter().map(point).collect();
    let blocks = (0..).zip(on_origin);
    let origin: Vec<u8> = blocks.flat_map(|(block, number)| content(block, number)).collect();
    History::new(&logs, 3).judge(&origin)
}

#[test]
fn a_later_epoch_must_not_come_before_an_earlier_one() {
    let judge = |on_origin| judge_small(&[(5, 6), (10, 11)], on_origin);
    let standing = |on_origin| judge(on_origin).map(|it| (it.points_home, it.blocks_ahead));
    // Part of the first epoch; all of it; with part of the second; all.
    assert_eq!(standing([0, 0, 0]), Ok((0, 0)));
    assert_eq!(standing([0, 2, 0]), Ok((0, 1)));
    assert_eq!(standing([1, 2, 0]), Ok((1, 0)));
    assert_eq!(standing([1, 4, 0]), Ok((1, 1)));
    assert_eq!(standing([3, 2, 0]), Ok((2, 0)));
    // The second epoch, and not all of the first.
    assert!(judge([0, 4, 0]).is_err_and(|text| text.contains("covers write 1 ")));
    assert!(judge([3, 0, 0]).is_err_and(|text| text.contains("covers write 2 ")));
}

#[test]
fn what_was_under_way_at_a_flush_point_may_be_missing() {
    // Both were sent before the first write was answered.
    assert!(judge_small(&[(1, 6)], [0, 4, 0]).is_ok());
    // This one was sent when the first write was answered, and the second was not.
    assert!(judge_small(&[(3, 5)], [3, 0, 0]).is_ok());
    assert!(judge_small(&[(3, 5)], [0, 4, 0]).is_err());
}

#[test]
fn nobody_wrote_this() {
    assert!(judge_small(&[], [2, 0, 0]).is_err(), "a write of another block");
    assert!(judge_small(&[], [0, 0, 3]).is_err());
    assert!(judge_small(&[], [5, 0, 0]).is_err(), "a number that nobody gave out");
}
