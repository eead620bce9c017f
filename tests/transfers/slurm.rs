//! Agents that Slurm runs, by a script of ours: a real controller, node and munge, on this
//! machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::agents::{Cluster, copied, plant_much, test};
use crate::common::{
    Process, TEST_MAX, aqueduct, directory, directory_for_devices, free_addresses, have, run_within, wait_until,
};
use crate::tree::{assert_same, text};

/// Slurm with this machine as its one node.
struct Slurm {
    home: TempDir,
    // In the order in which they end.
    daemons: Vec<Process>,
}

impl Slurm {
    fn start() -> Option<Slurm> {
        if !have(&["munged", "slurmctld", "slurmd", "sbatch", "srun", "hostname"]) {
            return None;
        }
        let home = directory();
        let at = |name: &str| home.path().join(name);
        for folder in ["state", "spool", "munge"] {
            fs::create_dir(at(folder)).unwrap();
        }
        fs::write(at("munge/key"), [7; 1024]).unwrap();
        fs::set_permissions(at("munge/key"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let port = || free_addresses(1).remove(0).rsplit_once(':').unwrap().1.to_owned();
        let host = run_within(TEST_MAX, Command::new("hostname").arg("-s")).succeeded().trim().to_owned();
        let (home_text, processors) = (home.path().display(), std::thread::available_parallelism().unwrap());
        let settings = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nAuthInfo=socket={home_text}/munge/socket\n\
            SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={home_text}/state\nSlurmdSpoolDir={home_text}/spool\n\
            SlurmctldPidFile={home_text}/ctld.pid\nSlurmdPidFile={home_text}/slurmd.pid\nSlurmctldPort={}\n\
            SlurmdPort={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
            ReturnToService=2\nKillWait=2\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
            NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN\n\
            PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n",
            port(),
            port(),
        );
        fs::write(at("slurm.conf"), settings).unwrap();
        let start = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).env("SLURM_CONF", at("slurm.conf"));
            Process::start(&mut command, &at(&format!("{program}.log")))
        };
        let munge = |what: &str| format!("--{what}-file={home_text}/munge/{what}");
        let socket = format!("--socket={home_text}/munge/socket");
        let files = ["key", "pid", "log", "seed"].map(munge);
        let arguments = [&["--foreground", "--force", &socket][..], &files.each_ref().map(String::as_str)].concat();
        let munged = start("munged", &arguments);
        wait_until("munge listens", TEST_MAX, || at("munge/socket").exists());
        let controller = start("slurmctld", &["-D", "-i"]);
        let node = start("slurmd", &["-D"]);
        let slurm = Slurm { daemons: vec![node, controller, munged], home };
        wait_until("the node is there", TEST_MAX, || slurm.command("sinfo", &["-h", "-o", "%t"]).starts_with("idle"));
        Some(slurm)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.home.path().join("slurm.conf"));
        run_within(TEST_MAX, &mut command).text
    }

    /// Submits the script of one agent; its number.
    fn agent(&self, store: &str, output: &Path) -> String {
        let mut script = aqueduct();
        script.args(["agents", "sbatch", "1", "--threads", "1", "--idle-exit", "600", "--store", store]);
        let script = run_within(TEST_MAX, &mut script).succeeded();
        // The test is root, whose jobs an agent does only if it is told to.
        let script = script.replace("agents run", "agents run --allow-root --lease 4");
        fs::write(self.home.path().join("script"), script).unwrap();
        let path = self.home.path().join("script");
        let said = self.command("sbatch", &["--parsable", "--chdir=/", "-o", text(output), text(&path)]);
        let number = said.trim().to_owned();
        assert!(number.parse::<u32>().is_ok(), "{said}");
        wait_until("the agent works", TEST_MAX, || {
            fs::read_to_string(output).is_ok_and(|said| said.contains("working for"))
        });
        number
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.command("scancel", &["--full", "--signal=KILL", "--user=root"]);
        self.command("scancel", &["--user=root"]);
        for daemon in &mut self.daemons {
            daemon.signal(Signal::TERM);
            daemon.ended_within(Duration::from_secs(10));
        }
    }
}

#[test]
fn agents_that_slurm_runs_and_kills_make_a_copy() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let Some(slurm) = Slurm::start() else { return };
        let (source, target) = (directory_for_devices(), directory_for_devices());
        plant_much(source.path());
        let (from, copy) = (format!("{}/", source.path().display()), target.path().join("copy"));
        let output = |name: &str| slurm.home.path().join(name);
        let first = slurm.agent(&cluster.url(), &output("first"));
        let _second = slurm.agent(&cluster.url(), &output("second"));
        let (code, said) = std::thread::scope(|scope| {
            let copied = scope.spawn(|| copied(&cluster, &["cp", "-r", "--bwlimit", "40MB/s", &from, text(&copy)]));
            wait_until("it is under way", TEST_MAX, || !crate::resume::parts(&copy).is_empty() || copied.is_finished());
            slurm.command("scancel", &["--full", "--signal=KILL", &first]);
            copied.join().unwrap()
        });
        assert_eq!(code, 0, "{said}");
        assert_same(source.path(), &copy);
    });
}
