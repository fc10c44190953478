//! Recovery of damaged devices, and what is served afterwards.
//!
//! What each class of damage may promise, beside what every target holds (reads may always be
//! errors, and the whole device may be refused before anything is written to it):
//!
//! - *No damage*: it is served, and every block has its current value: the last that was
//!   acknowledged, or that of the write under way when the process died.
//! - *A device that was stopped in order, damaged anywhere but in superblocks and checkpoints*,
//!   with checksums as they were (bits flipped; blocks zeroed, swapped, duplicated; writes that
//!   were lost; blocks of another set): the current value. The newest checkpoint covers every
//!   record, so that nothing can be missing without being missed.
//! - *The same with superblocks or checkpoints damaged, or on a device whose process was killed*: a
//!   value that the block once had. Records that no later one vouches for look like a torn tail
//!   when they are damaged, and are cut off; an older checkpoint or volume table knows less. Never
//!   the content of another block or volume, of another set, or a mixture.
//! - *Checksums computed by somebody*: nothing. There is no key in them; who can write the device
//!   can write anything on it.
//!
//! What is written on the damaged set is there, and what a read returned once it returns again
//! after a stop and a start, but that an older value may give way to the current one: when it came
//! from a copy whose invalidation was the damaged record, and the copy is dropped. Neither holds
//! with forged checksums, nor where a whole but older checkpoint took the place of the newest: no
//! other place of the device tells that there was one.

use std::collections::BTreeMap;

use forebay_engine::event::Command;
use forebay_engine::units::{BLOCK_BYTES, VolumeSlot};

use super::damage::{Damaged, Promise, Stability, damage};
use super::image::{End, Image};
use super::ledger::{Ledger, block_bytes, write_of};
use super::machine::{Halt, Machine, Media};
use super::{Reached, Target};
use crate::random::Random;

/// Blocks of one read.
const READ_BLOCKS: u64 = 32;
/// Numbers of writes on the damaged device begin here.
const AFTERWARDS: u32 = 1_000_000;
/// Writes on the damaged device.
const WRITES: u32 = 10;

pub(super) const TARGET: Target = Target {
    name: "device",
    about: "recovery of a whole damaged cache device, and reads and writes after it",
    test_cases: 300,
    must_reach: &[
        "nothing",
        "truncated",
        "flipped",
        "zeroed",
        "swapped",
        "duplicated",
        "brought back",
        "spliced",
        "forged superblock",
        "forged checkpoint",
        "forged record",
        "forged summary",
        "forged payload",
        "refused",
        "served",
        "stopped in order",
        "killed",
        "promise Current",
        "promise Former",
        "promise Nothing",
        "reads with errors",
    ],
    case,
};

/// What was read of each block: the write it came from, `None` if it was an error.
type Seen = BTreeMap<(usize, u64), Option<u32>>;

fn case(random: &mut Random, reached: &mut Reached) -> Result<(), String> {
    let image = Image::new(&mut random.fork())?;
    let other = Image::new(&mut random.fork())?.media.cache;
    reached.note(match image.end {
        End::Stopped => "stopped in order",
        End::Killed => "killed",
        End::Idle => "killed when idle",
    });
    let damaged = damage(&image, &other, random);
    damaged.kinds.iter().for_each(|kind| reached.note(kind));
    reached.note(match damaged.promise {
        Promise::Current => "promise Current",
        Promise::Former => "promise Former",
        Promise::Nothing => "promise Nothing",
    });
    judge(damaged, &image, random, reached).map(drop)
}

/// Recovers the damaged device, uses it, starts again, and compares with what is promised. Returns
/// the devices, unless the engine came to a halt on them.
pub(super) fn judge(
    damaged: Damaged,
    image: &Image,
    random: &mut Random,
    reached: &mut Reached,
) -> Result<Option<Media>, String> {
    let Damaged { media, promise, stability, done, kinds } = damaged;
    let is_whole = kinds == ["nothing"];
    let result = match Machine::start_or_return(media, random.fork()) {
        Ok(machine) => {
            reached.note("served");
            use_set(machine, &image.ledger, promise, random, reached)
                .and_then(|seen| start_again(seen, &image.ledger, stability, random))
        }
        Err((Halt::Refused(text), media)) if !text.is_empty() && !is_whole => {
            reached.note("refused");
            Ok(media)
        }
        Err((halt, _)) => Err(halt),
    };
    match result {
        Ok(media) => Ok(Some(media)),
        Err(Halt::Refused(text)) => {
            Err(format!("refused with `{text}`, {:?}, {done:?}", image.end))
        }
        // A forged log may leave no room in which to go on.
        Err(Halt::Stuck(_)) if promise == Promise::Nothing => {
            reached.note("stuck");
            Ok(None)
        }
        Err(Halt::Stuck(text) | Halt::Wrong(text)) => {
            Err(format!("{text}\n  {:?}, {promise:?}, {done:?}", image.end))
        }
    }
}

