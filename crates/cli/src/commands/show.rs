//! `forebay show`: what is on a cache device.

use std::fmt::Write;

use forebay_engine::format::checkpoint::{Checkpoint, SegmentUse};
use forebay_engine::format::superblock::Superblock;
use forebay_engine::units::BLOCK_BYTES;
use forebay_host::state_file::set_id_text;
use serde::Serialize;

use crate::admin::api::{Extent, Settings};
use crate::args::ShowArguments;
use crate::commands::format::absolute;
use crate::commands::status::bound_text;
use crate::commands::status_text::extents_text;
use crate::exit::Failure;
use crate::inspection::{CacheDevice, Locking, Superblocks};
use crate::{names, output, size};

#[derive(Serialize)]
struct Report {
    cache_device: String,
    is_in_service: bool,
    set_id: String,
    label: String,
    serial: u64,
    /// Whether the superblock at the start, and its copy at the end, are whole.
    superblock_is_valid: bool,
    superblock_copy_is_valid: bool,
    geometry: GeometryReport,
    memory_max_bytes: Option<u64>,
    discard_freed_segments: bool,
    dirty_soft_percent: u8,
    dirty_hard_percent: u8,
    cache_write_budget_bytes_per_day: u64,
    policy: String,
    volumes: Vec<VolumeReport>,
    /// The newest valid checkpoint.
    checkpoint: Option<CheckpointReport>,
}

#[derive(Serialize)]
struct GeometryReport {
    device_bytes: u64,
    segment_bytes: u64,
    segment_count: u32,
    segments_offset_bytes: u64,
    checkpoint_offset_bytes: u64,
    checkpoint_bytes: u64,
    copy_offset_bytes: u64,
}

#[derive(Serialize)]
struct VolumeReport {
    slot: u16,
    id: u64,
    name: String,
    origin: String,
    size_bytes: u64,
    logical_block_bytes: u32,
    cache_mode: &'static str,
    writeback_order: &'static str,
    generation: u64,
    pinned_extents: Vec<Extent>,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Serialize)]
struct CheckpointReport {
    area: &'static str,
    id: u64,
    sequence: u64,
    recovery_epoch: u64,
    next_version: u64,
    free_segment_count: u64,
    open_segment_count: u64,
    closed_segment_count: u64,
    used_bytes: u64,
    live_bytes: u64,
    dirty_bytes: u64,
    blank_piece_count: usize,
}

/// Runs the command.
pub(crate) fn run(arguments: &ShowArguments) -> Result<(), Failure> {
    let device = CacheDevice::open(&absolute(&arguments.cache)?, Locking::IfPossible)?;
    let superblocks = device.superblocks()?;
    let checkpoints = device.checkpoints(&superblocks.chosen)?;
    let newest = checkpoints.newest_area().zip(checkpoints.newest());
    let report = report(&device, &superblocks, newest);
    if arguments.json {
        output::print_json(&report)
    } else {
        let mut shown = String::new();
        // Writing to a string cannot fail.
        let _ = text(&mut shown, &report);
        output::print(&shown)
    }
}

fn report(
    device: &CacheDevice,
    superblocks: &Superblocks,
    newest: Option<(usize, &Checkpoint)>,
) -> Report {
    let superblock = &superblocks.chosen;
    let geometry = &superblock.geometry;
    let settings = &superblock.settings;
    Report {
        cache_device: device.path().display().to_string(),
        is_in_service: device.is_in_service,
        set_id: set_id_text(&superblock.set_id),
        label: superblock.label.clone(),
        serial: superblock.serial,
        superblock_is_valid: superblocks.start.is_ok(),
        superblock_copy_is_valid: superblocks.copy.is_ok(),
        geometry: GeometryReport {
            device_bytes: geometry.device_bytes,
            segment_bytes: geometry.segment_bytes,
            segment_count: geometry.segment_count,
            segments_offset_bytes: geometry.segments_offset,
            checkpoint_offset_bytes: geometry.checkpoint_offset,
            checkpoint_bytes: geometry.checkpoint_bytes,
            copy_offset_bytes: geometry.copy_offset,
        },
        memory_max_bytes: Some(settings.memory_max_bytes).filter(|max| *max != u64::MAX),
        discard_freed_segments: settings.discard_freed_segments,
        dirty_soft_percent: settings.dirty_soft_percent,
        dirty_hard_percent: settings.dirty_hard_percent,
        cache_write_budget_bytes_per_day: settings.cache_write_budget_bytes_per_day,
        policy: settings.policy.name().to_owned(),
        volumes: volumes(superblock),
        checkpoint: newest.map(|(area, checkpoint)| checkpoint_report(area, checkpoint)),
    }
}

