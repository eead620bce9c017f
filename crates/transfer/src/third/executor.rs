//! The agent's half: it makes copies for clients, as whom its exports let them be.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aqueduct_fs::Credential;
use aqueduct_node::place::{self, Address};
use aqueduct_node::routes::is_behind;
use aqueduct_node::{ChecksumChoice, Initiator, Kind, Mover, Submitter};
use aqueduct_wire::ClientKey;
use aqueduct_worker::lock;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::message::{Answer, Ask, Begin, End, NAME_MAX, PIECE, Progress, SOURCES_MAX};
use crate::Failure;
use crate::ledger::Watch;
use crate::options::{Options, Verify};
use crate::run::{Plan, STREAMS_PROJECTED_MAX, copy, journal_name};
use crate::side::{Access, Place};
use crate::store::{Store, random};

/// Threads that carry the requests of an export: one has 3 GB/s, and each copy has two of them.
const CARRIERS: usize = 2;

/// Copies that an agent has under way at once: each has up to [`STREAMS_PROJECTED_MAX`] threads,
/// whatever was asked for.
const GOING_MAX: usize = 16;

/// Copies that it remembers: of each a summary of at most some 300 KB, mostly far less.
const REMEMBERED_MAX: usize = 256;

/// What came of copies, and their manifests, are kept so long for who asks late.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Journals of copies that have not ended, of each user of each host: of a further one that which
/// was not used for longest goes, and what it is of begins anew.
const JOURNALS_MAX: usize = 64;

/// Troubles, and losses, that an answer tells one by one: a frame has to hold them.
const TOLD_MAX: usize = 100;

/// Letters of one path, or reason, in an answer.
const TEXT_MAX: usize = 400;

/// How an agent makes copies.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The socket of the server that this process is.
    pub socket: PathBuf,
    /// Where journals, manifests and what came of copies are kept.
    pub folder: PathBuf,
    /// Its key, for itself and for other servers.
    pub key: Option<ClientKey>,
    /// Who connects to other servers in networks that have a name.
    pub routes: Option<Arc<Initiator>>,
}

/// Makes copies for clients.
pub struct Executor {
    config: ExecutorConfig,
    token: String,
    tasks: Mutex<Tasks>,
}

/// Copies by their names, with who asked for them.
type Tasks = HashMap<String, Arc<Task>>;

/// A copy under way, or one that was.
struct Task {
    number: String,
    /// As [`Begin::wants`].
    wants: blake3::Hash,
    watch: Arc<Watch>,
    stop: Arc<AtomicBool>,
    end: Mutex<Option<Outcome>>,
    manifest: PathBuf,
}

/// What came of a copy, as it is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Outcome {
    number: String,
    /// An `Answer`, written.
    answer: String,
}

fn failed(what: impl Into<String>, why: impl ToString, hint: impl Into<String>) -> Answer {
    Answer::Failed { what: what.into(), why: why.to_string(), hint: hint.into(), is_away: false }
}

fn told(failure: Failure) -> Answer {
    let is_away = failure.kind == Kind::Connect;
    Answer::Failed { what: failure.what, why: failure.why, hint: failure.hint, is_away }
}

fn text(answer: &Answer) -> String {
    serde_json::to_string(answer).expect("an answer has only what JSON can hold")
}

impl Executor {
    /// Makes none yet.
    pub fn new(config: ExecutorConfig) -> Executor {
        let token = format!("own:{:016x}{:016x}:", random(), random());
        Executor { config, token, tasks: Mutex::default() }
    }

