//! `forebay set`: settings of a volume or of the cache set.

use std::fmt::Display;
use std::str::FromStr;

use forebay_engine::options::{
    CACHE_WRITE_BUDGET_MAX, DIRTY_HARD_PERCENT_MAX, DIRTY_SECONDS_MAX, ORIGIN_TIMEOUT_S_MAX,
    PROMOTION_NHIT_MAX, READ_AHEAD_BYTES_MAX, WRITEBACK_IOS_MAX, WRITEBACK_RATE_MAX,
};
use forebay_engine::units::BLOCK_BYTES;

use crate::admin::api::SetRequest;
use crate::admin::client;
use crate::args::SetArguments;
use crate::commands::online;
use crate::exit::Failure;
use crate::{names, output, size};

const VOLUME_KEYS: [&str; 18] = [
    "cache_mode",
    "sequential_cutoff",
    "sequential_policy",
    "promote_on_read",
    "promote_on_write",
    "promotion_nhit",
    "read_ahead",
    "writeback_order",
    "writeback_percent",
    "writeback_delay",
    "writeback_rate_min",
    "writeback_rate_max",
    "writeback_ios_max",
    "writeback_idle_only",
    "dirty_age_max",
    "origin_timeout",
    "share_min",
    "share_max",
];
const SET_KEYS: [&str; 6] = [
    "memory_max",
    "discard",
    "dirty_soft_percent",
    "dirty_hard_percent",
    "cache_write_budget",
    "policy",
];

/// Runs the command.
pub(crate) fn run(arguments: &SetArguments) -> Result<(), Failure> {
    let request = parse(&arguments.words)?;
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let work = async {
        let wanted = request.cache_mode.as_ref().or(request.writeback_order.as_ref());
        match (&request.volume, wanted) {
            // Leaving a mode that keeps dirty data, or an order, drains first.
            (Some(volume), Some(wanted)) => {
                let label = format!("changing `{volume}` to {wanted}");
                let work = daemon.set(&request);
                online::with_drain_progress(&daemon, volume, &label, work).await
            }
            _ => daemon.set(&request).await,
        }
    };
    client::block_on(work)??;
    output::print(&match &request.volume {
        Some(volume) => format!("volume `{volume}` is set\n"),
        None => "the cache set is set\n".to_owned(),
    })
}

/// Puts `[NAME] KEY=VALUE...` into a request.
fn parse(words: &[String]) -> Result<SetRequest, Failure> {
    let mut request = SetRequest::default();
    let mut pairs = words;
    if let Some((first, rest)) = words.split_first()
        && !first.contains('=')
    {
        request.volume = Some(first.clone());
        pairs = rest;
    }
    if pairs.is_empty() {
        return Err(Failure::usage("nothing to set; write KEY=VALUE, see `forebay set --help`"));
    }
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::usage(format!("`{pair}` is no setting; write KEY=VALUE")));
        };
        refuse_misplaced(key, request.volume.as_deref())?;
        apply(&mut request, key, value)
            .map_err(|reason| Failure::usage(format!("{key}: {reason}")))?;
    }
    Ok(request)
}

