//! The leases of a server: the machines of all shards, who holds leases, and the requests that wait for them. No lock is held while anybody waits.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_fs::{Aspects, ClientId, Errno, FileSystem};
use aqueduct_metrics::{Counter, Snapshot, table};
use aqueduct_wire::{LeaseId, Right};
use aqueduct_worker::{Group, lock};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::clock::now;
use super::hold::Hold;
use super::holder::{Holder, Holders};
use super::touched::{LOOK, TOUCHED_MAX, Touched};
use super::{
    Action, Clients, InodeKey, Leases, Limits, Looked, Now, SHARDS, Stamps, Verdict, Waiter, Wanted, shard_of,
};
use crate::right::Drawn;
use crate::session::Session;

/// What falls due is looked at together, as timers are this coarse.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Sessions of an earlier process that have to recover before others go on.
#[derive(Default)]
pub(crate) struct Believers {
    /// Those that had leases.
    pub(crate) missing: HashSet<u64>,
    /// Those that may have held something back, and may still send it.
    pub(crate) writers: HashSet<u64>,
    /// For how long they may believe what they were granted.
    pub(crate) patience: Duration,
}

/// The server around its leases.
pub(crate) trait Surroundings: Send + Sync {
    /// The leases themselves.
    fn leases(&self) -> &Keeper;

    /// Whose threads work for it.
    fn group(&self) -> &Arc<Group>;

    /// Asks a client for leases.
    fn recall(&self, client: ClientId, leases: &[LeaseId]);

    /// Has the rights on an inode end; [`Keeper::revoked`] follows when they have.
    fn revoke(self: Arc<Self>, inode: InodeKey);

    /// What this session held back before the restart is not waited for any more.
    fn lose(&self, session: u64);

    /// What ended sessions were granted may have lapsed.
    fn forget_lapse(&self);
}

/// Leases, since the start.
#[derive(Default)]
struct Counters {
    granted: Counter,
    recalled: Counter,
    returned: Counter,
    broken: Counter,
}

/// See the module.
pub(crate) struct Keeper {
    limits: Limits,
    /// Leases are granted: sessions outlive the process, so that the next one knows who had some.
    is_on: OnceLock<()>,
    /// Of SipHash, which makes the keys of inodes. They are secret, so that no client can choose
    /// files whose keys are the same.
    hash_keys: [u64; 2],
    stamps: Arc<Stamps>,
    shards: [Mutex<Leases>; SHARDS],
    holders: Holders,
    signals: Mutex<HashMap<Waiter, Arc<Signal>>>,
    waiters: AtomicU64,
    counters: Counters,
    /// After a restart nobody changes anything.
    hold: Hold,
    /// After a restart nobody looks at anything either, or changes it.
    hold_of_looks: Hold,
    /// A task ticks.
    is_ticking: AtomicBool,
    around: Weak<dyn Surroundings>,
}

impl Keeper {
    pub(crate) fn new(limits: Limits, around: Weak<dyn Surroundings>) -> Keeper {
        let stamps = Arc::new(Stamps::default());
        Keeper {
            is_on: OnceLock::new(),
            hash_keys: [(); 2].map(|()| RandomState::new().hash_one(())),
            shards: std::array::from_fn(|shard| Mutex::new(Leases::new(limits.clone(), shard, stamps.clone()))),
            stamps,
            limits,
            holders: Holders::default(),
            signals: Mutex::default(),
            waiters: AtomicU64::new(0),
            counters: Counters::default(),
            hold: Hold::default(),
            hold_of_looks: Hold::default(),
            is_ticking: AtomicBool::new(false),
            around,
        }
    }

    /// Begins to grant leases, if they last at all; but first these sessions of an earlier process have to recover, for which they have so long, and what
    /// other sessions had has to lapse. (What those held back, nobody can send any more.)
    pub(crate) fn start(&self, believers: Believers, lapsed_at: Now) {
        let (now, Believers { missing, writers, patience }) = (now(), believers);
        let until = now + patience;
        let mut looks = self.hold.begin(missing, until, lapsed_at, now);
        looks.extend(self.hold_of_looks.begin(writers, until, Now::ZERO, now));
        for at in looks {
            self.look_later(at);
        }
        if !self.limits.lease.is_zero() {
            self.is_on.get_or_init(|| ());
        }
    }