fn volumes(superblock: &Superblock) -> Vec<VolumeReport> {
    let report = superblock.slots().map(|(slot, volume)| VolumeReport {
        slot: slot.0,
        id: volume.id.0,
        name: volume.name.clone(),
        origin: volume.origin_path.clone(),
        size_bytes: volume.size_bytes,
        logical_block_bytes: volume.logical_block_bytes,
        cache_mode: names::mode_name(volume.mode),
        writeback_order: names::order_name(volume.writeback_order),
        generation: volume.generation.0,
        pinned_extents: volume.pins.iter().map(pinned_extent).collect(),
        settings: (&volume.settings).into(),
    });
    report.collect()
}

fn pinned_extent((start, end): (u64, u64)) -> Extent {
    let block = BLOCK_BYTES as u64;
    Extent { offset_bytes: start * block, length_bytes: (end - start) * block }
}

fn checkpoint_report(area: usize, checkpoint: &Checkpoint) -> CheckpointReport {
    let count = |wanted: SegmentUse| {
        checkpoint.segments.iter().filter(|line| line.segment_use == wanted).count() as u64
    };
    let block = BLOCK_BYTES as u64;
    let mut report = CheckpointReport {
        area: if area == 0 { "A" } else { "B" },
        id: checkpoint.id,
        sequence: checkpoint.sequence.0,
        recovery_epoch: checkpoint.recovery_epoch.0,
        next_version: checkpoint.next_version.0,
        free_segment_count: count(SegmentUse::Free),
        open_segment_count: count(SegmentUse::Open),
        closed_segment_count: count(SegmentUse::Closed),
        used_bytes: 0,
        live_bytes: 0,
        dirty_bytes: 0,
        blank_piece_count: checkpoint.pieces.len(),
    };
    let ones =
        |words: &[u64]| -> u64 { words.iter().map(|word| u64::from(word.count_ones())).sum() };
    for line in checkpoint.segments.iter().filter(|line| line.segment_use != SegmentUse::Free) {
        report.used_bytes += u64::from(line.used_blocks) * block;
        if let Some(bits) = line.bits.as_deref() {
            report.live_bytes += ones(&bits.live) * block;
            report.dirty_bytes += ones(&bits.dirty) * block;
        }
    }
    report
}

fn text(text: &mut String, report: &Report) -> std::fmt::Result {
    let label =
        if report.label.is_empty() { String::new() } else { format!(" ({})", report.label) };
    writeln!(text, "cache set {}{label} on {}", report.set_id, report.cache_device)?;
    if report.is_in_service {
        writeln!(text, "  note        it is in service and changes while it is looked at")?;
    }
    let valid = |is_valid: bool| if is_valid { "whole" } else { "DAMAGED" };
    writeln!(
        text,
        "  superblock  serial {}; {} at the start, {} at the end",
        report.serial,
        valid(report.superblock_is_valid),
        valid(report.superblock_copy_is_valid)
    )?;
    let geometry = &report.geometry;
    writeln!(
        text,
        "  geometry    {}: {} segments of {} from byte {}",
        size::text(geometry.device_bytes),
        geometry.segment_count,
        size::text(geometry.segment_bytes),
        geometry.segments_offset_bytes
    )?;
    writeln!(text, "  memory      {}", bound_text(report.memory_max_bytes))?;
    match &report.checkpoint {
        Some(checkpoint) => {
            writeln!(
                text,
                "  checkpoint  {} in area {}: through record {}, recovery epoch {}",
                checkpoint.id, checkpoint.area, checkpoint.sequence, checkpoint.recovery_epoch
            )?;
            writeln!(
                text,
                "  segments    {} free, {} open, {} closed; {} used, {} live, {} dirty",
                checkpoint.free_segment_count,
                checkpoint.open_segment_count,
                checkpoint.closed_segment_count,
                size::text(checkpoint.used_bytes),
                size::text(checkpoint.live_bytes),
                size::text(checkpoint.dirty_bytes)
            )?;
        }
        None => writeln!(text, "  checkpoint  DAMAGED: neither is valid")?,
    }
    for volume in &report.volumes {
        writeln!(
            text,
            "volume {}: {}, {}, {} on {}; id {}, generation {}",
            volume.name,
            volume.cache_mode,
            volume.writeback_order,
            size::text(volume.size_bytes),
            volume.origin,
            volume.id,
            volume.generation
        )?;
        if let Some(extents) = extents_text(&volume.pinned_extents) {
            writeln!(text, "  pinned      {extents}")?;
        }
    }
    Ok(())
}
