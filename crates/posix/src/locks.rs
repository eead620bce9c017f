//! The lock table: a state machine without system calls or a clock. What it decides later (a wait that ends) is collected by
//! [`Locks::take_decided`].
//!
//! The rules are Linux's. A request is compared with the locks that are held, not with those that are waited for; when locks go, the waits are
//! looked at in the order in which they came. A flock that changes its kind is given up first, so that it is lost when the new one cannot be had.
//! Deadlocks are looked for among the POSIX waits only, since a flock has no owner who could be seen waiting elsewhere.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use aqueduct_fs::{ClientId, Errno, Lock, LockKind, LockSpace, OpenId};

/// The most locked ranges of one client: about 100 bytes each, 6 MiB when full.
pub const CLIENT_LOCKS_MAX: usize = 65_536;

/// The most locked ranges of all clients: as many owners on as many files take about 600 bytes each, 80 MiB when full.
pub const LOCKS_MAX: usize = 131_072;

/// The most waits for locks of all clients: 4 MiB when full.
pub const WAITS_MAX: usize = 16_384;

/// The most waits for locks of one client: about 200 bytes each, 200 KiB when full.
pub const CLIENT_WAITS_MAX: usize = 1024;

/// The most owners that the search for a deadlock visits: it runs under the table's lock, and 10,000 take some milliseconds. A longer circle is
/// not found.
const DEADLOCK_OWNERS_MAX: usize = 10_000;

/// An inode, as locks know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode {
    /// Its device.
    pub device: u64,
    /// Its number there.
    pub number: u64,
}

/// Who holds a lock: a process or an open file description of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The client.
    pub client: ClientId,
    /// What it calls the owner.
    pub owner: u64,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// On which inode.
    pub inode: Inode,
    /// In which family.
    pub space: LockSpace,
    /// For whom.
    pub owner: Owner,
    /// Through which open.
    pub open: OpenId,
    /// What.
    pub lock: Lock,
}

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(u64);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Granted,
    /// Will be decided later.
    Waits(WaitId),
}

/// A held range, under its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    end: u64,
    kind: LockKind,
    open: OpenId,
    pid: u32,
    /// When it was granted, or the first part of it.
    since: Duration,
}

/// The ranges of one owner: they never overlap.
type Ranges = BTreeMap<u64, Range>;

/// One inode in one family.
#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Owner, Ranges>,
    /// In the order in which they came.
    waits: Vec<WaitId>,
}

#[derive(Debug, Default)]
struct Count {
    locks: usize,
    waits: usize,
}

/// How much there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Locked ranges of one client.
    pub locks: usize,
    /// Waits of one client.
    pub waits: usize,
    /// Locked ranges of all clients.
    pub locks_total: usize,
    /// Waits of all clients.
    pub waits_total: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { locks: CLIENT_LOCKS_MAX, waits: CLIENT_WAITS_MAX, locks_total: LOCKS_MAX, waits_total: WAITS_MAX }
    }
}

/// All locks.
#[derive(Debug, Default)]
pub struct Locks {
    files: HashMap<(Inode, LockSpace), File>,
    waits: HashMap<WaitId, Ask>,
    /// Since when.
    waits_since: HashMap<WaitId, Duration>,
    /// The POSIX waits of each owner.
    waiting: HashMap<Owner, Vec<WaitId>>,
    counts: HashMap<ClientId, Count>,
    /// Locked ranges of all clients.
    total: usize,
    decided: Vec<(WaitId, Result<(), Errno>)>,
    next_wait: u64,
    limits: Limits,
    /// The time, as [`set_time`](Locks::set_time) was told it.
    now: Duration,
}

/// A lock in a list: who has it or waits for it, in which family, through which open, what, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Who.
    pub owner: Owner,
    /// In which family.
    pub space: LockSpace,
    /// Through which open.
    pub open: OpenId,
    /// What.
    pub lock: Lock,
    /// It is waited for, and not held.
    pub waits: bool,
    /// Since when, on the clock of [`Locks::set_time`].
    pub since: Duration,
}

