//! The execution of requests. A request runs on the thread that received it, from its decoding to its reply; only what has to wait for somebody
//! else (a lock, another server) becomes a task that holds no thread.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_fs::dirpage::ATTR_SIZE;
use aqueduct_fs::{Aspects, Context, Entry, Errno, FileSystem, Groups, LockKind, OpenFlags, Reply, Request};
use aqueduct_net::{Connection, Frame};
use aqueduct_wire::{Flags, Grant, Granted, Header, Kind, Op, Subject};
use aqueduct_worker::lock;

use crate::attached::Attached;
use crate::complaints::Complaint;
use crate::exclusion::ExcludedNames;
use crate::failpoint::Moment;
use crate::frames::{reply_header, send};
use crate::intent;
use crate::lease::keeper::Change;
use crate::lease::touch::{self, Found, Toucher};
use crate::lease::touched::{EXCLUSIVE, Touched};
use crate::lease::{Looked, Verdict};
use crate::links::{Asker, Link};
use crate::repeat::{self, Repeat};
use crate::room::Room;
use crate::session::Session;
use crate::sink::ReplySink;
use crate::state::Server;
use latest::Latest;

mod admit;
mod attach;
mod bound;
pub(crate) mod extended;
mod fence;
mod job;
mod kinds;
mod latest;
mod look;
mod right;
mod set;
mod staged;
mod wait;
mod write;

pub(crate) use kinds::{changes_names_or_attributes, waits_for_disk};

use admit::Try;
use job::Job;

/// Why a request that changes something was not executed.
enum Undone {
    /// It has to wait for others' leases.
    Waits,
    /// The server dies here, in a test.
    Dies,
}

/// What has come of a request that was executed, or refused.
struct Done<'a> {
    result: Result<Reply, Errno>,
    /// Taken before.
    stamp: u64,
    /// Kept from others until the reply is remembered: where they lead to tells whether it was
    /// executed.
    names: ExcludedNames<'a>,
}

/// Executes a request of a session and replies to it.
pub(crate) fn request(
    server: &Arc<Server>,
    session: &Arc<Session>,
    (link, connection): (&Arc<Link>, &Arc<Connection>),
    mut frame: Frame,
) {
    let Some(op) = Op::from_code(frame.header.op) else {
        return send(connection, reply_header(&frame.header, Kind::Reply, Err(Errno::ENOSYS)), &[]);
    };
    let asked = match extended::take(server, session, connection, &mut frame) {
        Ok(asked) => asked,
        Err(error) => return send(connection, reply_header(&frame.header, Kind::Reply, Err(error)), &[]),
    };
    let changes_unslotted = fence::changes_unslotted(&frame.header, op);
    let Some(running) = link.enter(changes_unslotted) else { return };
    server.executing.fetch_add(1, Ordering::SeqCst);
    session.enter();
    server.pulse.call(|| {
        let server = server.weak();
        move || server.upgrade().map(|server| server.executing.load(Ordering::SeqCst) > 0)
    });
    let renews = !session.has_ended() && server.renews(session, &frame.header);
    let job = Job {
        server: server.clone(),
        session: session.clone(),
        connection: connection.clone(),
        running,
        header: frame.header,
        op,
        stopped: server.pulse.missed(asked.timing.started),
        waited: AtomicU64::new(0),
        renews,
        in_slot: AtomicBool::new(false),
        asked,
        bytes: AtomicU64::new(0),
        status: AtomicU32::new(0),
        room: Mutex::new(Room::of(frame.take_room())),
    };
    if session.has_ended() {
        return; // somebody else may have its locks already
    }
    if bound::is_beyond(server, session, (&job.header, op)) {
        return job.reply(Kind::Reply, Err(Errno::EAGAIN), &[]);
    }
    server.group.run_now(async move { job.run(frame).await });
}

