//! An agent: claims units of jobs and does them, until it is told to end.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use aqueduct_fs::Credential;
use aqueduct_wire::ClientKey;
use aqueduct_worker::lock;

use super::board::{Board, Registration, Scope};
use super::context::Context;
use super::database::{Database, StoreError};
use super::execute;
use super::spans::of_unit;
use super::unit::Claimed;
use crate::Failure;
use crate::run::raise_descriptors;
use crate::spans::Spans;

/// The longest that a thread without work sleeps before it looks again.
const IDLE_MAX: Duration = Duration::from_millis(400);

/// And the shortest.
const IDLE_MIN: Duration = Duration::from_millis(20);

/// A job that this agent cannot work on is tried again after so long.
const REFUSED: Duration = Duration::from_secs(10);

/// Jobs that an agent has open at once, or as many as its threads work on.
const OPEN_MAX: usize = 64;

/// After an error of the database it is asked again so much later.
const RETRY: Duration = Duration::from_millis(500);

/// How an agent works.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The store.
    pub store: String,
    /// What it is called in lists.
    pub name: String,
    /// The host that it is on.
    pub host: String,
    /// The queues whose jobs it takes.
    pub queues: Vec<String>,
    /// Units that it does at once.
    pub threads: usize,
    /// For so long it is believed alive without a word.
    pub lease: Duration,
    /// The key of servers.
    pub key: Option<ClientKey>,
    /// It ends when there was nothing to do for so long.
    pub idle_exit: Option<Duration>,
    /// It also does the jobs of root, as root.
    pub allows_root: bool,
    /// Where spans of its units go.
    pub spans: Spans,
}

struct Agent<'a> {
    settings: &'a AgentSettings,
    board: Board,
    stop: &'a AtomicBool,
    /// Whose jobs it may do; `None`: everybody's.
    submitters: Option<Vec<String>>,
    registration: Mutex<Arc<Registration>>,
    waiting: Mutex<VecDeque<Claimed>>,
    /// The units that threads are at.
    doing: Mutex<Vec<i64>>,
    /// The store may have given units of which this agent has not heard.
    in_doubt: AtomicBool,
    open: Mutex<HashMap<i64, Arc<Context>>>,
    /// One job at a time is opened, which may wait for servers: nobody who looks at those that are
    /// open waits for that, the heart least of all.
    opening: Mutex<()>,
    refused: Mutex<HashMap<i64, Instant>>,
    /// Threads that do something, and when the last one did.
    busy: AtomicUsize,
    worked: Mutex<Instant>,
}

/// Works until `stop`; `ready` is told the store once the agent is known to it.
pub fn run_agent(settings: &AgentSettings, stop: &AtomicBool, ready: impl FnOnce(&str)) -> Result<(), Failure> {
    raise_descriptors();
    let database = Database::connect(&settings.store)?;
    let board = Board { database, length: settings.lease };
    let failed = |error: StoreError| board.database.failed("cannot work for", &error);
    let registration = board.register(&settings.name, &settings.host).map_err(failed)?;
    let agent = Agent {
        settings,
        stop,
        submitters: submitters()?,
        registration: Mutex::new(Arc::new(registration)),
        waiting: Mutex::default(),
        doing: Mutex::default(),
        in_doubt: AtomicBool::new(false),
        open: Mutex::default(),
        opening: Mutex::default(),
        refused: Mutex::default(),
        busy: AtomicUsize::new(0),
        worked: Mutex::new(Instant::now()),
        board,
    };
    ready(agent.board.database.name());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let heart = scope.spawn(|| agent.beat(&ended));
        let workers: Vec<_> = (0..settings.threads.max(1)).map(|_| scope.spawn(|| agent.work())).collect();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        ended.store(true, Ordering::Release);
        heart.thread().unpark();
    });
    let id = lock(&agent.registration).id;
    agent.board.leave(id).map_err(|error| agent.board.database.failed("cannot leave", &error))
}

/// A process that is not root's may only be who it is.
fn submitters() -> Result<Option<Vec<String>>, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let uid = rustix::process::geteuid().as_raw();
    let name = aqueduct_posix::name_of_user(uid).ok_or_else(|| {
        let hint = "start it as a user that the user database knows, or as root";
        Failure::new("cannot start an agent", format!("nobody has the uid {uid}"), hint)
    })?;
    Ok(Some(vec![name]))
}

