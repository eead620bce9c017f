//! The asking half: a copy between servers, of which one makes it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_fs::Context;
use aqueduct_node::{self as node, ConnectError, Initiator, Kind};
use aqueduct_wire::ClientKey;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::message::{Answer, Ask, Begin, End, Run};
use crate::Failure;
use crate::ledger::Watch;
use crate::manifest::Provenance;
use crate::manifest_table;
use crate::outcome::{Summary, by_kind};
use crate::run::{Plan, journal_name};
use crate::side::Place;
use crate::sign::Signer;
use crate::store::random;

/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// An agent that says nothing is waited for so long: longer than a machine takes to boot.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Whether data do not come by this machine: nothing of it is here, and one side is at an agent.
pub fn is_third_party(plan: &Plan) -> bool {
    let mut places = plan.sources.iter().chain([&plan.target]);
    places.clone().all(Place::is_projected) && places.any(Place::is_agent)
}

/// Who may make it, the destination first: where data are written, their order is known.
fn agents(plan: &Plan) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for place in [&plan.target].into_iter().chain(&plan.sources).filter(|place| place.is_agent()) {
        found.extend(place.server().filter(|server| !found.contains(server)));
    }
    found
}

/// Has an agent make the copy, and waits for it. `stop` ends it; `told` hears what goes on.
pub fn copy(plan: &Plan, watch: &Watch, stop: &AtomicBool, mut told: impl FnMut(&str)) -> Result<Summary, Failure> {
    let mut last = None;
    for server in agents(plan) {
        let mut asker =
            Asker { server, key: plan.access.key.clone(), routes: plan.access.routes.clone(), context: node::caller() };
        match asker.make(plan, watch, stop, &mut told)? {
            Made::Done(summary) => return Ok(*summary),
            Made::Away(failure) => {
                told(&format!("the agent {server} cannot make it: {}: {}", failure.what, failure.why));
                last = Some(failure);
            }
        }
    }
    Err(last.unwrap_or_else(|| Failure::usage("cannot copy", "no side is at an agent", "name one with agent://")))
}

/// Whether a manifest was written with what came of a copy.
fn is_of(provenance: &Provenance, summary: &Summary) -> bool {
    (provenance.troubles, provenance.lost) == (summary.trouble_count, summary.lost_count)
        && provenance.checks == by_kind(&summary.checks)
        && provenance.spent == by_kind(&summary.spent)
}

enum Made {
    Done(Box<Summary>),
    /// The agent cannot be had, or has not the other side: another may.
    Away(Failure),
}

struct Asker<'a> {
    server: &'a str,
    key: Option<ClientKey>,
    routes: Option<Arc<Initiator>>,
    context: Context,
}

