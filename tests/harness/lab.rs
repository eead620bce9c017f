//! Hosts and wires of a test: the lab of the experiments, whose namespaces go when the guard
//! does, or the test's process.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Output, TEST_MAX, aqueduct, directory, have, run_within, skip};

/// A lab of the test's own.
pub struct Lab {
    state: PathBuf,
    _home: TempDir,
}

/// A wire between two hosts: the interface and the address of each end, as `lab link` names the
/// hosts.
#[derive(Debug)]
pub struct Wire {
    pub near: String,
    pub near_address: String,
    pub far: String,
    pub far_address: String,
}

impl Lab {
    /// With these hosts, not joined yet. Nothing when this machine does not let us.
    pub fn new(hosts: &[&str]) -> Option<Lab> {
        if !have(&["python3", "ip", "tc", "nft", "ethtool", "nsenter"]) {
            return None;
        }
        let home = directory();
        let lab = Lab { state: home.path().join("lab"), _home: home };
        lab.command("up", &[]).succeeded();
        for (number, host) in hosts.iter().enumerate() {
            let made = lab.command("host", &[host, "--alone"]);
            if number == 0 && !made.status.success() {
                skip(&format!("cannot make network namespaces: {}", made.text));
                return None;
            }
            made.succeeded();
        }
        Some(lab)
    }

    /// A command of `experiments/lab`.
    pub fn command(&self, verb: &str, arguments: &[&str]) -> Output {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/lab");
        let owner = std::process::id().to_string();
        let settings = [("LAB", "aqt"), ("LAB_OWNER", &owner)];
        let program = aqueduct().get_program().to_owned();
        let mut command = Command::new(tool);
        command.arg(verb).arg(&self.state).args(arguments).envs(settings).env("AQUEDUCT", program);
        // The kernel changes one interface at a time, and takes seconds to end a namespace.
        run_within(TEST_MAX, &mut command)
    }

    /// As [`command`](Lab::command), which has to succeed.
    pub fn does(&self, verb: &str, arguments: &[&str]) -> String {
        self.command(verb, arguments).succeeded()
    }

    /// Joins two hosts by a wire.
    pub fn link(&self, near: &str, far: &str, options: &[&str]) -> Wire {
        let text = self.does("link", &[&[near, far], options].concat());
        let mut words = text.split_whitespace().map(str::to_owned);
        let mut word = || words.next().expect("two interfaces and addresses");
        Wire { near: word(), near_address: word(), far: word(), far_address: word() }
    }

    /// Where it keeps what it knows.
    pub fn folder(&self) -> &Path {
        &self.state
    }

    /// What is known of the lab.
    pub fn known(&self) -> Value {
        serde_json::from_str(&self.does("show", &[])).unwrap()
    }

    /// What runs a program on a host, with this machine's mounts.
    pub fn enter(&self, host: &str) -> Command {
        let id = self.known()["id"].as_str().unwrap().to_owned();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{id}-{host}"));
        command
    }

    /// Aqueduct on a host, with this machine's mounts.
    pub fn inside(&self, host: &str) -> Command {
        let mut command = self.enter(host);
        command.arg(aqueduct().get_program());
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command("down", &[]);
    }
}