    fn answer(&self, submitter: &Submitter<'_>, text: &str) -> Answer {
        let what = "cannot understand what is asked of the agent";
        let ask: Ask = match serde_json::from_str(text) {
            Ok(ask) => ask,
            Err(error) => return failed(what, error, "install the same release here and there"),
        };
        let name = match &ask {
            Ask::Begin(begin) => &begin.name,
            Ask::Look { name } | Ask::Manifest { name, .. } | Ask::Stop { name } => name,
        };
        let is_name = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_name {
            return failed(what, "it has no name", "install the same release here and there");
        }
        // What one client asked for no other sees.
        let owner = blake3::hash(format!("{}\n{}", submitter.origin(), submitter.uid()).as_bytes());
        let key = format!("{}-{name}", &owner.to_hex()[..16]);
        match ask {
            Ask::Begin(begin) => self.begin(submitter, &key, *begin).unwrap_or_else(|answer| *answer),
            Ask::Look { .. } => self.look(&key),
            Ask::Manifest { offset, .. } => self.manifest(&key, offset),
            Ask::Stop { .. } => {
                if let Some(task) = lock(&self.tasks).get(&key) {
                    task.stop.store(true, Ordering::Release);
                }
                self.look(&key)
            }
        }
    }

    fn look(&self, key: &str) -> Answer {
        let Some(task) = lock(&self.tasks).get(key).cloned() else { return Answer::Unknown };
        task.state()
    }

    fn manifest(&self, key: &str, offset: u64) -> Answer {
        let Some(task) = lock(&self.tasks).get(key).cloned() else { return Answer::Unknown };
        let read = || -> std::io::Result<String> {
            let mut file = fs::File::open(&task.manifest)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut piece = Vec::new();
            file.take(PIECE).read_to_end(&mut piece)?;
            Ok(STANDARD.encode(piece))
        };
        match read() {
            Ok(base64) => Answer::Piece { base64 },
            Err(error) => failed("cannot read the manifest at the agent", error, "see its state folder"),
        }
    }

    /// What is known of a copy that is to be begun; `None`: it is to be begun.
    fn known(&self, tasks: &mut Tasks, key: &str, begin: &Begin) -> Result<Option<Answer>, Box<Answer>> {
        let kept = self.config.folder.join(format!("{key}.end"));
        if let Some(task) = tasks.get(key) {
            let has_ended = lock(&task.end).is_some();
            match (has_ended, task.number == begin.number) {
                (_, true) => return Ok(Some(task.state())),
                (false, false) if begin.run.resume && task.wants == begin.wants() => return Ok(Some(task.state())),
                // Who asks would take what comes of that for what was asked for.
                (false, false) if begin.run.resume => {
                    let (why, hint) = (
                        "the agent is making it with other options",
                        "give the same options, or wait until it has ended",
                    );
                    return Err(Box::new(failed("cannot begin the copy", why, hint)));
                }
                (false, false) => {
                    let hint = "add --resume to see how far it is, and what comes of it";
                    return Err(Box::new(failed("cannot begin the copy", "the agent is making it already", hint)));
                }
                (true, false) => {}
            }
        } else if let Some(end) = Outcome::read(&kept).filter(|end| end.number == begin.number) {
            // It had come to its end when the agent was started anew.
            let task = Task::new(begin, self.config.folder.join(format!("{key}.manifest")), Some(end));
            let state = task.state();
            tasks.insert(key.to_owned(), Arc::new(task));
            return Ok(Some(state));
        }
        Ok(None)
    }

