//! What is measured in real time: a device, a cache of ours, or somebody else's server.

use std::path::Path;
use std::process::Command;

use super::daemon::{self, Daemon};
use super::device_counts::Counter;
use super::fio::Endpoint;
use super::mount::Mounted;
use super::place::{Places, What, check_overwrite};
use super::server::{Ready, Server, machine_cpu_s};
use super::{Ground, RealError};
use crate::plan::{Plan, Target};
use crate::result::{CacheCounts, DeviceCounts};

/// A target that is being served.
pub(super) struct Service {
    /// On what serves, and so taken down before it.
    mounted: Option<Mounted>,
    kind: Kind,
    /// Where the target itself is.
    served: Endpoint,
    is_cpu_of_machine: bool,
    /// Those of our daemons that serve devices of the target.
    counters: Vec<Counter>,
    /// Servers of slow devices that somebody else's server needs. They end after it.
    devices: Vec<Server>,
}

enum Kind {
    /// Nothing is in between.
    Device,
    /// A slow device by itself, or somebody else's server.
    Server(Server),
    /// Somebody else's that runs already.
    Elsewhere,
    /// A cache of ours; `None` only while it is started again.
    Forebay(Option<Daemon>),
}

impl Service {
    /// Serves a target, with an empty cache and devices as at the beginning, and with a new file
    /// system if the plan has one.
    pub(super) fn begin(
        plan: &Plan,
        target: &Target,
        ground: &Ground<'_>,
    ) -> Result<Service, RealError> {
        let mut service = Service::serve(plan, target, ground)?;
        if plan.file_system.is_some() {
            service.mounted = Some(Mounted::begin(ground, service.uri(), plan.file_system)?);
        }
        Ok(service)
    }

    fn serve(plan: &Plan, target: &Target, ground: &Ground<'_>) -> Result<Service, RealError> {
        let places = Places { plan, ground };
        let service = |kind, served| Service {
            mounted: None,
            kind,
            served,
            is_cpu_of_machine: plan.is_cpu_of_machine,
            counters: Vec::new(),
            devices: Vec::new(),
        };
        if let Some(name) = &target.device {
            let place = places.device(name)?;
            return Ok(match &place.plain {
                // What carries a file system goes the same way as all others.
                Some(path) if plan.file_system.is_none() && !target.is_served => {
                    service(Kind::Device, Endpoint::Device(path.clone()))
                }
                _ => {
                    let (server, uri) = daemon::serve_bare(ground, name, &place)?;
                    let counters = vec![Counter::of_bare(ground, name)];
                    let service = service(Kind::Server(server), Endpoint::Nbd(uri));
                    Service { counters, ..service }
                }
            });
        }
        if let Some(forebay) = &target.forebay {
            let (cache, origin) = (places.cache(forebay)?, places.device(&forebay.origin)?);
            let daemon = Daemon::begin(ground, forebay, &cache, &origin)?;
            let counter = Counter {
                admin: daemon::admin(ground),
                origin: forebay.origin.clone(),
                cache: Some(forebay.cache.clone()),
            };
            let service = service(Kind::Forebay(Some(daemon)), Endpoint::Nbd(Daemon::uri(ground)));
            return Ok(Service { counters: vec![counter], ..service });
        }
        let uri = target.nbd.as_deref().expect("a plan that was checked");
        if target.command.is_empty() && plan.writes_to(target) {
            check_overwrite(ground, What::Target(&target.name), uri)?;
        }
        let socket = ground.sockets.join("other");
        let mut words = Words {
            places,
            socket: socket.display().to_string(),
            counters: Vec::new(),
            devices: Vec::new(),
        };
        let served = Endpoint::Nbd(words.fill_in(uri)?);
        let Some((name, arguments)) = target.command.split_first() else {
            return Ok(service(Kind::Elsewhere, served));
        };
        let mut command = Command::new(words.fill_in(name)?);
        for argument in arguments {
            command.arg(words.fill_in(argument)?);
        }
        // Where caches of others keep what they have.
        command.env("TMPDIR", ground.folder).current_dir(ground.folder);
        let log = ground.folder.join("other.log");
        let server = Server::start(command, Ready::Socket(&socket), &log, ground.interrupt)?;
        let Words { counters, devices, .. } = words;
        Ok(Service { counters, devices, ..service(Kind::Server(server), served) })
    }

    /// Where requests go: to the target, or to a file on the file system that is on it.
    pub(super) fn endpoint(&self) -> Endpoint {
        match &self.mounted {
            Some(mounted) => Endpoint::Device(mounted.folder().join("data")),
            None => self.served.clone(),
        }
    }

    /// Of what carries a file system.
    fn uri(&self) -> &str {
        match &self.served {
            Endpoint::Nbd(uri) => uri,
            Endpoint::Device(_) => unreachable!("it is served over NBD"),
        }
    }