fn conflicts(held: LockKind, asked: LockKind) -> bool {
    held == LockKind::Write || asked == LockKind::Write
}

/// The ranges that touch `start..=end`, in order.
fn overlapping(ranges: &Ranges, start: u64, end: u64) -> impl Iterator<Item = (u64, Range)> {
    let before = ranges.range(..start).next_back().filter(move |(_, range)| range.end >= start);
    before.into_iter().chain(ranges.range(start..=end)).map(|(start, range)| (*start, *range))
}

/// Takes `start..=end` out of the ranges.
fn carve(ranges: &mut Ranges, start: u64, end: u64) {
    let touched: Vec<_> = overlapping(ranges, start, end).collect();
    for (first, range) in touched {
        ranges.remove(&first);
        if first < start {
            ranges.insert(first, Range { end: start - 1, ..range });
        }
        if range.end > end {
            ranges.insert(end + 1, range);
        }
    }
}

/// Lays a range over what is there, and joins it with equal neighbours.
fn lay(ranges: &mut Ranges, start: u64, range: Range) {
    carve(ranges, start, range.end);
    let equal = |other: &Range| (other.kind, other.open, other.pid) == (range.kind, range.open, range.pid);
    let (mut first, mut merged) = (start, range);
    if let Some(after) = range.end.checked_add(1)
        && let Some(next) = ranges.get(&after).copied().filter(equal)
    {
        ranges.remove(&after);
        merged.end = next.end;
        merged.since = merged.since.min(next.since);
    }
    if let Some((&before, previous)) = ranges.range(..start).next_back()
        && previous.end.checked_add(1) == Some(start)
        && equal(previous)
    {
        first = before;
        merged.since = merged.since.min(previous.since);
    }
    ranges.insert(first, merged);
}

impl File {
    /// The first range of somebody else that stands in the way of `ask`.
    fn obstacle(&self, ask: &Ask) -> Option<(u64, Range)> {
        self.obstacles(ask).map(|(_, start, range)| (start, range)).min_by_key(|(start, _)| *start)
    }

    /// For every other owner, the first range in the way of `ask`.
    fn obstacles(&self, ask: &Ask) -> impl Iterator<Item = (Owner, u64, Range)> {
        let ask = *ask;
        self.held.iter().filter(move |(owner, _)| **owner != ask.owner).filter_map(move |(owner, ranges)| {
            overlapping(ranges, ask.lock.start, ask.lock.end)
                .find(|(_, range)| conflicts(range.kind, ask.lock.kind))
                .map(|(start, range)| (*owner, start, range))
        })
    }
}

impl Locks {
    /// A table with these limits.
    pub fn new(limits: Limits) -> Locks {
        Locks { limits, ..Locks::default() }
    }

    /// What time it is, on any clock that never goes back: for lists.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// At most `limit` of the locks that these clients have and wait for, those first for whose
    /// files somebody waits, file by file.
    pub fn list(&self, limit: usize, whose: impl Fn(ClientId) -> bool) -> Vec<Listed> {
        let (wanted, others): (Vec<_>, Vec<_>) = self.files.iter().partition(|(_, file)| !file.waits.is_empty());
        let listed = wanted.into_iter().chain(others).flat_map(|((_, space), file)| {
            let held = file.held.iter().flat_map(move |(owner, ranges)| {
                ranges.iter().map(move |(&start, &Range { end, kind, open, pid, since })| {
                    let lock = Lock { start, end, kind, pid };
                    Listed { owner: *owner, space: *space, open, lock, waits: false, since }
                })
            });
            let waits = file.waits.iter().filter_map(move |wait| {
                let Ask { owner, open, lock, .. } = *self.waits.get(wait)?;
                let since = self.waits_since.get(wait).copied().unwrap_or_default();
                Some(Listed { owner, space: *space, open, lock, waits: true, since })
            });
            held.chain(waits)
        });
        listed.filter(|listed| whose(listed.owner.client)).take(limit).collect()
    }

