//! One step of setting agents up: what it does, and how that is taken back. A step is data, so
//! that the journal has it, and who finds the journal can take it back.
//!
//! To take a step back is no error where nothing of it is there: it may have been written down and
//! never taken, or taken back before.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aqueduct_node::Failure;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::cards::{Function, Place};
use crate::command::{LOOK, run, words};
use crate::controllers;
use crate::host::{Host, Process};
pub use crate::image::Content;

/// How long processes may take to end by themselves: as long as a server lets operations finish.
const END_MAX: Duration = Duration::from_secs(10);

/// How long the kernel may take to end what was killed, and to let go of what it had.
const KILL_MAX: Duration = Duration::from_secs(5);

/// Something that a step makes, by which it is known whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thing {
    /// A network namespace.
    Namespace(String),
    /// An interface.
    Link(Place),
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Runs a program that makes something; another takes it away.
    Make {
        /// What is made.
        thing: Thing,
        /// What makes it.
        command: Vec<String>,
        /// What takes it away.
        undo: Vec<String>,
    },
    /// Runs a program that changes what another step has made, and goes with it.
    Set {
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// Writes to a file of the kernel.
    Write {
        /// The file.
        path: PathBuf,
        /// What is written.
        text: String,
        /// What is written to take it back; `None`: it goes with what another step has made.
        back: Option<String>,
    },
    /// Makes a folder that goes with all that is in it.
    Folder {
        /// Where.
        path: PathBuf,
    },
    /// Makes the first file system of a virtual machine, with these files; it goes with its folder.
    Image {
        /// Where.
        path: PathBuf,
        /// Each by its path in it.
        files: Vec<(PathBuf, Content)>,
    },
    /// Makes a control group; who is in it ends with it.
    Group {
        /// Its folder.
        path: PathBuf,
    },
    /// Moves a virtual function of a card into a namespace.
    Function(Function),
    /// Starts a process in the background.
    Start {
        /// The program and its arguments.
        command: Vec<String>,
        /// Where its output goes.
        log: PathBuf,
        /// The process, once it was started.
        process: Option<Process>,
    },
}

fn of_file(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}", path.display()), error, "run it as root, on a host whose kernel has it")
}

/// Waits until it is so, a certain time.
fn await_that(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        sleep(LOOK);
    }
    true
}

