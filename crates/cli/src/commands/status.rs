//! `forebay status`: what daemons do, or what is known of cache sets without one.

use forebay_host::state_file::{HostState, list_states, set_id_text};
use serde::Serialize;

use crate::admin::api::Status;
use crate::admin::client;
use crate::args::StatusArguments;
use crate::commands::format::absolute;
use crate::commands::status_text;
use crate::exit::Failure;
use crate::{names, output, size};

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Running daemons.
    daemons: Vec<Status>,
    /// Cache sets known from the host state files that no daemon serves.
    known_sets: Vec<KnownSet>,
}

/// A cache set that is not served.
#[derive(Serialize)]
struct KnownSet {
    set_id: String,
    label: String,
    cache_device: String,
    volumes: Vec<KnownVolume>,
}

#[derive(Serialize)]
struct KnownVolume {
    name: String,
    origin: String,
    cache_mode: &'static str,
    dirty_possible: bool,
    served_without_cache: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &StatusArguments) -> Result<(), Failure> {
    let report = client::block_on(collect(arguments))??;
    if arguments.json {
        output::print_json(&report)
    } else {
        output::print(&text(&report, arguments))
    }
}

async fn collect(arguments: &StatusArguments) -> Result<Report, Failure> {
    let admin = arguments.admin.admin.as_deref();
    let (daemons, wanted) = match &arguments.cache {
        Some(cache) => {
            let cache = absolute(cache)?;
            (client::serving(&cache, admin).await?.into_iter().collect(), Some(cache))
        }
        None => (client::all(admin), None),
    };
    let mut report = Report { daemons: Vec::new(), known_sets: Vec::new() };
    for daemon in &daemons {
        report.daemons.push(daemon.status().await?);
        if arguments.reset {
            daemon.reset().await?;
        }
    }
    let is_served = |state: &HostState| {
        report
            .daemons
            .iter()
            .filter_map(|status| status.cache_set.as_ref())
            .any(|set| set.set_id == set_id_text(&state.set_id()))
    };
    // A daemon that was named is all that was asked for.
    if admin.is_none() || daemons.is_empty() {
        let known = list_states(&arguments.state.state_dir)?;
        let known = known.iter().filter(|state| !is_served(state)).filter(|state| {
            wanted.as_ref().is_none_or(|cache| *state.cache_device == *cache.to_string_lossy())
        });
        report.known_sets = known.map(known_set).collect();
    }
    let is_empty = report.daemons.is_empty() && report.known_sets.is_empty();
    if is_empty || (arguments.reset && report.daemons.is_empty()) {
        let what = match &wanted {
            Some(cache) => format!("no daemon serves {}", cache.display()),
            None => "no daemon runs".to_owned(),
        };
        let place = arguments.state.state_dir.display();
        return Err(Failure::not_found(format!("{what}, and nothing is known from {place}"))
            .or("start one with `forebay serve`, or name its socket with --admin"));
    }
    Ok(report)
}

fn known_set(state: &HostState) -> KnownSet {
    KnownSet {
        set_id: set_id_text(&state.set_id()),
        label: state.label.clone(),
        cache_device: state.cache_device.clone(),
        volumes: state
            .volumes
            .iter()
            .map(|volume| KnownVolume {
                name: volume.name.clone(),
                origin: volume.origin.clone(),
                cache_mode: names::mode_name(volume.mode),
                dirty_possible: volume.dirty_possible,
                served_without_cache: volume.served_without_cache,
            })
            .collect(),
    }
}

fn text(report: &Report, arguments: &StatusArguments) -> String {
    let mut text = String::new();
    for status in &report.daemons {
        text.push_str(&status_text::daemon(status));
        if arguments.what_if
            && let Some(set) = &status.cache_set
        {
            text.push_str(&status_text::what_if(set));
        }
    }
    for set in &report.known_sets {
        let label = if set.label.is_empty() { String::new() } else { format!(" ({})", set.label) };
        text.push_str(&format!(
            "cache set {}{label} on {}: not served\n",
            set.set_id, set.cache_device
        ));
        for volume in &set.volumes {
            let state = match (volume.dirty_possible, volume.served_without_cache) {
                (true, _) => "dirty data may exist on the cache device only",
                (false, true) => "served without its cache; its copies are outdated",
                (false, false) => "clean",
            };
            let KnownVolume { name, origin, cache_mode, .. } = volume;
            text.push_str(&format!("  volume {name}  {cache_mode}  {origin}: {state}\n"));
        }
    }
    text
}

/// Duration for people.
pub(crate) fn duration_text(milliseconds: u64) -> String {
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        1000..120_000 => format!("{:.1} s", milliseconds as f64 / 1e3),
        120_000..7_200_000 => format!("{} min", milliseconds / 60_000),
        _ => format!("{:.1} h", milliseconds as f64 / 3.6e6),
    }
}

/// Size for people, or that there is no bound.
pub(crate) fn bound_text(bound: Option<u64>) -> String {
    bound.map_or_else(|| "no bound".to_owned(), |bytes| format!("at most {}", size::text(bytes)))
}
