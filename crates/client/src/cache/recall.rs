//! Giving leases back: a thread of its own waits until nothing relies on what is recalled, has the kernel forget it, and tells the server. No request waits for
//! it but those that have the kernel forget what they are about to change, which have another thread.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};

use aqueduct_fs::Aspects;
use aqueduct_wire::{HEADER_SIZE, Header, Kind, LEASES_TOLD_MAX, LeaseId};
use aqueduct_worker::Done;

use super::leases::{INODES_MAX, Leases};
use super::opens::LocalOpen;
use crate::client::Client;
use crate::lane::lock;

/// Recalls that wait to be looked at: a server has no more than it granted, and asks once more on a new connection. 2 MiB.
const RECALLS_MAX: usize = 2 * INODES_MAX;

/// What there is to give back, and who waits for that.
#[derive(Default)]
pub(crate) struct Recalls {
    work: Mutex<Work>,
    changed: Condvar,
    /// The thread waits for holds.
    awaits_holds: AtomicBool,
    /// Inodes that leave by themselves and have not gone yet.
    leaving: AtomicUsize,
    /// For changes of this client's own.
    pub(super) forgets: Forgets,
}

#[derive(Default)]
struct Work {
    /// With the epochs in which they came.
    recalled: VecDeque<(u64, LeaseId)>,
    /// Inodes that leave by themselves.
    leaving: Vec<Arc<[u8]>>,
    /// What the kernel is to forget.
    forget: Vec<Forget>,
    nudged: bool,
    has_ended: bool,
}

/// What the kernel is to forget.
pub(super) struct Forget {
    pub(super) handle: Arc<[u8]>,
    pub(super) aspects: Aspects,
    pub(super) done: Option<Arc<Done>>,
}

impl Forget {
    /// It is done, or its client has gone, and with it whoever kept anything.
    fn set_done(&self) {
        if let Some(done) = &self.done {
            done.set();
        }
    }
}

impl Recalls {
    /// The server asks for leases. False: it asks for more than it can have granted.
    pub(crate) fn add(&self, epoch: u64, leases: &[LeaseId]) -> bool {
        let mut work = lock(&self.work);
        if work.recalled.len() + leases.len() > RECALLS_MAX {
            return false;
        }
        work.recalled.extend(leases.iter().map(|lease| (epoch, *lease)));
        self.changed.notify_one();
        true
    }

