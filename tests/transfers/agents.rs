//! Jobs of a store that several agents work on: a real PostgreSQL, agents that are killed and
//! stopped, and what they leave.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    Process, Server, TEST_MAX, aqueduct, directory, directory_for_devices, free_addresses, program_for_all, run,
    run_within, skip, wait_until, within,
};
use crate::resume::parts;
use crate::tree::{assert_same, body, noise, plant, set_time, text, transfer};

/// Seconds that an agent is believed alive in: as few as a loaded machine allows.
pub const LEASE: &str = "4";

/// A database is made for each test, agents are taken for dead, and the machine may be loaded.
const ALL_MAX: Duration = Duration::from_secs(240);

pub fn test(body: impl FnOnce() + Send + 'static) {
    within(ALL_MAX, body);
}

/// A database of the test's own, on a socket in its folder.
pub struct Cluster {
    home: TempDir,
    server: Process,
    /// Of its sockets.
    port: u16,
}

/// PostgreSQL's own.
const PORT: u16 = 5432;

/// The newest PostgreSQL of Debian's, whose programs are not in the path.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
    if newest.is_none() {
        skip("needs PostgreSQL in /usr/lib/postgresql");
    }
    newest
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program).current_dir("/");
    command
}

impl Cluster {
    /// Users of this machine are those of the database, by the socket's credentials. `None`: there
    /// is no PostgreSQL.
    pub fn start() -> Option<Cluster> {
        Cluster::start_in(directory(), PORT, &[])
    }

    /// The same on a port of loopback too, where it takes encrypted connections alone. `prepare`
    /// makes `server.pem` and `server.key` in its folder.
    pub fn start_encrypted(prepare: impl FnOnce(&Path) -> bool) -> Option<Cluster> {
        let home = directory();
        prepare(home.path()).then_some(())?;
        let address: SocketAddr = free_addresses(1)[0].parse().unwrap();
        let file = |name: &str| home.path().join(name).display().to_string();
        fs::write(file("hba"), "local all all peer\nhostssl all all 127.0.0.1/32 trust\n").unwrap();
        let settings = [
            "listen_addresses=127.0.0.1".to_owned(),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("server.pem")),
            format!("ssl_key_file={}", file("server.key")),
            format!("hba_file={}", file("hba")),
        ];
        Cluster::start_in(home, address.port(), &settings)
    }

    fn start_in(home: TempDir, port: u16, settings: &[String]) -> Option<Cluster> {
        let bin = programs()?;
        run(Command::new("chown").arg("postgres").arg(home.path())).succeeded();
        let data = home.path().join("data");
        let made =
            as_postgres(&bin.join("initdb")).args(["--no-sync", "-A", "peer", "-D"]).arg(&data).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut server = as_postgres(&bin.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(home.path()).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        server.arg("-p").arg(port.to_string());
        for setting in settings {
            server.args(["-c", setting]);
        }
        let server = Process::start(&mut server, &home.path().join("log"));
        let cluster = Cluster { home, server, port };
        let make = "CREATE ROLE root LOGIN; CREATE DATABASE transfers OWNER root";
        wait_until("the database answers", TEST_MAX, || cluster.administers(&bin, make));
        Some(cluster)
    }

    fn administers(&self, bin: &Path, what: &str) -> bool {
        let mut psql = as_postgres(&bin.join("psql"));
        psql.arg("-h").arg(self.home.path()).arg("-p").arg(self.port.to_string()).args(["-X", "-q", "-d", "postgres"]);
        for statement in what.split("; ") {
            psql.args(["-c", statement]);
        }
        psql.output().unwrap().status.success()
    }

    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Where it listens beside its socket, if it does.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("postgres:///transfers?host={}", self.home.path().display())
    }

    /// What the database answers, a line for each row.
    pub fn asks(&self, question: &str) -> String {
        let mut psql = Command::new("psql");
        psql.arg("-h").arg(self.home.path()).args(["-X", "-q", "-A", "-t", "-d", "transfers", "-c", question]);
        run(&mut psql).succeeded().trim().to_owned()
    }

    pub fn agent(&self, number: usize) -> Agent {
        let mut command = aqueduct();
        command.args(["agents", "run", "--allow-root", "--threads", "2", "--lease", LEASE, "--name"]);
        command.arg(format!("agent{number}")).args(["--store", &self.url()]);
        Agent::start(&mut command)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server.signal(Signal::INT);
        self.server.ended_within(Duration::from_secs(20));
    }
}

pub struct Agent {
    pub process: Process,
    _home: TempDir,
}

impl Agent {
    pub fn start(command: &mut Command) -> Agent {
        let home = directory();
        let process = Process::start(command, &home.path().join("log"));
        wait_until("the agent works", TEST_MAX, || process.output().contains("working for"));
        Agent { process, _home: home }
    }

    fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.ends_within(TEST_MAX);
    }
}

/// Runs `cp --store` and waits.
pub fn copied(cluster: &Cluster, arguments: &[&str]) -> (i32, Value) {
    let mut command = aqueduct();
    command.args(arguments).args(["--json", "--store", &cluster.url()]);
    let output = run_within(TEST_MAX, &mut command);
    let start = output.text.find('{').unwrap_or_else(|| panic!("{output:?}"));
    let said = serde_json::from_str(&output.text[start..]).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code().unwrap(), said)
}

/// The lines of a manifest by a copy of one process.
pub fn lines_of_one(source: &str) -> String {
    let (home, other) = (directory(), directory_for_devices());
    let (manifest, copy) = (home.path().join("manifest"), other.path().join("copy"));
    transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), source, text(&copy)]).succeeded();
    body(&manifest)
}

pub fn plant_much(root: &Path) {
    plant(root);
    fs::write(root.join("large"), noise(100 << 20, 77)).unwrap();
    for folder in 0..20 {
        let folder = root.join(format!("many/{folder}"));
        fs::create_dir_all(&folder).unwrap();
        (0..50).for_each(|number| fs::write(folder.join(number.to_string()), noise(3000, number)).unwrap());
    }
}

#[test]
fn agents_that_are_killed_and_stopped_end_with_the_manifest_of_one_process() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant_much(source.path());
        let (manifest, copy) = (home.path().join("manifest"), target.path().join("copy"));
        let from = format!("{}/", source.path().display());
        let mut agents: Vec<Agent> = (0..3).map(|number| cluster.agent(number)).collect();
        let mut submit = aqueduct();
        submit.args(["cp", "-r", "--manifest", text(&manifest), "--bwlimit", "60MB/s", &from, text(&copy)]);
        submit.args(["--store", &cluster.url()]);
        let mut submitted = Process::start(&mut submit, &home.path().join("log"));
        // One is stopped for longer than it is believed alive, others are killed.
        let stopped = agents.remove(0);
        for (number, byte) in noise(6, 5).into_iter().enumerate() {
            thread::sleep(Duration::from_millis(100 + 4 * u64::from(byte)));
            if number == 1 {
                stopped.process.stop();
            }
            agents.remove(0).kill();
            agents.push(cluster.agent(10 + number));
        }
        wait_until("what the stopped one had was taken away", TEST_MAX, || {
            cluster.asks("SELECT gone FROM aqueduct.agent WHERE name = 'agent0'").starts_with('t')
                || submitted.has_ended().is_some()
        });
        stopped.process.signal(Signal::CONT);
        let status = submitted.ends_within(TEST_MAX);
        assert!(status.success(), "{}", submitted.output());
        assert_same(source.path(), &copy);
        assert_eq!(parts(&copy), Vec::<PathBuf>::new());
        assert_eq!(body(&manifest), lines_of_one(&from), "many agents have the manifest of one process");
        transfer(home.path(), &["verify", text(&manifest), text(&copy)]).succeeded();
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.unit"), "0");
    });
}

/// The store is started anew: agents and who waits for a job go on, from its first second on.
#[test]
fn who_waits_for_a_job_goes_on_when_the_store_does() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (home, source, target) = (directory(), directory(), directory());
        fs::write(source.path().join("large"), noise(60 << 20, 3)).unwrap();
        let _agent = cluster.agent(1);
        let copy = target.path().join("copy");
        let mut submit = aqueduct();
        submit.args(["cp", "-r", "--bwlimit", "20MB/s", "--store", &cluster.url()]);
        submit.args([&format!("{}/", source.path().display()), text(&copy)]);
        let mut submitted = Process::start(&mut submit, &home.path().join("log"));
        wait_until("it is submitted", TEST_MAX, || cluster.asks("SELECT count(*) FROM aqueduct.job") == "1");
        for _ in 0..5 {
            // As a database says that is shut down.
            let others = "application_name = 'aqueduct' AND pid <> pg_backend_pid()";
            cluster.asks(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"));
            thread::sleep(Duration::from_millis(300));
        }
        let status = submitted.ends_within(TEST_MAX);
        assert!(status.success(), "{}", submitted.output());
        assert!(submitted.output().contains("the store does not answer, and is waited for"), "{}", submitted.output());
        assert_eq!(fs::read(copy.join("large")).unwrap(), noise(60 << 20, 3));
    });
}