    fn look_later(&self, at: Now) {
        self.later(at, |around| {
            around.leases().look_at_holds();
            around.forget_lapse();
        });
    }

    /// Servers of data may still write under rights that an earlier process gave. Until
    /// [`admit_all`](Keeper::admit_all) no client looks at anything, changes anything, or writes
    /// what it held back.
    pub(crate) fn bar(&self) {
        self.hold.bar();
        self.hold_of_looks.bar();
    }

    /// They do not.
    pub(crate) fn admit_all(&self) {
        for hold in [&self.hold, &self.hold_of_looks] {
            self.look_later(hold.admit(now()));
        }
        self.look_at_holds();
    }

    /// Whether leases are granted.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get().is_some()
    }

    /// Whether changes have to be told.
    pub(crate) fn watches(&self) -> bool {
        self.is_on() || self.hold.is_on() || self.hold_of_looks.is_on()
    }

    /// Whether any client may hold back what it writes: else nobody has to look out for that.
    pub(crate) fn may_hold_back(&self) -> bool {
        self.stamps.may_hold_back() || self.hold_of_looks.is_on()
    }

    /// Whether what was looked at by a name, after the stamp was taken, may lack what another client held back then.
    pub(crate) fn hides(&self, by: ClientId, inode: InodeKey, stamp: u64) -> bool {
        lock(&self.shards[inode.shard()]).hides(by, inode, stamp)
    }

    /// How long leases last.
    pub(crate) fn lease(&self) -> Duration {
        if self.is_on() { self.limits.lease } else { Duration::ZERO }
    }

    /// So long after its last request, a client may still believe what it was granted.
    pub(crate) fn silence_max(&self) -> Duration {
        self.limits.silence_max()
    }

    /// The same for all exports through which an inode is found.
    pub(crate) fn key(&self, filesystem: &dyn FileSystem, handle: &[u8]) -> InodeKey {
        let name = match filesystem.inode_name(handle) {
            Some((of, name)) => (Some(of), name),
            None => (None, handle),
        };
        let [one, other] = self.hash_keys;
        let mut hasher = SipHasher13::new_with_keys(one, other);
        name.hash(&mut hasher);
        InodeKey(hasher.finish128().as_u128())
    }

    /// To be taken before anything is looked at that leases are granted on.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamps.take()
    }

    /// A client asks for leases from now on.
    pub(crate) fn admit(&self, session: &Arc<Session>) -> Arc<Holder> {
        let holder = session.holder.get_or_init(|| {
            let noted: Weak<Session> = Arc::downgrade(session);
            let holder = Arc::new(Holder::new(noted));
            self.holders.insert(session.client(), holder.clone());
            holder
        });
        holder.clone()
    }

    /// A request of a client has come that asks for leases. Whether its reply renews them.
    pub(crate) fn renew(&self, session: &Session) -> bool {
        // The next process has to know of those who believe what this one grants.
        session.holder.get().is_some_and(|holder| holder.renew(now())) && session.survives()
    }

    /// A client asks for exclusive leases. Whether it may have any.
    pub(crate) fn admit_writes(&self, session: &Session) -> bool {
        // The next process has to wait for what it holds back.
        session.holder.get().is_some_and(|holder| {
            holder.writes.get_or_init(|| session.note_writes());
            session.survives()
        })
    }

    /// Grants a client a lease.
    pub(crate) fn grant(
        &self,
        client: ClientId,
        what: (InodeKey, Aspects),
        looked: Looked,
    ) -> Option<(LeaseId, Aspects)> {
        if what.1.contains(Aspects::WRITES) && self.awaits_believers() {
            return None;
        }
        let mut actions = Vec::new();
        let granted = lock(&self.shards[what.0.shard()]).grant(client, what, looked, now(), &mut actions);
        self.perform(actions);
        self.counters.granted.add(granted.is_some().into());
        granted
    }

    /// Whether who has not recovered may still believe what it had.
    fn awaits_believers(&self) -> bool {
        self.hold.is_on() || self.hold_of_looks.is_on()
    }

    /// Grants a client a lease to write beside others, within its change of that.
    pub(crate) fn grant_concurrent(&self, client: ClientId, inode: InodeKey) -> Option<(LeaseId, Aspects)> {
        if self.awaits_believers() {
            return None;
        }
        let mut actions = Vec::new();
        let granted = lock(&self.shards[inode.shard()]).grant_concurrent(client, inode, now(), &mut actions);
        self.perform(actions);
        self.counters.granted.add(granted.is_some().into());
        granted
    }

    /// Whether a client may write an inode beside others.
    pub(crate) fn shares(&self, client: ClientId, inode: InodeKey) -> bool {
        lock(&self.shards[inode.shard()]).shares(client, inode)
    }

    /// A session from before the restart sends what it held back. ESTALE: it may not any more.
    /// EAGAIN: not yet, since a server of data may still write what the session sent there.
    pub(crate) fn flush(&self, session: u64) -> Result<Flush<'_>, Errno> {
        if self.hold_of_looks.is_barred() {
            return Err(Errno::EAGAIN);
        }
        self.hold_of_looks.flush(session, now()).then(|| Flush(self)).ok_or(Errno::ESTALE)
    }

    /// A client is about to be given a right on an inode at a server of data: the right, if it may
    /// be.
    pub(crate) fn give_right(&self, client: ClientId, inode: InodeKey, drawn: &Drawn) -> Option<Right> {
        lock(&self.shards[inode.shard()]).give_right(client, inode, drawn)
    }

    /// In which tenure several clients write an inode; 0: none has a right yet.
    pub(crate) fn tenure(&self, inode: InodeKey) -> u64 {
        lock(&self.shards[inode.shard()]).tenure(inode)
    }

    /// Nothing is executed any more of the rights on an inode that were to end.
    pub(crate) fn revoked(&self, inode: InodeKey) {
        let mut actions = Vec::new();
        lock(&self.shards[inode.shard()]).revoked(inode, now(), &mut actions);
        self.perform(actions);
    }

    /// A change that the client is going to make, or a look. `passes_hold`: it cannot wait for the end of a hold, which waits for it.
    pub(crate) fn change(&self, by: ClientId, passes_hold: bool) -> Change<'_> {
        Change {
            keeper: self,
            by,
            passes_hold,
            parts: Default::default(),
            waiter: None,
            signal: None,
            tried: Now::ZERO,
        }
    }

    /// Whether a change or look may be made. Whose lease is broken by it is noted before anybody else can ask: with the shard's lock held, which happens once
    /// to a client that is away.
    fn ask(&self, wanted: &Wanted, now: Now, actions: &mut Vec<Action>) -> Verdict {
        let (mut shard, before) = (lock(&self.shards[wanted.inode.shard()]), actions.len());
        let verdict = match wanted.aspects {
            LOOK => shard.look(wanted, now, actions),
            _ => shard.begin(wanted, now, actions),
        };
        for action in &actions[before..] {
            if let Action::Broken { client, .. } = action {
                self.counters.broken.increment();
                self.holders.get(*client).iter().for_each(|holder| holder.note_broken(true));
            }
        }
        verdict
    }

    /// A client gives leases back.
    pub(crate) fn returned(&self, client: ClientId, leases: &[LeaseId]) {
        self.counters.returned.add(leases.len() as u64);
        let mut actions = Vec::new();
        for lease in leases {
            let mut shard = lock(&self.shards[shard_of(*lease)]);
            shard.returned(client, *lease, &self.holders, &mut actions);
        }
        self.perform(actions);
    }

    /// A client holds nothing back of a file any more.
    pub(crate) fn share(&self, client: ClientId, inode: InodeKey) {
        let mut actions = Vec::new();
        lock(&self.shards[inode.shard()]).share(client, inode, &mut actions);
        self.perform(actions);
    }

    /// Somebody who does not wait has changed something.
    pub(crate) fn changed(&self, filesystem: &dyn FileSystem, handle: &[u8], aspects: Aspects) {
        let (key, mut actions) = (self.key(filesystem, handle), Vec::new());
        lock(&self.shards[key.shard()]).changed(key, aspects, now(), &mut actions);
        self.perform(actions);
    }

    /// The same, of anything.
    pub(crate) fn changed_everything(&self) {
        for shard in &self.shards {
            let mut actions = Vec::new();
            lock(shard).changed_everything(now(), &mut actions);
            self.perform(actions);
        }
    }

    /// All that a client was asked for, and has not given back.
    pub(crate) fn recalled(&self, session: &Session) -> Vec<LeaseId> {
        if session.holder.get().is_none() {
            return Vec::new();
        }
        self.shards.iter().flat_map(|shard| lock(shard).recalled(session.client())).collect()
    }

    /// A session has ended, and nothing of it is executed any more. `is_done`: its client uses nothing any more. Else until when it might, if it might:
    /// so long its leases stay.
    pub(crate) fn ended(&self, session: &Session, is_done: bool) -> Option<Now> {
        if let Some(until) = self.hold.awaits(session.id).filter(|_| !is_done) {
            return Some(until); // of what an earlier process granted
        }
        let holder = session.holder.get().filter(|holder| !holder.departs.swap(true, Ordering::SeqCst))?;
        let until = holder.renewed() + self.silence_max();
        let client = session.client();
        if is_done || now() >= until {
            self.depart(client);
            return None;
        }
        self.later(until, move |around| {
            around.leases().depart(client);
            around.forget_lapse();
        });
        Some(until)
    }

    fn depart(&self, client: ClientId) {
        for shard in &self.shards {
            let mut actions = Vec::new();
            lock(shard).depart(client, &self.holders, &mut actions);
            self.perform(actions);
        }
        self.holders.remove(client);
    }

    /// A session has forgotten what an earlier process granted it.
    pub(crate) fn settle(&self, session: u64) {
        self.settled(self.hold.settle(session, now(), |_| {}));
        self.settled(self.hold_of_looks.settle(session, now(), |missing| self.lose(missing)));
    }

    fn look_at_holds(&self) {
        self.settled(self.hold.look(now(), |_| {}));
        self.settled(self.hold_of_looks.look(now(), |missing| self.lose(missing)));
    }

    fn settled(&self, is_over: bool) {
        if is_over && !self.hold.is_on() && !self.hold_of_looks.is_on() {
            tracing::info!("nobody holds leases of before the restart any more");
        }
        if is_over {
            lock(&self.signals).values().for_each(|signal| signal.raise());
        }
    }

    /// What these held back before the restart is not waited for any more.
    fn lose(&self, missing: &HashSet<u64>) {
        let Some(around) = self.around.upgrade() else { return };
        missing.iter().for_each(|session| around.lose(*session));
    }

    /// Has the requests of a session that has ended wait no more.
    pub(crate) fn wake_all_of(&self, client: ClientId) {
        lock(&self.signals).values().filter(|signal| signal.client == client).for_each(|signal| signal.raise());
    }

    /// How many leases there are, how many were recalled since the start, and how many changes wait for any.
    pub(crate) fn counts(&self) -> (usize, u64, usize) {
        let leases = self.shards.iter().map(|shard| lock(shard).len()).sum();
        (leases, self.counters.recalled.get(), lock(&self.signals).len())
    }

    pub(crate) fn collect(&self, into: &mut Snapshot) {
        let (leases, _, waiters) = self.counts();
        into.put_number(&table::SERVER_LEASES, &[], leases as u64);
        into.put_number(&table::SERVER_LEASE_WAITERS, &[], waiters as u64);
        into.put(&table::SERVER_LEASES_GRANTED, &[], &self.counters.granted);
        into.put(&table::SERVER_LEASES_RECALLED, &[], &self.counters.recalled);
        into.put(&table::SERVER_LEASES_RETURNED, &[], &self.counters.returned);
        into.put(&table::SERVER_LEASES_BROKEN, &[], &self.counters.broken);
    }

    fn perform(&self, actions: Vec<Action>) {
        let mut recalls: Vec<(ClientId, Vec<LeaseId>)> = Vec::new();
        for action in actions {
            match action {
                Action::Recall { client, lease } => match recalls.iter_mut().find(|(other, _)| *other == client) {
                    Some((_, leases)) => leases.push(lease),
                    None => recalls.push((client, vec![lease])),
                },
                Action::Broken { .. } => {} // see `ask`
                Action::Revoke { inode } => self.around.upgrade().into_iter().for_each(|around| around.revoke(inode)),
                Action::Wake { waiter } => {
                    let signal = lock(&self.signals).get(&waiter).cloned();
                    signal.iter().for_each(|signal| signal.raise());
                }
            }
        }
        if recalls.is_empty() {
            return;
        }
        let group = self.around.upgrade().map(|around| around.group().clone());
        // Who is away need not be waited for until somebody looks.
        if recalls.iter().any(|(client, _)| self.holders.is_suspended(*client)) {
            self.later(now(), |around| _ = around.leases().tick_shards());
        }
        for (client, leases) in recalls {
            self.counters.recalled.add(leases.len() as u64);
            if let Some(group) = group.as_ref().filter(|_| self.holders.get(client).is_some()) {
                // By a task, since whoever changes holds names for himself, and a peer that does not read holds up who sends.
                let around = self.around.clone();
                group.spawn(async move {
                    if let Some(around) = around.upgrade() {
                        around.recall(client, &leases);
                    }
                });
            }
        }
        self.tick_later();
    }

    /// Does something at a time.
    fn later(&self, at: Now, what: impl FnOnce(&dyn Surroundings) + Send + 'static) {
        let Some(group) = self.around.upgrade().map(|around| around.group().clone()) else { return };
        let (around, pause) = (self.around.clone(), group.sleep(at.saturating_sub(now())));
        group.spawn(async move {
            pause.await;
            if let Some(around) = around.upgrade() {
                what(&*around);
            }
        });
    }

    /// Has somebody look after what was asked for, unless somebody does.
    fn tick_later(&self) {
        if self.is_ticking.swap(true, Ordering::SeqCst) {
            return;
        }
        let Some(group) = self.around.upgrade().map(|around| around.group().clone()) else { return };
        let around = self.around.clone();
        group.spawn(async move {
            loop {
                let next = |around: Arc<dyn Surroundings>| Some(around.group().sleep(around.leases().tick()?));
                let Some(pause) = around.upgrade().and_then(next) else { return };
                pause.await;
            }
        });
    }

    /// How long until there is something to look after; `None`: nothing is, and whoever asks for a lease next ticks again.
    fn tick(&self) -> Option<Duration> {
        self.tick_shards().or_else(|| {
            self.is_ticking.store(false, Ordering::SeqCst);
            // Looked at after the flag fell: who asks later begins anew.
            self.tick_shards().filter(|_| !self.is_ticking.swap(true, Ordering::SeqCst))
        })
    }

    fn tick_shards(&self) -> Option<Duration> {
        let mut next: Option<Now> = None;
        for shard in &self.shards {
            let mut actions = Vec::new();
            let at = lock(shard).tick((now(), &self.holders), &mut actions);
            self.perform(actions);
            next = next.into_iter().chain(at).min();
        }
        // What is asked for while nobody looks falls due later than this.
        next.map(|at| at.saturating_sub(now()).min(self.limits.answer).max(TICK_MIN))
    }
}

