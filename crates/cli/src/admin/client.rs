//! The client of the admin socket: one connection a request, so that giving a request up is closing
//! its connection.
//!
//! A daemon that is stopped or stuck still has its socket, and connections to it succeed. So a
//! request that takes long, as a drain may, is waited for only as long as the daemon tells its
//! status meanwhile.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::api::{
    AttachRequest, DetachRequest, Detached, Done, ErrorReply, ExplainRequest, Explanation, Extent,
    Fetched, RangeRequest, Resized, SetRequest, Status, VolumeRequest,
};
use super::socket;
use crate::exit::{Exit, Failure};
use crate::lock_holder;
use crate::takeover::TakeoverRequest;

/// How long a daemon may take to tell its status. It does so between any two requests of clients;
/// but where processors or the disk of its state file are busy, that may take its time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it is waited for until there is a look whether its process is stopped, or whether it
/// still tells its status.
const LOOK: Duration = Duration::from_secs(10);

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start a runtime: {error}")))?;
    Ok(runtime.block_on(future))
}

/// A daemon, by its admin socket.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    socket: PathBuf,
}

/// The daemon that is meant: the one named, else the only one that runs.
pub(crate) fn only(admin: Option<&Path>) -> Result<AdminClient, Failure> {
    if let Some(socket) = admin {
        return Ok(AdminClient { socket: socket.to_owned() });
    }
    let mut running = socket::running();
    let directory = socket::run_directory();
    match running.len() {
        0 => Err(Failure::not_found(format!("no daemon runs under {}", directory.display()))
            .or("start one with `forebay serve`, or name its socket with --admin")),
        1 => Ok(AdminClient { socket: running.remove(0) }),
        _ => {
            let names: Vec<String> =
                running.iter().map(|path| path.display().to_string()).collect();
            Err(Failure::usage(format!("several daemons run: {}", names.join(", ")))
                .or("choose one with --admin"))
        }
    }
}

/// All daemons to look at: the one named, else all that run.
pub(crate) fn all(admin: Option<&Path>) -> Vec<AdminClient> {
    match admin {
        Some(socket) => vec![AdminClient { socket: socket.to_owned() }],
        None => socket::running().into_iter().map(|socket| AdminClient { socket }).collect(),
    }
}

/// The daemon that serves a cache device, if one can be found.
///
/// One that lives and says nothing is an error, if somebody who lives has the device: to go on as
/// if there were none would take away what its clients use.
pub(crate) async fn serving(
    cache: &Path,
    admin: Option<&Path>,
) -> Result<Option<AdminClient>, Failure> {
    let wanted = std::fs::canonicalize(cache).unwrap_or_else(|_| cache.to_owned());
    let mut silence = None;
    for daemon in all(admin) {
        let status = match daemon.status_in_time().await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => continue,
            Err(failure) => {
                silence.get_or_insert(failure);
                continue;
            }
        };
        let Some(set) = status.cache_set else { continue };
        let served = PathBuf::from(&set.cache_device);
        if served == wanted || std::fs::canonicalize(&served).is_ok_and(|path| path == wanted) {
            return Ok(Some(daemon));
        }
    }
    match silence {
        // It cannot be asked what it serves. The lock tells.
        Some(failure) if !lock_holder::has_ended(&wanted) => Err(failure),
        _ => Ok(None),
    }
}

impl AdminClient {
    /// The daemon on a socket.
    pub(crate) fn new(socket: &Path) -> AdminClient {
        AdminClient { socket: socket.to_owned() }
    }

    /// Where it is.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for the status.
    pub(crate) async fn status(&self) -> Result<Status, Failure> {
        self.status_in_time().await?
    }

    /// The status, or why there is none; an error of its own if the daemon says nothing.
    async fn status_in_time(&self) -> Result<Result<Status, Failure>, Failure> {
        let answer = self.request(Method::GET, "/v1/status", Bytes::new());
        tokio::pin!(answer);
        let mut silent = Duration::ZERO;
        loop {
            if let Ok(answer) = tokio::time::timeout(LOOK, &mut answer).await {
                return Ok(answer);
            }
            silent += LOOK;
            if silent >= PATIENCE || self.is_stopped().await {
                break;
            }
        }
        let (place, seconds) = (self.socket.display(), silent.as_secs());
        Err(Failure::failed(format!("the daemon on {place} has not answered for {seconds} s"))
            .or("it is stopped or stuck: its log may say why. To kill it loses nothing that was \
             acknowledged; then start it again"))
    }

