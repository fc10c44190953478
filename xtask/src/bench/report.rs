//! All figures of a run.

use serde::Serialize;

use super::bounds::Bound;
use super::engine::Engine;
use super::ground::Ground;
use super::machine::Machine;
use super::plan::Plan;
use super::recovery::Recovery;
use super::takeover::Takeovers;
use super::{
    drain, fairness, flushed, full, misses, nbd, sequential, ssd_bytes, synced, vhost_user,
};

/// What a run measured; a part that was left out is absent.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// What was typed.
    pub(super) command: String,
    /// File systems that files lay on, each as `medium: kind`.
    pub(super) file_systems: Vec<String>,
    pub(super) plan: Plan,
    /// How often the run was begun or resumed.
    pub(super) session_count: u32,
    pub(super) nbd: Option<Vec<nbd::Row>>,
    pub(super) vhost_user: Option<vhost_user::VhostUser>,
    pub(super) recovery: Option<Recovery>,
    pub(super) takeovers: Option<Takeovers>,
    pub(super) ssd_bytes: Option<Vec<ssd_bytes::Row>>,
    pub(super) full: Option<Vec<full::Row>>,
    pub(super) fsync: Option<Vec<flushed::Row>>,
    pub(super) misses: Option<Vec<misses::Row>>,
    pub(super) sync: Option<Vec<synced::Phase>>,
    pub(super) sequential: Option<Vec<sequential::Row>>,
    pub(super) drain: Option<Vec<drain::Row>>,
    pub(super) fairness: Option<fairness::Fairness>,
    pub(super) engine: Option<Engine>,
    /// How the bounds stand.
    pub(super) bounds: Vec<Bound>,
}

impl Report {
    /// Notes once what the files of a medium lie on.
    pub(super) fn note_file_system(&mut self, ground: &Ground) -> anyhow::Result<()> {
        let line = format!("{}: {}", ground.medium.title(), ground.file_system()?);
        if !self.file_systems.contains(&line) {
            self.file_systems.push(line);
        }
        Ok(())
    }
}