    /// The held ranges and the waits of these clients.
    pub fn counts(&self, whose: impl Fn(ClientId) -> bool) -> (usize, usize) {
        let of = self.counts.iter().filter(|(client, _)| whose(**client)).map(|(_, count)| (count.locks, count.waits));
        of.fold((0, 0), |(locks, waits), (of_locks, of_waits)| (locks + of_locks, waits + of_waits))
    }

    /// What stands in the way of `ask`: the first such lock, or the asked one as `Unlock`. A POSIX test for `Unlock` finds the first of the owner's own
    /// locks (F_OFD_GETLK with F_UNLCK, Linux 6.5).
    pub fn test(&self, ask: &Ask) -> Result<Lock, Errno> {
        let ask = normal(*ask)?;
        let Lock { start, end, .. } = ask.lock;
        let file = self.files.get(&(ask.inode, ask.space));
        let found = match (ask.lock.kind, ask.space) {
            (LockKind::Unlock, LockSpace::Posix) => file
                .and_then(|file| file.held.get(&ask.owner))
                .and_then(|ranges| overlapping(ranges, start, end).next()),
            (LockKind::Unlock, LockSpace::Flock | LockSpace::Turn) => None,
            _ => file.and_then(|file| file.obstacle(&ask)),
        };
        let free = Lock { kind: LockKind::Unlock, ..ask.lock };
        Ok(found.map_or(free, |(start, Range { end, kind, pid, .. })| Lock { start, end, kind, pid }))
    }

    /// Whether another client has any lock there, also one that would not be in the way.
    pub fn is_held_elsewhere(&self, ask: &Ask) -> bool {
        let file = self.files.get(&(ask.inode, ask.space));
        let mut others =
            file.into_iter().flat_map(|file| &file.held).filter(|(owner, _)| owner.client != ask.owner.client);
        others.any(|(_, ranges)| overlapping(ranges, ask.lock.start, ask.lock.end).next().is_some())
    }

    /// Takes, changes or releases a lock: EAGAIN when it cannot be had and not `wait`, EDEADLK when the wait would never end, ENOLCK when the
    /// client has too many.
    pub fn set(&mut self, ask: &Ask, wait: bool) -> Result<Answer, Errno> {
        let ask = normal(*ask)?;
        let key = (ask.inode, ask.space);
        if ask.lock.kind == LockKind::Unlock {
            // What unlocks the middle of a range makes two of it.
            if self.is_full(ask.owner.client, 1) && self.splits(&ask) {
                return Err(Errno::ENOLCK);
            }
            self.change(key, ask.owner, |ranges| carve(ranges, ask.lock.start, ask.lock.end));
            self.look_at_waits(key);
            return Ok(Answer::Granted);
        }
        if ask.space == LockSpace::Flock {
            let held = self.files.get(&key).and_then(|file| file.held.get(&ask.owner)).and_then(|held| held.get(&0));
            // The kernel names the owner of a flock by the address of its struct file. A new file
            // may have the address of a closed one whose RELEASE is still on its way. Its lock
            // must not end with that release.
            if held.is_some_and(|held| held.kind == ask.lock.kind && held.open == ask.open) {
                return Ok(Answer::Granted);
            }
            self.change(key, ask.owner, Ranges::clear);
        }
        let answer = self.grant_or_wait(&ask, wait);
        self.look_at_waits(key);
        answer
    }

    fn grant_or_wait(&mut self, ask: &Ask, wait: bool) -> Result<Answer, Errno> {
        let key = (ask.inode, ask.space);
        let is_passing = |file: &File| ask.space == LockSpace::Turn && !file.waits.is_empty();
        if self.files.get(&key).is_none_or(|file| file.obstacle(ask).is_none() && !is_passing(file)) {
            return self.grant(ask).map(|()| Answer::Granted);
        }
        if !wait {
            return Err(Errno::EAGAIN);
        }
        if ask.space == LockSpace::Posix && self.would_deadlock(ask) {
            return Err(Errno::EDEADLK);
        }
        let limit = self.limits.waits;
        let count = self.counts.entry(ask.owner.client).or_default();
        if count.waits >= limit || self.waits.len() >= self.limits.waits_total {
            return Err(Errno::ENOLCK);
        }
        count.waits += 1;
        self.next_wait += 1;
        let wait = WaitId(self.next_wait);
        self.waits.insert(wait, *ask);
        self.waits_since.insert(wait, self.now);
        self.files.entry(key).or_default().waits.push(wait);
        if ask.space == LockSpace::Posix {
            self.waiting.entry(ask.owner).or_default().push(wait);
        }
        Ok(Answer::Waits(wait))
    }

