//! Settings of a target, by the names that `forebay set` has for them.

use std::collections::BTreeMap;

use forebay_engine::options::{SequentialPolicy, SetSettings, VolumeSettings, WritebackOrder};
use forebay_engine::policy::PolicyKind;

/// What a target may have other than the defaults.
pub(super) struct Settings {
    pub(super) volume: VolumeSettings,
    pub(super) writeback_order: WritebackOrder,
    pub(super) set: SetSettings,
}

/// Settings of the volume and of the set; `set` are those of a new one. Those that bench plans have
/// a use for are known.
pub(super) fn parse(
    wanted: &BTreeMap<String, String>,
    mut set: SetSettings,
) -> Result<Settings, String> {
    let mut volume = VolumeSettings::default();
    let mut writeback_order = WritebackOrder::default();
    for (key, value) in wanted {
        match key.as_str() {
            "sequential_cutoff" => volume.sequential_cutoff_bytes = crate::size::parse(value)?,
            "sequential_policy" => {
                volume.sequential_policy = match value.as_str() {
                    "always" => SequentialPolicy::Always,
                    "full" => SequentialPolicy::Full,
                    "never" => SequentialPolicy::Never,
                    _ => return Err(format!("sequential_policy: `{value}` is none")),
                }
            }
            "read_ahead" => volume.read_ahead_bytes = number(key, crate::size::parse(value)?)?,
            "promotion_nhit" => volume.promotion_nhit = number(key, integer(key, value)?)?,
            "promote_on_read" => volume.promote_on_read = flag(key, value)?,
            "promote_on_write" => volume.promote_on_write = flag(key, value)?,
            "writeback_percent" => volume.writeback_percent = number(key, integer(key, value)?)?,
            "writeback_delay" => volume.writeback_delay_s = number(key, integer(key, value)?)?,
            "writeback_order" => {
                writeback_order = match value.as_str() {
                    "coalescing" => WritebackOrder::Coalescing,
                    "ordered" => WritebackOrder::Ordered,
                    _ => return Err(format!("writeback_order: `{value}` is none")),
                }
            }
            "dirty_soft_percent" => set.dirty_soft_percent = number(key, integer(key, value)?)?,
            "dirty_hard_percent" => set.dirty_hard_percent = number(key, integer(key, value)?)?,
            "policy" => {
                let found = PolicyKind::from_name(value);
                set.policy = found.ok_or_else(|| format!("policy: `{value}` is none"))?;
            }
            _ => return Err(format!("a setting {key} is not known in virtual time")),
        }
    }
    if volume.are_valid() && set.are_valid() {
        Ok(Settings { volume, writeback_order, set })
    } else {
        Err("a setting is out of range; `forebay set --help` has the ranges".to_owned())
    }
}

fn integer(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{key}: `{value}` is no whole number"))
}

fn number<T: TryFrom<u64>>(key: &str, value: u64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{key}: {value} is too much"))
}

fn flag(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{key}: `{value}` is neither on nor off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(key: &str, value: &str) -> Result<Settings, String> {
        let wanted = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        parse(&wanted, SetSettings::default())
    }

    #[test]
    fn settings_have_the_names_of_forebay_set() {
        assert_eq!(parsed("read_ahead", "0").unwrap().volume.read_ahead_bytes, 0);
        assert_eq!(parsed("writeback_percent", "5").unwrap().volume.writeback_percent, 5);
        assert!(!parsed("promote_on_read", "off").unwrap().volume.promote_on_read);
        assert!(parsed("promote_on_read", "on").unwrap().volume.promote_on_read);
        assert_eq!(parsed("policy", "lru").unwrap().set.policy, PolicyKind::Lru);
        let order = parsed("writeback_order", "ordered").unwrap().writeback_order;
        assert_eq!(order, WritebackOrder::Ordered);
        for (key, value, expected) in [
            ("policy", "best", "is none"),
            ("writeback_percent", "300", "too much"),
            ("writeback_percent", "much", "no whole number"),
            ("dirty_soft_percent", "96", "out of range"),
            ("promote_on_read", "2", "neither"),
            ("promote_on_write", "true", "neither"),
            ("writeback_order", "random", "is none"),
            ("colour", "red", "not known"),
        ] {
            let error = parsed(key, value).err().expect(key);
            assert!(error.contains(expected), "{key}={value}: {error}");
        }
    }
}
