//! Writes, modes and times that are held back under exclusive leases, and what of this client's own has to wait until the server has them.
//!
//! Who looks at a file through a handle or an open, or changes it, has it settled first. What a name leads to is known only from the answer: one that may lack
//! what was held back is mended.

use std::sync::Arc;

use aqueduct_fs::{
    Answer, Aspects, Attr, Context, Credential, Entry, Errno, FileSystem, Keep, OpenFlags, OpenId, ReadAt, Reply,
    Request, SetAttr, Sink, Source, WriteAt, Written,
};

use super::Cached;
use super::change::BOTH;
use super::clock::now;
use super::gate::Number;
use super::leases::Leases;
use super::memory::kept_xattr;
use super::opens::Found;
use super::own::{Setter, is_of_rights, may_be_held};
use super::shard::{Hash, Reach, Touch};
use crate::gather::{Adding, Begun, Place, Which};

/// Whether what is written through the open that a request makes may be held back. O_SYNC asks for stable writes, O_DIRECT for none that wait, and where an append
/// goes only the server knows.
pub(super) fn gathers(request: &Request<'_>) -> bool {
    const STRAIGHT: OpenFlags = OpenFlags::SYNC.union(OpenFlags::DIRECT).union(OpenFlags::APPEND);
    match request {
        Request::Open { flags, .. } | Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. } => {
            flags.contains(OpenFlags::WRITE) && !flags.intersects(STRAIGHT)
        }
        _ => false,
    }
}

/// What became of a write that might be held back.
pub(super) enum Held {
    Answered(Result<Written, Errno>),
    /// There is too much already: later.
    Full,
}

impl Begun for Leases {
    fn begin(&self, which: Which<'_>, first: bool) -> bool {
        let Some(view) = self.view() else { return false };
        let hash = Hash(which.hash);
        if !self.shard(hash, |shard| shard.may_hold_back(which.handle, &view)) {
            return false;
        }
        let touch = touch(which.handle);
        if !first {
            return true;
        }
        // What the kernel was told has to be forgotten before anybody else sees the change, and that may take time.
        let told = self.shard(hash, |shard| shard.begin_held(&touch, hash, now()));
        let has_forgotten = told.is_empty() || !told.contains(Aspects::DATA) && self.forget_at_once(which.handle, told);
        if !has_forgotten {
            self.end_held(&touch);
        }
        has_forgotten
    }

    fn end(&self, handle: &[u8], end: u64) -> u64 {
        self.shard(self.hash(handle), |shard| shard.grow_own(handle, end));
        self.end_held(&touch(handle));
        self.asks()
    }

    fn set(&self, which: Which<'_>, by: &Credential, set: &SetAttr, end: u64) -> Option<Attr> {
        // Such an open is made at the server first, before its right could go.
        if is_of_rights(set) && !self.local_opens(which.handle).is_empty() {
            return None;
        }
        let (view, by) = (self.view()?, Setter { credential: by, is_root: self.is_root() });
        self.shard(Hash(which.hash), |shard| shard.set_held(which.handle, by, (set, end), &view))
    }
}

fn touch(handle: &[u8]) -> Touch<'_> {
    Touch::Inode { handle, aspects: BOTH, reach: Reach::Itself }
}

impl Leases {
    fn end_held(&self, touch: &Touch<'_>) {
        self.end(touch, 0, true, |_| {});
    }
}

impl Cached {
    /// Answers a write before the server does, if it may. `None`: it may not.
    pub(super) fn hold_back(
        &self,
        context: &Context,
        leases: &Arc<Leases>,
        write: WriteAt,
        source: &Source,
    ) -> Option<Held> {
        let (client, Source::Memory(data)) = (&self.client, source);
        if !client.gather.is_on() || write.append || write.stable || data.is_empty() || client.window.is_full() {
            return None;
        }
        write.offset.checked_add(data.len() as u64).filter(|end| i64::try_from(*end).is_ok())?;
        let Found::Real(open) = leases.opens.find(write.open) else { return None };
        let writer = leases.opens.writer(open).filter(|writer| writer.gathers)?;
        // Who writes under a lock is told at once what becomes of it, and not when others have the lock.
        if client.opens.has_locks(&writer.handle) {
            return None;
        }
        if let Err(error) = client.opens.check([open]).and_then(|()| client.opens.error(open)) {
            return Some(Held::Answered(Err(error)));
        }
        let which = leases.which(&writer.handle);
        let place = Place { open, credential: context.credential.clone(), offset: write.offset };
        match client.gather.add(which, &place, data, &**leases) {
            Adding::Refused => None,
            Adding::Full => Some(Held::Full),
            Adding::Held => {
                writer.wrote();
                client.send_held(which);
                client.watch_held();
                let count = data.len() as u32; // as the kernel counts them
                Some(Held::Answered(Ok(Written { count, verifier: 0, offset: write.offset })))
            }
        }
    }

