//! `forebay pin` and `forebay unpin`: ranges of a volume that stay in the cache.

use std::time::Duration;

use forebay_engine::options::CacheMode;

use crate::admin::api::{Extent, RangeRequest};
use crate::admin::client::{self, AdminClient};
use crate::args::{PinArguments, RangeArguments};
use crate::commands::online;
use crate::exit::{Exit, Failure};
use crate::progress::{Progress, Unit};
use crate::{names, output, size};

/// Bytes that are fetched at once: what the daemon takes in one request.
const PIECE_BYTES: u64 = 4 << 20;
/// Longest pause before a piece is tried again of which not all is cached.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Tries in a row of which none brings more of a piece: some five seconds, in which reclaim makes
/// room if it can.
const VAIN_TRIES_MAX: u32 = 30;

/// Runs `forebay pin`.
pub(crate) fn pin(arguments: &PinArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let range = request(&arguments.range);
    let name = &range.volume;
    let fetched = client::block_on(async {
        if !arguments.no_fetch {
            refuse_idle_mode(&daemon, name).await?;
        }
        let pinned = daemon.pin(&range).await?;
        if !arguments.no_fetch {
            fetch(&daemon, name, &pinned).await?;
        }
        Ok::<_, Failure>(pinned)
    })??;
    let what = if arguments.no_fetch { "stays once it is cached" } else { "is cached, and stays" };
    output::print(&format!("{} of volume `{name}` {what}\n", extent_text(&fetched)))
}

/// Runs `forebay unpin`.
pub(crate) fn unpin(arguments: &crate::args::UnpinArguments) -> Result<(), Failure> {
    let daemon = client::only(arguments.admin.admin.as_deref())?;
    let range = request(&arguments.range);
    let unpinned = client::block_on(daemon.unpin(&range))??;
    let text = extent_text(&unpinned);
    output::print(&format!("{text} of volume `{}` is not pinned any more\n", range.volume))
}

fn request(range: &RangeArguments) -> RangeRequest {
    RangeRequest {
        volume: range.name.clone(),
        offset_bytes: range.offset,
        length_bytes: range.length,
    }
}

fn extent_text(extent: &Extent) -> String {
    format!("{} at byte {}", size::text(extent.length_bytes), extent.offset_bytes)
}

/// A mode that copies nothing from the origin would fetch nothing.
async fn refuse_idle_mode(daemon: &AdminClient, name: &str) -> Result<(), Failure> {
    let Some(volume) = online::volume(daemon, name).await else { return Ok(()) };
    let idle = [CacheMode::Writeonly, CacheMode::Passthrough].map(names::mode_name);
    if idle.contains(&volume.cache_mode.as_str()) {
        return Err(Failure::usage(format!(
            "volume `{name}` is in mode {}, which copies nothing to the cache that is read",
            volume.cache_mode
        ))
        .or("--no-fetch pins the range for later"));
    }
    Ok(())
}

/// Brings a pinned range into the cache, piece by piece. Ctrl-C ends that and leaves it pinned.
async fn fetch(daemon: &AdminClient, name: &str, pinned: &Extent) -> Result<(), Failure> {
    let label = format!("fetching `{name}`");
    let mut progress = Progress::start(&label, Unit::Bytes, pinned.length_bytes);
    let work = fetch_pieces(daemon, name, pinned, &mut progress);
    let result = tokio::select! {
        biased;
        result = work => result,
        signal = tokio::signal::ctrl_c() => Err(match signal {
            Ok(()) => Failure::new(Exit::Cancelled, format!("{label} was cancelled"))
                .or("the range is pinned; what was fetched stays, the rest once it is read"),
            Err(error) => Failure::failed(format!("cannot watch signals: {error}")),
        }),
    };
    progress.finish();
    result
}

async fn fetch_pieces(
    daemon: &AdminClient,
    name: &str,
    pinned: &Extent,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut done_bytes = 0;
    while done_bytes < pinned.length_bytes {
        let length_bytes = PIECE_BYTES.min(pinned.length_bytes - done_bytes);
        let offset_bytes = pinned.offset_bytes + done_bytes;
        let volume = name.to_owned();
        let request = RangeRequest { volume, offset_bytes, length_bytes };
        let cached_bytes = fetch_piece(daemon, &request).await?;
        done_bytes += cached_bytes;
        progress.set(done_bytes);
        if cached_bytes < length_bytes {
            return Err(Failure::failed(format!(
                "{} of {} are cached, and the cache takes no more now",
                size::text(done_bytes),
                size::text(pinned.length_bytes)
            ))
            .or(format!(
                "the range is pinned; `forebay explain {name} {}` may say why, and `forebay pin` \
                 goes on",
                pinned.offset_bytes + done_bytes
            )));
        }
    }
    Ok(())
}

/// Tries until all of a piece is cached or nothing more comes; answers how much is cached.
async fn fetch_piece(daemon: &AdminClient, piece: &RangeRequest) -> Result<u64, Failure> {
    let mut pause = Duration::from_millis(2);
    let (mut most, mut vain_tries) = (0, 0);
    loop {
        let cached_bytes = daemon.fetch(piece).await?.cached_bytes;
        vain_tries = if cached_bytes > most { 0 } else { vain_tries + 1 };
        most = most.max(cached_bytes);
        if cached_bytes >= piece.length_bytes || vain_tries == VAIN_TRIES_MAX {
            return Ok(cached_bytes.min(piece.length_bytes));
        }
        // Its records are on their way to the cache device, or reclaim makes room for them.
        tokio::time::sleep(pause).await;
        pause = PAUSE_MAX.min(2 * pause);
    }
}