    fn begin(&self, submitter: &Submitter<'_>, key: &str, begin: Begin) -> Result<Answer, Box<Answer>> {
        if let Some(known) = self.known(&mut lock(&self.tasks), key, &begin)? {
            return Ok(known);
        }
        // Without the lock: it looks names of hosts up, and nobody who asks for another copy waits.
        let plan = self.plan(submitter, key, &begin)?;
        let kept = self.config.folder.join(format!("{key}.end"));
        let mut tasks = lock(&self.tasks);
        if let Some(known) = self.known(&mut tasks, key, &begin)? {
            return Ok(known); // it was asked for twice at a time
        }
        self.has_room(&mut tasks)?;
        prune(&plan.plan);
        let manifest = self.config.folder.join(format!("{key}.manifest"));
        match fs::remove_file(&manifest) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let what = "cannot remove the manifest of an earlier copy at the agent";
                return Err(Box::new(failed(what, error, "see the agent's state folder")));
            }
            _ => {}
        }
        let task = Arc::new(Task::new(&begin, manifest, None));
        let (worker, who) = (task.clone(), submitter.origin());
        tracing::info!("makes a copy for {who}, uid {}: {}", submitter.uid(), begin.target.written);
        let started = thread::Builder::new().name("aqueduct-agent".into()).spawn(move || worker.make(plan, &kept));
        if let Err(error) = started {
            return Err(Box::new(failed("cannot begin the copy", error, "check the agent's limit on processes")));
        }
        tasks.insert(key.to_owned(), task);
        Ok(Answer::Going(Progress::default()))
    }

    /// Forgets what is old, and says whether another copy may be begun.
    fn has_room(&self, tasks: &mut Tasks) -> Result<(), Box<Answer>> {
        if tasks.len() >= REMEMBERED_MAX {
            tasks.retain(|_, task| lock(&task.end).is_none());
        }
        let going = tasks.values().filter(|task| lock(&task.end).is_none()).count();
        if going >= GOING_MAX {
            let why = format!("the agent makes {going} copies, and {GOING_MAX} at once are the most");
            return Err(Box::new(failed("cannot begin the copy", why, "try again when some have ended")));
        }
        for entry in fs::read_dir(&self.config.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_kept = path.extension().is_some_and(|kind| kind == "end" || kind == "manifest");
            let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|time| time.elapsed().ok());
            if is_kept && age.is_some_and(|age| age > KEPT) {
                let _ = fs::remove_file(path); // another time
            }
        }
        Ok(())
    }

    /// What is to be done, if the client may have it done.
    fn plan(&self, submitter: &Submitter<'_>, key: &str, begin: &Begin) -> Result<PlanToBe, Box<Answer>> {
        let refused = |written: &str, why: &dyn ToString, hint: &str| {
            Box::new(failed(format!("cannot use {written}"), why.to_string(), hint))
        };
        if begin.sources.is_empty() || begin.sources.len() > SOURCES_MAX {
            return Err(refused("the sources", &format!("an agent takes 1 to {SOURCES_MAX}"), "name fewer"));
        }
        let mut own: Vec<String> = Vec::new();
        let mut credential: Option<Credential> = None;
        let ends = begin.sources.iter().map(|end| (end, false)).chain([(&begin.target, true)]);
        for (end, is_target) in ends.filter(|(end, _)| end.server.is_none()) {
            let hint = "see the exports of the agent: aqueduct status HOST";
            let allowed = submitter.at(&end.path).map_err(|error| refused(&end.written, &error, hint))?;
            if is_target && allowed.read_only && !begin.run.dry_run {
                return Err(refused(&end.written, &"this machine may change nothing there", hint));
            }
            if credential.as_ref().is_some_and(|other| *other != allowed.credential) {
                let why = "the user is another one in this export than in the other";
                return Err(refused(&end.written, &why, "squash both exports in the same way"));
            }
            credential = Some(allowed.credential);
            own.push(allowed.export);
        }
        let Some(credential) = credential else {
            return Err(refused(&begin.target.written, &"nothing of the copy is at this agent", "ask another agent"));
        };
        let place = |end: &End| self.place(submitter, end).map_err(|failure| Box::new(told(failure)));
        let sources = begin.sources.iter().map(place).collect::<Result<_, _>>()?;
        let target = place(&begin.target)?;
        let verify = begin.options.verify;
        let checksums = if verify == Verify::Off { ChecksumChoice::Auto } else { ChecksumChoice::On };
        let access = Access::new(self.config.key.clone(), checksums.checksums(), CARRIERS);
        let access = access.by(self.config.routes.clone()).acting_as(credential);
        // Journals name places and nobody who asked.
        let journals = begin.run.journal.then(|| self.config.folder.join(format!("journal-{}", &key[..16])));
        let manifest = begin.run.manifest.then(|| self.config.folder.join(format!("{key}.manifest")));
        let options = Options {
            dry_run: begin.run.dry_run,
            resume: begin.run.resume,
            tune: begin.run.tune,
            streams: begin.run.streams.map(|streams| streams.min(STREAMS_PROJECTED_MAX)),
            told_in: aqueduct_node::copies_folder(),
            manifest,
            journals,
            ..begin.options.clone()
        };
        let plan = Plan { sources, target, is_sync: begin.is_sync, options, access, signer: None };
        Ok(PlanToBe { plan, own, server: self.own_server(), token: self.token.clone() })
    }

    fn own_server(&self) -> String {
        format!("{}{}", aqueduct_node::place::UNIX, self.config.socket.display())
    }

    fn place(&self, submitter: &Submitter<'_>, end: &End) -> Result<Place, Failure> {
        let server = match &end.server {
            None => self.own_server(),
            Some(server) => elsewhere(server, submitter.is_near(), self.config.routes.as_deref())?,
        };
        let mut place = Place::parse(format!("{server}:{}", end.path).as_ref())?;
        if !place.is_projected() {
            // Whatever was asked for: an agent has no files but those that servers have.
            let hint = "name the host by an address that the agent reaches";
            return Err(Failure::usage(format!("cannot use the server {server}"), "it is none", hint));
        }
        place.is_content = end.is_content;
        Ok(place.shown_as(&end.written))
    }
}

