//! Giving leases back: a thread of its own waits until nothing relies on what is recalled, has the kernel forget it, and tells the server. No request waits for
//! it but those that have the kernel forget what they are about to change, which have another thread.

use std::collections::VecDeque;
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
    handle: Arc<[u8]>,
    /// Opens that the server is asked for first.
    opens: Option<Vec<Arc<LocalOpen>>>,
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
    let mut leaving: Vec<Leaving> = Vec::new();
    while let Some(work) = leases.recalls.next() {
        let mut back: Vec<(u64, LeaseId)> = Vec::new();
        for (epoch, lease) in work.recalled {
            leases.uses.recalls.fetch_add(1, Ordering::Relaxed);
            match leases.recall(lease) {
                Some(handle) => leaving.push(Leaving { epoch, lease: Some(lease), handle, opens: None }),
                None => back.push((epoch, lease)),
            }
        }
        let epoch = leases.epoch();
        leaving.extend(work.leaving.into_iter().map(|handle| Leaving { epoch, lease: None, handle, opens: None }));
        work.forget.iter().for_each(|next| forget(leases, next));
        let Some(client) = client.upgrade() else { return };
        leases.recalls.awaits_holds.store(true, Ordering::SeqCst);
        leaving.retain_mut(|next| {
            let is_free = is_free(leases, &client, next);
            if is_free {
                back.extend(give_back(leases, next).map(|lease| (next.epoch, lease)));
                if next.lease.is_none() {
                    leases.recalls.leaving.fetch_sub(1, Ordering::SeqCst);
                }
            }
            !is_free
        });
        leases.recalls.awaits_holds.store(!leaving.is_empty(), Ordering::SeqCst);
        client.return_leases(&back);
    }
}

/// Whether nothing relies on a lease any more.
fn is_free(leases: &Leases, client: &Client, leaving: &mut Leaving) -> bool {
    if leases.epoch() != leaving.epoch {
        return true; // all was forgotten since
    }
    if leases.is_held(&leaving.handle) {
        return false;
    }
    let opens = leaving.opens.get_or_insert_with(|| {
        let opens = leases.opens.of_inode(&leaving.handle);
        opens.iter().for_each(|open| client.make_real(open));
        opens
    });
    opens.iter().all(|open| open.is_settled())
}

/// Has the kernel forget an inode, and forgets it here. Returns what the lease is called by now.
fn give_back(leases: &Leases, leaving: &Leaving) -> Option<LeaseId> {
    if leases.epoch() != leaving.epoch {
        return None;
    }
    let handle = leaving.handle.clone();
    let aspects = leases.take_told(&handle, Aspects::all());
    if !aspects.is_empty() {
        forget(leases, &Forget { handle: handle.clone(), aspects, done: None });
    }
    let present = leases.give_back(&handle);
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
            let _told = self.lanes.iter().step_by(2).any(|lane| lane.send_frame_in(epoch, &frame));
        }
    }
}