/// Puts one setting into a request; the key is known.
fn apply(request: &mut SetRequest, key: &str, value: &str) -> Result<(), String> {
    match key {
        "cache_mode" => {
            names::parse_mode(value)?;
            request.cache_mode = Some(value.to_owned());
        }
        "writeback_order" => {
            names::parse_order(value)?;
            request.writeback_order = Some(value.to_owned());
        }
        "sequential_cutoff" => request.sequential_cutoff_bytes = Some(size::parse(value)?),
        "sequential_policy" => {
            names::parse_sequential_policy(value)?;
            request.sequential_policy = Some(value.to_owned());
        }
        "promote_on_read" => request.promote_on_read = Some(parse_switch(value)?),
        "promote_on_write" => request.promote_on_write = Some(parse_switch(value)?),
        "promotion_nhit" => {
            request.promotion_nhit = Some(parse_within(value, 1, PROMOTION_NHIT_MAX)?);
        }
        "read_ahead" => request.read_ahead_bytes = Some(parse_read_ahead(value)?),
        "writeback_percent" => request.writeback_percent = Some(parse_within(value, 0, 100)?),
        "writeback_delay" => {
            request.writeback_delay_s = Some(parse_seconds(value, DIRTY_SECONDS_MAX)?);
        }
        "writeback_rate_min" => request.writeback_rate_min_bytes = Some(parse_rate(value)?),
        "writeback_rate_max" => request.writeback_rate_max_bytes = Some(parse_rate(value)?),
        "writeback_ios_max" => {
            request.writeback_ios_max = Some(parse_within(value, 0, WRITEBACK_IOS_MAX)?);
        }
        "writeback_idle_only" => request.writeback_idle_only = Some(parse_switch(value)?),
        "dirty_age_max" => {
            request.dirty_age_max_s = Some(parse_seconds(value, DIRTY_SECONDS_MAX)?);
        }
        "origin_timeout" => {
            request.origin_timeout_s = Some(parse_seconds(value, ORIGIN_TIMEOUT_S_MAX)?);
        }
        "share_min" => request.share_min_percent = Some(parse_within(value, 0, 100)?),
        "share_max" => request.share_max_percent = Some(parse_within(value, 1, 100)?),
        "cache_write_budget" => {
            request.cache_write_budget_bytes_per_day =
                Some(parse_size_up_to(value, CACHE_WRITE_BUDGET_MAX)?);
        }
        "policy" => {
            names::parse_log_policy(value)?;
            request.policy = Some(value.to_owned());
        }
        "memory_max" => {
            let bound = if value == "none" { u64::MAX } else { size::parse(value)? };
            request.memory_max_bytes = Some(bound);
        }
        "discard" => request.discard_freed_segments = Some(parse_switch(value)?),
        "dirty_soft_percent" => {
            request.dirty_soft_percent = Some(parse_within(value, 1, DIRTY_HARD_PERCENT_MAX - 1)?);
        }
        "dirty_hard_percent" => {
            request.dirty_hard_percent = Some(parse_within(value, 2, DIRTY_HARD_PERCENT_MAX)?);
        }
        _ => unreachable!("unknown keys are refused before"),
    }
    Ok(())
}

fn parse_switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("`{other}` is neither on nor off")),
    }
}

fn parse_within<T>(value: &str, least: T, most: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    let number = value.parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| format!("`{value}` is no whole number from {least} to {most}"))
}

/// Seconds, with or without their unit.
fn parse_seconds(value: &str, most: u32) -> Result<u32, String> {
    let number = parse_within(value.strip_suffix('s').unwrap_or(value), 0, most);
    number.map_err(|_| format!("`{value}` is no whole number of seconds from 0 to {most}"))
}

fn parse_rate(value: &str) -> Result<u64, String> {
    parse_size_up_to(value, WRITEBACK_RATE_MAX)
}

fn parse_size_up_to(value: &str, most: u64) -> Result<u64, String> {
    let bytes = Some(size::parse(value)?).filter(|bytes| *bytes <= most);
    bytes.ok_or_else(|| format!("`{value}` is more than {}", size::text(most)))
}

fn parse_read_ahead(value: &str) -> Result<u32, String> {
    let bytes = size::parse(value)?;
    let is_whole = bytes % BLOCK_BYTES as u64 == 0;
    let bytes = u32::try_from(bytes).ok().filter(|b| is_whole && *b <= READ_AHEAD_BYTES_MAX);
    bytes.ok_or_else(|| format!("`{value}` is no multiple of 4K from 0 to 1M"))
}