impl Agent<'_> {
    fn scope(&self) -> Scope {
        let mut refused = lock(&self.refused);
        refused.retain(|_, since| since.elapsed() < REFUSED);
        let refused = refused.keys().copied().collect();
        Scope { queues: self.settings.queues.clone(), submitters: self.submitters.clone(), refused }
    }

    fn work(&self) {
        let mut idle = IDLE_MIN;
        while !self.stop.load(Ordering::Acquire) {
            match self.next() {
                Ok(Some(claimed)) => {
                    idle = IDLE_MIN;
                    self.busy.fetch_add(1, Ordering::AcqRel);
                    self.execute(&claimed);
                    self.leaves(claimed.id);
                    *lock(&self.worked) = Instant::now();
                    self.busy.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("{}", self.board.database.failed("cannot ask", &error)),
            }
            let is_idle = self.busy.load(Ordering::Acquire) == 0;
            if self.settings.idle_exit.is_some_and(|most| is_idle && lock(&self.worked).elapsed() >= most) {
                return;
            }
            thread::sleep(idle);
            idle = (idle * 2).min(IDLE_MAX);
        }
    }

    /// What is to be done next, claimed.
    fn next(&self) -> Result<Option<Claimed>, StoreError> {
        let mut waiting = lock(&self.waiting);
        if let Some(claimed) = waiting.pop_front() {
            return Ok(Some(self.begins(claimed)));
        }
        let registration = lock(&self.registration).clone();
        if !registration.lease.holds() {
            return Ok(None);
        }
        if self.in_doubt.load(Ordering::Acquire) {
            self.board.keeps_only(registration.id, &lock(&self.doing))?;
            self.in_doubt.store(false, Ordering::Release);
        }
        let claimed = self.claim(&registration, &mut waiting);
        claimed.inspect_err(|_| self.in_doubt.store(true, Ordering::Release))
    }

    fn claim(
        &self,
        registration: &Registration,
        waiting: &mut VecDeque<Claimed>,
    ) -> Result<Option<Claimed>, StoreError> {
        let (scope, count) = (self.scope(), self.settings.threads.max(1) as i64);
        loop {
            waiting.extend(self.board.claim(registration, &scope, count)?);
            match waiting.pop_front() {
                Some(claimed) => return Ok(Some(self.begins(claimed))),
                None if self.board.advance(&scope)? => {}
                None => return Ok(None),
            }
        }
    }

    fn begins(&self, claimed: Claimed) -> Claimed {
        lock(&self.doing).push(claimed.id);
        claimed
    }

    fn leaves(&self, unit: i64) {
        let mut doing = lock(&self.doing);
        // It may be there twice: lost with a lease, and claimed again under the next.
        if let Some(at) = doing.iter().position(|id| *id == unit) {
            doing.swap_remove(at);
        }
    }

    fn execute(&self, claimed: &Claimed) {
        let Some(context) = self.opened(claimed) else { return };
        let (began, started) = (SystemTime::now(), Instant::now());
        let outcome = loop {
            if !claimed.lease.holds() {
                return; // others do it
            }
            let acting = aqueduct_posix::act_as(&context.credential);
            let outcome = acting.map(|()| execute::unit(&context, &self.board, claimed));
            aqueduct_posix::restore();
            match outcome {
                Ok(Ok(outcome)) => break outcome,
                Ok(Err(error)) => {
                    tracing::warn!("{}", self.board.database.failed("cannot read from", &error));
                    thread::sleep(RETRY);
                }
                Err(error) => {
                    let hint = "start the agent as root, or as the submitter";
                    return self.refuse(claimed, &Failure::new("cannot act as the submitter", error, hint));
                }
            }
        };
        let whose = (context.name, self.settings.name.as_str());
        self.settings.spans.send(|| of_unit(whose, claimed, (began, started.elapsed()), &outcome));
        self.tell(claimed, || match self.board.done(claimed, &outcome) {
            Err(error) if error.is_refusal() => self.board.done_in_vain(claimed, &error),
            told => told,
        });
    }

    /// Tells the store of a unit, until it has heard it or the unit is others'. Who gave it up
    /// before, and stays alive, would keep it from everybody.
    fn tell(&self, claimed: &Claimed, tell: impl Fn() -> Result<bool, StoreError>) {
        while claimed.lease.holds() {
            match tell() {
                Ok(true) => return,
                Ok(false) => return tracing::debug!("unit {} is not ours any more", claimed.id),
                // If it was told after all it is not ours any more.
                Err(error) => tracing::warn!("{}", self.board.database.failed("cannot tell", &error)),
            }
            thread::sleep(RETRY);
        }
    }

    /// The job of a unit, open. `None`: the unit is not to be done here.
    fn opened(&self, claimed: &Claimed) -> Option<Arc<Context>> {
        while claimed.lease.holds() {
            match self.context(claimed.job) {
                Ok(Ok(context)) => return context,
                Ok(Err(failure)) => {
                    self.refuse(claimed, &failure);
                    return None;
                }
                Err(error) => tracing::warn!("{}", self.board.database.failed("cannot ask", &error)),
            }
            thread::sleep(RETRY);
        }
        None // others do it
    }

    /// A job, open as its submitter. `None`: it is not there any more.
    fn context(&self, id: i64) -> Result<Result<Option<Arc<Context>>, Failure>, StoreError> {
        let is_open = || lock(&self.open).get(&id).cloned();
        if let Some(context) = is_open() {
            return Ok(Ok(Some(context)));
        }
        let _alone = lock(&self.opening);
        if let Some(context) = is_open() {
            return Ok(Ok(Some(context)));
        }
        let Some(row) = self.board.job(id)? else { return Ok(Ok(None)) };
        let opened = self.credential(&row.submitter).and_then(|credential| {
            let acting = aqueduct_posix::act_as(&credential);
            let hint = "start the agent as root, or as the submitter";
            let acting = acting.map_err(|error| Failure::new(format!("cannot act as {}", row.submitter), error, hint));
            let opened = acting.and_then(|()| Context::open(&row, credential, self.settings.key.clone()));
            aqueduct_posix::restore();
            opened
        });
        Ok(opened.map(|context| {
            let mut open = lock(&self.open);
            if open.len() >= OPEN_MAX {
                // What is under way hears of the end of its job by its own.
                open.retain(|_, context| Arc::strong_count(context) > 1);
            }
            let context = Arc::new(context);
            open.insert(id, context.clone());
            Some(context)
        }))
    }

    fn credential(&self, submitter: &str) -> Result<Credential, Failure> {
        let what = || format!("cannot act as {submitter}");
        let hint = "make the user on this host, with the same uid as elsewhere";
        let credential =
            aqueduct_posix::user(submitter).ok_or_else(|| Failure::new(what(), "this host has no such user", hint))?;
        if credential.uid == 0 && !self.settings.allows_root {
            let hint = "start the agent with --allow-root, if whoever may be root in the database may be so here";
            return Err(Failure::new(what(), "this agent does nothing as root", hint));
        }
        Ok(credential)
    }

    fn refuse(&self, claimed: &Claimed, failure: &Failure) {
        tracing::warn!("job {}: {failure}", claimed.job);
        lock(&self.refused).insert(claimed.job, Instant::now());
        let mut units = vec![claimed.id];
        lock(&self.waiting).retain(|waiting| {
            let is_of_job = waiting.job == claimed.job;
            units.extend(is_of_job.then_some(waiting.id));
            !is_of_job
        });
        let why = format!("{}: {}; {}", failure.what, failure.why, failure.hint);
        self.tell(claimed, || self.board.refuse(claimed, &units, &self.settings.name, &why).map(|()| true));
    }

    /// Says that the agent is alive, and looks after those that are not. One that has lost its
    /// lease begins as another: what it had is taken away once the store's clock says so too, since
    /// some of its threads may just be naming a file.
    fn beat(&self, ended: &AtomicBool) {
        let board = Board { database: self.board.database.again(), length: self.board.length };
        while !ended.load(Ordering::Acquire) {
            if let Err(error) = self.beat_once(&board) {
                tracing::warn!("{}", board.database.failed("cannot tell", &error));
            }
            thread::park_timeout(self.settings.lease / 4);
        }
    }

    fn beat_once(&self, board: &Board) -> Result<(), StoreError> {
        let registration = lock(&self.registration).clone();
        if !board.renew(&registration)? {
            tracing::warn!("this agent was not heard of for too long: what it was at is others' now");
            lock(&self.waiting).clear();
            *lock(&self.registration) = Arc::new(board.register(&self.settings.name, &self.settings.host)?);
        }
        board.reap()?;
        let jobs: Vec<i64> = lock(&self.open).keys().copied().collect();
        for job in board.ended(&jobs)? {
            if let Some(context) = lock(&self.open).remove(&job) {
                context.is_ended.store(true, Ordering::Release);
            }
        }
        let alive = board.alive()?.max(1) as u64;
        for context in lock(&self.open).values() {
            if let (Some(throttle), Some(rate)) = (&context.throttle, context.options.rate) {
                throttle.set(rate / alive);
            }
        }
        Ok(())
    }
}