impl Job {
    /// What is rare is boxed: the future of a request is as large as the largest of its branches,
    /// and is allocated and copied for each request.
    async fn run(self, frame: Frame) {
        let outcome = match (self.op, self.session.attached.get()) {
            (Op::Attach, _) => Box::pin(self.attach(&frame.body)).await,
            (Op::Status, _) => self.status(),
            (Op::Recovered, _) => self.recovered(),
            (Op::Map, _) => self.map(&frame.body),
            (Op::GiveUp, _) => Box::pin(self.give_up(&frame.body)).await,
            (Op::Beat, _) => self.beat(&frame.body),
            (Op::Transfer, _) => self.transfer(&frame.body),
            (_, None) => Err(Errno::ENOTCONN),
            (Op::Right, Some(attached)) => Box::pin(self.right(attached, &frame.body)).await,
            (Op::Revoke, Some(_)) => Box::pin(self.revoke(&frame.body)).await,
            (Op::Read, Some(attached)) => self.read(attached, &frame.body).await,
            (Op::Stage, Some(attached)) => self.stage(attached, &frame.body, frame.payload),
            (Op::Write, Some(attached)) => self.write(attached, &frame.body, frame.payload).await,
            (Op::Fetch | Op::List, Some(attached)) => self.fetch(attached, &frame.body).await,
            (Op::Compound, Some(attached)) => Box::pin(self.compound(attached, &frame.body)).await,
            (_, Some(attached)) => self.call(attached, frame).await,
        };
        if let Err(error) = outcome {
            self.reply(Kind::Reply, Err(error), &[]);
        }
    }

    /// Sends a reply.
    fn reply(&self, kind: Kind, result: Result<(), Errno>, body: &[u8]) {
        self.send(reply_header(&self.header, kind, result), body);
        self.note_duration(kind);
    }

    fn send(&self, mut header: Header, body: &[u8]) {
        header.flags |= self.renewal();
        self.server.metrics.sent(self.op, header.status);
        self.status.store(header.status, Ordering::Relaxed);
        let prefix = self.prefix(&mut header);
        match prefix.is_empty() {
            true => send(&self.connection, header, body),
            false => send(&self.connection, header, &[&prefix, body].concat()),
        }
    }

    fn renewal(&self) -> Flags {
        if self.renews { Flags::RENEWS } else { Flags::empty() }
    }

    /// Counts how long it took since it came, without its waits for leases of others.
    fn answered(&self) -> Duration {
        let under_way = self.asked.timing.started.elapsed();
        let took = under_way.saturating_sub(Duration::from_nanos(self.waited.load(Ordering::Relaxed)));
        self.server.metrics.answered(self.op, took);
        self.trace(under_way);
        self.session.served(took);
        if let Some(job) = &self.asked.job {
            job.traffic.served.add(took.as_nanos() as u64);
        }
        took
    }

    fn note_duration(&self, kind: Kind) {
        if kind != Kind::Reply {
            return;
        }
        let took = self.answered();
        let most = self.server.config.limits.slow_operation;
        // What a server takes that is stopped itself is no disk's.
        let stopped = || self.server.pulse.missed(Instant::now()).saturating_sub(self.stopped);
        if took > most && took.saturating_sub(stopped()) > most {
            let (op, client) = (self.op.name(), &self.session.name);
            let job = self.job_told();
            let what =
                format_args!("a slow operation: the backing file system took {took:.1?} for {op} of {client}{job}");
            self.server.complaints.tell(&self.session.origin, Complaint::Slow, what);
        }
    }

    /// Remembers a reply for repeats of the request, and sends it. Only this one grants leases.
    fn reply_once(&self, kind: Kind, result: Result<(), Errno>, body: &[u8], granted: &Granted) {
        let header = reply_header(&self.header, kind, result);
        let Some(others) = self.remember(&header, body) else { return };
        self.send_granting(header, body, granted);
        self.note_duration(kind);
        others.iter().for_each(|asker| asker.answer(header, body));
    }