/// Makes room for the journal of a copy that is to be begun.
fn prune(plan: &Plan) {
    let Some(folder) = plan.options.journals.as_ref().filter(|folder| folder.exists()) else { return };
    match Store::prune(folder, &journal_name(plan), JOURNALS_MAX) {
        Ok(0) => {}
        Ok(count) => tracing::warn!("forgot {count} copies that have not ended, of a user with {JOURNALS_MAX} others"),
        Err(error) => tracing::warn!("cannot look for old journals in {}: {error}", folder.display()),
    }
}

/// The addresses of another server. What only this machine reaches is nothing for clients of
/// others: they would have there what this machine has.
fn elsewhere(server: &str, is_near: bool, routes: Option<&Initiator>) -> Result<String, Failure> {
    let what = || format!("cannot use the server {server}");
    let wrong = |why: &str| Failure::new(what(), why, "name the host by an address that the agent reaches");
    let mut found = Vec::new();
    for text in server.split(',') {
        if let Some((_, network)) = text.rsplit_once('@')
            && routes.is_some_and(|routes| is_behind(routes, network))
        {
            // What is there is nothing of this machine's own; a path or a socket would be.
            match place::address(text, place::may_be_network) {
                Ok(Address::Host { network: Some(_), .. }) if !text.contains('/') => found.push(text.to_owned()),
                _ => return Err(wrong("it is no host in a network")),
            }
            continue;
        }
        if text.starts_with(aqueduct_node::place::UNIX) || text.contains(['@', '/']) {
            return Err(wrong("an agent goes to other servers by their addresses alone"));
        }
        // Looked up once: what is checked here is what is connected to.
        let Ok(addresses) = text.to_socket_addrs() else { continue };
        for address in addresses {
            let ip = address.ip().to_canonical();
            if !is_near && (ip.is_loopback() || ip.is_unspecified()) {
                return Err(wrong("it would be the agent's own machine, which is not this one"));
            }
            found.push(address.to_string());
        }
    }
    if found.is_empty() {
        return Err(wrong("the agent knows no address of it").of(Kind::Connect));
    }
    Ok(found.join(","))
}

/// A plan, and what of this agent's is attached first.
struct PlanToBe {
    plan: Plan,
    own: Vec<String>,
    server: String,
    token: String,
}

impl Task {
    fn new(begin: &Begin, manifest: PathBuf, end: Option<Outcome>) -> Task {
        let (watch, stop) = (Arc::default(), Arc::default());
        Task { number: begin.number.clone(), wants: begin.wants(), watch, stop, end: Mutex::new(end), manifest }
    }

    fn state(&self) -> Answer {
        match &*lock(&self.end) {
            None => Answer::Going(Progress::of(&self.watch)),
            Some(end) => serde_json::from_str(&end.answer)
                .unwrap_or_else(|error| failed("cannot tell what came of the copy", error, "see the agent's log")),
        }
    }