#[test]
fn jobs_are_paused_and_cancelled_and_known_by_a_list() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = (directory(), directory());
        fs::write(source.path().join("large"), noise(100 << 20, 3)).unwrap();
        let agent = cluster.agent(1);
        let to = |name: &str| target.path().join(name);
        let submit = |name: &str, more: &[&str]| {
            let mut command = aqueduct();
            command.args(["cp", "-r", "--detach", "--store", &cluster.url()]).args(more);
            command.args([&format!("{}/", source.path().display()), text(&to(name))]);
            run_within(TEST_MAX, &mut command).succeeded().trim().to_owned()
        };
        let change = |arguments: &[&str]| {
            run_within(TEST_MAX, aqueduct().arg("transfers").args(arguments).args(["--store", &cluster.url()]))
        };
        let state = |job: &str| cluster.asks(&format!("SELECT state FROM aqueduct.job WHERE id = {job}"));
        // At 1 MB/s it would take minutes.
        let slow = submit("slow", &["--bwlimit", "1MB/s"]);
        wait_until("it is under way", TEST_MAX, || !parts(&to("slow")).is_empty());
        change(&["cancel", &slow]).succeeded();
        wait_until("it is cancelled", TEST_MAX, || state(&slow) == "cancelled");
        assert_eq!(parts(&to("slow")), Vec::<PathBuf>::new());
        assert!(!to("slow/large").exists());
        change(&["pause", &slow]).failed();
        // Nobody takes it before it goes on.
        let paused = submit("paused", &["--queue", "other"]);
        change(&["pause", &paused]).succeeded();
        let mut other = aqueduct();
        other.args([
            "agents",
            "run",
            "--allow-root",
            "--queue",
            "other",
            "--idle-exit",
            "3",
            "--store",
            &cluster.url(),
        ]);
        let mut other = Agent::start(&mut other);
        assert!(other.process.ends_within(TEST_MAX).success());
        assert_eq!((state(&paused).as_str(), to("paused/large").exists()), ("paused", false));
        change(&["priority", &paused, "-3"]).succeeded();
        change(&["resume", &paused]).succeeded();
        let mut other = aqueduct();
        other.args(["agents", "run", "--allow-root", "--queue", "other", "--store", &cluster.url()]);
        let _other = Agent::start(&mut other);
        change(&["wait", &paused]).succeeded();
        assert_same(source.path(), &to("paused"));
        let listed: Value = serde_json::from_str(&change(&["list", "--json"]).succeeded()).unwrap();
        assert_eq!((&listed[0]["state"], &listed[0]["priority"]), (&"done".into(), &(-3).into()), "{listed}");
        assert_eq!((&listed[1]["state"], &listed[1]["submitter"]), (&"cancelled".into(), &"root".into()), "{listed}");
        assert!(change(&["list"]).succeeded().contains("cancelled"));
        drop(agent);
    });
}

#[test]
fn a_sync_by_agents_to_a_server_copies_what_differs_and_deletes() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, export) = (directory_for_devices(), directory_for_devices());
        plant_much(source.path());
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let there = format!("{}/copy", server.source(export.path()));
        let from = format!("{}/", source.path().display());
        let _agents: Vec<Agent> = (0..2).map(|number| cluster.agent(number)).collect();
        let (code, said) = copied(&cluster, &["sync", &from, &there]);
        assert_eq!(code, 0, "{said}");
        assert_same(source.path(), &export.path().join("copy"));
        fs::write(source.path().join("many/3/7"), "other").unwrap();
        fs::remove_dir_all(source.path().join("many/4")).unwrap();
        set_time(&source.path().join("many"), 1_000_000, 5);
        // What would be done is looked at without agents, and each path is told of what they did.
        let (code, said) = copied(&cluster, &["sync", "-n", &from, &there]);
        assert_eq!((code, &said["files"], &said["dry_run"]), (0, &1.into(), &true.into()), "{said}");
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.job"), "1");
        let mut again = aqueduct();
        again.args(["sync", "-v", "--delete", "--json", &from, &there, "--store", &cluster.url()]);
        let output = run_within(TEST_MAX, &mut again);
        assert!(output.status.success(), "{output:?}");
        let (told, said) = output.text.split_at(output.text.find('{').unwrap());
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!((&said["files"], &said["deleted"]), (&1.into(), &51.into()), "{said}");
        let lines = |what: &str| told.lines().filter(|line| line.contains(what)).count();
        // Names that are links already are told as well.
        let others = lines("linked ");
        assert_eq!((lines("copied many/3/7"), lines("deleted many/4")), (1, 51), "{told}");
        assert_eq!(told.lines().count() - others, 52, "{told}");
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.said"), "0");
        assert_same(source.path(), &export.path().join("copy"));
    });
}

