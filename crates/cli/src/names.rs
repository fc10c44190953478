//! Names of modes and states, as they stand in commands, JSON and messages.

use forebay_advisor::replay::PolicyName;
use forebay_advisor::trace::Format;
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, SequentialPolicy, WritebackOrder};
use forebay_engine::policy::PolicyKind;
use forebay_engine::status::{CacheHealth, OriginState, VolumeState};
use forebay_host::SizeReach;

const MODES: [(CacheMode, &str); 5] = [
    (CacheMode::Writeback, "writeback"),
    (CacheMode::Writethrough, "writethrough"),
    (CacheMode::Writearound, "writearound"),
    (CacheMode::Writeonly, "writeonly"),
    (CacheMode::Passthrough, "passthrough"),
];

/// Name of a cache mode.
pub(crate) fn mode_name(mode: CacheMode) -> &'static str {
    MODES.iter().find(|(known, _)| *known == mode).expect("all modes are listed").1
}

/// The cache mode of a name.
pub(crate) fn parse_mode(name: &str) -> Result<CacheMode, String> {
    MODES.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode).ok_or_else(|| {
        let names: Vec<&str> = MODES.iter().map(|(_, name)| *name).collect();
        format!("`{name}` is no cache mode: choose one of {}", names.join(", "))
    })
}

const SIZE_REACHES: [(SizeReach, &str); 3] = [
    (SizeReach::Live, "live"),
    (SizeReach::Reconnect, "after_reconnect"),
    (SizeReach::Restart, "after_restart"),
];

/// Name of when a client sees a new size.
pub(crate) fn size_reach_name(reach: SizeReach) -> &'static str {
    SIZE_REACHES.iter().find(|(known, _)| *known == reach).expect("all are listed").1
}

/// When a client sees a new size, by name. A newer daemon may know more.
pub(crate) fn parse_size_reach(name: &str) -> Option<SizeReach> {
    SIZE_REACHES.iter().find(|(_, known)| *known == name).map(|(reach, _)| *reach)
}

/// Name of an order of writeback.
pub(crate) fn order_name(order: WritebackOrder) -> &'static str {
    match order {
        WritebackOrder::Coalescing => "coalescing",
        WritebackOrder::Ordered => "ordered",
    }
}

/// The order of writeback of a name.
pub(crate) fn parse_order(name: &str) -> Result<WritebackOrder, String> {
    match name {
        "coalescing" => Ok(WritebackOrder::Coalescing),
        "ordered" => Ok(WritebackOrder::Ordered),
        _ => Err(format!("`{name}` is no order of writeback: choose coalescing or ordered")),
    }
}

/// Name of when long streams are left out.
pub(crate) fn sequential_policy_name(policy: SequentialPolicy) -> &'static str {
    match policy {
        SequentialPolicy::Full => "full",
        SequentialPolicy::Always => "always",
        SequentialPolicy::Never => "never",
    }
}

/// When long streams are left out, by name.
pub(crate) fn parse_sequential_policy(name: &str) -> Result<SequentialPolicy, String> {
    match name {
        "full" => Ok(SequentialPolicy::Full),
        "always" => Ok(SequentialPolicy::Always),
        "never" => Ok(SequentialPolicy::Never),
        _ => Err(format!("`{name}` is no sequential policy: choose full, always or never")),
    }
}

/// Name of a volume's state.
pub(crate) const fn volume_state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::OriginMissing => "origin_missing",
        VolumeState::Serving => "serving",
        VolumeState::Draining => "draining",
        VolumeState::WithoutCache => "without_cache",
        VolumeState::Quiesced => "quiesced",
        VolumeState::Discarding => "discarding",
    }
}

/// Name of how an origin does.
pub(crate) const fn origin_state_name(state: OriginState) -> &'static str {
    match state {
        OriginState::Ok => "ok",
        OriginState::Retrying => "retrying",
        OriginState::Stalled => "stalled",
    }
}

/// Why an operation of a device failed, for people.
pub(crate) const fn io_error_text(error: IoError) -> &'static str {
    match error {
        IoError::Media => "the device cannot read or write this place",
        IoError::Transient => "I/O error",
        IoError::NoSpace => "no space left behind the device",
        IoError::Gone => "the device is gone",
        IoError::TimedOut => "no answer in time",
    }
}

/// Name of a cache device's health.
pub(crate) fn health_name(health: CacheHealth) -> &'static str {
    match health {
        CacheHealth::Good => "good",
        CacheHealth::Degraded(_) => "degraded",
        CacheHealth::Failed(_) => "failed",
    }
}

/// Reads the name of a policy that the log can have.
pub(crate) fn parse_log_policy(name: &str) -> Result<PolicyKind, String> {
    PolicyKind::from_name(name).ok_or_else(|| {
        let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
        format!("`{name}` is no policy of a cache: choose one of {names}")
    })
}

/// Reads the name of a policy.
pub(crate) fn parse_policy(text: &str) -> Result<PolicyName, String> {
    PolicyName::from_name(text).ok_or_else(|| {
        let names = PolicyName::ALL.map(PolicyName::name).join(", ");
        format!("`{text}` is no policy: write one of {names}")
    })
}

/// Reads the name of a trace's format.
pub(crate) fn parse_trace_format(text: &str) -> Result<Format, String> {
    Format::from_name(text).ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("`{text}` is no format of traces: write one of {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_modes_are_inverse() {
        for (mode, name) in MODES {
            assert_eq!(parse_mode(name), Ok(mode));
            assert_eq!(mode_name(mode), name);
        }
        assert!(parse_mode("writeabck").unwrap_err().contains("writearound"));
    }
}
