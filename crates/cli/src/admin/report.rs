//! From the shard's status to the API's.

use forebay_engine::status::{
    AdmitReason, BypassReason, CacheErrors, CacheFailure, CacheHealth, OriginStatus, VolumeStatus,
};
use forebay_engine::units::{BLOCK_BYTES, OriginExtent};
use forebay_host::state_file::set_id_text;
use forebay_host::{ExportReport, SetReport, ShardStatus, ShareReport};

use super::api::{
    CacheSet, Connection, Device, Export, Extent, Latency, Origin, PayloadMemory, Percentiles,
    SetCounters, Share, Status, Volume, VolumeCounters, WhatIf,
};
use crate::names;

fn block_bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

/// `part / whole`, unless nothing was counted.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The whole status of a daemon.
pub(crate) fn status(shard: &ShardStatus) -> Status {
    let state = match &shard.set {
        None => "bare",
        Some(set) if set.recovery_error.is_some() => "failed",
        Some(set) if set.status.is_serving && shard.is_ready => "serving",
        Some(_) => "recovering",
    };
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        state: state.to_owned(),
        uptime_ms: shard.uptime_ms,
        cache_set: shard.set.as_ref().map(|set| cache_set(set, client_flushes(shard))),
        exports: shard.exports.iter().map(export).collect(),
        connections: shard
            .connections
            .iter()
            .map(|connection| Connection {
                id: connection.id,
                peer: connection.peer.clone(),
                peer_pid: connection.peer_pid,
                export: connection.export.clone(),
                requests_in_flight: connection.requests_in_flight,
                buffer_bytes: connection.buffer_bytes,
                request_count: connection.requests,
                age_ms: connection.age_ms,
            })
            .collect(),
        devices: shard
            .devices
            .iter()
            .map(|device| Device {
                device: device.device.clone(),
                is_cache: device.is_cache,
                operations_in_flight: device.operations_in_flight,
                oldest_ms: device.oldest_ms,
                late_in_flight: device.late_in_flight,
                late_count: device.late_count,
                read_count: device.asked.read_count,
                read_bytes: device.asked.read_bytes,
                write_count: device.asked.write_count,
                written_bytes: device.asked.written_bytes,
            })
            .collect(),
        payload_memory: PayloadMemory {
            engine: share(&shard.memory.engine),
            clients: share(&shard.memory.clients),
        },
    }
}

fn share(report: &ShareReport) -> Share {
    Share {
        total_bytes: report.total_bytes,
        used_bytes: report.used_bytes,
        refused_count: report.refused,
    }
}

/// Requests of clients that something be durable: flushes, and writes with forced unit access.
fn client_flushes(shard: &ShardStatus) -> u64 {
    let volumes = shard.exports.iter().filter_map(|export| export.volume.as_ref());
    volumes.map(|volume| volume.counters.flushes + volume.counters.fua_writes).sum()
}