fn refuse_misplaced(key: &str, volume: Option<&str>) -> Result<(), Failure> {
    let is_of_volume = VOLUME_KEYS.contains(&key);
    if !is_of_volume && !SET_KEYS.contains(&key) {
        let keys = [&VOLUME_KEYS[..], &SET_KEYS[..]].concat().join(", ");
        return Err(Failure::usage(format!("`{key}` cannot be set; the keys are {keys}")));
    }
    match volume {
        None if is_of_volume => {
            Err(Failure::usage(format!("{key} belongs to a volume; write its name first")))
        }
        Some(name) if !is_of_volume => Err(Failure::usage(format!(
            "{key} belongs to the cache set, not to volume `{name}`; leave the name out"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<SetRequest, Failure> {
        parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_comes_first() {
        let request = parsed(&["home", "cache_mode=writeback", "sequential_cutoff=4M"]).unwrap();
        assert_eq!(request.volume.as_deref(), Some("home"));
        assert_eq!(request.cache_mode.as_deref(), Some("writeback"));
        assert_eq!(request.sequential_cutoff_bytes, Some(4 << 20));
        let request =
            parsed(&["home", "writeback_rate_max=20M", "writeback_idle_only=on"]).unwrap();
        assert_eq!(request.writeback_rate_max_bytes, Some(20 << 20));
        assert_eq!(request.writeback_idle_only, Some(true));
        let request = parsed(&["home", "promotion_nhit=2", "promote_on_write=off"]).unwrap();
        assert_eq!((request.promotion_nhit, request.promote_on_write), (Some(2), Some(false)));
        let request = parsed(&["home", "share_min=10", "share_max=30"]).unwrap();
        assert_eq!((request.share_min_percent, request.share_max_percent), (Some(10), Some(30)));
        let request = parsed(&["cache_write_budget=20G"]).unwrap();
        assert_eq!(request.cache_write_budget_bytes_per_day, Some(20 << 30));
        assert_eq!(parsed(&["policy=lru"]).unwrap().policy.as_deref(), Some("lru"));
        let request = parsed(&["dirty_soft_percent=30", "dirty_hard_percent=60"]).unwrap();
        assert_eq!((request.dirty_soft_percent, request.dirty_hard_percent), (Some(30), Some(60)));
        for (value, seconds) in [("30s", 30), ("0", 0), ("86400", 86400)] {
            let request = parsed(&["home", &format!("origin_timeout={value}")]).unwrap();
            assert_eq!(request.origin_timeout_s, Some(seconds));
        }
        assert_eq!(parsed(&["home", "read_ahead=1M"]).unwrap().read_ahead_bytes, Some(1 << 20));
        let request = parsed(&["memory_max=none", "discard=off"]).unwrap();
        assert_eq!(request.memory_max_bytes, Some(u64::MAX));
        assert_eq!(request.discard_freed_segments, Some(false));
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        let bad: [&[&str]; 32] = [
            &["home", "share_min=101"],
            &["home", "share_max=0"],
            &["share_max=30"],
            &["home", "sequential_policy=sometimes"],
            &["home", "promotion_nhit=0"],
            &["home", "promotion_nhit=16"],
            &["home", "promote_on_read=yes"],
            &["home", "cache_write_budget=1G"],
            &["cache_write_budget=1025T"],
            &["policy=min"],
            &["home", "policy=lru"],
            &["home", "origin_timeout=86401"],
            &["home", "origin_timeout=30m"],
            &["home", "writeback_delay=soon"],
            &["home", "writeback_delay=604801"],
            &["home", "writeback_rate_max=2T"],
            &["home", "writeback_ios_max=257"],
            &["home", "writeback_idle_only=1"],
            &["home", "dirty_soft_percent=30"],
            &["dirty_hard_percent=96"],
            &["home"],
            &["home", "cache_mode"],
            &["home", "colour=red"],
            &["home", "memory_max=1G"],
            &["cache_mode=writeback"],
            &["home", "writeback_percent=101"],
            &["home", "read_ahead=2M"],
            &["home", "read_ahead=5000"],
            &["home", "cache_mode=fast"],
            &["home", "writeback_order=random"],
            &["discard=maybe"],
            &["memory_max=much"],
        ];
        for words in bad {
            assert_eq!(parsed(words).unwrap_err().exit, crate::exit::Exit::Usage, "{words:?}");
        }
    }
}
