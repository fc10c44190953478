//! The admin side of a daemon: HTTP and JSON on a Unix socket, in an async runtime on a thread of
//! its own. It never touches the data path: all it does is ask the shard through its handle.
//!
//! A command that takes long (drain, detach, a mode change) is answered when it has ended; if the
//! client goes away before, the command is cancelled.

pub(crate) mod api;
pub(crate) mod client;
mod explain;
mod ranges;
mod report;
pub(crate) mod socket;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use forebay_engine::event::DirtyFate;
use forebay_engine::options::{PROMOTION_NHIT_MAX, SetSettings, VolumeSettings};
use forebay_host::{
    AdminCommand, ClientSize, CommandDone, CommandOutcome, DeviceSpec, ShardHandle, ShardStatus,
    Ticket,
};
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::{oneshot, watch};

use self::socket::BoundSocket;
use crate::exit::{Exit, Failure};
use crate::takeover::{TakeoverRequest, predecessor};
use crate::{names, size};
use api::{
    AttachRequest, DetachRequest, Detached, Done, ErrorReply, Resized, ResizedClient, SetRequest,
    Status, VolumeRequest,
};

/// How long answers under way may take to reach their clients when the daemon ends.
const GOODBYE: Duration = Duration::from_secs(2);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.exit {
            Exit::Usage => StatusCode::BAD_REQUEST,
            Exit::NotFound => StatusCode::NOT_FOUND,
            Exit::Refused | Exit::Cancelled => StatusCode::CONFLICT,
            Exit::Failed | Exit::Damaged => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let body = ErrorReply { error: self.message, exit_code: self.exit.code() };
        (status, Json(body)).into_response()
    }
}

/// The server. Ends when it is dropped.
pub(crate) struct AdminServer {
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Starts to serve on a socket.
    pub(crate) fn start(socket: BoundSocket, handle: ShardHandle) -> Result<AdminServer, Failure> {
        let path = socket.path().to_owned();
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot serve admin socket {}: {error}", path.display()))
        };
        let socket = Arc::new(socket);
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = watch::channel(false);
        let thread = thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                runtime.block_on(serve(Shared { handle, ended, socket }));
            })
            .map_err(failed)?;
        Ok(AdminServer { end, thread: Some(thread) })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.end.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It has no result; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

async fn serve(shared: Shared) {
    let listener = match UnixListener::from_std(shared.socket.listener()) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the admin socket cannot be served");
            return;
        }
    };
    let mut ended = shared.ended.clone();
    let mut ended_too = ended.clone();
    let server = axum::serve(listener, router(shared)).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is what is waited for.
        let _ = ended_too.wait_for(|ended| *ended).await;
    });
    let server = tokio::spawn(async move { server.await });
    let _ = ended.wait_for(|ended| *ended).await;
    if tokio::time::timeout(GOODBYE, server).await.is_err() {
        tracing::debug!("an admin client did not take its answer in time");
    }
}

/// What the handlers work with.
#[derive(Clone)]
struct Shared {
    handle: ShardHandle,
    /// Whether the shard has ended.
    ended: watch::Receiver<bool>,
    /// What it is asked through.
    socket: Arc<BoundSocket>,
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/status", get(get_status))
        .route("/v1/reset", post(post_reset))
        .route("/v1/attach", post(post_attach))
        .route("/v1/set", post(post_set))
        .route("/v1/explain", post(explain::post_explain))
        .route("/v1/pin", post(ranges::post_pin))
        .route("/v1/unpin", post(ranges::post_unpin))
        .route("/v1/fetch", post(ranges::post_fetch))
        .route("/v1/drain", post(post_drain))
        .route("/v1/detach", post(post_detach))
        .route("/v1/resize", post(post_resize))
        .route("/v1/invalidate", post(post_invalidate))
        .route("/v1/stop", post(post_stop))
        .route("/v1/takeover", post(post_takeover))
        .with_state(shared)
}

type Answered = Result<Json<Done>, Failure>;

fn gone() -> Failure {
    Failure::failed("the server has stopped")
}