    /// Remembers a reply, and returns who else has asked for it; `None`: the server dies here,
    /// in a test.
    fn remember(&self, header: &Header, body: &[u8]) -> Option<Vec<Asker>> {
        if self.server.failpoint.dies(Moment::Executed) {
            return None;
        }
        let others = self.session.remember(&self.header, header, body);
        self.in_slot.store(false, Ordering::Relaxed);
        (!self.server.failpoint.dies(Moment::Remembered)).then_some(others)
    }

    fn send_granting(&self, header: Header, body: &[u8], granted: &Granted) {
        if granted.grants.is_empty() {
            return self.send(header, body);
        }
        let mut granting = Vec::with_capacity(body.len() + 2 + granted.grants.len() * 11 + ATTR_SIZE);
        aqueduct_wire::encode_grants(granted, &mut granting);
        granting.extend_from_slice(body);
        self.send(Header { flags: header.flags | Flags::GRANTS, ..header }, &granting);
    }

    fn status(&self) -> Result<(), Errno> {
        self.reply(Kind::Reply, Ok(()), self.server.status_json(&self.session.origin).as_bytes());
        Ok(())
    }

    fn recovered(&self) -> Result<(), Errno> {
        self.server.recovery.settle(self.session.id);
        if self.server.recovery.awaits_replays() {
            return Err(Errno::EAGAIN);
        }
        self.session.recovered(self.server.config.verifier);
        self.server.leases.settle(self.session.id);
        if self.server.failpoint.dies(Moment::Recovered) {
            return Ok(());
        }
        self.reply(Kind::Reply, Ok(()), &[]);
        Ok(())
    }

    async fn read(&self, attached: &Attached, body: &[u8]) -> Result<(), Errno> {
        let (caller, read) = aqueduct_wire::decode_read(body).map_err(|error| error.errno())?;
        let context = self.context(attached, caller);
        if self.look_at_open(attached, read.open).await?.is_none() {
            return Ok(());
        }
        let mut header = reply_header(&self.header, Kind::Reply, Ok(()));
        header.flags |= self.renewal();
        let sink = ReplySink { connection: self.connection.clone(), header, timing: self.timing() };
        let count = attached.filesystem.read(&context, read, Box::new(sink)).await?;
        self.count(count, 0);
        self.answered();
        Ok(())
    }

    async fn fetch(&self, attached: &Attached, body: &[u8]) -> Result<(), Errno> {
        let Some((fetched, stamp)) = self.fetch_looking(attached, body).await? else { return Ok(()) };
        let granted = self.granted((stamp, None), |grant| {
            fetched.grantable(&mut |of, handle, aspects| {
                grant(of, handle, aspects);
            })
        });
        self.count(fetched.read, 0);
        self.send_granting(reply_header(&self.header, Kind::Reply, Ok(())), &fetched.body, &granted);
        self.note_duration(Kind::Reply);
        Ok(())
    }

    /// Before a request is executed: writes down what will tell whether it was. False: it is left
    /// to the next process, or the server dies here, in a test.
    fn intend(&self, intent: Option<Vec<u8>>) -> bool {
        let failpoint = &self.server.failpoint;
        if failpoint.dies(Moment::Begun) {
            return false;
        }
        if let Some(intent) = intent.filter(|_| self.session.survives()) {
            self.session.intend(&self.header, &intent);
        }
        // Looked at only now: where nothing could be written down since the session was handed over
        // meanwhile, that is seen.
        !failpoint.dies(Moment::Intended) && !self.session.is_handed_over()
    }