fn cache_set(report: &SetReport, client_flushes: u64) -> CacheSet {
    let status = &report.status;
    let counters = &status.counters;
    let wanted = counters.client_bytes + counters.promoted_bytes;
    let written = counters.cache_written_bytes();
    let used_segments = status.segments - status.free_segments;
    CacheSet {
        set_id: set_id_text(&report.set_id),
        label: report.label.clone(),
        cache_device: report.cache_device.clone(),
        state_file: Some(report.state_file.display().to_string()),
        recovery_error: report.recovery_error.map(|error| error.to_string()),
        cache_health: names::health_name(status.cache_health).to_owned(),
        cache_trouble: cache_trouble(status.cache_health),
        is_cache_failed: matches!(status.cache_health, CacheHealth::Failed(_)),
        segment_bytes: block_bytes(status.segment_blocks.into()),
        segment_count: status.segments,
        free_segment_count: status.free_segments,
        cached_bytes: block_bytes(status.cached_blocks),
        kept_bytes_max: block_bytes(status.kept_blocks_max),
        dirty_bytes: block_bytes(status.dirty_blocks),
        writeback_bytes_per_second: status.writeback_blocks_per_second.map(block_bytes),
        occupancy: ratio(used_segments.into(), status.segments.into()).unwrap_or(0.0),
        memory_bytes: status.memory_bytes,
        memory_floor_bytes: status.memory_floor_bytes,
        memory_max_bytes: Some(status.settings.memory_max_bytes).filter(|max| *max != u64::MAX),
        discard_freed_segments: status.settings.discard_freed_segments,
        dirty_soft_percent: status.settings.dirty_soft_percent,
        dirty_hard_percent: status.settings.dirty_hard_percent,
        cache_write_budget_bytes_per_day: status.settings.cache_write_budget_bytes_per_day,
        policy: status.settings.policy.name().to_owned(),
        recovery_ms: status.recovery_ms,
        recovery_cpu_ms: report.recovery_cpu.as_secs_f64() * 1e3,
        recovered_record_count: status.recovered_records,
        recovery_segments_done: status.recovery_segments.0,
        recovery_segments_total: status.recovery_segments.1,
        write_amplification: ratio(written - counters.relocated_bytes, wanted),
        relocation_amplification: ratio(counters.relocated_bytes, wanted),
        client_flush_count: client_flushes,
        cache_flushes_per_client_flush: ratio(counters.cache_flushes, client_flushes),
        what_if: report
            .what_if
            .iter()
            .map(|estimate| WhatIf {
                cache_size_bytes: block_bytes(estimate.cache_blocks),
                hit_ratio_blocks: estimate.hit_ratio,
            })
            .collect(),
        counters: SetCounters {
            record_count: counters.records,
            idle_mark_count: counters.idle_marks,
            client_bytes: counters.client_bytes,
            promoted_bytes: counters.promoted_bytes,
            relocated_bytes: counters.relocated_bytes,
            metadata_bytes: counters.metadata_bytes,
            cache_written_bytes: written,
            cache_flush_count: counters.cache_flushes,
            cache_error_count: counters.cache_errors,
            checkpoint_count: counters.checkpoints,
            reclaimed_segment_count: counters.reclaimed_segments,
            dropped_block_count: counters.dropped_blocks,
            space_wait_count: counters.space_waits,
            throttled_write_count: counters.throttled_writes,
            throttled_us: counters.throttled_us,
        },
    }
}

/// What is wrong with the cache device, and what to do about it.
fn cache_trouble(health: CacheHealth) -> Option<String> {
    let failure = match health {
        CacheHealth::Good => return None,
        CacheHealth::Degraded(CacheErrors { reads, writes }) => {
            return Some(format!(
                "{reads} reads and {writes} writes failed within about an hour; nothing new is \
                 cached, dirty data is written back; check or replace the device, then restart"
            ));
        }
        CacheHealth::Failed(failure) => failure,
    };
    let what = match failure {
        CacheFailure::Gone => {
            let text = "the cache device is gone; nothing is cached until it is back: forebay \
                        looks for it under its path and goes on";
            return Some(text.to_owned());
        }
        CacheFailure::Writes => "writes to the cache device failed again and again",
        CacheFailure::Flush => "a flush of the cache device failed",
    };
    Some(format!("{what}; nothing is cached any more; repair or replace it, then restart"))
}

fn export(report: &ExportReport) -> Export {
    let percentiles = |from: &forebay_host::Percentiles| Percentiles {
        count: from.count,
        mean_ns: from.mean_ns,
        p50_ns: from.p50_ns,
        p99_ns: from.p99_ns,
        p999_ns: from.p999_ns,
        max_ns: from.max_ns,
    };
    Export {
        name: report.name.clone(),
        device: report.device.clone(),
        size_bytes: report.size_bytes,
        origin_size_bytes: report.origin_size_bytes,
        logical_block_bytes: report.logical_block_bytes,
        is_read_only: report.is_read_only,
        unavailable: report.unavailable.clone(),
        block_device: report.block_device.clone(),
        vhost_user: report.vhost_user.as_ref().map(|path| path.display().to_string()),
        volume: report.volume.as_ref().map(volume),
        latency: Latency {
            read_hit: percentiles(&report.latency.read_hit),
            read_miss: percentiles(&report.latency.read_miss),
            write: percentiles(&report.latency.write),
            flush: percentiles(&report.latency.flush),
        },
    }
}

fn extent(extent: &OriginExtent) -> Extent {
    Extent {
        offset_bytes: block_bytes(extent.start.0),
        length_bytes: block_bytes(extent.block_count),
    }
}

