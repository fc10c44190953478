//! The status of a daemon for people.

use std::fmt::Write;

use crate::admin::api::{
    CacheSet, Export, Extent, Latency, Origin, Percentiles, Status, Volume, WhatIf,
};
use crate::commands::status::{bound_text, duration_text};
use crate::size;

/// The whole status.
pub(crate) fn daemon(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_daemon(&mut text, status);
    text
}

fn write_daemon(text: &mut String, status: &Status) -> std::fmt::Result {
    let up = duration_text(status.uptime_ms);
    match &status.cache_set {
        Some(set) => {
            let label = if set.label.is_empty() { "" } else { &format!(" ({})", set.label) };
            let (id, device) = (&set.set_id, &set.cache_device);
            writeln!(text, "cache set {id}{label} on {device}: {}, up {up}", status.state)?;
            write_set(text, set)?;
        }
        None => writeln!(text, "daemon {} without a cache, up {up}", status.pid)?,
    }
    let memory = &status.payload_memory;
    writeln!(
        text,
        "  payload     {} of {} in use by clients, {} of {} by the engine",
        size::text(memory.clients.used_bytes),
        size::text(memory.clients.total_bytes),
        size::text(memory.engine.used_bytes),
        size::text(memory.engine.total_bytes)
    )?;
    for device in status.devices.iter().filter(|device| device.late_count > 0) {
        let (name, count) = (&device.device, device.late_count);
        write!(text, "  late        {count} operations of {name}")?;
        if device.late_in_flight > 0 {
            let oldest = duration_text(device.oldest_ms);
            write!(text, "; {} still under way, for {oldest}", device.late_in_flight)?;
        }
        writeln!(text)?;
    }
    for export in &status.exports {
        write_export(text, export)?;
        let clients: Vec<&str> = status
            .connections
            .iter()
            .filter(|connection| connection.export.as_deref() == Some(&export.name))
            .map(|connection| connection.peer.as_str())
            .collect();
        if !clients.is_empty() {
            writeln!(text, "  clients     {}: {}", clients.len(), clients.join(", "))?;
        }
    }
    Ok(())
}

/// Hit ratios of other sizes.
pub(crate) fn what_if(set: &CacheSet) -> String {
    let line = |estimate: &WhatIf| {
        let found = match estimate.hit_ratio_blocks {
            Some(ratio) => format!("{:.1} % of the blocks found", ratio * 100.0),
            None => "not known yet".to_owned(),
        };
        let size = size::text(estimate.cache_size_bytes);
        format!("  what if     a log of {size:>10}: {found}\n")
    };
    set.what_if.iter().map(line).collect()
}

fn write_set(text: &mut String, set: &CacheSet) -> std::fmt::Result {
    if let Some(error) = &set.recovery_error {
        writeln!(text, "  failed      {error}")?;
    }
    if let Some(trouble) = &set.cache_trouble {
        writeln!(text, "  {:<12}{trouble}", set.cache_health)?;
    }
    writeln!(
        text,
        "  occupancy   {:.1} % of {} ({} of {} segments free), {} cached, {} dirty",
        set.occupancy * 100.0,
        size::text(set.segment_bytes * u64::from(set.segment_count)),
        set.free_segment_count,
        set.segment_count,
        size::text(set.cached_bytes),
        size::text(set.dirty_bytes)
    )?;
    let factor = |factor: Option<f64>| factor.map_or("-".into(), |value| format!("{value:.2}"));
    writeln!(
        text,
        "  written     {} to the cache device: amplification {}, and {} moved at reclaim",
        size::text(set.counters.cache_written_bytes),
        factor(set.write_amplification),
        factor(set.relocation_amplification)
    )?;
    writeln!(
        text,
        "  flushes     {} of the cache device, {} of clients: {} for each",
        set.counters.cache_flush_count,
        set.client_flush_count,
        factor(set.cache_flushes_per_client_flush)
    )?;
    let bound = bound_text(set.memory_max_bytes);
    writeln!(text, "  memory      {} for the index, {bound}", size::text(set.memory_bytes))?;
    let recovery = duration_text(set.recovery_ms);
    writeln!(text, "  recovery    {recovery}, {} records", set.recovered_record_count)
}

