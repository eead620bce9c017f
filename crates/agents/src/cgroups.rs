//! Control groups of agents, of both versions: limits of processor time, memory and processors,
//! and the list of who belongs to an agent.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;

use crate::command::words;
use crate::controllers::SUBTREE;
use crate::host::Host;
use crate::journal::{self, Journal};
use crate::settings::Settings;
use crate::step::Step;

/// The time over which processor time is counted, in microseconds: the kernel's own choice.
const PERIOD: u64 = 100_000;

/// What is mounted here of control groups.
#[derive(Debug, Default)]
pub(crate) struct Hierarchies {
    /// Version 2, and its controllers.
    two: Option<(PathBuf, Vec<String>)>,
    /// Version 1: each controller with its folder.
    one: Vec<(String, PathBuf)>,
    /// What agents of this host have lent: the file, and the controller with a `-` before it.
    lent: Vec<(PathBuf, String)>,
}

/// What a group of an agent comes to.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// What is done once for all agents.
    pub shared: Vec<Step>,
    /// What is done for this one.
    pub own: Vec<Step>,
    /// The groups that its process enters.
    pub folders: Vec<PathBuf>,
}

/// What an agent may use of one controller.
struct Limit {
    controller: &'static str,
    /// Files and what is written to them, in order: of version 2, and of version 1.
    two: Vec<(&'static str, String)>,
    one: Vec<(&'static str, String)>,
    /// Without the controller agents would not be held to what was asked for.
    needed: bool,
}

impl Hierarchies {
    /// Those of this host.
    pub(crate) fn of(host: &dyn Host) -> Hierarchies {
        let mut found = Hierarchies { lent: lent_by_agents(host), ..Hierarchies::default() };
        for line in host.read(Path::new("/proc/self/mounts")).unwrap_or_default().lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, target, kind, options, ..] = fields[..] else { continue };
            let path = PathBuf::from(target);
            match kind {
                "cgroup2" if found.two.is_none() => {
                    let controllers = host.read(&path.join("cgroup.controllers")).unwrap_or_default();
                    found.two = Some((path, words(&controllers)));
                }
                "cgroup" => {
                    let known = options.split(',').filter(|option| ["cpu", "memory", "cpuset"].contains(option));
                    found.one.extend(known.map(|controller| (controller.to_owned(), path.clone())));
                }
                _ => {}
            }
        }
        found
    }

    /// Version 2, where it has some controllers and version 1 has others. crun refuses to start
    /// where it sees both, also when it is to make no groups.
    pub(crate) fn mixed(&self) -> Option<PathBuf> {
        let (root, controllers) = self.two.as_ref()?;
        (!self.one.is_empty() && !controllers.is_empty()).then(|| root.clone())
    }

    /// The groups of an agent, `name`, that may run on these processors.
    pub(crate) fn groups(
        &self,
        host: &dyn Host,
        settings: &Settings,
        name: &str,
        processors: &str,
    ) -> Result<Groups, Failure> {
        let mut groups = Groups::default();
        let write =
            |folder: &Path, (file, text): (&str, String)| Step::Write { path: folder.join(file), text, back: None };
        let own = self.two.as_ref().map(|(root, _)| root.join(name));
        if let Some(folder) = &own {
            groups.own.push(Step::Group { path: folder.clone() });
            groups.folders.push(folder.clone());
        }
        for limit in limits(host, self, settings, processors)? {
            let one = self.one.iter().find(|(controller, _)| controller == limit.controller);
            match (&self.two, &own, one) {
                (Some((root, has)), Some(folder), _) if has.iter().any(|has| has == limit.controller) => {
                    groups.shared.extend(self.lend(host, root, limit.controller));
                    groups.own.extend(limit.two.into_iter().map(|file| write(folder, file)));
                }
                (_, _, Some((_, root))) => {
                    let folder = root.join(name);
                    // Two controllers may be mounted as one.
                    if !groups.folders.contains(&folder) {
                        groups.own.push(Step::Group { path: folder.clone() });
                        groups.folders.push(folder.clone());
                    }
                    groups.own.extend(limit.one.into_iter().map(|file| write(&folder, file)));
                }
                _ if limit.needed => {
                    return Err(Failure::new(
                        format!("cannot limit agents by the control groups' {}", limit.controller),
                        "no hierarchy of control groups with it is mounted here",
                        "have the host mount it (cgroup2 at /sys/fs/cgroup), or leave processor_time and memory out",
                    ));
                }
                _ => {}
            }
        }
        Ok(groups)
    }

    /// Has groups below the root of version 2 use a controller, where they do not yet, or do since
    /// other agents have lent it: the last of them takes it back.
    fn lend(&self, host: &dyn Host, root: &Path, controller: &str) -> Option<Step> {
        let (path, back) = (root.join(SUBTREE), format!("-{controller}"));
        let is_lent = words(&host.read(&path).unwrap_or_default()).iter().any(|lent| lent == controller);
        let is_by_agents = || self.lent.iter().any(|lent| *lent == (path.clone(), back.clone()));
        (!is_lent || is_by_agents()).then(|| Step::Write {
            path: path.clone(),
            text: format!("+{controller}"),
            back: Some(back.clone()),
        })
    }
}

fn lent_by_agents(host: &dyn Host) -> Vec<(PathBuf, String)> {
    let journals = journal::names(host).into_iter().filter_map(|name| Journal::read(host, &name).ok().flatten());
    let lent = |step: &Step| match step {
        Step::Write { path, back: Some(back), .. } if path.ends_with(SUBTREE) => Some((path.clone(), back.clone())),
        _ => None,
    };
    journals
        .flat_map(|journal| journal.steps.iter().filter_map(|taken| lent(&taken.step)).collect::<Vec<_>>())
        .collect()
}

/// What is asked for.
fn limits(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    settings: &Settings,
    processors: &str,
) -> Result<Vec<Limit>, Failure> {
    let mut limits = Vec::new();
    if let Some(time) = settings.processor_time {
        let quota = (time * PERIOD as f64) as u64;
        limits.push(Limit {
            controller: "cpu",
            two: vec![("cpu.max", format!("{quota} {PERIOD}"))],
            one: vec![("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", quota.to_string())],
            needed: true,
        });
    }
    if let Some(bytes) = settings.memory_bytes()? {
        limits.push(Limit {
            controller: "memory",
            two: vec![("memory.max", bytes.to_string())],
            one: vec![("memory.limit_in_bytes", bytes.to_string())],
            needed: true,
        });
    }
    if !processors.is_empty() {
        // Version 1 lets nobody in before it is said whose memory they use.
        let root = hierarchies.one.iter().find(|(controller, _)| controller == "cpuset");
        let memory = root.and_then(|(_, root)| host.read(&root.join("cpuset.mems")).ok()).unwrap_or_default();
        limits.push(Limit {
            controller: "cpuset",
            two: vec![("cpuset.cpus", processors.to_owned())],
            one: vec![("cpuset.mems", memory.trim().to_owned()), ("cpuset.cpus", processors.to_owned())],
            // The process is held to its processors in any case.
            needed: false,
        });
    }
    Ok(limits)
}
