//! A group of agents of the test's own, that is gone after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Output, TEST_MAX, aqueduct, directory, have, run, run_within, skip};

/// Groups of this process so far.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// A group that is not up yet.
pub struct Group {
    pub name: String,
    /// The first three numbers of its addresses, where it has a network of its own.
    pub network: String,
    /// What agents can serve.
    pub data: TempDir,
    home: TempDir,
    /// What `aqueduct` is started with.
    prefix: Vec<String>,
}

impl Group {
    /// Nothing where this machine does not let us.
    pub fn new() -> Option<Group> {
        if !have(&["ip", "tc", "nsenter"]) {
            return None;
        }
        let (process, number) = (std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        let name = format!("t{:x}{number}", process % 0xfffff);
        let tried = run(Command::new("ip").args(["netns", "add", &name]));
        if !tried.status.success() {
            skip(&format!("cannot make network namespaces: {}", tried.text));
            return None;
        }
        run(Command::new("ip").args(["netns", "del", &name])).succeeded();
        // Each test may be a process of its own: what follows each other has networks that differ.
        let network = format!("10.{}.{}", 110 + process % 40, (process / 40 + number) % 250);
        Some(Group { name, network, data: directory(), home: directory(), prefix: Vec::new() })
    }

    /// The same, of which the host is one of a lab.
    pub fn on(mut self, command: &Command) -> Group {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        self.prefix = words.map(|word| word.to_str().unwrap().to_owned()).collect();
        self
    }

    /// Its configuration file, with these lines in front of what it serves.
    pub fn configure(&self, lines: &str) {
        let data = self.data.path().display();
        self.configure_all(&format!("insecure = true\n{lines}\n[[export]]\npath = '{data}'\nsquash = 'none'\n"));
    }

    /// As [`configure`](Group::configure), without what it serves.
    pub fn configure_all(&self, lines: &str) {
        let own = format!("name = '{}'\n", self.name);
        let address = format!("address = '{}.2/24'\n", self.network);
        let address = if lines.contains("address = ") { "" } else { &address };
        fs::write(self.config(), [&own, address, lines].concat()).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.home.path().join("agents.toml")
    }

    /// A command of `aqueduct agents`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let program = aqueduct().get_program().to_owned();
        let mut command = match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg("agents").args(arguments);
        command
    }

    pub fn up(&self, agents: u32) -> Output {
        let config = self.config();
        run_within(TEST_MAX, &mut self.command(&["up", &agents.to_string(), "--config", config.to_str().unwrap()]))
    }

    pub fn down(&self) -> Output {
        run_within(TEST_MAX, &mut self.command(&["down", "--name", &self.name]))
    }

    /// How its agents fare.
    pub fn agents(&self) -> Vec<Value> {
        let told = run(&mut self.command(&["status", "--json", "--name", &self.name])).text;
        let told: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
        told["groups"][0]["agents"].as_array().unwrap().clone()
    }

    /// Everything of it that is on this host, a lab's hosts aside.
    pub fn traces(&self) -> Vec<String> {
        let list = |arguments: &str| run(Command::new("ip").args(arguments.split(' '))).succeeded();
        let all = [list("netns list"), list("-o link")].concat();
        let own = format!("{}-", self.name);
        let mut found: Vec<String> = all.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect();
        found.extend(below(Path::new("/sys/fs/cgroup"), 2).into_iter().filter(|path| path.contains(&own)));
        let folder = format!("/run/aqueduct/agents/{}", self.name);
        found.extend(Path::new(&folder).exists().then(|| folder.clone()));
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default().replace('\0', " ");
            found.extend((line.contains(&own) || line.contains(&folder)).then_some(line));
        }
        found
    }

    /// Whether it is gone.
    #[track_caller]
    pub fn leaves_no_trace(&self) {
        assert_eq!(self.traces(), Vec::<String>::new());
    }
}

/// The folders below one.
fn below(folder: &Path, depth: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path().display().to_string());
            if depth > 1 {
                found.extend(below(&entry.path(), depth - 1));
            }
        }
    }
    found
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.down();
    }
}