fn write_export(text: &mut String, export: &Export) -> std::fmt::Result {
    let Export { name, device, .. } = export;
    let size = size::text(export.size_bytes);
    match &export.volume {
        Some(volume) => {
            writeln!(
                text,
                "volume {name}: {}, {}, {size} on {device}",
                volume.state,
                mode_text(volume)
            )?;
            write_longer_origin(text, export)?;
            write_volume(text, volume)?;
        }
        None => writeln!(text, "export {name}: {size} on {device}")?,
    }
    if let Some(reason) = &export.unavailable {
        writeln!(text, "  unavailable {reason}")?;
    }
    write_latency(text, &export.latency)
}

/// That there is more of the origin than of the volume, or less.
fn write_longer_origin(text: &mut String, export: &Export) -> std::fmt::Result {
    let Some(found) = export.origin_size_bytes else { return Ok(()) };
    let (name, own) = (&export.name, export.size_bytes);
    if found > own {
        let more = size::text(found - own);
        writeln!(
            text,
            "  longer      the origin has {more} more: `forebay resize {name}` adds them"
        )?;
    } else if found < own {
        let less = size::text(own - found);
        writeln!(text, "  shorter     the origin lacks {less} at its end: make it longer again")?;
    }
    Ok(())
}

fn write_volume(text: &mut String, volume: &Volume) -> std::fmt::Result {
    let percent =
        |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{:.2} %", ratio * 100.0));
    let counters = &volume.counters;
    let reads =
        counters.read_hit_count + counters.read_miss_count + counters.read_partial_hit_count;
    writeln!(
        text,
        "  hits        {} of {reads} reads, {} of {}",
        percent(volume.hit_ratio_requests),
        percent(volume.hit_ratio_bytes),
        size::text(counters.read_hit_bytes + counters.read_miss_bytes)
    )?;
    writeln!(
        text,
        "  writes      {} with {}, {} flushes, {} in flight",
        counters.write_count,
        size::text(counters.write_bytes),
        counters.flush_count,
        volume.requests_in_flight
    )?;
    if let Some(left) = volume.cache_wait_ms {
        let left = duration_text(left);
        let count = volume.requests_waiting;
        writeln!(text, "  waiting     {count} requests, for {left} more, for the cache device")?;
    }
    write_origin(text, &volume.origin)?;
    let age = if volume.dirty_bytes == 0 {
        String::new()
    } else {
        format!(", the oldest for {}", duration_text(volume.dirty_age_ms))
    };
    writeln!(
        text,
        "  dirty       {}{age}; {} cached",
        size::text(volume.dirty_bytes),
        size::text(volume.cached_bytes)
    )?;
    write_kept(text, volume)?;
    let by_reason = [
        ("admitted", &counters.admitted_block_counts),
        ("bypassed", &counters.bypassed_block_counts),
        ("rejected", &counters.rejected_block_counts),
    ];
    for (name, counts) in by_reason {
        let reasons: Vec<String> = counts
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        if !reasons.is_empty() {
            writeln!(text, "  {name}    {} (blocks)", reasons.join(", "))?;
        }
    }
    if counters.read_ahead_block_count > 0 {
        writeln!(
            text,
            "  read-ahead  {} blocks, {} of them read since",
            counters.read_ahead_block_count, counters.read_ahead_used_block_count
        )?;
    }
    write_troubles(text, volume)
}

/// What stays in the cache, and bounds on how much that is.
fn write_kept(text: &mut String, volume: &Volume) -> std::fmt::Result {
    let settings = &volume.settings;
    if (settings.share_min_percent, settings.share_max_percent) != (0, 100) {
        writeln!(
            text,
            "  share       {} to {} % of the cache",
            settings.share_min_percent, settings.share_max_percent
        )?;
    }
    if let Some(extents) = extents_text(&volume.pinned_extents) {
        writeln!(
            text,
            "  pinned      {}, {} of it cached: {extents}",
            size::text(volume.pinned_bytes),
            size::text(volume.pinned_cached_bytes)
        )?;
    }
    Ok(())
}