    async fn call(&self, attached: &Attached, frame: Frame) -> Result<(), Errno> {
        let (caller, request) = aqueduct_wire::decode_request(self.op, &frame.body).map_err(|error| error.errno())?;
        let mut context = self.context(attached, caller);
        let filesystem = &*attached.filesystem;
        let reclaims = self.session.is_recovering() && matches!(request, Request::SetLock { wait: false, .. });
        if self.header.flags.contains(Flags::HELD) {
            return Box::pin(self.set_held(attached, &context, &request)).await;
        }
        self.count(0, 0);
        if !request.changes_state() || reclaims {
            let moment = match request {
                Request::Reopen { .. } => Some(Moment::Reopened),
                _ => reclaims.then_some(Moment::Reclaimed),
            };
            let Some((result, stamp)) = self.call_looking(attached, &context, &request).await? else { return Ok(()) };
            let granted = self.grants(attached, &request, &result, (stamp, None)).await;
            if !moment.is_some_and(|moment| self.server.failpoint.dies(moment)) {
                self.finish(Kind::Reply, result, false, &granted);
            }
            return Ok(());
        }
        let mut in_grace = self.waits_for_grace(&request);
        match self.admit().await? {
            None => return Ok(()),
            Some(Try::First { .. }) => {}
            Some(Try::AfterRestart(record)) => {
                let is_of_before = self.session.is_of_before(&record);
                match Box::pin(repeat::repeat(filesystem, &context, &request, record)).await {
                    Repeat::Execute => in_grace = false, // a lock that it had
                    Repeat::Answer(result) => {
                        let before = (result, is_of_before);
                        if let Some(result) = Box::pin(self.as_before(attached, &context, &request, before)).await {
                            self.finish(Kind::Reply, result, true, &Granted::default());
                        }
                        return Ok(());
                    }
                }
            }
        }
        match request {
            Request::SetLock { open, owner, space, lock, wait } if in_grace || wait => {
                // What waits keeps neither its frame, whose room others need, nor the caller's groups, for which no lock asks.
                drop((frame, std::mem::take(&mut *aqueduct_worker::lock(&self.room))));
                context.credential.groups = Groups::Known([].into());
                let request = Request::SetLock { open, owner, space, lock, wait };
                Box::pin(self.wait_for_lock(filesystem, &context, request, in_grace)).await;
            }
            request => {
                self.share_released(attached, &request).await;
                let mut change = self.change();
                if let Some(done) = self.call_once(attached, &context, &request, (&mut change, true)).await {
                    let Done { result, stamp, names } = done;
                    let mut granted = self.grants(attached, &request, &result, (stamp, Some(&change))).await;
                    if let Ok(reply) = &result {
                        self.tell_changed((attached, &context), &request, &change, &mut granted).await;
                        self.tell_bare((attached, &context), (&request, reply), &mut granted).await;
                    }
                    drop(change);
                    self.finish(Kind::Reply, result, true, &granted);
                    drop(names);
                }
            }
        }
        Ok(())
    }

    /// What a request came to that an earlier process executed: if that was before the machine lost
    /// what clients had written, it may have to be cut off again.
    async fn as_before(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
        (result, is_of_before): (Result<Reply, Errno>, bool),
    ) -> Option<Result<Reply, Errno>> {
        let cut = result.as_ref().ok().filter(|_| is_of_before);
        let Some(cut) = cut.and_then(|reply| repeat::cut_again(request, reply)) else { return Some(result) };
        let mut change = self.change();
        let done = self.call_once(attached, context, &cut, (&mut change, false)).await?;
        Some(done.result.and(result))
    }

    /// Executes what changes something, when nobody else keeps what it changes, and what will tell
    /// that it was, if that `survives`, is written down. `None`: it is not executed, and not
    /// answered.
    async fn call_once(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
        (change, survives): (&mut Change<'_>, bool),
    ) -> Option<Done<'_>> {
        loop {
            match self.try_call(attached, context, request, (change, survives)).await {
                Ok(done) => return Some(done),
                Err(Undone::Dies) => return None,
                Err(Undone::Waits) => {}
            }
            if !self.is_woken(change).await {
                return None;
            }
        }
    }