async fn shard_status(handle: &ShardHandle) -> Result<ShardStatus, Failure> {
    let (sender, receiver) = oneshot::channel();
    handle.status(move |status| {
        // If nobody waits any more, nobody needs it.
        let _ = sender.send(status);
    });
    receiver.await.map_err(|_| gone())?.map_err(|_| gone())
}

/// Cancels a command when its client has gone.
struct CancelOnDrop {
    handle: ShardHandle,
    ticket: Arc<Mutex<Option<Ticket>>>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let ticket = self.ticket.lock().expect("nobody panics with it").take();
        if let Some(ticket) = ticket {
            self.handle.cancel(ticket);
        }
    }
}

async fn command(handle: &ShardHandle, command: AdminCommand) -> Answered {
    let _done = outcome_of(handle, command).await?;
    Ok(Json(Done {}))
}

/// Runs a command to its end. An attach opens its origin first, off the runtime's thread.
async fn outcome_of(handle: &ShardHandle, command: AdminCommand) -> Result<CommandDone, Failure> {
    let (sender, receiver) = oneshot::channel::<CommandOutcome>();
    let ticket = Arc::new(Mutex::new(None));
    let guard = CancelOnDrop { handle: handle.clone(), ticket: Arc::clone(&ticket) };
    let (starter, place) = (handle.clone(), Arc::clone(&ticket));
    let start = move || {
        let ticket = starter.command(command, move |outcome| {
            // If nobody waits any more, the guard has cancelled the command.
            let _ = sender.send(outcome);
        });
        *place.lock().expect("nobody panics with it") = Some(ticket);
    };
    tokio::task::spawn_blocking(start)
        .await
        .map_err(|error| Failure::failed(format!("the command could not be started: {error}")))?;
    let outcome = receiver.await.map_err(|_| gone())?;
    ticket.lock().expect("nobody panics with it").take();
    drop(guard);
    Ok(outcome?)
}

async fn get_status(State(Shared { handle, .. }): State<Shared>) -> Result<Json<Status>, Failure> {
    let mut status = report::status(&shard_status(&handle).await?);
    ranges::count_pinned(&handle, &mut status).await?;
    Ok(Json(status))
}

async fn post_reset(State(Shared { handle, .. }): State<Shared>) -> Answered {
    let (sender, receiver) = oneshot::channel();
    handle.reset_counters(move |result| {
        let _ = sender.send(result);
    });
    receiver.await.map_err(|_| gone())?.map_err(|_| gone())?;
    Ok(Json(Done {}))
}

async fn post_attach(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<AttachRequest>,
) -> Answered {
    let origin: DeviceSpec = request.origin.parse()?;
    let mode = names::parse_mode(&request.cache_mode).map_err(Failure::usage)?;
    let order = names::parse_order(&request.writeback_order).map_err(Failure::usage)?;
    let AttachRequest { name, logical_block_bytes, .. } = request;
    let settings = Box::new(VolumeSettings {
        share_min_percent: request.share_min_percent,
        share_max_percent: request.share_max_percent,
        ..VolumeSettings::default()
    });
    let attach = AdminCommand::Attach { name, origin, mode, order, logical_block_bytes, settings };
    command(&handle, attach).await
}

async fn post_drain(
    State(Shared { handle, .. }): State<Shared>,
    Json(VolumeRequest { volume }): Json<VolumeRequest>,
) -> Answered {
    command(&handle, AdminCommand::Drain { volume }).await
}

async fn post_detach(
    State(Shared { handle, .. }): State<Shared>,
    Json(DetachRequest { volume, discard_dirty }): Json<DetachRequest>,
) -> Result<Json<Detached>, Failure> {
    let dirty = if discard_dirty { DirtyFate::Discarded } else { DirtyFate::WrittenBack };
    let done = outcome_of(&handle, AdminCommand::Detach { volume, dirty }).await?;
    Ok(Json(Detached { discarded_bytes: done.discarded_bytes }))
}