/// Ends processes, by force where they do not end by themselves. `who` lists those that are left.
fn end(host: &dyn Host, who: impl Fn() -> Vec<u32>) {
    let alive = || -> Vec<u32> { who().into_iter().filter(|pid| Process::of(host, *pid).is_some()).collect() };
    for (signal, limit) in [(Signal::TERM, END_MAX), (Signal::KILL, KILL_MAX)] {
        let told = alive();
        told.iter().for_each(|pid| host.signal(*pid, signal));
        if told.is_empty() || await_that(limit, || alive().is_empty()) {
            return;
        }
    }
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

impl Thing {
    fn is_there(&self, host: &dyn Host) -> bool {
        match self {
            Thing::Namespace(name) => host
                .run(&words("ip netns list"))
                .is_ok_and(|list| list.lines().any(|line| line.split_whitespace().next() == Some(name))),
            Thing::Link(place) => place.is_there(host),
        }
    }

    fn shown(&self) -> String {
        match self {
            Thing::Namespace(name) => format!("the network namespace {name}"),
            Thing::Link(place) => format!("the interface {}", place.name),
        }
    }
}

impl Step {
    /// A step that runs a program to change something.
    pub(crate) fn set(command: &str) -> Step {
        Step::Set { command: words(command) }
    }

    /// Looks before it is written down and taken: what is there already is not ours to take away.
    pub(crate) fn prepare(&mut self, host: &dyn Host) -> Result<(), Failure> {
        let is_there = match self {
            Step::Make { thing, .. } => thing.is_there(host).then(|| thing.shown()),
            Step::Folder { path } | Step::Group { path } => {
                host.names(path).is_ok().then(|| format!("the folder {}", path.display()))
            }
            Step::Function(function) => {
                function.find(host)?;
                None
            }
            Step::Set { .. } | Step::Write { .. } | Step::Image { .. } | Step::Start { .. } => None,
        };
        match is_there {
            None => Ok(()),
            Some(what) => Err(Failure::new(
                format!("cannot make {what}"),
                "it is there already, and this group has not made it",
                "remove it, or give the group another name (name = \"...\" in the configuration file)",
            )),
        }
    }

    /// Takes the step.
    pub(crate) fn take(&mut self, host: &dyn Host) -> Result<(), Failure> {
        match self {
            Step::Make { command, .. } | Step::Set { command } => run(host, command).map(drop),
            Step::Write { path, text, .. } => {
                host.write(path, text).map_err(|error| of_file(&format!("write '{text}' to"), path, &error))
            }
            Step::Folder { path } | Step::Group { path } => {
                host.make_folder(path).map_err(|error| of_file("make", path, &error))
            }
            Step::Image { path, files } => host.image(path, files).map_err(|error| of_file("make", path, &error)),
            Step::Function(function) => function.take(host),
            Step::Start { command, log, process } => {
                let pid = host.start(command, log).map_err(|error| {
                    Failure::new(
                        format!("cannot start '{}'", command.join(" ")),
                        error,
                        "see whether the program is there",
                    )
                })?;
                *process = Process::of(host, pid);
                Ok(())
            }
        }
    }

    /// Takes it back. `Err` where something of it is still there.
    pub(crate) fn undo(&self, host: &dyn Host) -> Result<(), Failure> {
        match self {
            Step::Set { .. } | Step::Write { back: None, .. } | Step::Image { .. } => Ok(()),
            Step::Write { path, back: Some(back), .. } => {
                let written = match back.strip_prefix('-').filter(|_| path.ends_with(controllers::SUBTREE)) {
                    Some(controller) => controllers::take_back(host, path, controller),
                    None => host.write(path, back),
                };
                match written {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(of_file("write to", path, &error))
                    }
                    _ => Ok(()),
                }
            }
            Step::Make { thing, undo, .. } => {
                if let Thing::Namespace(name) = thing {
                    end(host, || numbers(&host.run(&words(&format!("ip netns pids {name}"))).unwrap_or_default()));
                }
                match thing.is_there(host).then(|| run(host, undo)) {
                    // It may have gone with another just now.
                    Some(Err(failure)) if thing.is_there(host) => Err(failure),
                    _ => Ok(()),
                }
            }
            Step::Folder { path } => gone(path, || host.remove_folder(path, false)),
            Step::Group { path } => {
                let members = path.join("cgroup.procs");
                end(host, || numbers(&host.read(&members).unwrap_or_default()));
                // The kernel lets go of what has ended a moment later.
                let is_busy = || {
                    let removed = host.remove_folder(path, true);
                    removed.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
                };
                await_that(KILL_MAX, || !is_busy());
                gone(path, || host.remove_folder(path, true))
            }
            Step::Function(function) => function.give_back(host),
            Step::Start { process, .. } => {
                if let Some(process) = process {
                    let own = || if process.is_alive(host) { vec![process.pid] } else { Vec::new() };
                    end(host, own);
                }
                Ok(())
            }
        }
    }

    /// What it does, as a shell would be told.
    pub fn shown(&self) -> Vec<String> {
        match self {
            Step::Make { command, .. } | Step::Set { command } => vec![command.join(" ")],
            Step::Write { path, text, .. } if text.contains('\n') => {
                vec![format!("cat > {} <<END\n{}\nEND", path.display(), text.trim_end())]
            }
            Step::Write { path, text, .. } => vec![format!("echo '{text}' > {}", path.display())],
            Step::Folder { path } | Step::Group { path } => vec![format!("mkdir -p {}", path.display())],
            Step::Image { path, files } => {
                let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
                vec![format!("cpio -o -H newc > {} <<END\n{}\nEND", path.display(), names.join("\n"))]
            }
            Step::Function(function) => function.shown(),
            Step::Start { command, log, .. } => vec![format!("{} > {} 2>&1 &", command.join(" "), log.display())],
        }
    }
}

/// A folder that has gone already is gone.
fn gone(path: &Path, remove: impl Fn() -> std::io::Result<()>) -> Result<(), Failure> {
    match remove() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(of_file("remove", path, &error)),
        _ => Ok(()),
    }
}
