//! Where an agent's process goes before it becomes what it is to run.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aqueduct_node::{CpuChoice, Failure};
use rustix::process::setsid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where `ip netns` keeps namespaces.
pub(crate) const NAMESPACES: &str = "/run/netns";

/// Where a process goes.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The network namespace.
    pub namespace: Option<String>,
    /// Its control groups.
    pub groups: Vec<PathBuf>,
    /// Its processors, as the kernel lists them.
    pub processors: Option<String>,
}

impl Entry {
    /// The arguments of `aqueduct agents enter` that say it.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut say = |option: &str, value: String| all.extend([option.to_owned(), value]);
        self.groups.iter().for_each(|group| say("--group", group.display().to_string()));
        self.processors.iter().for_each(|processors| say("--processors", processors.clone()));
        self.namespace.iter().for_each(|namespace| say("--namespace", namespace.clone()));
        all
    }

    fn go(&self) -> Result<(), Failure> {
        let cannot = |what: String, error: io::Error| {
            Failure::new(what, error, "see whether the agents are still up: aqueduct agents status")
        };
        // It has no terminal of whoever starts it. It may lead a session already.
        let _ = setsid();
        for group in &self.groups {
            std::fs::write(group.join("cgroup.procs"), "0")
                .map_err(|error| cannot(format!("cannot enter the control group {}", group.display()), error))?;
        }
        if let Some(list) = &self.processors {
            let choice: CpuChoice =
                list.parse().map_err(|error| Failure::usage("cannot run on processors", error, "give 0-3,8"))?;
            if let CpuChoice::These(processors) = choice {
                processors
                    .hold_thread()
                    .map_err(|error| cannot(format!("cannot run on the processors {list}"), error))?;
            }
        }
        if let Some(name) = &self.namespace {
            let enter = || -> io::Result<()> {
                let namespace = File::open(Path::new(NAMESPACES).join(name))?;
                Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
            };
            enter().map_err(|error| cannot(format!("cannot enter the network namespace {name}"), error))?;
        }
        Ok(())
    }
}

/// Goes there and becomes the command. Returns only where that fails.
pub fn enter(entry: &Entry, command: &[String]) -> Failure {
    if let Err(failure) = entry.go() {
        return failure;
    }
    let Some((program, arguments)) = command.split_first() else {
        return Failure::usage("cannot enter", "no command was given", "name one behind --");
    };
    let error = Command::new(program).args(arguments).exec();
    Failure::new(format!("cannot run '{}'", command.join(" ")), error, "see whether the program is there")
}
