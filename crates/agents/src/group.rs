//! Groups of agents: set up, added to, taken down.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use aqueduct_node::Failure;

use crate::agent::{Agent, RUN, folder};
use crate::cards::{FUNCTIONS, Known};
use crate::command::LOOK;
use crate::host::Host;
use crate::journal::{self, Journal, Taken};
use crate::plan::{Plan, Planner};
use crate::settings::{AGENTS_MAX, AgentKind, Settings, check_name};
use crate::step::Step;

/// How long an agent may take until it is ready.
const READY_MAX: Duration = Duration::from_secs(20);

/// A virtual machine has to boot first, which takes a minute where a program is its processor and
/// others use the host.
const BOOTED_MAX: Duration = Duration::from_secs(240);

/// Lines of an agent's output that are told when it has failed.
const LINES_MAX: usize = 6;

/// What came of setting agents up.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// The agents that were started.
    pub started: Vec<Agent>,
    /// How many were up before.
    pub kept: usize,
}

/// The groups of this host.
pub fn names(host: &dyn Host) -> Vec<String> {
    journal::names(host)
}

fn check(settings: &Settings, agents: u32) -> Result<(), Failure> {
    settings.check()?;
    match agents {
        1..=AGENTS_MAX => Ok(()),
        _ => Err(Failure::usage(
            format!("cannot set {agents} agents up"),
            "that is no number of agents",
            format!("give 1 to {AGENTS_MAX}"),
        )),
    }
}

/// What `up` would do.
pub fn dry_run(host: &dyn Host, settings: &Settings, agents: u32, program: &Path) -> Result<Plan, Failure> {
    check(settings, agents)?;
    let known = Journal::read(host, &settings.name)?;
    let missing =
        known.as_ref().map_or_else(|| Ok((1..=agents).collect()), |known| missing(host, known, settings, agents))?;
    let functions = known.as_ref().map(|journal| self::known(journal, &missing)).unwrap_or_default();
    let mut plan = Planner::new(host, settings, &missing, &functions, program)?.plan(host, &missing)?;
    if known.is_some() {
        plan.shared.clear();
    }
    Ok(plan)
}

/// What a group has of virtual functions, while these of its agents are missing.
fn known(journal: &Journal, missing: &[u32]) -> Known {
    let mut known = Known::default();
    for Taken { agent, step } in &journal.steps {
        match step {
            Step::Write { path, .. } if path.ends_with(FUNCTIONS) => known.made = true,
            Step::Function(function) if missing.contains(agent) => known.back.push(function.index),
            Step::Function(function) => known.held.push(function.index),
            _ => {}
        }
    }
    known
}

/// The agents that are not up as they should be. Where others are wanted than there are, that is
/// refused.
fn missing(host: &dyn Host, known: &Journal, settings: &Settings, agents: u32) -> Result<Vec<u32>, Failure> {
    let refused = |why: String| {
        let name = &settings.name;
        Err(Failure::new(
            format!("cannot set the agents '{name}' up"),
            why,
            format!("take them down first: aqueduct agents down --name {name}"),
        ))
    };
    if known.settings != *settings {
        return refused("they are up with other settings".into());
    }
    let is_up = |number: &u32| known.process(*number).is_some_and(|process| process.is_alive(host));
    // What an `up` that was killed has left of others is no agent.
    let last = known.agents.iter().map(|agent| agent.number).filter(is_up).max().unwrap_or(0);
    if last > agents {
        return refused(format!("{last} are up, which is more than {agents}"));
    }
    Ok((1..=agents).filter(|number| !is_up(number)).collect())
}

/// Sets so many agents up, or what is missing of them. Where that fails, all that this call did is
/// taken back.
pub fn up(host: &dyn Host, settings: &Settings, agents: u32, program: &Path) -> Result<Done, Failure> {
    check(settings, agents)?;
    let own = folder(&settings.name);
    let lock = host.lock(&own).map_err(|error| locked(&settings.name, error))?;
    let known = match Journal::read(host, &settings.name) {
        Ok(Some(half)) if !half.complete => {
            tracing::warn!(name = settings.name, "taking back what was set up in part, by a process that was killed");
            take_down(host, half)?;
            None
        }
        Ok(known) => known,
        Err(failure) => return Err(failure),
    };
    let is_new = known.is_none();
    let (mut journal, missing) = match known {
        Some(known) => {
            let missing = missing(host, &known, settings, agents)?;
            (known, missing)
        }
        None => (Journal::new(settings.clone()), (1..=agents).collect()),
    };
    let result = add(host, &mut journal, settings, agents, &missing, program, is_new);
    match result {
        Ok(started) => Ok(Done { kept: agents as usize - started.len(), started }),
        Err(failure) => {
            let undone = journal.undo(host, |taken| is_new || missing.contains(&taken.agent));
            if is_new && undone.is_ok() {
                drop(lock);
                forget(host, &settings.name);
            } else {
                journal.agents.retain(|agent| !missing.contains(&agent.number));
                // What those that were up share is whole.
                journal.complete = !is_new;
                journal.write(host)?;
            }
            Err(match undone {
                Ok(()) => failure,
                Err(left) => Failure {
                    hint: format!(
                        "{}; and see to what could not be taken back: {} ({})",
                        failure.hint, left.what, left.why
                    ),
                    ..failure
                },
            })
        }
    }
}

