//! Pinned ranges: pinning, unpinning, bringing them into the cache, and how much of them is there.

use std::ops::Range;

use axum::Json;
use axum::extract::State;
use forebay_engine::event::PinChange;
use forebay_engine::status::BlockState;
use forebay_engine::units::BLOCK_BYTES;
use forebay_host::{AdminCommand, ShardHandle, ShardStatus};
use tokio::sync::oneshot;

use super::api::{Extent, Fetched, RangeRequest, Status};
use super::{Shared, command, gone, shard_status};
use crate::exit::Failure;
use crate::size;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are counted in one step of the shard's thread: an index walk of a millisecond.
const COUNT_BLOCKS_MAX: u64 = 1 << 16;

pub(super) async fn post_pin(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<RangeRequest>,
) -> Result<Json<Extent>, Failure> {
    change(&handle, request, PinChange::Pin).await
}

pub(super) async fn post_unpin(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<RangeRequest>,
) -> Result<Json<Extent>, Failure> {
    change(&handle, request, PinChange::Unpin).await
}

/// Brings a stretch into the cache; answers how much of it is there.
pub(super) async fn post_fetch(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<RangeRequest>,
) -> Result<Json<Fetched>, Failure> {
    let blocks = checked_blocks(&shard_status(&handle).await?, &request)?;
    let volume = &request.volume;
    let mut cached_blocks = count_cached(&handle, volume, blocks.clone()).await?;
    if cached_blocks < blocks.end - blocks.start {
        let (sender, receiver) = oneshot::channel();
        handle.fetch(volume, blocks.clone(), move |result| {
            // If nobody waits any more, nobody needs it.
            let _ = sender.send(result);
        });
        receiver.await.map_err(|_| gone())??;
        cached_blocks = count_cached(&handle, volume, blocks).await?;
    }
    Ok(Json(Fetched { cached_bytes: cached_blocks * BLOCK }))
}

async fn change(
    handle: &ShardHandle,
    request: RangeRequest,
    change: PinChange,
) -> Result<Json<Extent>, Failure> {
    let blocks = checked_blocks(&shard_status(handle).await?, &request)?;
    let extent = Extent {
        offset_bytes: blocks.start * BLOCK,
        length_bytes: (blocks.end - blocks.start) * BLOCK,
    };
    let volume = request.volume;
    let _done = command(handle, AdminCommand::Pin { volume, blocks, change }).await?;
    Ok(Json(extent))
}

/// The whole blocks around a range, which must lie within its volume.
fn checked_blocks(status: &ShardStatus, request: &RangeRequest) -> Result<Range<u64>, Failure> {
    let RangeRequest { volume, offset_bytes, length_bytes } = request;
    let export = status.exports.iter().find(|export| export.name == *volume);
    let Some(export) = export.filter(|export| export.volume.is_some()) else {
        return Err(Failure::not_found(format!("no volume is named `{volume}`"))
            .or("`forebay status` lists the volumes"));
    };
    if *length_bytes == 0 {
        return Err(Failure::usage("a range of no bytes").or("give the LENGTH of the range"));
    }
    let end_bytes = offset_bytes.saturating_add(*length_bytes);
    if end_bytes > export.size_bytes {
        return Err(Failure::usage(format!(
            "`{volume}` has {} bytes ({}), and the range ends at byte {end_bytes}",
            export.size_bytes,
            size::text(export.size_bytes)
        ))
        .or("give a range within the volume"));
    }
    Ok(offset_bytes / BLOCK..end_bytes.div_ceil(BLOCK))
}

/// Blocks of a range that are cached. In steps, so that clients do not wait for a long walk.
async fn count_cached(
    handle: &ShardHandle,
    volume: &str,
    blocks: Range<u64>,
) -> Result<u64, Failure> {
    let mut cached_blocks = 0;
    let mut start = blocks.start;
    while start < blocks.end {
        let end = blocks.end.min(start + COUNT_BLOCKS_MAX);
        let (sender, receiver) = oneshot::channel();
        handle.block_map(volume, start..end, move |result| {
            let _ = sender.send(result);
        });
        let runs = receiver.await.map_err(|_| gone())??;
        let cached = runs.iter().filter(|(_, _, state)| *state != BlockState::NotCached);
        cached_blocks += cached.map(|(_, count, _)| count).sum::<u64>();
        start = end;
    }
    Ok(cached_blocks)
}

/// Completes a status with how much of the pinned ranges is cached.
pub(super) async fn count_pinned(handle: &ShardHandle, status: &mut Status) -> Result<(), Failure> {
    for export in &mut status.exports {
        let Some(volume) = &mut export.volume else { continue };
        let mut cached_blocks = 0;
        for extent in &volume.pinned_extents {
            let start = extent.offset_bytes / BLOCK;
            let blocks = start..start + extent.length_bytes / BLOCK;
            cached_blocks += count_cached(handle, &export.name, blocks).await?;
        }
        volume.pinned_cached_bytes = cached_blocks * BLOCK;
    }
    Ok(())
}