    fn make(&self, to_be: PlanToBe, kept: &std::path::Path) {
        let PlanToBe { mut plan, own, server, token } = to_be;
        plan.options.stop = Some(self.stop.clone());
        let folder = kept.parent().unwrap_or(kept);
        let made = fs::create_dir_all(folder).map_err(|error| {
            Failure::new(format!("cannot use the folder {}", folder.display()), error, "see the agent's state folder")
        });
        let attached = made.and_then(|()| own.iter().try_for_each(|e| plan.access.attach_own(&server, e, &token)));
        let answer = match attached.and_then(|()| copy(plan, self.watch.clone(), None)) {
            Err(failure) => told(failure),
            Ok(_) if self.stop.load(Ordering::Acquire) => {
                failed("the copy was not ended", "somebody has stopped it", "--resume goes on with it")
            }
            Ok(mut summary) => {
                let shorten = |text: &mut String| *text = text.chars().take(TEXT_MAX).collect();
                summary.troubles.truncate(TOLD_MAX);
                summary.lost.truncate(TOLD_MAX);
                for told in &mut summary.troubles {
                    shorten(&mut told.path);
                    shorten(&mut told.why);
                }
                for told in &mut summary.lost {
                    shorten(&mut told.path);
                    shorten(&mut told.what);
                }
                Answer::Ended(Box::new(summary))
            }
        };
        let end = Outcome { number: self.number.clone(), answer: text(&answer) };
        // A copy that was stopped is begun again under the same number.
        if !self.stop.load(Ordering::Acquire)
            && let Err(error) = end.write(kept)
        {
            tracing::warn!("what came of a copy cannot be kept in {}: {error}", kept.display());
        }
        *lock(&self.end) = Some(end);
    }
}

impl Outcome {
    fn read(path: &std::path::Path) -> Option<Outcome> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Under its name only when it is whole.
    fn write(&self, path: &std::path::Path) -> std::io::Result<()> {
        let part = path.with_extension(format!("{:016x}.part", random()));
        fs::write(&part, serde_json::to_vec(self)?)?;
        fs::rename(&part, path)
    }
}

impl Mover for Executor {
    fn ask(&self, submitter: &Submitter<'_>, asked: &str) -> String {
        // The server's thread acts as whoever it last acted for, and a thread that it starts would.
        aqueduct_posix::restore();
        text(&self.answer(submitter, asked))
    }

    fn token(&self) -> &str {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_node::routes::{Routing, initiator, parse};

    use super::*;

    #[test]
    fn a_client_has_an_agent_go_nowhere_but_to_other_machines() {
        for text in ["unix:/run/x", "127.0.0.1:7170", "[::1]:1", "0.0.0.0:7170", "[::ffff:127.0.0.1]:9", "a@b:1"] {
            assert!(elsewhere(text, false, None).is_err(), "{text}");
        }
        assert_eq!(elsewhere("10.0.0.7:7170,10.1.0.7:7170", false, None).unwrap(), "10.0.0.7:7170,10.1.0.7:7170");
        // Who is on this machine reaches it anyway.
        assert_eq!(elsewhere("127.0.0.1:7170", true, None).unwrap(), "127.0.0.1:7170");
        assert!(elsewhere("unix:/run/x", true, None).is_err());
        assert_eq!(elsewhere("", false, None).unwrap_err().kind, Kind::Connect);
        // Its own routes lead to a network by a router, and to no other.
        let routing = Routing { ways: vec![parse("net2@10.0.0.1").unwrap()], ..Routing::default() };
        let routes = initiator(routing.table().unwrap()).unwrap();
        assert_eq!(elsewhere("10.2.0.5:7170@net2", false, routes.as_deref()).unwrap(), "10.2.0.5:7170@net2");
        assert!(elsewhere("10.2.0.5:7170@net3", false, routes.as_deref()).is_err());
        // Nor does it make a path or a socket of the agent's machine a host.
        for text in ["/x@net2", "../x@net2", "unix:/run/x@net2", "a,/x@net2"] {
            assert!(elsewhere(text, true, routes.as_deref()).is_err(), "{text}");
        }
    }
}
