//! How long operations of a simulated device last: drawn at random, or decided by a model of a real
//! device that seeks, queues and reorders.
//!
//! On top of either: about one operation in twenty takes some thirty times longer, since rules that
//! hold at even speed break when one operation is overtaken by a hundred others.

use forebay_device_model::{
    HardDisk, Model, ModelDevice, Remote, Request, RequestKind, Ssd, Token,
};
use forebay_engine::io::IoKind;

use crate::random::Random;

/// Share of operations that take much longer, in percent.
const STRAGGLERS_PERCENT: u64 = 5;
/// A straggler of a model takes so many times longer, at least and at most; the mean is thirty.
const STRAGGLER_FACTOR: std::ops::RangeInclusive<u64> = 20..=40;

/// How long operations last, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speed {
    /// Shortest operation.
    pub base_ns: u64,
    /// Added at random, up to this.
    pub spread_ns: u64,
    /// Added for each block.
    pub block_ns: u64,
}

/// What decides how long operations last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Chance. All operations run at once.
    Random(Speed),
    /// A model of a device: [`forebay_device_model`].
    Model(Model),
}

impl Pace {
    /// A model that is sold as a cache device.
    pub fn fast_model(random: &mut Random) -> Pace {
        let presets = [Ssd::sata_2017(), Ssd::sata_128gb(), Ssd::nvme_2019()];
        Pace::Model(Model::Ssd(*random.pick(&presets)))
    }

    /// A model of an origin.
    pub fn slow_model(random: &mut Random) -> Pace {
        let no_queue = HardDisk { queue_depth: 1, ..HardDisk::server_7200() };
        let presets = [
            Model::HardDisk(HardDisk::server_7200()),
            Model::HardDisk(no_queue),
            Model::Remote(Remote::cloud_volume()),
            Model::Remote(Remote::with_round_trip(5_000_000)),
        ];
        Pace::Model(*random.pick(&presets))
    }

    /// Whether the engine is told that the device is rotational.
    #[must_use]
    pub fn is_hard_disk(&self) -> bool {
        matches!(self, Pace::Model(Model::HardDisk(_)))
    }
}

/// A device's clock.
pub(crate) struct Pacer {
    pace: Pace,
    length_bytes: u64,
    model: Option<ModelDevice>,
    /// When somebody is to ask the model again, as far as it was said.
    turn_at: Option<u64>,
    random: Random,
}

/// How long an operation lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lasts {
    /// So many nanoseconds.
    For(u64),
    /// Until the model says so.
    Open,
}

/// An operation that the model has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paced {
    pub(crate) id: u64,
    pub(crate) at: u64,
}

impl Pacer {
    pub(crate) fn new(pace: Pace, length_bytes: u64, random: Random) -> Pacer {
        let mut pacer = Pacer { pace, length_bytes, model: None, turn_at: None, random };
        pacer.restart();
        pacer
    }

    /// Nothing is under way any more.
    pub(crate) fn restart(&mut self) {
        self.turn_at = None;
        self.model = match &self.pace {
            Pace::Random(_) => None,
            Pace::Model(model) => {
                Some(ModelDevice::new(model, self.length_bytes, self.random.bits()))
            }
        };
    }

    /// An operation on so many blocks begins.
    pub(crate) fn begin(&mut self, now: u64, id: u64, kind: &IoKind, blocks: u64) -> Lasts {
        match self.pace {
            Pace::Random(Speed { base_ns, spread_ns, block_ns }) => {
                let lasts = base_ns + self.random.below(spread_ns + 1) + blocks * block_ns;
                Lasts::For(lasts + self.straggle(lasts))
            }
            Pace::Model(_) => {
                let model = self.model.as_mut().expect("it has a model");
                model.push(now, Token(id), request(kind));
                Lasts::Open
            }
        }
    }

    fn straggle(&mut self, lasts: u64) -> u64 {
        if self.random.percent(STRAGGLERS_PERCENT) {
            lasts * (self.random.between(STRAGGLER_FACTOR) - 1)
        } else {
            0
        }
    }

    /// When to take a turn, if that was not said already.
    pub(crate) fn next_turn(&mut self) -> Option<u64> {
        let next = self.model.as_ref()?.next_event_ns()?;
        if self.turn_at.is_some_and(|turn_at| turn_at <= next) {
            return None;
        }
        self.turn_at = Some(next);
        Some(next)
    }

    /// What the model has completed; `began` says when an operation began.
    pub(crate) fn take_turn(&mut self, now: u64, began: impl Fn(u64) -> u64) -> Vec<Paced> {
        if self.turn_at.is_some_and(|turn_at| turn_at <= now) {
            self.turn_at = None;
        }
        let mut ended = Vec::new();
        while let Some(completion) = self.model.as_mut().and_then(|model| model.poll(now)) {
            let id = completion.token.0;
            let lasted = completion.at_ns.saturating_sub(began(id));
            ended.push(Paced { id, at: completion.at_ns + self.straggle(lasted) });
        }
        ended
    }
}

fn request(io: &IoKind) -> Request {
    let (offset_bytes, length_bytes) = io.extent_bytes();
    let kind = match io {
        IoKind::Read { .. } => RequestKind::Read,
        IoKind::Write { .. } => RequestKind::Write,
        IoKind::Flush => RequestKind::Flush,
        IoKind::Discard { .. } => RequestKind::Discard,
        IoKind::WriteZeroes { .. } => RequestKind::WriteZeroes,
    };
    Request { kind, offset_bytes, length_bytes }
}