async fn post_resize(
    State(Shared { handle, .. }): State<Shared>,
    Json(VolumeRequest { volume }): Json<VolumeRequest>,
) -> Result<Json<Resized>, Failure> {
    let done = outcome_of(&handle, AdminCommand::Resize { volume: volume.clone() }).await?;
    let resized = done.resized.ok_or_else(gone)?;
    let client = |client: ClientSize| ResizedClient {
        sees_size: names::size_reach_name(client.reach).to_owned(),
        client: client.client,
    };
    Ok(Json(Resized {
        name: volume,
        old_size_bytes: resized.old_bytes,
        size_bytes: resized.new_bytes,
        clients: resized.clients.into_iter().map(client).collect(),
    }))
}

async fn post_invalidate(
    State(Shared { handle, .. }): State<Shared>,
    Json(VolumeRequest { volume }): Json<VolumeRequest>,
) -> Answered {
    command(&handle, AdminCommand::Invalidate { volume }).await
}

/// Answers when the devices are closed, so that whoever asked may use them at once.
async fn post_stop(State(Shared { handle, mut ended, .. }): State<Shared>) -> Answered {
    let answer = command(&handle, AdminCommand::Stop).await?;
    // An error means that the sender is gone, which is what is waited for.
    let _ = ended.wait_for(|ended| *ended).await;
    Ok(answer)
}

/// Answers when the conversation with the successor has begun.
async fn post_takeover(
    State(Shared { handle, socket, .. }): State<Shared>,
    Json(request): Json<TakeoverRequest>,
) -> Answered {
    let status = shard_status(&handle).await?;
    let Some(set) = status.set else {
        return Err(Failure::refused("this daemon serves no cache set"));
    };
    let begin = move || predecessor::begin(&request, &set, handle, socket);
    tokio::task::spawn_blocking(begin)
        .await
        .map_err(|error| Failure::failed(format!("the takeover could not be begun: {error}")))??;
    Ok(Json(Done {}))
}

async fn post_set(
    State(Shared { handle, .. }): State<Shared>,
    Json(request): Json<SetRequest>,
) -> Answered {
    match &request.volume {
        Some(volume) => set_volume(&handle, volume, &request).await,
        None => set_cache_set(&handle, &request).await,
    }
}

async fn set_volume(handle: &ShardHandle, volume: &str, request: &SetRequest) -> Answered {
    let status = shard_status(handle).await?;
    let found = status.exports.iter().find(|export| export.name == volume);
    let current = found.and_then(|export| export.volume.as_ref()).ok_or_else(|| {
        Failure::not_found(format!("no volume is named `{volume}`"))
            .or("`forebay status` lists the volumes")
    })?;
    let settings = changed_settings(&current.settings, request)?;
    refuse_crossed_shares(volume, &settings)?;
    if !(1..=PROMOTION_NHIT_MAX).contains(&settings.promotion_nhit) {
        let nhit = settings.promotion_nhit;
        return Err(Failure::usage(format!("promotion_nhit={nhit} of `{volume}` is out of range"))
            .or(format!("write 1 to {PROMOTION_NHIT_MAX}")));
    }
    if !settings.are_valid() {
        return Err(Failure::usage(format!(
            "these settings of `{volume}` do not fit together: writeback_rate_min={} is more than \
             writeback_rate_max={}",
            size::text(settings.writeback_rate_min_bytes),
            size::text(settings.writeback_rate_max_bytes)
        ))
        .or("set both at once; writeback_rate_max=0 is no bound"));
    }
    if settings != current.settings {
        let volume = volume.to_owned();
        let _done = command(handle, AdminCommand::SetVolume { volume, settings }).await?;
    }
    if let Some(name) = &request.writeback_order {
        let order = names::parse_order(name).map_err(Failure::usage)?;
        if order != current.order {
            let volume = volume.to_owned();
            let _done = command(handle, AdminCommand::SetOrder { volume, order }).await?;
        }
    }
    if let Some(name) = &request.cache_mode {
        let mode = names::parse_mode(name).map_err(Failure::usage)?;
        if mode == current.mode {
            return Ok(Json(Done {}));
        }
        let volume = volume.to_owned();
        return command(handle, AdminCommand::SetMode { volume, mode }).await;
    }
    Ok(Json(Done {}))
}