    /// Whether all have gone that were to leave by themselves, so that more may.
    pub(super) fn has_room(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) == 0
    }

    /// So many of them have gone.
    fn has_left(&self, count: usize) {
        self.leaving.fetch_sub(count, Ordering::SeqCst);
    }

    /// These are given back without being asked for. They leave already.
    pub(super) fn give_back(&self, handles: Vec<Arc<[u8]>>) {
        if !handles.is_empty() {
            self.leaving.fetch_add(handles.len(), Ordering::SeqCst);
            lock(&self.work).leaving.extend(handles);
            self.changed.notify_one();
        }
    }

    pub(super) fn forget(&self, forget: Forget) {
        let mut work = lock(&self.work);
        if work.has_ended {
            return forget.set_done();
        }
        work.forget.push(forget);
        self.changed.notify_one();
    }

    /// A hold is dropped.
    pub(super) fn hold_dropped(&self) {
        if self.awaits_holds.load(Ordering::SeqCst) {
            self.nudge();
        }
    }

    /// What was held back of a file has come to the server.
    pub(crate) fn landed(&self) {
        self.hold_dropped();
    }

    /// Has the thread look again.
    pub(super) fn nudge(&self) {
        lock(&self.work).nudged = true;
        self.changed.notify_one();
    }

    /// The client has gone.
    pub(crate) fn end(&self) {
        let mut work = lock(&self.work);
        work.has_ended = true;
        let left = std::mem::take(&mut work.forget);
        drop(work);
        left.iter().for_each(Forget::set_done);
        self.changed.notify_one();
        self.forgets.end();
    }

    /// What there is to do, when there is something. `None`: the client has gone.
    fn next(&self) -> Option<Work> {
        let mut work = lock(&self.work);
        loop {
            if work.has_ended {
                return None;
            }
            let is_idle = work.recalled.is_empty() && work.leaving.is_empty() && work.forget.is_empty();
            if !is_idle || work.nudged {
                return Some(std::mem::take(&mut *work));
            }
            work = self.changed.wait(work).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}

/// What kernels are to forget before this client changes it. Only what they do without waiting for anything: attributes and names.
#[derive(Default)]
pub(super) struct Forgets {
    work: Mutex<(VecDeque<Forget>, bool)>,
    changed: Condvar,
}

impl Forgets {
    pub(super) fn add(&self, forget: Forget) {
        let mut work = lock(&self.work);
        if work.1 {
            return forget.set_done();
        }
        work.0.push_back(forget);
        self.changed.notify_one();
    }

    fn end(&self) {
        lock(&self.work).1 = true;
        self.changed.notify_one();
    }

    fn next(&self) -> Option<Forget> {
        let mut work = lock(&self.work);
        loop {
            if let Some(forget) = work.0.pop_front() {
                return Some(forget);
            }
            if work.1 {
                return None;
            }
            work = self.changed.wait(work).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}

fn forget(leases: &Leases, forget: &Forget) {
    if let Some(observer) = leases.observer() {
        observer.forget(&forget.handle, forget.aspects);
    }
    forget.set_done();
}

/// A lease that is being given back.
struct Leaving {
    epoch: u64,
    /// As the server called it, if it asked.
    lease: Option<LeaseId>,
    /// How often it was said to leave by itself.
    by_itself: usize,
    /// Opens that the server is asked for first, and how often that had failed before.
    opens: Option<Vec<(u32, Arc<LocalOpen>)>>,
}

/// By their inodes, each once, also if it is asked for while it leaves by itself, or twice: what was waited for by one must have been waited for when the inode
/// goes.
#[derive(Default)]
struct AllLeaving(HashMap<Arc<[u8]>, Leaving>);

impl AllLeaving {
    fn of(&mut self, leases: &Leases, handle: Arc<[u8]>, epoch: u64) -> &mut Leaving {
        let new = || Leaving { epoch, lease: None, by_itself: 0, opens: None };
        let leaving = self.0.entry(handle).or_insert_with(new);
        if leaving.epoch != epoch {
            leases.recalls.has_left(leaving.by_itself);
            *leaving = new();
        }
        leaving
    }

    /// The server asks for a lease. False: nothing is kept under it, and it may have it at once.
    fn recalled(&mut self, leases: &Leases, (epoch, lease): (u64, LeaseId)) -> bool {
        if epoch != leases.epoch() {
            return false; // all was forgotten since, and this session has other leases under such names
        }
        let Some(handle) = leases.recall(lease) else { return false };
        let leaving = self.of(leases, handle, epoch);
        leaving.lease = leaving.lease.max(Some(lease));
        true
    }

    /// An inode leaves by itself.
    fn leaves(&mut self, leases: &Leases, handle: Arc<[u8]>) {
        if leases.is_leaving(&handle) {
            self.of(leases, handle, leases.epoch()).by_itself += 1;
        } else {
            leases.recalls.has_left(1); // it was recalled since, and has gone
        }
    }

    /// Forgets all that is free. Returns what the server can be told of.
    fn go(&mut self, leases: &Leases, is_free: impl Fn(&[u8], &mut Leaving) -> bool) -> Vec<(u64, LeaseId)> {
        let mut back = Vec::new();
        self.0.retain(|handle, leaving| {
            let is_free = is_free(handle, leaving);
            if is_free {
                back.extend(give_back(leases, handle, leaving).map(|lease| (leaving.epoch, lease)));
                leases.recalls.has_left(leaving.by_itself);
            }
            !is_free
        });
        back
    }
}

/// Starts the threads of a client.
pub(crate) fn start(client: &Arc<Client>, leases: &Arc<Leases>) -> std::io::Result<()> {
    let (weak, shared) = (Arc::downgrade(client), leases.clone());
    std::thread::Builder::new().name("recall".into()).spawn(move || run(&shared, &weak))?;
    let shared = leases.clone();
    std::thread::Builder::new().name("forget".into()).spawn(move || {
        while let Some(next) = shared.recalls.forgets.next() {
            // What the kernel is being told it cannot forget yet.
            shared.holds.wait_for_answers(Some(shared.hash(&next.handle)));
            forget(&shared, &next);
        }
    })?;
    Ok(())
}

fn run(leases: &Leases, client: &Weak<Client>) {
    let mut leaving = AllLeaving::default();
    while let Some(work) = leases.recalls.next() {
        let mut back: Vec<(u64, LeaseId)> = Vec::new();
        for recalled in work.recalled {
            leases.uses.recalls.fetch_add(1, Ordering::Relaxed);
            if !leaving.recalled(leases, recalled) {
                back.push(recalled);
            }
        }
        work.leaving.into_iter().for_each(|handle| leaving.leaves(leases, handle));
        work.forget.iter().for_each(|next| forget(leases, next));
        let Some(client) = client.upgrade() else { return };
        leases.recalls.awaits_holds.store(true, Ordering::SeqCst);
        back.extend(leaving.go(leases, |handle, leaving| is_free(leases, &client, handle, leaving)));
        leases.recalls.awaits_holds.store(!leaving.0.is_empty(), Ordering::SeqCst);
        client.return_leases(&back);
    }
}

/// Whether nothing relies on a lease any more.
fn is_free(leases: &Leases, client: &Client, handle: &[u8], leaving: &mut Leaving) -> bool {
    if leases.epoch() != leaving.epoch {
        return true; // all was forgotten since
    }
    let which = leases.which(handle);
    if client.gather.has(which) {
        client.seal_and_send(which);
        return false;
    }
    if leases.is_held(handle) {
        return false;
    }
    let opens = leaving.opens.get_or_insert_with(|| {
        let opens = leases.local_opens(handle);
        opens.into_iter().map(|open| (open.failures(), open)).collect()
    });
    // Also one that could not be had when nobody needed it; once.
    let unsettled = opens.iter().filter(|(failures, open)| !open.is_settled(*failures));
    let asked = unsettled.map(|(_, open)| client.make_real(open)).count();
    asked == 0
}

/// Has the kernel forget an inode, and forgets it here. Returns what the lease is called by now.
fn give_back(leases: &Leases, handle: &Arc<[u8]>, leaving: &Leaving) -> Option<LeaseId> {
    if leases.epoch() != leaving.epoch {
        return None;
    }
    if !leases.is_leaving(handle) {
        return leaving.lease; // it has gone, and what is kept now came later
    }
    if let Some(observer) = leases.observer() {
        observer.forget_names_of(handle);
    }
    let aspects = leases.take_told(handle, Aspects::all());
    if !aspects.is_empty() {
        forget(leases, &Forget { handle: handle.clone(), aspects, done: None });
    }
    let present = leases.give_back(handle);
    present.into_iter().chain(leaving.lease).max()
}

impl Client {
    /// Tells the server which leases are not used any more. Those of earlier sessions it does not have.
    fn return_leases(&self, leases: &[(u64, LeaseId)]) {
        let Some(epoch) = self.leases.as_ref().map(|leases| leases.epoch()) else { return };
        let present: Vec<LeaseId> = leases.iter().filter(|(of, _)| *of == epoch).map(|(_, lease)| *lease).collect();
        for part in present.chunks(LEASES_TOLD_MAX) {
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_leases(part, &mut frame);
            let header = Header { body_length: (frame.len() - HEADER_SIZE) as u32, ..Header::new(Kind::CallbackReply) };
            frame[..HEADER_SIZE].copy_from_slice(&header.encode());
            // Without a connection the server asks again on the next.
            let _told = self.control_lanes().any(|lane| lane.send_frame_in(epoch, &frame));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::leases::Brought;
    use super::*;

    const FILE: &[u8] = b"file";
    const FIRST: LeaseId = LeaseId(1 << 32 | 7);
    const LATER: LeaseId = LeaseId(9 << 32 | 7);

    /// An answer brings a lease on the file.
    fn granted(leases: &Leases, lease: LeaseId) {
        let brought = Brought { epoch: leases.epoch(), sent: 5, ..Brought::default() };
        let asked = leases.asks();
        leases.keep(FILE, (lease, Aspects::ATTRIBUTES), (asked, &brought), |_, _, _| ()).expect("it is kept");
    }

    fn leave_by_itself(leases: &Leases) {
        let handles = leases.shard(leases.hash(FILE), |shard| shard.leave_eldest(1));
        assert_eq!(handles.len(), 1);
        leases.recalls.give_back(handles);
    }

    fn come_to_leave(leases: &Leases, leaving: &mut AllLeaving) {
        for handle in std::mem::take(&mut lock(&leases.recalls.work).leaving) {
            leaving.leaves(leases, handle);
        }
    }

    #[test]
    fn what_leaves_by_itself_and_is_recalled_goes_once() {
        for recalled_first in [true, false] {
            let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
            granted(&leases, FIRST);
            leave_by_itself(&leases);
            if !recalled_first {
                come_to_leave(&leases, &mut leaving);
            }
            // Servers ask once more on each new connection.
            assert!(leaving.recalled(&leases, (0, FIRST)) && leaving.recalled(&leases, (0, FIRST)));
            come_to_leave(&leases, &mut leaving);
            assert_eq!(leaving.0.len(), 1);
            assert_eq!(leaving.go(&leases, |_, _| false), []);
            assert!(leases.is_leaving(FILE) && !leases.recalls.has_room());
            assert_eq!(leaving.go(&leases, |_, _| true), [(0, FIRST)]);
            assert!(leaving.0.is_empty() && leases.recalls.has_room());
        }
    }

    /// It was to leave by itself, and nobody has come to see to that yet when it is recalled and goes.
    #[test]
    fn what_came_since_does_not_leave_for_what_was_before() {
        let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
        granted(&leases, FIRST);
        leave_by_itself(&leases);
        assert!(leaving.recalled(&leases, (0, FIRST)));
        assert_eq!(leaving.go(&leases, |_, _| true), [(0, FIRST)]);
        granted(&leases, LATER);
        come_to_leave(&leases, &mut leaving);
        assert!(leaving.0.is_empty() && leases.recalls.has_room());
        assert!(!leases.is_leaving(FILE) && leases.kept().0 == 1);
    }

    #[test]
    fn what_was_asked_for_in_an_earlier_session_is_not_what_is_kept_now() {
        let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
        granted(&leases, FIRST);
        leave_by_itself(&leases);
        come_to_leave(&leases, &mut leaving);
        leases.begin_epoch(1);
        granted(&leases, FIRST);
        assert!(!leaving.recalled(&leases, (0, FIRST)));
        assert!(!leases.is_leaving(FILE));
        assert!(leaving.recalled(&leases, (1, FIRST)), "while that of before is still waited for");
        assert!(leases.recalls.has_room());
        assert_eq!(leaving.go(&leases, |_, leaving| leaving.epoch == 1), [(1, FIRST)]);
    }
}
