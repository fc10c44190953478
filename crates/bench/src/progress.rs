//! What is heard of a run while it goes on.

/// How far a run has come: which phase, and seconds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress<'a> {
    /// Its name.
    pub phase: &'a str,
    /// Its place in the plan; two phases may have one name.
    pub place: usize,
    /// Seconds of the clock that have passed in it; 0 as it begins.
    pub second: u64,
    /// Seconds that it lasts, if the plan says so.
    pub seconds: Option<u64>,
}