/// The settings of a volume with what is asked for.
fn changed_settings(
    current: &VolumeSettings,
    request: &SetRequest,
) -> Result<VolumeSettings, Failure> {
    let cutoff = request.sequential_cutoff_bytes;
    let sequential_policy = match &request.sequential_policy {
        Some(name) => names::parse_sequential_policy(name).map_err(Failure::usage)?,
        None => current.sequential_policy,
    };
    Ok(VolumeSettings {
        sequential_cutoff_bytes: cutoff.unwrap_or(current.sequential_cutoff_bytes),
        sequential_policy,
        promote_on_read: request.promote_on_read.unwrap_or(current.promote_on_read),
        promote_on_write: request.promote_on_write.unwrap_or(current.promote_on_write),
        promotion_nhit: request.promotion_nhit.unwrap_or(current.promotion_nhit),
        writeback_percent: request.writeback_percent.unwrap_or(current.writeback_percent),
        read_ahead_bytes: request.read_ahead_bytes.unwrap_or(current.read_ahead_bytes),
        writeback_delay_s: request.writeback_delay_s.unwrap_or(current.writeback_delay_s),
        writeback_rate_min_bytes: request
            .writeback_rate_min_bytes
            .unwrap_or(current.writeback_rate_min_bytes),
        writeback_rate_max_bytes: request
            .writeback_rate_max_bytes
            .unwrap_or(current.writeback_rate_max_bytes),
        writeback_ios_max: request.writeback_ios_max.unwrap_or(current.writeback_ios_max),
        writeback_idle_only: request.writeback_idle_only.unwrap_or(current.writeback_idle_only),
        dirty_age_max_s: request.dirty_age_max_s.unwrap_or(current.dirty_age_max_s),
        origin_timeout_s: request.origin_timeout_s.unwrap_or(current.origin_timeout_s),
        share_min_percent: request.share_min_percent.unwrap_or(current.share_min_percent),
        share_max_percent: request.share_max_percent.unwrap_or(current.share_max_percent),
    })
}

fn refuse_crossed_shares(volume: &str, settings: &VolumeSettings) -> Result<(), Failure> {
    let (least, most) = (settings.share_min_percent, settings.share_max_percent);
    if least <= most && (1..=100).contains(&most) {
        return Ok(());
    }
    let text = format!("share_min={least} and share_max={most} of `{volume}` do not fit together");
    Err(Failure::usage(text).or("share_min is 0 to 100, share_max 1 to 100 and not below it"))
}

async fn set_cache_set(handle: &ShardHandle, request: &SetRequest) -> Answered {
    let status = shard_status(handle).await?;
    let set = status.set.ok_or_else(|| Failure::usage("this server has no cache set"))?.status;
    let current = set.settings;
    if let Some(wanted) = request.memory_max_bytes
        && wanted < set.memory_floor_bytes
    {
        return Err(Failure::usage(format!(
            "memory_max={} cannot be kept: this cache set needs {} with nothing cached",
            size::text(wanted),
            size::text(set.memory_floor_bytes)
        ))
        .or("choose more, or make a cache with larger segments"));
    }
    let discard = request.discard_freed_segments;
    let soft = request.dirty_soft_percent.unwrap_or(current.dirty_soft_percent);
    let hard = request.dirty_hard_percent.unwrap_or(current.dirty_hard_percent);
    if !SetSettings::are_marks(soft, hard) {
        return Err(Failure::usage(format!(
            "dirty_soft_percent={soft} is not below dirty_hard_percent={hard}"
        ))
        .or("set both at once"));
    }
    let policy = match &request.policy {
        Some(name) => names::parse_log_policy(name).map_err(Failure::usage)?,
        None => current.policy,
    };
    let settings = SetSettings {
        policy,
        memory_max_bytes: request.memory_max_bytes.unwrap_or(current.memory_max_bytes),
        discard_freed_segments: discard.unwrap_or(current.discard_freed_segments),
        dirty_soft_percent: soft,
        dirty_hard_percent: hard,
        cache_write_budget_bytes_per_day: request
            .cache_write_budget_bytes_per_day
            .unwrap_or(current.cache_write_budget_bytes_per_day),
    };
    command(handle, AdminCommand::SetCacheSet { settings }).await
}
