//! Writes, modes and times that are held back under exclusive leases, and what of this client's own has to wait until the server has them.
//!
//! Who looks at a file through a handle or an open, or changes it, has it settled first. What a name leads to is known only from the answer: one that may lack
//! what was held back is mended.

use std::sync::Arc;

use aqueduct_fs::{
    Answer, Aspects, Attr, Context, Credential, Entry, Errno, Keep, OpenFlags, OpenId, ReadAt, Reply, Request, SetAttr,
    Sink, Source, WriteAt, Written,
};
use aqueduct_session::{Brought, now};

use super::gate::Number;
use super::leases::Leases;
use super::memory::kept_xattr;
use super::own::{Setter, is_of_rights, may_be_held};
use super::parts::Cache;
use super::view::{BOTH, Hash, Reach, Touch};
use crate::writeback::{Covers, Place, Which};

/// What became of a write that might be held back.
pub(super) enum Held {
    Answered(Result<Written, Errno>),
    /// There is too much already: later.
    Full,
}

impl Covers for Leases {
    fn end(&self, handle: &[u8], end: u64) -> u64 {
        self.shard(self.hash(handle), |shard| shard.grow_own(handle, end));
        self.end_held(&touch(handle));
        self.asks()
    }

    fn forget_own(&self, handle: &[u8]) {
        Leases::forget_own(self, handle);
    }

    fn landed(&self) {
        self.recalls.hold_dropped();
    }
}

fn touch(handle: &[u8]) -> Touch<'_> {
    Touch::Inode { handle, aspects: BOTH, reach: Reach::Itself }
}

impl Leases {
    /// Whether something of a file may be held back now.
    fn may_hold_back(&self, which: Which<'_>) -> bool {
        let Some(view) = self.view() else { return false };
        self.shard(Hash(which.hash), |shard| shard.may_hold_back(which.handle, &view))
    }

    /// From now on something of a file is held back, unless it may not be any more. What the
    /// kernel was told has to be forgotten before anybody else sees the change: then it may not be
    /// if that takes time.
    fn begin_held(&self, which: Which<'_>) -> bool {
        if !self.may_hold_back(which) {
            return false;
        }
        let touch = touch(which.handle);
        let hash = Hash(which.hash);
        let told = self.shard(hash, |shard| shard.begin_held(&touch, hash, now()));
        let has_forgotten = told.is_empty() || !told.contains(Aspects::DATA) && self.forget_at_once(which.handle, told);
        if !has_forgotten {
            self.end_held(&touch);
        }
        has_forgotten
    }

    fn end_held(&self, touch: &Touch<'_>) {
        self.end(touch, 0, true, |_| {});
    }
}

impl Cache {
    /// Answers a write before the server does, if it may. `None`: it may not.
    pub(super) fn hold_back(
        &self,
        context: &Context,
        leases: &Leases,
        write: WriteAt,
        source: &Source,
    ) -> Option<Held> {
        let (writeback, Source::Memory(data)) = (&leases.writeback, source) else { return None };
        let session = &self.volume.sessions[leases.session()];
        let takes = !write.append || self.holds_appends(leases);
        if !writeback.is_on() || !takes || write.stable || data.is_empty() || session.window().is_full() {
            return None;
        }
        write.offset.checked_add(data.len() as u64).filter(|end| i64::try_from(*end).is_ok())?;
        let writer = self.volume.opens.writer(write.open).filter(|open| open.gathers())?;
        let (open, opens) = (writer.number()?, session.opens());
        // Who writes under a lock is told at once what becomes of it, and not when others have the lock.
        if opens.has_locks(&writer.handle) {
            return None;
        }
        if let Err(error) = opens.check([open]).and_then(|()| opens.error(open)) {
            return Some(Held::Answered(Err(error)));
        }
        let which = leases.which(&writer.handle);
        let mut entered = writeback.enter(which)?;
        if !writeback.may_take(data.len()) || !leases.may_hold_back(which) {
            return None;
        }
        if !entered.has_room(data.len()) {
            return Some(Held::Full);
        }
        let place = Place { open, credential: context.credential.clone(), offset: write.offset };
        let slot = match write.append && !entered.takes_append(&place, data.len()) {
            true => Some(session.slots_of_held().keep()?),
            false => None,
        };
        if entered.is_first() {
            if !entered.count() {
                return Some(Held::Full);
            }
            if !leases.begin_held(which) {
                return None;
            }
        }
        writer.wrote(); // before anybody can send it, and tell of an error
        match write.append {
            true => {
                leases.forget_own(which.handle); // how far the file reaches then only the server knows
                entered.append(&place, data, slot);
            }
            false => entered.add(&place, data),
        }
        writeback.send(which);
        writeback.watch();
        let count = data.len() as u32; // as the kernel counts them
        Some(Held::Answered(Ok(Written { count, verifier: 0, offset: write.offset })))
    }

