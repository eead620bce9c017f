//! What is known of a group of agents: each step before it is taken, so that whoever comes later
//! can take it back.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;
use serde::{Deserialize, Serialize};

use crate::agent::{Agent, folder};
use crate::host::{Host, Process};
use crate::settings::Settings;
use crate::step::Step;

/// The form in which it is written; another is not read.
const VERSION: u32 = 1;

/// A step that was taken, or was about to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// For which agent; 0: for all.
    pub agent: u32,
    /// What.
    pub step: Step,
}

/// What is known of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// What was wanted.
    pub settings: Settings,
    /// The agents that are up, or were being set up.
    pub agents: Vec<Agent>,
    /// All steps, in order.
    pub steps: Vec<Taken>,
    /// What all agents share is there, and none of it was taken back yet. Of each agent its process
    /// tells whether it is whole: that is started last.
    pub complete: bool,
}

fn file(name: &str) -> PathBuf {
    folder(name).join("journal.json")
}

impl Journal {
    /// Of a group with nothing yet.
    pub fn new(settings: Settings) -> Journal {
        Journal { version: VERSION, settings, agents: Vec::new(), steps: Vec::new(), complete: false }
    }

    /// That of a group; `None`: there is no such group.
    pub fn read(host: &dyn Host, name: &str) -> Result<Option<Journal>, Failure> {
        let path = file(name);
        let Ok(text) = host.read(&path) else { return Ok(None) };
        let wrong = |why: String| {
            Failure::new(
                format!("cannot read what is known of the agents '{name}' in {}", path.display()),
                why,
                "use the release that started them; or remove what they are by hand (ip netns, ip link) and then that folder",
            )
        };
        let journal: Journal = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        match journal.version {
            VERSION => Ok(Some(journal)),
            other => Err(wrong(format!("it is of version {other}, and this release knows {VERSION}"))),
        }
    }

    /// Writes it down, whole or not at all.
    pub fn write(&self, host: &dyn Host) -> Result<(), Failure> {
        let path = file(&self.settings.name);
        let text = serde_json::to_string(self).map_err(std::io::Error::from);
        text.and_then(|text| host.replace(&path, &text)).map_err(|error| {
            Failure::new(
                format!("cannot write down what is done in {}", path.display()),
                error,
                "run it as root, with room on /run",
            )
        })
    }

    /// Takes a step, once it is written down.
    pub(crate) fn take(&mut self, host: &dyn Host, agent: u32, mut step: Step) -> Result<(), Failure> {
        step.prepare(host)?;
        self.steps.push(Taken { agent, step });
        self.write(host)?;
        let step = &mut self.steps.last_mut().expect("it was pushed").step;
        step.take(host)?;
        // What was started is known by its process.
        if matches!(step, Step::Start { .. }) { self.write(host) } else { Ok(()) }
    }

    /// Takes steps back, the last first. What could not be is kept, and told.
    pub(crate) fn undo(&mut self, host: &dyn Host, which: impl Fn(&Taken) -> bool) -> Result<(), Failure> {
        let mut failed = None;
        for at in (0..self.steps.len()).rev() {
            if !which(&self.steps[at]) {
                continue;
            }
            match self.steps[at].step.undo(host) {
                Ok(()) => {
                    self.steps.remove(at);
                    self.write(host)?;
                }
                Err(failure) => {
                    failed.get_or_insert(failure);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The process of an agent, if it was started.
    pub fn process(&self, agent: u32) -> Option<Process> {
        self.steps.iter().filter(|taken| taken.agent == agent).find_map(|taken| match taken.step {
            Step::Start { process, .. } => process,
            _ => None,
        })
    }
}

/// The groups that are known here.
pub(crate) fn names(host: &dyn Host) -> Vec<String> {
    let all = host.names(Path::new(crate::agent::RUN)).unwrap_or_default();
    all.into_iter().filter(|name| host.read(&file(name)).is_ok()).collect()
}