/// Adds agents, and waits until they are ready.
fn add(
    host: &dyn Host,
    journal: &mut Journal,
    settings: &Settings,
    agents: u32,
    missing: &[u32],
    program: &Path,
    is_new: bool,
) -> Result<Vec<Agent>, Failure> {
    // What is left of those that have ended. Those that are up stay what they are, also where this
    // process dies: then whoever comes next finds the others not up.
    let is_left = |number: u32| missing.contains(&number) || number > agents;
    journal.undo(host, |taken| is_left(taken.agent))?;
    journal.agents.retain(|agent| !is_left(agent.number));
    let Plan { shared, agents: plans } =
        Planner::new(host, settings, missing, &known(journal, missing), program)?.plan(host, missing)?;
    journal.write(host)?;
    for step in shared.into_iter().filter(|_| is_new) {
        journal.take(host, 0, step)?;
    }
    let mut started = Vec::new();
    for plan in plans {
        started.push(plan.agent.clone());
        journal.agents.push(plan.agent.clone());
        for step in plan.steps {
            journal.take(host, plan.agent.number, step)?;
        }
    }
    for agent in &started {
        await_ready(host, journal, agent)?;
    }
    journal.agents.sort_by_key(|agent| agent.number);
    journal.complete = true;
    journal.write(host)?;
    Ok(started)
}

/// Waits until an agent serves, or has begun where it does something else.
fn await_ready(host: &dyn Host, journal: &Journal, agent: &Agent) -> Result<(), Failure> {
    let serves = journal.settings.command.is_empty() && journal.settings.store.is_none();
    let limit = if agent.kind == AgentKind::Vm { BOOTED_MAX } else { READY_MAX };
    let end = Instant::now() + limit;
    loop {
        let told = host.read(&agent.log).unwrap_or_default();
        let failed = |why: &str| {
            let lines: Vec<&str> = told.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n          ");
            let hint = "see what it has told, and try its command by itself: --dry-run shows it";
            Failure::new(
                format!("cannot start agent {}", agent.number),
                format!("{why}; it told:\n          {last}"),
                hint,
            )
        };
        if !journal.process(agent.number).is_some_and(|process| process.is_alive(host)) {
            return Err(failed("its process has ended"));
        }
        // Each export has a line once it is served.
        let is_ready =
            if serves { told.lines().any(|line| line.starts_with("export ")) } else { has_begun(host, journal, agent) };
        if is_ready {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(failed(&format!("it is not ready after {} s", limit.as_secs())));
        }
        sleep(LOOK);
    }
}

/// Whether an agent's process is what it was to become.
fn has_begun(host: &dyn Host, journal: &Journal, agent: &Agent) -> bool {
    let Some(process) = journal.process(agent.number) else { return false };
    let line = host.read(Path::new(&format!("/proc/{}/cmdline", process.pid))).unwrap_or_default();
    !line.is_empty() && line.split('\0').nth(2) != Some("enter")
}

fn locked(name: &str, error: std::io::Error) -> Failure {
    Failure::new(
        format!("cannot see to the agents '{name}' in {}", folder(name).display()),
        error,
        "run it as root; wait until another 'aqueduct agents' is done",
    )
}

/// Takes a group down. `false`: there was none.
pub fn down(host: &dyn Host, name: &str) -> Result<bool, Failure> {
    check_name(name)?;
    if host.names(&folder(name)).is_err() {
        return Ok(false);
    }
    let _lock = host.lock(&folder(name)).map_err(|error| locked(name, error))?;
    let journal = Journal::read(host, name)?;
    let was_there = journal.is_some();
    journal.map_or(Ok(()), |journal| take_down(host, journal))?;
    forget(host, name);
    Ok(was_there)
}

/// Takes all steps of a group back.
fn take_down(host: &dyn Host, mut journal: Journal) -> Result<(), Failure> {
    journal.complete = false;
    journal.write(host)?;
    // All end at once: one after the other they would take as long as all of them together.
    for taken in &journal.steps {
        if let Step::Start { process: Some(process), .. } = taken.step
            && process.is_alive(host)
        {
            host.signal(process.pid, rustix::process::Signal::TERM);
        }
    }
    journal.undo(host, |_| true)
}

/// Removes the folder of a group, and that of all where it was the last.
fn forget(host: &dyn Host, name: &str) {
    let _ = host.remove_folder(&folder(name), false);
    let _ = host.remove_folder(Path::new(RUN), true);
}