    /// Whether appends may be held back at all.
    pub(super) fn holds_appends(&self, leases: &Leases) -> bool {
        leases.writeback.takes_appends() && self.volume.holds_appends()
    }

    /// Sets attributes before the server does, if that may be, of a file that the caller has open for writing himself: there he is told if it fails. What
    /// they are then, as far as that is known: nobody keeps it. `None`: it may not be.
    pub(super) fn hold_back_set(
        &self,
        context: &Context,
        leases: &Leases,
        handle: &[u8],
        set: &SetAttr,
    ) -> Option<Attr> {
        let writeback = &leases.writeback;
        if !writeback.takes_sets() || context.pid == 0 || !may_be_held(set) {
            return None;
        }
        let (which, view) = (leases.which(handle), leases.view()?);
        if is_of_rights(set) {
            leases.wants_bare(view.now);
        }
        if !leases.may_hold_back(which) {
            return None;
        }
        let writer = self.volume.opens.writer_of(handle, context.pid)?;
        let (open, opens) = (writer.number()?, self.volume.sessions[leases.session()].opens());
        let is_sound = || opens.check([open]).and_then(|()| opens.error_at_close(open)).is_ok();
        if opens.has_locks(handle) || !is_sound() {
            return None;
        }
        let place = Place { open, credential: context.credential.clone(), offset: 0 };
        let attr = self.enter_set(leases, which, (&place, set))?;
        writer.wrote();
        writeback.send(which);
        writeback.watch();
        // Who closes it at the same time may have looked before: then it is set once more, and waited for.
        Some(attr).filter(|_| !writer.closes())
    }

    /// Holds back attributes: what they are now, if whoever sets them may be answered before the
    /// server is.
    fn enter_set(&self, leases: &Leases, which: Which<'_>, (place, set): (&Place, &SetAttr)) -> Option<Attr> {
        let mut entered = leases.writeback.enter(which)?;
        if !leases.may_hold_back(which) || !entered.has_room(0) {
            return None;
        }
        let is_first = entered.is_first();
        if is_first && !(entered.count() && leases.begin_held(which)) {
            return None;
        }
        let _counts = entered.count_set();
        let Some(attr) = self.set_own(leases, which, (&place.credential, set), entered.end()) else {
            if is_first {
                leases.end_held(&touch(which.handle));
            }
            return None;
        };
        entered.set(place, set);
        Some(attr)
    }

    /// What the attributes of a file of which something is held back, written so far, are when
    /// somebody has set these; `None`: only the server can say whether he may.
    fn set_own(
        &self,
        leases: &Leases,
        which: Which<'_>,
        (credential, set): (&Credential, &SetAttr),
        end: u64,
    ) -> Option<Attr> {
        // Such an open is made at the server first, before its right could go.
        if is_of_rights(set) && !self.volume.opens.unsettled_of(which.handle).is_empty() {
            return None;
        }
        let (view, by) = (leases.view()?, Setter { credential, is_root: leases.is_root() });
        leases.shard(Hash(which.hash), |shard| shard.set_held(which.handle, by, (set, end), &view))
    }

    /// Writes, when there is room or nothing is held back any more.
    pub(super) async fn write_waiting(
        &self,
        context: &Context,
        write: WriteAt,
        source: Source,
        leases: &Arc<Leases>,
    ) -> Result<Written, Errno> {
        loop {
            match self.hold_back(context, leases, write, &source) {
                Some(Held::Answered(result)) => return result,
                None => break,
                Some(Held::Full) => {
                    let Some(writer) = self.volume.opens.writer(write.open) else { break };
                    let which = leases.which(&writer.handle);
                    leases.writeback.wait_to_hold(which, source.length(), &context.cancel).await?;
                }
            }
        }
        self.settle_open(context, leases, write.open).await?;
        self.write_changing(context, write, source, leases).await
    }

    /// Whether something is held back of the inode of an open.
    pub(super) fn is_held_back(&self, leases: &Leases, open: OpenId) -> bool {
        let writeback = &leases.writeback;
        let handle = || self.volume.opens.handle(open);
        !writeback.is_empty() && handle().is_some_and(|handle| writeback.has(leases.which(&handle)))
    }

    async fn settle_open(&self, context: &Context, leases: &Leases, open: OpenId) -> Result<(), Errno> {
        if leases.writeback.is_empty() {
            return Ok(());
        }
        match self.volume.opens.handle(open) {
            Some(handle) => leases.writeback.settle(leases.which(&handle), &context.cancel).await,
            None => Ok(()),
        }
    }

    /// Reads what this client has held back.
    pub(super) async fn read_settled(
        &self,
        context: &Context,
        read: ReadAt,
        sink: Box<dyn Sink>,
        leases: &Leases,
    ) -> Result<usize, Errno> {
        self.settle_open(context, leases, read.open).await?;
        self.volume.read(context, read, sink).await
    }