#[test]
fn lines_that_nobody_reads_are_counted_and_no_longer_kept() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = (directory(), directory());
        plant(source.path());
        let from = format!("{}/", source.path().display());
        // Who waits for the job, and would read what is said of it, goes before an agent comes.
        let mut copy = aqueduct();
        copy.args(["cp", "-r", "-v", "--store", &cluster.url(), &from, text(target.path())]);
        let log = directory();
        let waiter = Process::start(&mut copy, &log.path().join("log"));
        wait_until("the job is there", TEST_MAX, || {
            cluster.asks("SELECT to_regclass('aqueduct.job') IS NOT NULL") == "t"
                && cluster.asks("SELECT count(*) FROM aqueduct.job") == "1"
        });
        drop(waiter);
        // As if so many lines lay there, of which all but the first and the last were read.
        cluster.asks(
            "INSERT INTO aqueduct.said (id, job, line) OVERRIDING SYSTEM VALUE
            SELECT number, job.id, '' FROM aqueduct.job, unnest(ARRAY[-100000, 0]) AS number",
        );
        let _agent = cluster.agent(1);
        wait_until("the job is done", TEST_MAX, || cluster.asks("SELECT state FROM aqueduct.job") == "done");
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.said"), "2");
        let left = cluster.asks("SELECT sum(count) FROM aqueduct.tally WHERE what = 'said:left'");
        assert!(left.parse::<u64>().is_ok_and(|left| left >= 100), "{left}");
        assert_same(source.path(), target.path());
    });
}

/// A user of this machine who is not root and has no files.
const USER: &str = "nobody";

#[test]
fn a_job_is_done_as_whom_the_database_let_in() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let bin = programs().unwrap();
        assert!(cluster.administers(&bin, &format!("CREATE ROLE {USER} LOGIN")));
        let (home, source, target) = (directory(), directory(), directory());
        let program = program_for_all(home.path());
        let as_user = |arguments: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={USER}"), "--regid=nogroup", "--clear-groups"]).args(arguments);
            command
        };
        fs::create_dir(source.path().join("d")).unwrap();
        (0..9).for_each(|number| fs::write(source.path().join(format!("d/{number}")), "content").unwrap());
        fs::write(source.path().join("d/secret"), "of root's").unwrap();
        fs::set_permissions(source.path().join("d/secret"), Permissions::from_mode(0o600)).unwrap();
        let into = target.path().join("into");
        fs::create_dir(&into).unwrap();
        fs::set_permissions(&into, Permissions::from_mode(0o777)).unwrap();
        // Whoever comes first makes the tables: the agents' role, which may see all.
        let mut agent = aqueduct();
        agent.args(["agents", "run", "--lease", LEASE, "--name", "unprivileged", "--store", &cluster.url()]);
        let agent = Agent::start(&mut agent);
        let from = source.path().join("d");
        let url = cluster.url();
        let copy = [text(&program), "cp", "-r", "-v", "--store", &url, text(&from), text(&into)];
        let said = run_within(TEST_MAX, &mut as_user(&copy)).failed();
        assert!(
            said.contains("secret: opening it") && said.contains("9 files") && said.contains("copied d/3"),
            "{said}"
        );
        let made = fs::metadata(into.join("d/3")).unwrap();
        let nobody = fs::metadata(into.join("d")).unwrap().uid();
        assert!(made.uid() == nobody && nobody != 0, "it is {}'s", made.uid());
        assert!(!into.join("d/secret").exists());
        let secret = text(&from.join("secret")).to_owned();
        // He sees and changes his own jobs alone, and cannot say that he is somebody else.
        let root = [text(&program), "cp", "--detach", "--store", &url, &secret, text(&into)];
        let root = run_within(TEST_MAX, Command::new(root[0]).args(&root[1..])).succeeded();
        let list = [text(&program), "transfers", "list", "--json", "--store", &url];
        let listed: Value = serde_json::from_str(&run_within(TEST_MAX, &mut as_user(&list)).succeeded()).unwrap();
        assert_eq!((listed.as_array().unwrap().len(), &listed[0]["submitter"]), (1, &USER.into()), "{listed}");
        let cancel = [text(&program), "transfers", "cancel", root.trim(), "--store", &url];
        run_within(TEST_MAX, &mut as_user(&cancel)).failed();
        let columns = "queue, priority, name, plan, version";
        let forged = format!(
            "INSERT INTO aqueduct.job (submitter, {columns}) SELECT 'root', {columns} FROM aqueduct.job LIMIT 1"
        );
        let psql =
            ["psql", "-h", text(cluster.home.path()), "-X", "-d", "transfers", "-v", "ON_ERROR_STOP=1", "-c", &forged];
        assert!(run_within(TEST_MAX, &mut as_user(&psql)).failed().contains("permission denied"));
        let taken = "UPDATE aqueduct.unit SET body = ''";
        let psql = [&psql[..9], &[taken]].concat();
        assert!(run_within(TEST_MAX, &mut as_user(&psql)).failed().contains("permission denied"));
        // Root's are done by nobody here, and it is said why.
        wait_until("the agent says that it does nothing as root", TEST_MAX, || {
            cluster.asks("SELECT why FROM aqueduct.told WHERE kind = 'agent'").contains("nothing as root")
        });
        assert!(!into.join("secret").exists());
        drop(agent);
    });
}