fn origin(status: &OriginStatus) -> Origin {
    let error_text = |(error, _)| names::io_error_text(error).to_owned();
    Origin {
        state: names::origin_state_name(status.state).to_owned(),
        state_ms: status.state_ms,
        requests_waiting: status.requests_waiting,
        oldest_wait_ms: status.oldest_wait_ms,
        requests_late: status.requests_late,
        writeback_retry_ms: status.writeback_retry_ms,
        last_error: status.last_error.map(error_text),
        last_error_ms: status.last_error.map(|(_, age_ms)| age_ms),
    }
}

fn volume(status: &VolumeStatus) -> Volume {
    let counters = &status.counters;
    let reads = counters.read_hits + counters.read_misses + counters.read_partial_hits;
    let read_bytes = counters.read_hit_bytes + counters.read_miss_bytes;
    Volume {
        state: names::volume_state_name(status.state).to_owned(),
        cache_mode: names::mode_name(status.mode).to_owned(),
        writeback_order: names::order_name(status.order).to_owned(),
        epochs_waiting: status.epochs_waiting,
        settings: (&status.settings).into(),
        cached_bytes: block_bytes(status.cached_blocks),
        cached_extent_count: status.cached_extents,
        pinned_extents: status.pinned.iter().map(extent).collect(),
        pinned_bytes: block_bytes(status.pinned.iter().map(|extent| extent.block_count).sum()),
        // Counted piece by piece: `ranges::count_pinned`.
        pinned_cached_bytes: 0,
        dirty_bytes: block_bytes(status.dirty_blocks),
        dirty_age_ms: status.dirty_age_ms,
        failed_extents: status.failed_extents.iter().map(extent).collect(),
        requests_in_flight: status.requests_in_flight,
        requests_waiting: status.requests_waiting,
        cache_wait_ms: status.return_wait_ms,
        origin: origin(&status.origin),
        hit_ratio_requests: ratio(counters.read_hits, reads),
        hit_ratio_bytes: ratio(counters.read_hit_bytes, read_bytes),
        counters: volume_counters(counters),
    }
}

fn volume_counters(counters: &forebay_engine::status::VolumeCounters) -> VolumeCounters {
    let counted = BypassReason::ALL.iter().zip(counters.bypasses);
    let (rejects, bypasses): (Vec<_>, Vec<_>) = counted.partition(|(reason, _)| reason.is_reject());
    let by_name = |counts: Vec<(&BypassReason, u64)>| {
        counts.into_iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
    };
    VolumeCounters {
        read_hit_count: counters.read_hits,
        read_miss_count: counters.read_misses,
        read_partial_hit_count: counters.read_partial_hits,
        read_hit_bytes: counters.read_hit_bytes,
        read_miss_bytes: counters.read_miss_bytes,
        write_count: counters.writes,
        write_bytes: counters.write_bytes,
        flush_count: counters.flushes,
        fua_write_count: counters.fua_writes,
        discard_count: counters.discards,
        write_zeroes_count: counters.write_zeroes,
        prefetch_count: counters.prefetches,
        error_count: counters.errors,
        coalesced_miss_count: counters.coalesced_misses,
        promoted_block_count: counters.promoted_blocks,
        read_ahead_block_count: counters.read_ahead_blocks,
        read_ahead_used_block_count: counters.read_ahead_used_blocks,
        admitted_block_counts: AdmitReason::ALL
            .iter()
            .zip(counters.admissions)
            .map(|(reason, count)| (reason.name().to_owned(), count))
            .collect(),
        bypassed_block_counts: by_name(bypasses),
        rejected_block_counts: by_name(rejects),
        pinned_kept_block_count: counters.pinned_kept_blocks,
        share_kept_block_count: counters.share_kept_blocks,
        pinned_dropped_block_count: counters.pinned_dropped_blocks,
        share_dropped_block_count: counters.share_dropped_blocks,
        repaired_block_count: counters.repaired_blocks,
        poisoned_block_count: counters.poisoned_blocks,
        order_lost_block_count: counters.order_lost_blocks,
        lost_block_count: counters.lost_blocks,
        writeback_block_count: counters.writeback_blocks,
        writeback_io_count: counters.writeback_ios,
        writeback_gap_block_count: counters.writeback_gap_blocks,
        writeback_read_block_count: counters.writeback_read_blocks,
        writeback_read_io_count: counters.writeback_reads,
        origin_error_count: counters.origin_errors,
        origin_retry_count: counters.origin_retries,
        origin_timeout_count: counters.origin_timeouts,
        origin_flush_count: counters.origin_flushes,
    }
}