    /// Ends a wait. False when it was decided already: then the decision stands.
    pub fn cancel(&mut self, wait: WaitId) -> bool {
        let Some(ask) = self.forget_wait(wait) else { return false };
        self.tidy((ask.inode, ask.space), ask.owner.client);
        true
    }

    /// A descriptor of `owner` was closed: its POSIX locks on the inode go, and its waits there end with EINTR.
    pub fn flush(&mut self, inode: Inode, owner: Owner) {
        let key = (inode, LockSpace::Posix);
        self.end_waits(key, Errno::EINTR, |ask| ask.owner == owner);
        self.change(key, owner, Ranges::clear);
        self.look_at_waits(key);
        self.tidy(key, owner.client);
    }

    /// An open has ended: the locks taken through it go, and the waits end with EBADF.
    pub fn release(&mut self, inode: Inode, client: ClientId, open: OpenId) {
        for space in [LockSpace::Posix, LockSpace::Flock, LockSpace::Turn] {
            let key = (inode, space);
            let Some(file) = self.files.get(&key) else { continue };
            let through = |ranges: &Ranges| ranges.values().any(|range| range.open == open);
            let owners: Vec<_> =
                file.held.iter().filter(|(_, ranges)| through(ranges)).map(|(owner, _)| *owner).collect();
            self.end_waits(key, Errno::EBADF, |ask| ask.open == open);
            for owner in owners {
                self.change(key, owner, |ranges| ranges.retain(|_, range| range.open != open));
            }
            self.look_at_waits(key);
            self.tidy(key, client);
        }
    }

    /// A client has gone: its locks go, and its waits end with EINTR.
    pub fn depart(&mut self, client: ClientId) {
        if !self.counts.contains_key(&client) {
            return; // it has neither locks nor waits, as most
        }
        let keys: Vec<_> = self.files.keys().copied().collect();
        for key in keys {
            let file = &self.files[&key];
            let owners: Vec<_> = file.held.keys().filter(|owner| owner.client == client).copied().collect();
            self.end_waits(key, Errno::EINTR, |ask| ask.owner.client == client);
            for owner in owners {
                self.change(key, owner, Ranges::clear);
            }
            self.look_at_waits(key);
            self.tidy(key, client);
        }
        self.counts.remove(&client);
    }

    /// The waits that were decided since the last call.
    pub fn take_decided(&mut self) -> Vec<(WaitId, Result<(), Errno>)> {
        std::mem::take(&mut self.decided)
    }

    /// Changes the ranges of one owner and keeps count.
    fn change(&mut self, key: (Inode, LockSpace), owner: Owner, change: impl FnOnce(&mut Ranges)) {
        let file = self.files.entry(key).or_default();
        let ranges = file.held.entry(owner).or_default();
        let before = ranges.len();
        change(ranges);
        let after = ranges.len();
        if after == 0 {
            file.held.remove(&owner);
        }
        let count = self.counts.entry(owner.client).or_default();
        count.locks = count.locks + after - before;
        self.total = self.total + after - before;
        self.tidy(key, owner.client);
    }

    /// Removes what has become empty.
    fn tidy(&mut self, key: (Inode, LockSpace), client: ClientId) {
        if self.files.get(&key).is_some_and(|file| file.held.is_empty() && file.waits.is_empty()) {
            self.files.remove(&key);
        }
        if self.counts.get(&client).is_some_and(|count| count.locks == 0 && count.waits == 0) {
            self.counts.remove(&client);
        }
    }

