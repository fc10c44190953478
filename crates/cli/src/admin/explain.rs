//! The question why a block is in the cache or not.

use axum::Json;
use axum::extract::State;
use forebay_engine::explain::CopyKind;
use forebay_engine::status::{Access, Outcome};
use forebay_engine::units::BLOCK_BYTES;
use forebay_host::BlockReport;
use tokio::sync::oneshot;

use super::api::{Copy, Decision, ExplainRequest, Explanation, Record};
use super::{Shared, gone};
use crate::exit::Failure;

pub(super) async fn post_explain(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<ExplainRequest>,
) -> Result<Json<Explanation>, Failure> {
    let ExplainRequest { volume, offset_bytes } = request;
    let (sender, receiver) = oneshot::channel();
    handle.explain(&volume, offset_bytes, move |result| {
        // If nobody waits any more, nobody needs it.
        let _ = sender.send(result);
    });
    let report = receiver.await.map_err(|_| gone())??;
    let block_offset_bytes = offset_bytes - offset_bytes % BLOCK_BYTES as u64;
    Ok(Json(explanation(volume, block_offset_bytes, &report)))
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
            record: place.record.map(|record| Record {
                sequence: record.sequence.0,
                block: record.block,
                cache_offset_bytes: report.segment_offset_bytes
                    + u64::from(record.block) * BLOCK_BYTES as u64,
            }),
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