    async fn try_call(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
        (change, survives): (&mut Change<'_>, bool),
    ) -> Result<Done<'_>, Undone> {
        let filesystem = &*attached.filesystem;
        let is_noted = survives && self.session.survives();
        let names = match self.server.keeps_sessions() {
            true => self.server.exclusion.names(&self.server.leases, filesystem, request).await,
            false => ExcludedNames::default(),
        };
        let truncates = matches!(request, Request::Create { flags, .. } if flags.contains(OpenFlags::TRUNCATE));
        let looks_up = truncates && self.server.keeps_sessions();
        let found = match self.server.leases.watches() || is_noted || looks_up {
            true => Found::of(filesystem, context, request).await,
            false => Found::default(),
        };
        let touched = match self.tells_changes(attached) {
            true => self.toucher(attached).of(request, &found).await,
            false => Ok(Touched::default()),
        };
        let touched = match touched {
            Ok(touched) => touched,
            Err(error) => return Ok(Done { result: Err(error), stamp: 0, names }),
        };
        match change.try_begin(&touched) {
            Verdict::Go => {}
            Verdict::Wait => return Err(Undone::Waits),
            Verdict::Late => return Ok(Done { result: Err(Errno::ESTALE), stamp: 0, names }),
        }
        let _appends_wait = self.resizes(filesystem, context, request, &found).await;
        let intent = match is_noted {
            true => intent::of(filesystem, context, request, &found).await,
            false => None,
        };
        if self.session.is_handed_over() || survives && !self.intend(intent) {
            return Err(Undone::Dies);
        }
        let stamp = self.server.leases.stamp();
        let result = filesystem.call(context, request.clone()).await;
        Ok(Done { result, stamp, names })
    }