    /// Sets attributes before the server does, if that may be, of a file that the caller has open for writing himself: there he is told if it fails. What
    /// they are then, as far as that is known: nobody keeps it. `None`: it may not be.
    pub(super) fn hold_back_set(
        &self,
        context: &Context,
        leases: &Arc<Leases>,
        handle: &[u8],
        set: &SetAttr,
    ) -> Option<Attr> {
        let client = &self.client;
        if !client.gather.takes_sets() || context.pid == 0 || !may_be_held(set) {
            return None;
        }
        let (which, view) = (leases.which(handle), leases.view()?);
        if is_of_rights(set) {
            leases.wants_bare(view.now);
        }
        if !leases.shard(Hash(which.hash), |shard| shard.may_hold_back(handle, &view)) {
            return None;
        }
        let (open, writer) = leases.opens.writer_of(handle, context.pid)?;
        let is_sound = || client.opens.check([open]).and_then(|()| client.opens.error_at_close(open)).is_ok();
        if client.opens.has_locks(handle) || !is_sound() {
            return None;
        }
        let place = Place { open, credential: context.credential.clone(), offset: 0 };
        let attr = client.gather.set(which, &place, set, &**leases)?;
        writer.wrote();
        client.send_held(which);
        client.watch_held();
        // Who closes it at the same time may have looked before: then it is set once more, and waited for.
        Some(attr).filter(|_| !writer.closes())
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
                    let Some(handle) = leases.opens.written(write.open) else { break };
                    self.client.wait_to_hold(leases.which(&handle), source.length(), &context.cancel).await?;
                }
            }
        }
        self.settle_open(context, leases, write.open).await?;
        self.write_changing(context, write, source, leases).await
    }

    /// The inode of an open.
    fn inode_of(&self, leases: &Leases, open: OpenId) -> Option<Arc<[u8]>> {
        let known = || leases.opens.handle(open).or_else(|| leases.opens.written(open));
        known().or_else(|| self.client.opens.handle(open).map(Arc::from))
    }

    pub(super) fn is_held_back(&self, leases: &Leases, open: OpenId) -> bool {
        let gather = &self.client.gather;
        !gather.is_empty() && self.inode_of(leases, open).is_some_and(|handle| gather.has(leases.which(&handle)))
    }

    async fn settle_open(&self, context: &Context, leases: &Leases, open: OpenId) -> Result<(), Errno> {
        if self.client.gather.is_empty() {
            return Ok(());
        }
        match self.inode_of(leases, open) {
            Some(handle) => self.client.settle(leases.which(&handle), &context.cancel).await,
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
        let open = self.real(leases, read.open).await?;
        self.client.read(context, ReadAt { open, ..read }, sink).await
    }

    /// Whether a request looks at something that is held back, or changes it.
    pub(super) fn must_settle(&self, leases: &Leases, request: &Request<'_>) -> bool {
        let gather = &self.client.gather;
        if gather.is_empty() {
            return false;
        }
        if let Request::GetXattr { handle, name, .. } = request
            && lacks_xattr(leases, handle, name)
        {
            return false; // what is held back brings none
        }
        match settles_first(request) {
            First::All => true,
            First::Rights(handle) => gather.has_sets(handle.map(|handle| leases.which(handle))),
            First::These(handle, opens) => {
                handle.is_some_and(|handle| gather.has(leases.which(handle)))
                    || opens.into_iter().flatten().any(|open| self.is_held_back(leases, open))
            }
        }
    }

    /// Answers when the server has what is held back of what the request is about.
    pub(super) async fn ask_settled(
        &self,
        context: &Context,
        request: Request<'_>,
        leases: &Arc<Leases>,
    ) -> Result<Answer, Errno> {
        match settles_first(&request) {
            First::All | First::Rights(None) => self.client.settle_all(&context.cancel).await?,
            First::Rights(Some(handle)) => self.client.settle(leases.which(handle), &context.cancel).await?,
            First::These(handle, opens) => {
                if let Some(handle) = handle {
                    self.client.settle(leases.which(handle), &context.cancel).await?;
                }
                for open in opens.into_iter().flatten() {
                    self.settle_open(context, leases, open).await?;
                }
            }
        }
        match self.remembered(context, request, leases) {
            Ok(answer) => Ok(answer),
            Err(request) => Ok(self.through(context, request, leases).await),
        }
    }

    /// An answer to what was asked then says something of files by their names: what it may lack of them is asked for again, or left out.
    pub(super) async fn mend(&self, context: &Context, leases: &Leases, asked: Number, answer: &mut Answer) {
        let may_lack = |handle: &[u8]| self.client.gather.was_held_since(leases.which(handle), asked);
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
        self.client.settle(leases.which(handle), &context.cancel).await?;
        entry.attr = self.client.call(context, Request::GetAttr { handle, open: None }).await?.attr()?;
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
        | GetLock { open, .. }
        | SetLock { open, .. } => First::These(None, [Some(open), None]),
        CopyRange { from, to, .. } => First::These(None, [Some(from), Some(to)]),
        _ => First::These(None, [None; 2]),
    }
}