    /// Whether a request looks at something that is held back, or changes it.
    pub(super) fn must_settle(&self, leases: &Leases, request: &Request<'_>) -> bool {
        let writeback = &leases.writeback;
        if writeback.is_empty() {
            return false;
        }
        if let Request::GetXattr { handle, name, .. } = request
            && lacks_xattr(leases, handle, name)
        {
            return false; // what is held back brings none
        }
        match settles_first(request) {
            First::All => true,
            First::Rights(handle) => writeback.has_sets(handle.map(|handle| leases.which(handle))),
            First::These(handle, opens) => {
                handle.is_some_and(|handle| writeback.has(leases.which(handle)))
                    || opens.into_iter().flatten().any(|open| self.is_held_back(leases, open))
            }
        }
    }

    /// Waits until the server has what is held back of what the request is about.
    pub(super) async fn settle(&self, context: &Context, request: &Request<'_>, leases: &Leases) -> Result<(), Errno> {
        let (writeback, cancel) = (&leases.writeback, &context.cancel);
        match settles_first(request) {
            First::All | First::Rights(None) => writeback.settle_all(cancel).await,
            First::Rights(Some(handle)) => writeback.settle(leases.which(handle), cancel).await,
            First::These(handle, opens) => {
                if let Some(handle) = handle {
                    writeback.settle(leases.which(handle), cancel).await?;
                }
                for open in opens.into_iter().flatten() {
                    self.settle_open(context, leases, open).await?;
                }
                Ok(())
            }
        }
    }

    /// An answer to what was asked then says something of files by their names: what it may lack of them is asked for again, or left out.
    pub(super) async fn mend(&self, context: &Context, leases: &Leases, asked: Number, answer: &mut Answer) {
        let may_lack = |handle: &[u8]| leases.writeback.was_held_since(leases.which(handle), asked);
        match &mut answer.result {
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) if may_lack(entry.handle.bytes()) => {
                answer.keep = Keep::default();
                if let Err(error) = self.look_again(context, leases, entry).await {
                    tracing::debug!(%error, "what was written meanwhile is not in the attributes that a name led to");
                }
            }
            Ok(Reply::Directory(page)) => page.hide_inodes(|handle, attr| attr.is_regular() && may_lack(handle)),
            _ => {}
        }
    }

    async fn look_again(&self, context: &Context, leases: &Leases, entry: &mut Entry) -> Result<(), Errno> {
        let handle = entry.handle.bytes();
        leases.writeback.settle(leases.which(handle), &context.cancel).await?;
        let request = Request::GetAttr { handle, open: None };
        entry.attr = self.volume.call(context, &request, &mut Brought::default()).await?.attr()?;
        Ok(())
    }
}

/// Whether it is known that there is no extended attribute of this name.
fn lacks_xattr(leases: &Leases, handle: &[u8], name: &[u8]) -> bool {
    let (hash, view) = (leases.hash(handle), leases.view());
    let found = view.and_then(|view| leases.shard(hash, |shard| shard.xattr(handle, hash, kept_xattr(name)?, &view)));
    found == Some(None)
}

/// What is to come to the server before a request does.
enum First<'a> {
    /// What is held back of these.
    These(Option<&'a [u8]>, [Option<OpenId>; 2]),
    /// All: a name is about to stand for it.
    All,
    /// Of this file, or of whatever a name stands for, if who may open it is among what is held back.
    Rights(Option<&'a [u8]>),
}

fn settles_first<'a>(request: &Request<'a>) -> First<'a> {
    use Request::*;
    match *request {
        Rename { .. } | Link { .. } => First::All,
        GetAttr { handle, open } | SetAttr { handle, open, .. } => First::These(Some(handle), [open, None]),
        GetXattr { handle, .. } | SetXattr { handle, .. } | ListXattr { handle, .. } | RemoveXattr { handle, .. } => {
            First::These(Some(handle), [None; 2])
        }
        Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => First::These(Some(handle), [None; 2]),
        Open { handle, .. } | Access { handle, .. } => First::Rights(Some(handle)),
        Create { flags, .. } if !flags.contains(OpenFlags::EXCLUSIVE) => First::Rights(None),
        Flush { open, .. }
        | Release { open }
        | Sync { open, .. }
        | Commit { open, .. }
        | Fallocate { open, .. }
        | Seek { open, .. }
        | Checksum { open, .. }
        | GetLock { open, .. }
        | SetLock { open, .. } => First::These(None, [Some(open), None]),
        Layout { handle, open } => First::These(Some(handle), [Some(open), None]),
        CopyRange { from, to, .. } => First::These(None, [Some(from), Some(to)]),
        _ => First::These(None, [None; 2]),
    }
}