/// Only if there is something to say; requests that wait a moment are no news.
fn write_origin(text: &mut String, origin: &Origin) -> std::fmt::Result {
    if origin.state != "ok" {
        let Origin { state, requests_waiting, .. } = origin;
        write!(text, "  origin      {state} for {}", duration_text(origin.state_ms))?;
        write!(text, "; {requests_waiting} requests wait")?;
        if *requests_waiting > 0 {
            write!(text, ", the oldest for {}", duration_text(origin.oldest_wait_ms))?;
        }
        if origin.requests_late > 0 {
            write!(text, "; {} have failed and are not over", origin.requests_late)?;
        }
        if let Some(left) = origin.writeback_retry_ms {
            write!(text, "; writeback tries again in {}", duration_text(left))?;
        }
        writeln!(text)?;
    }
    if let (Some(error), Some(age_ms)) = (&origin.last_error, origin.last_error_ms) {
        writeln!(text, "  origin      failed {} ago: {error}", duration_text(age_ms))?;
    }
    Ok(())
}

fn write_troubles(text: &mut String, volume: &Volume) -> std::fmt::Result {
    let counters = &volume.counters;
    let troubles = [
        ("failed requests", counters.error_count),
        ("origin errors", counters.origin_error_count),
        ("requests that waited too long for the origin", counters.origin_timeout_count),
        ("pinned blocks dropped for want of room", counters.pinned_dropped_block_count),
        (
            "blocks of the smallest share dropped for want of room",
            counters.share_dropped_block_count,
        ),
        ("repaired blocks", counters.repaired_block_count),
        ("poisoned blocks", counters.poisoned_block_count),
        ("older copies lost to writeback in order", counters.order_lost_block_count),
        ("blocks lost with the cache device", counters.lost_block_count),
    ];
    if let Some(extents) = extents_text(&volume.failed_extents) {
        writeln!(text, "  trouble     not taken by the origin: {extents}")?;
    }
    for (name, count) in troubles.iter().filter(|(_, count)| *count > 0) {
        writeln!(text, "  trouble     {count} {name}")?;
    }
    Ok(())
}

/// The cache mode, and the order of writeback if it is not the usual one.
fn mode_text(volume: &Volume) -> String {
    match volume.writeback_order.as_str() {
        "coalescing" => volume.cache_mode.clone(),
        order => format!("{} {order}", volume.cache_mode),
    }
}

/// Extents that a text names one by one.
const EXTENTS_SHOWN_MAX: usize = 4;

/// Where the extents are; `None` if there are none.
pub(crate) fn extents_text(extents: &[Extent]) -> Option<String> {
    let shown = extents.iter().take(EXTENTS_SHOWN_MAX);
    let mut texts: Vec<String> = shown
        .map(|extent| format!("{} bytes at {}", extent.length_bytes, extent.offset_bytes))
        .collect();
    if extents.len() > EXTENTS_SHOWN_MAX {
        texts.push(format!("{} more extents", extents.len() - EXTENTS_SHOWN_MAX));
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn write_latency(text: &mut String, latency: &Latency) -> std::fmt::Result {
    let classes = [
        ("hits", &latency.read_hit),
        ("misses", &latency.read_miss),
        ("writes", &latency.write),
        ("flushes", &latency.flush),
    ];
    for (name, percentiles) in classes {
        if percentiles.count > 0 {
            writeln!(text, "  latency     {name:<8}{}", percentiles_text(percentiles))?;
        }
    }
    Ok(())
}

fn percentiles_text(percentiles: &Percentiles) -> String {
    let [p50, p99, p999] =
        [percentiles.p50_ns, percentiles.p99_ns, percentiles.p999_ns].map(latency_text);
    format!("p50 {p50:>9}  p99 {p99:>9}  p99.9 {p999:>9}  of {}", percentiles.count)
}

/// A latency for people.
pub(crate) fn latency_text(nanoseconds: u64) -> String {
    match nanoseconds {
        0..100_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.1} s", nanoseconds as f64 / 1e9),
    }
}