    fn grant(&mut self, ask: &Ask) -> Result<(), Errno> {
        // A range in the middle of another makes two more.
        if self.is_full(ask.owner.client, 2) {
            return Err(Errno::ENOLCK);
        }
        let Lock { end, kind, pid, .. } = ask.lock;
        let range = Range { end, kind, open: ask.open, pid, since: self.now };
        self.change((ask.inode, ask.space), ask.owner, |ranges| lay(ranges, ask.lock.start, range));
        Ok(())
    }

    /// Whether there is no room for so many more ranges of this client.
    fn is_full(&self, client: ClientId, more: usize) -> bool {
        let locks = self.counts.get(&client).map_or(0, |count| count.locks);
        locks + more > self.limits.locks || self.total + more > self.limits.locks_total
    }

    /// Whether a range of the owner goes beyond what is asked for at both ends.
    fn splits(&self, ask: &Ask) -> bool {
        let ranges = self.files.get(&(ask.inode, ask.space)).and_then(|file| file.held.get(&ask.owner));
        let before = ranges.and_then(|ranges| ranges.range(..ask.lock.start).next_back());
        before.is_some_and(|(_, range)| range.end > ask.lock.end)
    }

    /// Grants the waits that nothing stands in the way of any more, first come first served.
    fn look_at_waits(&mut self, key: (Inode, LockSpace)) {
        loop {
            let Some(file) = self.files.get(&key) else { return };
            let free = |wait: &&WaitId| self.waits.get(wait).is_none_or(|ask| file.obstacle(ask).is_none());
            let others = if key.1 == LockSpace::Turn { 1 } else { usize::MAX };
            let Some(wait) = file.waits.iter().take(others).find(free).copied() else { return };
            let Some(ask) = self.forget_wait(wait) else { return };
            let result = self.grant(&ask);
            self.tidy(key, ask.owner.client);
            self.decided.push((wait, result));
        }
    }

    fn end_waits(&mut self, key: (Inode, LockSpace), error: Errno, which: impl Fn(&Ask) -> bool) {
        let Some(file) = self.files.get(&key) else { return };
        let ended: Vec<_> =
            file.waits.iter().filter(|wait| self.waits.get(wait).is_some_and(&which)).copied().collect();
        for wait in ended {
            self.forget_wait(wait);
            self.decided.push((wait, Err(error)));
        }
    }

    fn forget_wait(&mut self, wait: WaitId) -> Option<Ask> {
        let ask = self.waits.remove(&wait)?;
        self.waits_since.remove(&wait);
        if let Some(file) = self.files.get_mut(&(ask.inode, ask.space)) {
            file.waits.retain(|other| *other != wait);
        }
        if let Some(waits) = self.waiting.get_mut(&ask.owner) {
            waits.retain(|other| *other != wait);
            if waits.is_empty() {
                self.waiting.remove(&ask.owner);
            }
        }
        if let Some(count) = self.counts.get_mut(&ask.owner.client) {
            count.waits -= 1;
        }
        Some(ask)
    }

    /// Whether somebody who stands in the way of `ask` waits, directly or through others, for its owner.
    fn would_deadlock(&self, ask: &Ask) -> bool {
        let in_the_way = |ask: &Ask| -> Vec<Owner> {
            let file = self.files.get(&(ask.inode, ask.space));
            file.map(|file| file.obstacles(ask).map(|(owner, ..)| owner).collect()).unwrap_or_default()
        };
        let mut seen = HashSet::new();
        let mut open = in_the_way(ask);
        while let Some(owner) = open.pop() {
            if owner == ask.owner {
                return true;
            }
            if seen.len() >= DEADLOCK_OWNERS_MAX || !seen.insert(owner) {
                continue;
            }
            for wait in self.waiting.get(&owner).into_iter().flatten() {
                if let Some(waiting) = self.waits.get(wait) {
                    open.extend(in_the_way(waiting));
                }
            }
        }
        false
    }
}

/// A flock is always of the whole file, and so is a turn.
fn normal(mut ask: Ask) -> Result<Ask, Errno> {
    if ask.space != LockSpace::Posix {
        (ask.lock.start, ask.lock.end) = (0, u64::MAX);
    }
    if ask.lock.start > ask.lock.end { Err(Errno::EINVAL) } else { Ok(ask) }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;