    /// Whether the process that made the socket does not run, because a signal or a debugger has
    /// stopped it.
    async fn is_stopped(&self) -> bool {
        // Who is stopped takes no connections, and there is an end to those that wait.
        let stream = tokio::time::timeout(LOOK, UnixStream::connect(&self.socket)).await;
        let Ok(Ok(stream)) = stream else { return false };
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        pid.is_some_and(|pid| lock_holder::is_stopped(&pid.to_string()))
    }

    /// Sets the counters to zero.
    pub(crate) async fn reset(&self) -> Result<(), Failure> {
        self.post("/v1/reset", &Done {}).await
    }

    /// Asks it to hand over to this process.
    pub(crate) async fn take_over(&self, request: &TakeoverRequest) -> Result<(), Failure> {
        self.post("/v1/takeover", request).await
    }

    /// Attaches an origin.
    pub(crate) async fn attach(&self, request: &AttachRequest) -> Result<(), Failure> {
        self.post("/v1/attach", request).await
    }

    /// Changes settings.
    pub(crate) async fn set(&self, request: &SetRequest) -> Result<(), Failure> {
        self.post("/v1/set", request).await
    }

    /// Asks about a block.
    pub(crate) async fn explain(&self, request: &ExplainRequest) -> Result<Explanation, Failure> {
        self.ask("/v1/explain", request).await
    }

    /// Pins a range; answers with its whole blocks.
    pub(crate) async fn pin(&self, range: &RangeRequest) -> Result<Extent, Failure> {
        self.ask("/v1/pin", range).await
    }

    /// Unpins a range; answers with its whole blocks.
    pub(crate) async fn unpin(&self, range: &RangeRequest) -> Result<Extent, Failure> {
        self.ask("/v1/unpin", range).await
    }

    /// Brings a range into the cache, as far as there is room.
    pub(crate) async fn fetch(&self, range: &RangeRequest) -> Result<Fetched, Failure> {
        self.ask("/v1/fetch", range).await
    }

    /// Drains a volume.
    pub(crate) async fn drain(&self, volume: &str) -> Result<(), Failure> {
        self.post("/v1/drain", &VolumeRequest { volume: volume.to_owned() }).await
    }

    /// Detaches a volume.
    pub(crate) async fn detach(&self, request: &DetachRequest) -> Result<Detached, Failure> {
        self.ask("/v1/detach", request).await
    }

    /// Makes a volume as long as its origin.
    pub(crate) async fn resize(&self, volume: &str) -> Result<Resized, Failure> {
        self.ask("/v1/resize", &VolumeRequest { volume: volume.to_owned() }).await
    }

    /// Forgets the clean copies of a volume.
    pub(crate) async fn invalidate(&self, volume: &str) -> Result<(), Failure> {
        self.post("/v1/invalidate", &VolumeRequest { volume: volume.to_owned() }).await
    }

    /// Stops the daemon.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        self.post("/v1/stop", &Done {}).await
    }

    async fn post<B: Serialize>(&self, path: &str, body: &B) -> Result<(), Failure> {
        let Done {} = self.ask(path, body).await?;
        Ok(())
    }

    async fn ask<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Failure::failed(format!("cannot form a request: {error}")))?;
        let answer = self.request(Method::POST, path, body.into());
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                // One that ends tells no status any more, and may still answer.
                () = tokio::time::sleep(LOOK) => drop(self.status_in_time().await?),
            }
        }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let place = self.socket.display();
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            Failure::not_found(format!("no daemon answers on {place}: {error}"))
                .or("start one with `forebay serve`, or name its socket with --admin")
        })?;
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("the daemon on {place} ended while it was asked: {error}"))
        };
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(|error| failed(&error))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "forebay")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("all parts are valid");
        // Dropping this future drops both sides: the daemon sees the connection close.
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let status = response.status();
            let bytes =
                response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
            Ok::<_, Failure>((status, bytes))
        };
        tokio::pin!(connection);
        tokio::pin!(exchange);
        let (status, bytes) = tokio::select! {
            biased;
            answer = &mut exchange => answer?,
            end = &mut connection => {
                end.map_err(|error| failed(&error))?;
                exchange.await?
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| {
                Failure::failed(format!("cannot understand the daemon on {place}: {error}"))
                    .or("it may be of another version")
            });
        }
        Err(match serde_json::from_slice::<ErrorReply>(&bytes) {
            Ok(reply) => Failure::new(Exit::from_code(reply.exit_code), reply.error),
            Err(_) => {
                let text = String::from_utf8_lossy(&bytes);
                Failure::failed(format!("the daemon on {place} answered {status}: {text}"))
            }
        })
    }
}