impl Asker<'_> {
    fn ask(&self, ask: &Ask) -> Result<Answer, ConnectError> {
        let text = serde_json::to_string(ask).expect("what is asked has only what JSON can hold");
        let answer =
            node::ask_agent(self.server, (self.key.clone(), self.routes.clone()), (&self.context, &text), TIMEOUT)?;
        serde_json::from_str(&answer).map_err(|error| ConnectError::NotAqueduct {
            server: self.server.to_owned(),
            detail: format!("its answer is none that this release knows: {error}"),
        })
    }

    fn failed(&self, error: &ConnectError) -> Failure {
        Failure::new(format!("cannot ask the agent {}", self.server), error, error.hint()).of(Kind::Connect)
    }

    fn begin(&self, plan: &Plan) -> Begin {
        let end = |place: &Place| End {
            server: place.server().filter(|server| *server != self.server).map(str::to_owned),
            path: place.path_there().unwrap_or_default().to_owned(),
            is_content: place.is_content,
            written: place.to_string(),
        };
        let options = &plan.options;
        Begin {
            name: journal_name(plan),
            number: format!("{:016x}", random()),
            sources: plan.sources.iter().map(end).collect(),
            target: end(&plan.target),
            is_sync: plan.is_sync,
            options: options.clone(),
            run: Run {
                resume: options.resume,
                dry_run: options.dry_run,
                tune: options.tune,
                streams: options.streams,
                journal: options.journals.is_some(),
                manifest: options.manifest.is_some(),
            },
        }
    }

    fn make(
        &mut self,
        plan: &Plan,
        watch: &Watch,
        stop: &AtomicBool,
        told: &mut impl FnMut(&str),
    ) -> Result<Made, Failure> {
        let mut begin = self.begin(plan);
        let name = begin.name.clone();
        let mut asked = self.ask(&Ask::Begin(Box::new(begin.clone())));
        if let Err(error) = &asked {
            return Ok(Made::Away(self.failed(error)));
        }
        let (mut heard, mut is_silent, mut is_going) = (Instant::now(), false, true);
        loop {
            let at_once = matches!(asked, Ok(Answer::Unknown));
            match asked {
                Ok(Answer::Going(progress)) => progress.show(watch),
                Ok(Answer::Ended(summary)) => {
                    // What would be done has none.
                    if let Some(path) = plan.options.manifest.as_ref().filter(|_| !plan.options.dry_run) {
                        self.fetch_manifest(&name, (path, plan.signer.as_ref()), &summary)?;
                    }
                    return Ok(Made::Done(summary));
                }
                Ok(Answer::Failed { what, why, hint, is_away }) => {
                    let failure = Failure::new(what, why, hint);
                    return if is_away { Ok(Made::Away(failure.of(Kind::Connect))) } else { Err(failure) };
                }
                // It was started anew, and goes on where it was.
                Ok(Answer::Unknown) => {
                    told(&format!("the agent {} was started anew: it goes on with the copy", self.server));
                    begin.run.resume = begin.run.journal;
                    is_going = false;
                }
                Ok(Answer::Piece { .. }) => {}
                Err(ConnectError::Connect { .. } | ConnectError::Silent { .. } | ConnectError::NotAqueduct { .. })
                    if heard.elapsed() < PATIENCE =>
                {
                    if !std::mem::replace(&mut is_silent, true) {
                        told(&format!("the agent {} does not answer: waiting for it", self.server));
                    }
                }
                Err(error) => return Err(self.failed(&error)),
            }
            if !at_once {
                thread::sleep(LOOK_INTERVAL);
            }
            asked = match (stop.load(Ordering::Acquire), is_going) {
                (true, _) => self.ask(&Ask::Stop { name: name.clone() }),
                (false, true) => self.ask(&Ask::Look { name: name.clone() }),
                (false, false) => self.ask(&Ask::Begin(Box::new(begin.clone()))),
            };
            if asked.is_ok() {
                (heard, is_silent) = (Instant::now(), false);
            } else if stop.load(Ordering::Acquire) {
                let hint = "it may go on with the copy: see 'aqueduct status' there";
                return Err(Failure::new("cannot end the copy", format!("{} does not answer", self.server), hint));
            }
            is_going = !matches!(asked, Ok(Answer::Unknown) | Err(_)) || is_going;
        }
    }

    /// Gets the manifest, under its name only when it is whole and that of the copy with this
    /// summary: others may have had the agent make it again.
    fn fetch_manifest(
        &self,
        name: &str,
        (path, signer): (&Path, Option<&Signer>),
        summary: &Summary,
    ) -> Result<(), Failure> {
        let part = manifest_table::part_of(path);
        let failed = |why: String| {
            let hint = "what was copied is there; check that the folder may be written and has room";
            Failure::new(format!("cannot write the manifest {}", path.display()), why, hint)
        };
        let fetched = || -> Result<(), String> {
            let mut file = fs::File::create_new(&part).map_err(|error| error.to_string())?;
            let mut offset = 0;
            loop {
                let answer = self.ask(&Ask::Manifest { name: name.to_owned(), offset });
                let piece = match answer.map_err(|error| error.to_string())? {
                    Answer::Piece { base64 } => STANDARD.decode(base64).map_err(|error| error.to_string())?,
                    Answer::Failed { what, why, .. } => return Err(format!("{what}: {why}")),
                    _ => return Err("the agent has none".to_owned()),
                };
                if piece.is_empty() {
                    break;
                }
                file.write_all(&piece).map_err(|error| error.to_string())?;
                offset += piece.len() as u64;
            }
            file.sync_all().map_err(|error| error.to_string())?;
            let read = fs::File::open(&part).map_err(|error| error.to_string())?;
            let provenance = manifest_table::read(read, |_| Ok(())).map_err(|error| error.to_string())?;
            if !is_of(&provenance, summary) {
                return Err("what the agent has is the manifest of another run of this copy".to_owned());
            }
            manifest_table::settle(&part, path, signer).map_err(|error| error.to_string())
        };
        fetched().map_err(|why| {
            let _ = fs::remove_file(&part); // it may not be there
            failed(why)
        })
    }
}
