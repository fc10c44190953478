//! What is heard of a measurement while it goes on.

/// How far it has come: which phase, and seconds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase's place in the plan.
    pub place: usize,
    /// Seconds of the clock that have passed in it; 0 as it begins.
    pub second: u64,
}