    /// A change that this request is going to make.
    fn change(&self) -> Change<'_> {
        self.server.leases.change(self.session.client(), false)
    }

    /// Whether what this request changes is of interest to others. Where nothing may be written,
    /// nothing is.
    fn tells_changes(&self, attached: &Attached) -> bool {
        self.server.leases.watches() && !attached.is_read_only()
    }

    /// What knows what this request changes and looks at.
    fn toucher<'a>(&'a self, attached: &'a Attached) -> Toucher<'a> {
        let (filesystem, client, leases) = (&*attached.filesystem, self.session.client(), &self.server.leases);
        // Who recovers opens what he had open, and others may wait for him.
        let looks = leases.may_hold_back() && !self.session.is_recovering();
        Toucher { filesystem, client, leases, looks }
    }

    /// A change that has begun, when nobody else keeps what it changes; `None`: the session or the server has ended before. ESTALE: what was held back is not
    /// written any more.
    async fn begin<'a>(&self, mut change: Change<'a>, touched: &Touched) -> Option<Result<Change<'a>, Errno>> {
        loop {
            match change.try_begin(touched) {
                Verdict::Go => return Some(Ok(change)),
                Verdict::Late => return Some(Err(Errno::ESTALE)),
                Verdict::Wait => {}
            }
            if !self.is_woken(&change).await {
                return None;
            }
        }
    }

    /// Waits until a change is worth trying again. What waits is not under way: a server that ends does not wait for it. False: nobody does any more.
    async fn is_woken(&self, change: &Change<'_>) -> bool {
        self.is_wanted_after(change.woken()).await
    }

    /// Waits for somebody else, as something that is not under way. False: nobody wants the
    /// request executed any more.
    async fn is_wanted_after(&self, wait: impl Future<Output = ()>) -> bool {
        if !self.is_wanted() {
            return false;
        }
        let since = Instant::now();
        lock(&self.room).wait(&self.server.waiting);
        self.server.executing.fetch_sub(1, Ordering::SeqCst);
        wait.await;
        self.server.executing.fetch_add(1, Ordering::SeqCst);
        let waited = since.elapsed();
        self.waited.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        self.server.metrics.lease_wait.record_duration(waited);
        self.session.counters.own.lease_wait.add(waited.as_nanos() as u64);
        self.is_wanted()
    }

    /// The leases that go with a result, if the client asks for any: on what was looked at after the stamp was taken.
    async fn grants(
        &self,
        attached: &Attached,
        request: &Request<'_>,
        result: &Result<Reply, Errno>,
        looked: (u64, Option<&Change<'_>>),
    ) -> Granted {
        let listed = match *request {
            Request::ReadDirectory { open, .. } if self.asks_leases() && result.is_ok() => {
                attached.filesystem.inode(self.session.client(), open).await.ok()
            }
            _ => None,
        };
        self.granted(looked, |grant| {
            let written = touch::opened_for_writing(request, result).filter(|_| self.asks_exclusive());
            if !written.is_some_and(|file| grant(Subject::Inode, file, EXCLUSIVE)) {
                touch::grantable(listed.as_ref(), request, result, &mut |of, handle, aspects| {
                    grant(of, handle, aspects);
                });
            }
        })
    }

    /// Who closes a file says that he holds nothing back of it any more: others share it with him from now on.
    async fn share_released(&self, attached: &Attached, request: &Request<'_>) {
        let (leases, client) = (&self.server.leases, self.session.client());
        if let Request::Release { open } = *request
            && self.header.flags.contains(Flags::EXCLUSIVE)
            && let Ok(file) = attached.filesystem.inode(client, open).await
        {
            leases.share(client, leases.key(&*attached.filesystem, file.bytes()));
        }
    }

    fn asks_leases(&self) -> bool {
        self.renews && self.header.flags.contains(Flags::LEASES)
    }

    fn asks_exclusive(&self) -> bool {
        self.header.flags.contains(Flags::EXCLUSIVE) && self.server.leases.admit_writes(&self.session)
    }

    /// The leases that are granted of those that `ask` asks for.
    fn granted(
        &self,
        (stamp, change): (u64, Option<&Change<'_>>),
        ask: impl FnOnce(&mut dyn FnMut(Subject, &[u8], Aspects) -> bool),
    ) -> Granted {
        let mut grants = Vec::new();
        let asks = self.asks_leases();
        let Some(attached) = self.session.attached.get().filter(|_| asks) else { return Granted::default() };
        let (leases, client) = (&self.server.leases, self.session.client());
        ask(&mut |subject, handle, aspects| {
            let key = leases.key(&*attached.filesystem, handle);
            let looked = Looked { stamp, own: change.map_or(Aspects::empty(), |change| change.of(key)) };
            let granted = leases.grant(client, (key, aspects), looked);
            grants.extend(granted.map(|(lease, aspects)| Grant { subject, aspects, lease }));
            granted.is_some()
        });
        Granted { grants, changed: None }
    }

    /// Whoever makes or removes a name is likely to look at its directory next, whose times that has changed: tells of it, under a lease.
    async fn tell_changed(
        &self,
        (attached, context): (&Attached, &Context),
        request: &Request<'_>,
        change: &Change<'_>,
        granted: &mut Granted,
    ) {
        let Some(handle) = touch::directory_changed(request).filter(|_| self.asks_leases()) else { return };
        let stamp = self.server.leases.stamp();
        let look = attached.filesystem.call(context, Request::GetAttr { handle, open: None });
        let Ok(Reply::Attr(attr)) = look.await else { return };
        let of_directory =
            self.granted((stamp, Some(change)), |grant| _ = grant(Subject::Changed, handle, Aspects::ATTRIBUTES));
        if !of_directory.grants.is_empty() {
            granted.grants.extend(of_directory.grants);
            granted.changed = Some(attr);
        }
    }

    /// Whoever makes something may be asked by his kernel whether it has an access control list: says that it has none, under the lease on it.
    async fn tell_bare(
        &self,
        (attached, context): (&Attached, &Context),
        (request, reply): (&Request<'_>, &Reply),
        granted: &mut Granted,
    ) {
        let (Reply::Entry(Entry { handle, attr }) | Reply::Created(Entry { handle, attr }, _)) = reply else { return };
        let of_inode = granted.grants.iter_mut().find(|grant| grant.subject == Subject::Inode);
        let Some(grant) = of_inode.filter(|_| self.header.flags.contains(Flags::BARE)) else { return };
        let may_be_old = matches!(request, Request::Create { flags, .. } if !flags.contains(OpenFlags::EXCLUSIVE));
        // Directories have no capabilities, what is new has none, and only directories have a list for what is made in them.
        let second: Option<&[u8]> = match attr.is_directory() {
            true => Some(b"system.posix_acl_default"),
            false => may_be_old.then_some(b"security.capability"),
        };
        for name in [&b"system.posix_acl_access"[..]].into_iter().chain(second) {
            let look = Request::GetXattr { handle: handle.bytes(), name, size: 0 };
            if attached.filesystem.call(context, look).await != Err(Errno::ENODATA) {
                return;
            }
        }
        grant.subject = Subject::Bare;
    }

    /// Whether a request takes a lock that others, of before a restart, have not said yet whether they hold.
    fn waits_for_grace(&self, request: &Request<'_>) -> bool {
        takes_lock(request) && !self.server.recovery.is_over() && !self.session.is_recovering()
    }

    /// Replies with the result of a call, remembering it if the request changed something.
    fn finish(&self, kind: Kind, result: Result<Reply, Errno>, changes: bool, granted: &Granted) {
        let mut body = Vec::new();
        if let Ok(reply) = &result {
            aqueduct_wire::encode_reply(reply, &mut body);
        } else if self.op == Op::SetLock && matches!(result, Err(Errno::EBUSY)) {
            let client = &self.session.name;
            let what = format_args!(
                "refused {client} the shared memory of a database (SQLite's write-ahead log, LMDB), which another client has mapped: see 'aqueduct status --locks'"
            );
            self.server.complaints.tell(&self.session.origin, Complaint::Shared, what);
        }
        let result = result.map(|_| ());
        if changes {
            self.reply_once(kind, result, &body, granted);
        } else {
            self.send_granting(reply_header(&self.header, kind, result), &body, granted);
            self.note_duration(kind);
        }
    }

    /// Executes one request of several.
    async fn call_part(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
    ) -> Option<Result<Reply, Errno>> {
        if !request.changes_state() {
            let looked = self.call_looking(attached, context, request).await.transpose()?;
            return Some(looked.and_then(|(result, _)| result));
        }
        let mut change = self.change();
        Some(self.call_once(attached, context, request, (&mut change, false)).await?.result)
    }

    /// Several requests in one frame, one after another until one fails.
    async fn compound(&self, attached: &Attached, body: &[u8]) -> Result<(), Errno> {
        let (caller, requests) = aqueduct_wire::decode_compound(body).map_err(|error| error.errno())?;
        let context = self.context(attached, caller);
        match self.admit().await? {
            None => return Ok(()),
            Some(Try::First { .. }) => {
                if !self.intend(Some(intent::of_compound(&context))) {
                    return Ok(());
                }
            }
            Some(Try::AfterRestart(_)) => {
                // Which of its parts were executed, and what they opened, nobody knows any more.
                self.finish(Kind::Reply, Err(Errno::EIO), true, &Granted::default());
                return Ok(());
            }
        }
        let mut results = Vec::new();
        let mut latest = Latest::default();
        for request in requests {
            let result = match latest.substitute(request) {
                Request::SetLock { wait: true, .. } => Err(Errno::EINVAL), // nothing in a compound may wait
                request if self.waits_for_grace(&request) => Err(Errno::EAGAIN),
                request => match self.call_part(attached, &context, &request).await {
                    Some(result) => result,
                    None => return Ok(()),
                },
            };
            self.count(0, 0);
            let failed = result.is_err();
            if let Ok(reply) = &result {
                latest.note(reply);
            }
            results.push(result);
            if failed {
                break;
            }
        }
        let mut body = Vec::new();
        aqueduct_wire::encode_compound_reply(&results, &mut body);
        self.reply_once(Kind::Reply, Ok(()), &body, &Granted::default());
        Ok(())
    }
}

/// Whether a request takes a lock.
fn takes_lock(request: &Request<'_>) -> bool {
    matches!(request, Request::SetLock { lock, .. } if lock.kind != LockKind::Unlock)
}