/// Reads everything, and writes a little.
fn use_set(
    mut machine: Machine,
    ledger: &Ledger,
    promise: Promise,
    random: &mut Random,
    reached: &mut Reached,
) -> Result<(Machine, Seen), Halt> {
    let mut seen = read_all(&mut machine, ledger, promise, reached)?;
    for index in 0..WRITES {
        let volume = random.index(ledger.volume_count());
        let block = random.below(ledger.block_count(volume));
        let write = AFTERWARDS + index;
        let bytes = block_bytes(write, volume, block);
        let answer = machine.write(VolumeSlot(volume as u16), block, &bytes)?;
        // After an error it is not known whether it was written.
        seen.insert((volume, block), answer.ok().map(|()| write));
    }
    Ok((machine, seen))
}

/// What was seen is still there, now and after a stop and a start. Returns the devices.
fn start_again(
    (mut machine, seen): (Machine, Seen),
    ledger: &Ledger,
    stability: Stability,
    random: &mut Random,
) -> Result<Media, Halt> {
    compare(&mut machine, &seen, ledger, stability)?;
    let _ = machine.command(Command::Stop)?;
    match Machine::start_or_return(machine.kill(), random.fork()) {
        Ok(mut machine) => {
            compare(&mut machine, &seen, ledger, stability)?;
            Ok(machine.kill())
        }
        Err((Halt::Refused(text), _)) if stability == Stability::Stays => {
            Err(Halt::Wrong(format!("refused after it was served and stopped: {text}")))
        }
        Err((Halt::Refused(_), media)) => Ok(media),
        Err((halt, _)) => Err(halt),
    }
}

/// Reads everything, in large pieces and where these fail block by block.
fn read_all(
    machine: &mut Machine,
    ledger: &Ledger,
    promise: Promise,
    reached: &mut Reached,
) -> Result<Seen, Halt> {
    let mut seen = Seen::new();
    for volume in 0..ledger.volume_count() {
        let end = ledger.block_count(volume);
        for start in (0..end).step_by(READ_BLOCKS as usize) {
            let count = READ_BLOCKS.min(end - start);
            for (block, bytes) in read_blocks(machine, volume, start, count)? {
                let Some(bytes) = bytes else {
                    reached.note("reads with errors");
                    seen.insert((volume, block), None);
                    continue;
                };
                let write = write_of(&bytes, volume, block);
                let is_former = write.is_some_and(|write| ledger.is_former(volume, block, write));
                let is_current = write.is_some_and(|write| ledger.is_current(volume, block, write));
                match promise {
                    Promise::Nothing if !is_former => reached.note("forged values"),
                    Promise::Former if is_former && !is_current => reached.note("older values"),
                    Promise::Current if !is_current => {
                        let text = format!("{write:?} at volume {volume} block {block}");
                        return Err(Halt::Wrong(format!("not the current value: {text}")));
                    }
                    Promise::Former if !is_former => {
                        let text = format!("{write:?} at volume {volume} block {block}");
                        return Err(Halt::Wrong(format!("never written there: {text}")));
                    }
                    _ => {}
                }
                seen.insert((volume, block), write);
            }
        }
    }
    Ok(seen)
}

type Blocks = Vec<(u64, Option<Vec<u8>>)>;

fn read_blocks(
    machine: &mut Machine,
    volume: usize,
    start: u64,
    count: u64,
) -> Result<Blocks, Halt> {
    let slot = VolumeSlot(volume as u16);
    if let Ok(bytes) = machine.read(slot, start, count)? {
        let blocks = bytes.chunks_exact(BLOCK_BYTES).map(|bytes| Some(bytes.to_vec()));
        return Ok((start..).zip(blocks).collect());
    }
    let mut blocks = Vec::new();
    for block in start..start + count {
        blocks.push((block, machine.read(slot, block, 1)?.ok()));
    }
    Ok(blocks)
}

/// What was read or written before is still there, or an error.
fn compare(
    machine: &mut Machine,
    seen: &Seen,
    ledger: &Ledger,
    stability: Stability,
) -> Result<(), Halt> {
    for ((volume, block), before) in seen {
        let Some(before) = before else { continue };
        let found = machine.read(VolumeSlot(*volume as u16), *block, 1)?;
        let Ok(bytes) = found else { continue };
        let now = write_of(&bytes, *volume, *block);
        let is_current = |write: u32| ledger.is_current(*volume, *block, write);
        let gave_way = !is_current(*before) && now.is_some_and(is_current);
        let was_written_here = *before >= AFTERWARDS;
        let is_same = now == Some(*before) || gave_way && !was_written_here;
        if stability == Stability::Stays && !is_same {
            let text = format!("{before} became {now:?} at volume {volume} block {block}");
            return Err(Halt::Wrong(format!("a block changed without a write: {text}")));
        }
    }
    Ok(())
}