    /// Where the file system is; there is one if the plan has one.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.mounted.as_ref().map(Mounted::folder)
    }

    /// Kills it, or ends it in order, and serves it again; a file system is unmounted before, and
    /// mounted after. A bare device has nothing to end.
    pub(super) fn again(
        &mut self,
        ground: &Ground<'_>,
        how: fn(Server) -> Result<(), RealError>,
    ) -> Result<(), RealError> {
        let is_mounted = self.mounted.take().is_some();
        if let Kind::Forebay(daemon) = &mut self.kind {
            let running = daemon.take().expect("it is only away here");
            *daemon = Some(running.again(ground, how)?);
        }
        if is_mounted {
            self.mounted = Some(Mounted::begin(ground, self.uri(), None)?);
        }
        Ok(())
    }

    /// An error if what serves has ended.
    pub(super) fn check(&mut self) -> Result<(), RealError> {
        match &mut self.kind {
            Kind::Device | Kind::Elsewhere => Ok(()),
            Kind::Server(server) => server.check(),
            Kind::Forebay(daemon) => daemon.as_mut().expect("it was begun").check(),
        }
    }

    /// Ends it in order.
    pub(super) fn end(self) -> Result<(), RealError> {
        drop(self.mounted);
        match self.kind {
            Kind::Server(server) => server.stop(),
            Kind::Device | Kind::Elsewhere => Ok(()),
            Kind::Forebay(daemon) => daemon.expect("it was begun").end(),
        }
    }

    /// Processor time of what serves, with its devices if these are served, or of the whole machine
    /// if the plan wants that, so far, in seconds.
    pub(super) fn cpu_s(&self) -> Result<f64, RealError> {
        if self.is_cpu_of_machine {
            return machine_cpu_s();
        }
        match &self.kind {
            Kind::Device | Kind::Elsewhere => Ok(0.0),
            // What makes its device slow is in ours, too.
            Kind::Server(server) => {
                self.devices.iter().try_fold(server.cpu_s()?, |sum, own| Ok(sum + own.cpu_s()?))
            }
            Kind::Forebay(daemon) => daemon.as_ref().expect("it was begun").cpu_s(),
        }
    }

    /// What our daemons count of the target's devices since they were started.
    pub(super) fn device_counts(
        &self,
        ground: &Ground<'_>,
    ) -> Result<Vec<DeviceCounts>, RealError> {
        let asked: Result<Vec<_>, RealError> =
            self.counters.iter().map(|counter| counter.ask(ground)).collect();
        Ok(asked?.concat())
    }

    /// What the cache did so far; `None` if it is not ours.
    pub(super) fn counts(&self, ground: &Ground<'_>) -> Result<Option<CacheCounts>, RealError> {
        match &self.kind {
            Kind::Forebay(daemon) => {
                daemon.as_ref().expect("it was begun").counts(ground).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Fills in what a plan leaves open in the words of a command.
struct Words<'a> {
    places: Places<'a>,
    socket: String,
    counters: Vec<Counter>,
    devices: Vec<Server>,
}

impl Words<'_> {
    /// `{socket}` is a path for a Unix socket, `{NAME}` a device: its path, or where a slow one is
    /// served.
    fn fill_in(&mut self, word: &str) -> Result<String, RealError> {
        let mut filled = word.replace("{socket}", &self.socket);
        for device in &self.places.plan.devices {
            let mark = format!("{{{}}}", device.name);
            if filled.contains(&mark) {
                let place = self.places.device(&device.name)?;
                let text = match &place.plain {
                    Some(path) => path.display().to_string(),
                    None => {
                        let ground = self.places.ground;
                        let (server, uri) = daemon::serve_bare(ground, &device.name, &place)?;
                        self.counters.push(Counter::of_bare(ground, &device.name));
                        self.devices.push(server);
                        uri
                    }
                };
                filled = filled.replace(&mark, &text);
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real_time::Interrupt;

    const URI: &str = "nbd://storage/data?a=b";
    const PLAN: &str = r#"
        about = "a test"
        clock = "real"
        [[device]]
        name = "disk"
        preset = "hdd"
        size = "1M"
        [[target]]
        name = "theirs"
        nbd = "nbd://storage/data?a=b"
        [[target]]
        name = "other"
        device = "disk"
        [[phase]]
        name = "reads"
        seconds = 1
        [[phase.job]]
        name = "reads"
        work = "read"
        pattern = "uniform"
        size = "1M"
        [[phase]]
        name = "mixed"
        only = ["other"]
        seconds = 1
        [[phase.job]]
        name = "mixed"
        work = "mix"
        read_percent = 50
        pattern = "uniform"
        size = "1M"
    "#;

    /// What becomes of the target that is there already, if these may be written over.
    fn serve(plan: &str, may_overwrite: &[String]) -> Result<(), String> {
        let (folder, plan) = (tempfile::tempdir().unwrap(), Plan::parse(plan).unwrap());
        let interrupt = Interrupt::default();
        let ground = Ground { may_overwrite, ..Ground::of_test(folder.path(), &interrupt) };
        let served = Service::serve(&plan, &plan.targets[0], &ground);
        let service = served.map_err(|error| error.to_string())?;
        assert!(matches!(service.kind, Kind::Elsewhere));
        assert_eq!(service.uri(), URI);
        Ok(())
    }

    #[test]
    fn an_export_that_is_there_already_is_written_to_only_if_the_operator_says_so() {
        // What writes is for another target.
        assert_eq!(serve(PLAN, &[]), Ok(()));
        let writes = PLAN.replace("only = [\"other\"]", "");
        let file_system = format!("file_system = \"ext4\"\n{PLAN}");
        for plan in [writes, file_system] {
            let error = serve(&plan, &["nbd://storage/other".to_owned()]).unwrap_err();
            let expected =
                format!("target theirs: what is on {URI} would be lost; --overwrite {URI}");
            assert!(error.starts_with(&expected), "{error}");
            assert_eq!(serve(&plan, &[URI.to_owned()]), Ok(()));
        }
    }
}