/// What was held back before a restart is being written; others look when it has been.
pub(crate) struct Flush<'a>(&'a Keeper);

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.0.hold_of_looks.flushed();
        self.0.look_at_holds();
    }
}

/// Raised when it is worth trying again.
struct Signal {
    client: ClientId,
    state: Mutex<SignalState>,
}

#[derive(Default)]
struct SignalState {
    raised: bool,
    waker: Option<Waker>,
}

impl Signal {
    fn raise(&self) {
        let mut state = lock(&self.state);
        state.raised = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, task: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.raised) {
            return Poll::Ready(());
        }
        state.waker = Some(task.waker().clone());
        Poll::Pending
    }
}

/// A change or a look that is about to be made, is being made, or waits: it ends when it is dropped.
pub(crate) struct Change<'a> {
    keeper: &'a Keeper,
    by: ClientId,
    passes_hold: bool,
    parts: [Option<Part>; TOUCHED_MAX],
    waiter: Option<Waiter>,
    signal: Option<Arc<Signal>>,
    /// When it was tried last: time enough for its end, too.
    tried: Now,
}

#[derive(Clone, Copy)]
struct Part {
    inode: InodeKey,
    aspects: Aspects,
    /// Else it waits.
    has_begun: bool,
}

impl Change<'_> {
    /// Whether what is touched may be changed or looked at now. If it has to wait, it is worth trying again when [`woken`](Change::woken) ends; nobody is
    /// granted any of it meanwhile.
    pub(crate) fn try_begin(&mut self, touched: &Touched) -> Verdict {
        if self.is_held(touched) {
            // Listened for before the look: who ends the hold in between is heard.
            self.listen();
            if self.is_held(touched) {
                return Verdict::Wait;
            }
        }
        match self.begin(touched) {
            Verdict::Wait if self.signal.is_none() => {
                self.listen();
                self.begin(touched)
            }
            verdict => verdict,
        }
    }

    fn is_held(&self, touched: &Touched) -> bool {
        let Keeper { hold, hold_of_looks, .. } = self.keeper;
        !self.passes_hold
            && *touched != Touched::default()
            && (hold_of_looks.is_on() || hold.is_on() && touched.changes())
    }

    fn waiter(&mut self) -> Waiter {
        let waiters = &self.keeper.waiters;
        *self.waiter.get_or_insert_with(|| Waiter(waiters.fetch_add(1, Ordering::Relaxed)))
    }

    fn listen(&mut self) {
        let (waiter, client) = (self.waiter(), self.by);
        let signals = &self.keeper.signals;
        self.signal.get_or_insert_with(|| {
            let signal = Arc::new(Signal { client, state: Mutex::default() });
            lock(signals).insert(waiter, signal.clone());
            signal
        });
    }

    fn begin(&mut self, touched: &Touched) -> Verdict {
        if *touched == Touched::default() && self.waiter.is_none() {
            return Verdict::Go;
        }
        // What its names lead to may be something else by now.
        self.give_back(|part| touched.iter().any(|wanted| wanted == (part.inode, part.aspects)));
        let (mut all, mut actions, now) = (Verdict::Go, Vec::new(), now());
        self.tried = now;
        for (inode, aspects) in touched.iter() {
            let waiter = self.waiter();
            let known = self.parts.iter().position(|part| part.is_some_and(|part| part.inode == inode));
            let Some(at) = known.or_else(|| self.parts.iter().position(Option::is_none)) else { continue };
            if self.parts[at].is_some_and(|part| part.has_begun) {
                continue;
            }
            let wanted = Wanted { inode, aspects, by: self.by, waiter };
            let verdict = self.keeper.ask(&wanted, now, &mut actions);
            let has_begun = verdict == Verdict::Go;
            // A look has no end; should others have to wait, it is made once more.
            self.parts[at] = (aspects != LOOK || !has_begun).then_some(Part { inode, aspects, has_begun });
            if !has_begun {
                all = verdict;
            }
        }
        self.keeper.perform(actions);
        all
    }

    /// Ends when it is worth trying again.
    pub(crate) async fn woken(&self) {
        let Some(signal) = &self.signal else { return };
        std::future::poll_fn(|task| signal.poll(task)).await;
    }

    /// What of an inode is being changed.
    pub(crate) fn of(&self, inode: InodeKey) -> Aspects {
        let mut parts = self.parts.iter().flatten().filter(|part| part.inode == inode && part.has_begun);
        parts.next().map_or(Aspects::empty(), |part| part.aspects)
    }

    fn give_back(&mut self, keeps: impl Fn(&Part) -> bool) {
        for place in &mut self.parts {
            let Some(part) = place.take_if(|part| !keeps(part)) else { continue };
            let (mut shard, mut actions) = (lock(&self.keeper.shards[part.inode.shard()]), Vec::new());
            match self.waiter {
                _ if part.has_begun => shard.end(part.inode, part.aspects, self.tried, &mut actions),
                Some(waiter) => shard.give_up(part.inode, waiter, self.tried, &mut actions),
                None => {}
            }
            drop(shard);
            self.keeper.perform(actions);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.give_back(|_| false);
        if let (Some(waiter), Some(_)) = (self.waiter, &self.signal) {
            lock(&self.keeper.signals).remove(&waiter);
        }
    }
}
