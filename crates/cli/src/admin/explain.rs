//! The question why a block is in the cache or not.

use axum::Json;
use axum::extract::State;
use forebay_engine::explain::CopyKind;
use forebay_engine::status::{Access, Outcome};
use forebay_engine::units::{BLOCK_BYTES, OriginBlock};
use forebay_host::BlockReport;
use tokio::sync::oneshot;

use super::api::{Copy, Decision, ExplainRequest, Explanation};
use super::{Shared, gone, shard_status};
use crate::exit::Failure;
use crate::size;

pub(super) async fn post_explain(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<ExplainRequest>,
) -> Result<Json<Explanation>, Failure> {
    let ExplainRequest { volume, offset_bytes } = request;
    let status = shard_status(&handle).await?;
    let export = status.exports.iter().find(|export| export.name == volume);
    if let Some(export) = export.filter(|export| offset_bytes >= export.size_bytes) {
        let size = size::text(export.size_bytes);
        return Err(Failure::usage(format!("`{volume}` has {size}, no byte {offset_bytes}"))
            .or("give an offset within the volume"));
    }
    let block = offset_bytes / BLOCK_BYTES as u64;
    let (sender, receiver) = oneshot::channel();
    handle.explain(&volume, OriginBlock(block), move |result| {
        // If nobody waits any more, nobody needs it.
        let _ = sender.send(result);
    });
    let report = receiver.await.map_err(|_| gone())??;
    Ok(Json(explanation(volume, block * BLOCK_BYTES as u64, &report)))
}

fn explanation(volume: String, offset_bytes: u64, report: &BlockReport) -> Explanation {
    let found = &report.explanation;
    let kind = match found.kind {
        CopyKind::Absent => "absent",
        CopyKind::Data => "data",
        CopyKind::Zeroes => "zeroes",
        CopyKind::Discarded => "discarded",
        CopyKind::Poison => "poison",
    };
    Explanation {
        volume,
        offset_bytes,
        is_cached: found.kind != CopyKind::Absent,
        kind: kind.to_owned(),
        is_dirty: found.is_dirty,
        version: found.version.map(|version| version.0),
        copy: found.place.map(|place| Copy {
            segment: place.segment,
            block: place.block,
            cache_offset_bytes: report.segment_offset_bytes
                + u64::from(place.block) * BLOCK_BYTES as u64,
            sequence_max: place.sequence_max.0,
            age_ms_max: place.age_ms_max,
            is_recovered: place.is_recovered,
        }),
        is_kept: found.is_kept,
        is_write_pending: found.is_write_pending,
        last_decision: found.decision.map(|(decision, age_ms)| Decision {
            access: match decision.access {
                Access::Read => "read".to_owned(),
                Access::Write => "write".to_owned(),
            },
            is_admitted: matches!(decision.outcome, Outcome::Admitted(_)),
            reason: decision.outcome.reason().to_owned(),
            age_ms,
        }),
    }
}
