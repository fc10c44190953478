//! PostgreSQL and its own benchmark, on a Unix socket only, as a user without privileges.
//!
//! The cluster is made once, without any flush, and copied to each device: only what pgbench does
//! is measured.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::super::interrupt;
use super::super::server::{Ready, Server};
use super::Count;

/// Factor of pgbench: each is a table of 100,000 accounts, some 15 MiB.
const SCALE: &str = "2";
const CLIENTS: &str = "4";
const SOCKET: &str = ".s.PGSQL.5432";
/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Who runs it if root may not: the first that there is.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// Who runs the database.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

/// A cluster to copy, and how to run it.
pub(super) struct Cluster {
    programs: PathBuf,
    user: User,
    template: PathBuf,
    /// For sockets and logs; the user may write here.
    folder: PathBuf,
}

/// Folder of the newest version that is installed.
pub(super) fn programs() -> Option<PathBuf> {
    let entries = std::fs::read_dir(VERSIONS).ok()?.filter_map(Result::ok);
    let has_all = |folder: &PathBuf| {
        ["initdb", "postgres", "pgbench"].iter().all(|name| folder.join(name).is_file())
    };
    let folders = entries.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    folders.filter(|(_, folder)| has_all(folder)).max().map(|(_, folder)| folder)
}

/// The user of that name in the text of `/etc/passwd`.
fn user(text: &str, name: &str) -> Option<User> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    Some(User { uid, gid: fields.next()?.parse().ok()? })
}

impl Cluster {
    /// Makes a cluster below `folder`, which everybody may enter.
    pub(super) fn make(programs: PathBuf, folder: &Path) -> anyhow::Result<Cluster> {
        let passwd = std::fs::read_to_string("/etc/passwd").context("cannot read users")?;
        let found = USERS.iter().find_map(|name| user(&passwd, name));
        let user = found.context("there is no user to run PostgreSQL as")?;
        let folder = folder.join("postgres");
        std::fs::create_dir_all(&folder).context("cannot make the folder of PostgreSQL")?;
        chown(&folder, Some(user.uid), Some(user.gid)).context("cannot give a folder away")?;
        let template = folder.join("template");
        let cluster = Cluster { programs, user, template, folder };
        let mut initdb = cluster.command("initdb");
        initdb.args(["--no-sync", "--auth=trust", "--username=bench", "--no-locale"]);
        interrupt::capture(initdb.arg("--pgdata").arg(&cluster.template))?;
        let database = cluster.start(&cluster.template, &["-cfsync=off"])?;
        let mut pgbench = cluster.client("pgbench");
        interrupt::capture(pgbench.args(["--initialize", "--quiet", "--scale", SCALE]))?;
        // In order, so that copies need no recovery.
        database.stop()?;
        Ok(cluster)
    }

    /// A program, run by the user.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.uid(self.user.uid).gid(self.user.gid).current_dir(&self.folder);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("PG") {
                command.env_remove(variable);
            }
        }
        command
    }

    /// A client of the database that runs.
    fn client(&self, name: &str) -> Command {
        let mut command = self.command(name);
        command.env("PGHOST", &self.folder).env("PGUSER", "bench").env("PGDATABASE", "postgres");
        command
    }

    fn start(&self, data: &Path, options: &[&str]) -> anyhow::Result<Database> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(data).arg("-k").arg(&self.folder);
        command.args(["-clisten_addresses="]).args(options);
        let log = self.folder.join("postgres.log");
        let server = Server::start(command, &self.folder.join(SOCKET), &log, Ready::Socket)?;
        let database = Database(Some(server));
        // It listens a moment before it serves.
        while interrupt::capture(&mut self.client("pg_isready")).is_err() {
            interrupt::pause()?;
        }
        Ok(database)
    }

    /// Copies the cluster below `folder`.
    pub(super) fn copy(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let data = folder.join("data");
        let mut command = Command::new("cp");
        interrupt::capture(command.arg("--archive").arg(&self.template).arg(&data))?;
        Ok(data)
    }

    /// Transactions of pgbench (TPC-B) on a copy, for so many seconds.
    pub(super) fn transactions(&self, data: &Path, seconds: u64) -> anyhow::Result<Count> {
        let database = self.start(data, &[])?;
        let prefix = self.folder.join("pgbench-log");
        let mut pgbench = self.client("pgbench");
        pgbench.args(["--no-vacuum", "--client", CLIENTS, "--log", "--scale", SCALE]);
        pgbench.arg(format!("--time={seconds}"));
        let mut option = OsString::from("--log-prefix=");
        option.push(&prefix);
        interrupt::capture(pgbench.arg(option))?;
        drop(database);
        let mut count = Count { seconds: seconds as f64, ..Count::default() };
        for entry in std::fs::read_dir(&self.folder).context("cannot list logs")? {
            let path = entry.context("cannot list logs")?.path();
            if path.to_string_lossy().starts_with(&*prefix.to_string_lossy()) {
                let text = std::fs::read_to_string(&path).context("cannot read a log")?;
                count.latencies_ms.extend(text.lines().filter_map(latency_ms));
                std::fs::remove_file(&path).context("cannot remove a log")?;
            }
        }
        Ok(count)
    }
}

/// Of a line of pgbench's log: client, transaction, microseconds, ...
fn latency_ms(line: &str) -> Option<f64> {
    let us: f64 = line.split_whitespace().nth(2)?.parse().ok()?;
    Some(us / 1e3)
}

/// A database that runs. Ends at once: what it has not written it would find in its log.
struct Database(Option<Server>);

impl Database {
    /// Ends it in order.
    fn stop(mut self) -> anyhow::Result<()> {
        self.0.take().map_or(Ok(()), Server::stop)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Killed, it would leave its children and a segment of shared memory to themselves.
        if let Some(server) = self.0.take() {
            server.quit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let text = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:x:/var:/bin/sh\n";
        let found = user(text, "postgres").expect("it is there");
        assert_eq!((found.uid, found.gid), (101, 104));
        assert!(user(text, "post").is_none());
    }

    #[test]
    fn latencies_are_the_third_field() {
        assert_eq!(latency_ms("0 199 2241 0 1175850568 995598"), Some(2.241));
        assert_eq!(latency_ms("0 199 skipped 0 1 2"), None);
    }
}
