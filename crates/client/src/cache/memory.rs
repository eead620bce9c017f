//! What is answered from memory, and what of the server's answers is kept there.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::dirpage::ATTR_SIZE;
use aqueduct_fs::{
    Answer, Aspects, Attr, Context, DirEntry, DirPage, Entry, Errno, Handle, Hold, Keep, Layout, OpenFlags, OpenId,
    Opened, Reply, Request,
};
use aqueduct_session::Brought;
use aqueduct_wire::{Flags, GRANTS_MAX, LeaseId, Subject};
use aqueduct_worker::lock;

use super::gate::Number;
use super::hold::{OfAnswer, OfRead};
use super::leases::Leases;
use super::names::{Fresh, Listed};
use super::parts::Cache;
use super::shard::Shard;
use super::view::{Fetched, Hash, RIGHT_TO_LIST, Rights, View};
use crate::volume::New;

/// The extended attributes that are kept: kernels ask for them by themselves, on the way to something else.
const XATTRS_KEPT: [&[u8]; 3] = [b"system.posix_acl_access", b"system.posix_acl_default", b"security.capability"];

/// Of a larger file the kernel keeps no pages while it is open for writing: large writes through
/// pages cost a copy and their memory, which only pays where the same pages are used again. What
/// is mapped page by page, and small databases, are smaller. Nor of an empty one, which is about to
/// be written: 1 MiB at a time through pages that has two thirds to four fifths of the rate
/// (2026-11-26, TCP, a memory file system, medians of 4 to 6 runs in turn).
const MAPPED_MAX: u64 = 64 << 20;

/// What a packed entry takes beside its name, and with an inode beside its handle.
const ENTRY_SIZE: usize = 20;

/// Opens for these only need the right to read.
const READS_ONLY: OpenFlags =
    OpenFlags::READ.union(OpenFlags::EXECUTE).union(OpenFlags::DIRECT).union(OpenFlags::NOATIME);

/// The attribute of this name, if it is one of those that are kept.
pub(super) fn kept_xattr(name: &[u8]) -> Option<&'static [u8]> {
    XATTRS_KEPT.into_iter().find(|kept| *kept == name)
}

/// The rights that an open needs, if it can be answered here.
fn rights(flags: OpenFlags) -> Option<Rights> {
    (flags.contains(OpenFlags::READ) && READS_ONLY.contains(flags)).then(|| flags.bits())
}

fn answer(result: Result<Reply, Errno>, keep: Keep, hold: OfAnswer) -> Answer {
    let keeps = keep.data || !keep.attributes.is_zero() || !keep.names.is_zero();
    Answer { result, keep: Keep { hold: hold.into_hold().filter(|_| keeps), ..keep } }
}

/// As a reply of an attribute or a list with this much room.
fn sized(value: &[u8], size: u32) -> Result<Reply, Errno> {
    match size {
        0 => Ok(Reply::Size(value.len() as u64)),
        size if value.len() > size as usize => Err(Errno::ERANGE),
        _ => Ok(Reply::Bytes(value.to_vec())),
    }
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl Cache {
    /// The answer, or the request when only the server can give it.
    pub(super) fn remembered<'a>(
        &self,
        context: &Context,
        request: Request<'a>,
        leases: &Arc<Leases>,
    ) -> Result<Answer, Request<'a>> {
        let mut hold = OfAnswer::new(leases);
        let found = match request {
            Request::Release { open } | Request::ReleaseDirectory { open } => {
                // One that the server knows of is closed there.
                return if self.volume.opens.close_local(open) { Ok(Ok(Reply::Done).into()) } else { Err(request) };
            }
            Request::Flush { open, .. } => return self.flush(request, open),
            Request::Lookup { parent, name } => look_up(leases, &mut hold, parent, name),
            Request::GetAttr { handle, .. } => leases.view().and_then(|view| {
                let (attr, keep) = find_attr(leases, &mut hold, handle, &view)?;
                Some((Ok(Reply::Attr(attr)), keep))
            }),
            Request::ReadLink { handle } => leases.view().and_then(|view| {
                let text = leases.find(handle, &mut hold, |shard, hash| shard.content(handle, hash, &view))?;
                Some((Ok(Reply::Bytes(text.to_vec())), Keep::default()))
            }),
            Request::GetXattr { handle, name, size } => {
                leases.view().filter(|_| kept_xattr(name).is_some()).and_then(|view| {
                    leases.wants_bare(view.now);
                    let value = leases.find(handle, &mut hold, |shard, hash| shard.xattr(handle, hash, name, &view))?;
                    let result = value.map_or(Err(Errno::ENODATA), |value| sized(&value, size));
                    Some((result, Keep::default()))
                })
            }
            Request::Open { handle, flags } => {
                rights(flags).and_then(|rights| self.open(leases, &mut hold, context, (handle, Some(flags), rights)))
            }
            Request::OpenDirectory { handle } => self.open(leases, &mut hold, context, (handle, None, RIGHT_TO_LIST)),
            Request::ReadDirectory { open, cookie, size, plus } => {
                let handle = match self.volume.opens.get(open) {
                    // Whoever goes back to the start has to tell the server, which would go on with what it has read for this open before.
                    Some(open) if open.number().is_some() && (cookie == 0 || !open.was_local()) => None,
                    open => open.map(|open| open.handle.clone()),
                };
                handle.and_then(|handle| page(leases, &mut hold, &handle, (cookie, size, plus)))
            }
            _ => return Err(request),
        };
        match found {
            Some((result, keep)) => {
                leases.uses.hits.increment();
                Ok(answer(result, keep, hold))
            }
            None => {
                leases.uses.misses.increment();
                Err(request)
            }
        }
    }

    /// A descriptor is closed. Where nothing is locked the server need not know: what was written through it has been answered.
    fn flush<'a>(&self, request: Request<'a>, open: OpenId) -> Result<Answer, Request<'a>> {
        let Some(open) = self.volume.opens.get(open).filter(|open| open.is_moved_here()) else { return Err(request) };
        let opens = self.volume.sessions[open.session].opens();
        if opens.has_locks(&open.handle) && opens.has_posix_locks(&open.handle) {
            return Err(request);
        }
        let result = match open.number() {
            Some(number) => opens.check([number]).and_then(|()| opens.error_at_close(number)),
            None => Ok(()),
        };
        Ok(result.map(|()| Reply::Done).into())
    }

    /// An open that the server has allowed before.
    fn open(
        &self,
        leases: &Leases,
        hold: &mut OfAnswer,
        context: &Context,
        (handle, flags, rights): (&[u8], Option<OpenFlags>, Rights),
    ) -> Known {
        let view = leases.view()?;
        let find = |shard: &mut Shard, hash| {
            let credential = &context.credential;
            let allows =
                self.volume.opens.has_room(view.now) && shard.allows(handle, hash, (credential, rights), &view);
            let key = allows.then(|| shard.key(handle))??;
            let keep = if flags.is_some() {
                Keep { data: shard.data(handle, hash, &view), ..Keep::default() }
            } else {
                let names = shard.listing(handle, hash, &view);
                Keep { names, data: !names.is_zero(), ..Keep::default() }
            };
            let (sessions, by) = (self.volume.sessions_of(&key), context.pid);
            Some((self.volume.opens.add_local(New { handle: &key, sessions, credential, flags, by, width: 0 }), keep))
        };
        let (id, keep) = leases.find(handle, hold, find)?;
        self.volume.watch_opens();
        Some((Ok(Reply::Opened(Opened { id, token: Box::default(), width: 0 })), keep))
    }

    /// Asks the server, and keeps what its answer allows.
    pub(super) async fn fetch(&self, context: &Context, request: Request<'_>, leases: &Arc<Leases>) -> Answer {
        let asked = leases.asks();
        let written = match request {
            Request::Release { open } => self.volume.opens.writer(open),
            _ => None,
        };
        // Who has written, and closes the file, leaves it to others as well.
        let epoch = leases.epoch();
        let shares = written.filter(|open| leases.remove_writer(&open.handle));
        let asks = if shares.is_some() { Flags::EXCLUSIVE } else { Flags::empty() };
        let mut brought = Brought { asks, ..Brought::default() };
        let result = self.volume.call(context, &request, &mut brought).await;
        // Else it may be executed later, and nobody knows when: until the next session.
        if let Some(open) = shares.filter(|_| !brought.is_open) {
            leases.end_sharing(&open.handle, epoch);
        }
        if let (Err(Errno::ESTALE), Some(handle)) = (&result, looked_at(&request)) {
            leases.is_gone(handle);
        }
        let mut keeper = Keeper::new(leases, asked, &brought);
        let keep = match (&request, &result) {
            _ if brought.grants.is_empty() => Keep::default(),
            (Request::Lookup { parent, name }, Ok(Reply::Entry(entry))) => keeper.entry((parent, name), Some(entry)),
            (Request::Lookup { parent, name }, Err(Errno::ENOENT)) => keeper.entry((parent, name), None),
            (Request::GetAttr { handle, .. }, Ok(Reply::Attr(attr))) => keeper.attr(handle, attr),
            (Request::ReadLink { handle }, Ok(Reply::Bytes(text))) => keeper.text(handle, text),
            (Request::GetXattr { handle, name, size }, result) => keeper.xattr(handle, (name, *size), result),
            (Request::OpenDirectory { handle }, Ok(_)) => {
                lock(&leases.scans).opens_directory(handle);
                let lease = keeper.lease(Subject::Inode);
                keeper.open_directory(handle, lease, context)
            }
            (Request::Open { handle, flags }, Ok(_)) => keeper.open(handle, *flags, context),
            (Request::ReadDirectory { open, cookie, .. }, Ok(Reply::Directory(page))) => {
                match self.volume.opens.handle(*open) {
                    Some(handle) => {
                        let (lease, of_entries) = (keeper.lease(Subject::Inode), keeper.numbered());
                        keeper.page(&handle, (Some(*open), *cookie, page), lease, &of_entries)
                    }
                    None => Keep::default(),
                }
            }
            _ => Keep::default(),
        };
        answer(result, keep, keeper.hold)
    }
}

/// The inode that a request looks at.
fn looked_at<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match *request {
        Request::Lookup { parent: handle, .. }
        | Request::GetAttr { handle, .. }
        | Request::Open { handle, .. }
        | Request::OpenDirectory { handle }
        | Request::ReadLink { handle }
        | Request::GetXattr { handle, .. } => Some(handle),
        _ => None,
    }
}

/// An answer from memory.
type Known = Option<(Result<Reply, Errno>, Keep)>;

fn find_attr(leases: &Leases, hold: &mut OfAnswer, handle: &[u8], view: &View) -> Option<(Attr, Keep)> {
    leases.find(handle, hold, |shard, hash| shard.show(handle, hash, view))
}

/// The answer to a request that has made an inode: its attributes may be kept as others that are asked for.
pub(super) fn answer_made(leases: &Arc<Leases>, mut result: Result<Reply, Errno>) -> Answer {
    let mut hold = OfAnswer::new(leases);
    let mut keep = Keep::default();
    if let (Ok(Reply::Entry(entry) | Reply::Created(entry, _)), Some(view)) = (&mut result, leases.view())
        && let Some(found) = find_attr(leases, &mut hold, entry.handle.bytes(), &view)
    {
        (entry.attr, keep) = found;
    }
    answer(result, keep, hold)
}

/// Whether pages may be stored to through a descriptor that is opened so, and what is written
/// through it need not pass them by: the file, then.
pub(super) fn opens_to_map<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    const MAPS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
    match *request {
        Request::Open { handle, flags } if flags.contains(MAPS) && (MAPS | OpenFlags::NOATIME).contains(flags) => {
            Some(handle)
        }
        _ => None,
    }
}

/// The answer to such an open: the kernel may keep pages if the file is small, and nobody else's.
pub(super) fn answer_opened(leases: &Arc<Leases>, handle: &[u8], result: Result<Reply, Errno>) -> Answer {
    let (mut hold, mut keep) = (OfAnswer::new(leases), Keep::default());
    if let (Ok(Reply::Opened(_)), Some(view)) = (&result, leases.view()) {
        let find = |shard: &mut Shard, hash| shard.written_pages(handle, hash, Some(MAPPED_MAX), &view).then_some(());
        keep.data = leases.find(handle, &mut hold, find).is_some();
    }
    answer(result, keep, hold)
}

fn look_up(leases: &Leases, hold: &mut OfAnswer, parent: &[u8], name: &[u8]) -> Known {
    let view = leases.view()?;
    let name_hash = leases.name_hash(leases.hash(parent), name);
    let find = |shard: &mut Shard, hash| {
        let known = shard.name(parent, (hash, name_hash), name, &view);
        known.or_else(|| {
            let concludes = leases.has_room() && shard.conclude(parent, hash, name, &view);
            concludes.then(|| shard.name(parent, (hash, name_hash), name, &view))?
        })
    };
    let (to, names) = leases.find(parent, hold, find)?;
    let Some(handle) = to else { return Some((Err(Errno::ENOENT), Keep { names, ..Keep::default() })) };
    let (attr, keep) = find_attr(leases, hold, &handle, &view)?;
    let entry = Entry { handle: Handle::new(&handle)?, attr };
    Some((Ok(Reply::Entry(entry)), Keep { names, ..keep }))
}

/// A page of a listing. With inodes only if all of them are known.
fn page(leases: &Leases, hold: &mut OfAnswer, handle: &[u8], (cookie, size, plus): (u64, u32, bool)) -> Known {
    let view = leases.view()?;
    let packed_size = |entry: &Listed| {
        let inode = entry.handle.as_ref().filter(|_| plus && !is_dots(&entry.name));
        ENTRY_SIZE + entry.name.len() + inode.map_or(0, |handle| 2 + handle.len() + ATTR_SIZE)
    };
    let find = |shard: &mut Shard, hash| shard.page(handle, hash, (cookie, size as usize), (&view, plus), packed_size);
    let (part, names) = leases.find(handle, hold, find)?;
    let mut page = DirPage::default();
    page.end = part.end;
    let (mut attributes, mut is_written) = (None, false);
    for entry in &part.entries {
        let mut inode = None;
        if plus && !is_dots(&entry.name) {
            let handle = entry.handle.as_ref()?;
            let (attr, shown) = find_attr(leases, hold, handle, &view)?;
            attributes = Some(attributes.map_or(shown.attributes, |least: Duration| least.min(shown.attributes)));
            is_written |= shown.is_written;
            inode = Some((&handle[..], attr));
        }
        page.push(&DirEntry { ino: entry.ino, cookie: entry.cookie, kind: entry.kind, name: &entry.name, inode });
    }
    let keep = Keep { attributes: attributes.unwrap_or_default(), is_written, names, ..Keep::default() };
    Some((Ok(Reply::Directory(page)), keep))
}

impl Leases {
    /// See [`FileSystem::hold_data`](aqueduct_fs::FileSystem::hold_data).
    pub(super) fn hold_data(self: &Arc<Leases>, handle: &[u8]) -> Option<Hold> {
        self.hold_if(handle, |shard, handle, hash, view| {
            shard.data(handle, hash, view) || shard.written_pages(handle, hash, None, view)
        })
    }

    /// Until what is returned is dropped, no other client changes the content of this inode;
    /// `None`: one might.
    pub(crate) fn hold_content(self: &Arc<Leases>, handle: &[u8]) -> Option<Hold> {
        self.hold_if(handle, Shard::has_content)
    }

    /// Where the bytes of a file lie, as it was kept.
    pub(crate) fn layout(&self, handle: &[u8]) -> Option<Arc<Layout>> {
        let (view, hash) = (self.view()?, self.hash(handle));
        self.shard(hash, |shard| shard.layout(handle, hash, &view))
    }

    /// Keeps the lease that came with an answer, and nothing else.
    pub(crate) fn keep_lease(&self, handle: &[u8], of: (Number, &Brought)) {
        let Some(lease) = of.1.of_inode() else { return };
        self.keep(handle, lease, of, |_, _, _| ());
    }

    /// Keeps where a file lies, if the lease that came with the answer allows it.
    pub(crate) fn keep_layout(&self, handle: &[u8], layout: Arc<Layout>, (asked, brought): (Number, &Brought)) {
        let Some(lease) = brought.of_inode() else { return };
        self.keep(handle, lease, (asked, brought), |shard, hash, fetched| {
            shard.keep_layout(handle, hash, layout, fetched);
        });
    }

    /// It is to be asked for anew.
    pub(crate) fn forget_layout(&self, handle: &[u8]) {
        self.shard(self.hash(handle), |shard| shard.forget_layout(handle));
    }

    /// The lease under which a file may be written now, for as long as what is returned is not
    /// dropped: exclusive, or beside others; with its epoch.
    pub(super) fn hold_writing(self: &Arc<Leases>, handle: &[u8]) -> Option<(Hold, Aspects, u64)> {
        let (mut under, mut epoch) = (None, 0);
        let hold = self.hold_if(handle, |shard, handle, _, view| {
            (under, epoch) = (shard.writes_under(handle, view.now), shard.epoch());
            under.is_some()
        });
        Some((hold?, under?, epoch))
    }

    fn hold_if(
        self: &Arc<Leases>,
        handle: &[u8],
        may: impl FnOnce(&mut Shard, &[u8], Hash, &View) -> bool,
    ) -> Option<Hold> {
        let view = self.view()?;
        let hash = self.hash(handle);
        let found = self.shard(hash, |shard| {
            let key = shard.key(handle).filter(|_| may(shard, handle, hash, &view))?;
            self.holds.add_read(hash);
            Some((key, shard.epoch()))
        });
        let (handle, epoch) = found?;
        Some(Hold::new(OfRead { leases: self.clone(), handle, hash, epoch }))
    }
}

/// Keeps what an answer brought, and finds out what of that the kernel may keep.
pub(super) struct Keeper<'a> {
    leases: &'a Arc<Leases>,
    asked: Number,
    brought: &'a Brought,
    view: Option<View>,
    /// The answer goes to the kernel; else it was fetched ahead, and nobody is told of it yet.
    tells: bool,
    hold: OfAnswer,
}

impl<'a> Keeper<'a> {
    fn new(leases: &'a Arc<Leases>, asked: Number, brought: &'a Brought) -> Keeper<'a> {
        Keeper { leases, asked, brought, view: leases.view(), tells: true, hold: OfAnswer::new(leases) }
    }

    /// Of what was fetched ahead.
    pub(super) fn ahead(leases: &'a Arc<Leases>, asked: Number, brought: &'a Brought) -> Keeper<'a> {
        Keeper { tells: false, ..Keeper::new(leases, asked, brought) }
    }

    /// The lease that came on a subject.
    pub(super) fn lease(&self, subject: Subject) -> Option<(LeaseId, Aspects)> {
        self.brought.lease(subject)
    }

    /// Keeps something of an inode, and holds it for the kernel if `keep` says that it is told of it.
    fn keep<T>(
        &mut self,
        handle: &[u8],
        lease: Option<(LeaseId, Aspects)>,
        keep: impl FnOnce(&mut Shard, Hash, Fetched, &View) -> Option<T>,
    ) -> Option<T> {
        let (leases, view) = (self.leases, self.view?);
        let kept = leases.keep(handle, lease?, (self.asked, self.brought), |shard, hash, fetched| {
            let told = keep(shard, hash, fetched, &view)?;
            leases.holds.add_answer(hash);
            Some((told, hash))
        });
        let (told, hash) = kept??;
        self.hold.add(hash);
        Some(told)
    }

    /// `None`: the attributes are not kept, and so nobody will say when they are others.
    fn attr_under(&mut self, handle: &[u8], lease: Option<(LeaseId, Aspects)>, attr: &Attr) -> Option<Keep> {
        let (may, tells) = (self.leases.keeps_attributes(self.asked), self.tells);
        self.keep(handle, lease, |shard, hash, fetched, view| {
            let kept = may && shard.keep_attr(handle, hash, attr, fetched) && tells;
            kept.then(|| shard.show(handle, hash, view))?.map(|(_, keep)| keep)
        })
    }

    fn name(
        &mut self,
        parent: &[u8],
        lease: Option<(LeaseId, Aspects)>,
        (name, to): (&[u8], Option<&[u8]>),
    ) -> Duration {
        let to = to.map(|handle| self.leases.key(handle));
        let name_hash = self.leases.name_hash(self.leases.hash(parent), name);
        let tells = self.tells;
        let kept = self.keep(parent, lease, |shard, hash, fetched, view| {
            let hashes = (hash, name_hash);
            let kept = shard.keep_name(parent, hashes, (name, to), fetched) && tells;
            kept.then(|| shard.name(parent, hashes, name, view))?.map(|(_, told)| told)
        });
        kept.unwrap_or_default()
    }

    fn attr(&mut self, handle: &[u8], attr: &Attr) -> Keep {
        let lease = self.lease(Subject::Inode);
        self.attr_under(handle, lease, attr).unwrap_or_default()
    }

    /// What a name stands for. Over a name that it keeps a kernel judges by the owner that it knows: so it keeps none of an inode whose attributes nobody
    /// recalls.
    fn entry(&mut self, (parent, name): (&[u8], &[u8]), entry: Option<&Entry>) -> Keep {
        let of_inode = self.lease(Subject::Inode);
        let attributes = entry.map(|entry| self.attr_under(entry.handle.bytes(), of_inode, &entry.attr));
        let of_parent = self.lease(Subject::Parent);
        let names = self.name(parent, of_parent, (name, entry.map(|entry| entry.handle.bytes())));
        match attributes {
            None => Keep { names, ..Keep::default() },
            Some(Some(keep)) => Keep { names, ..keep },
            Some(None) => Keep::default(),
        }
    }

    fn text(&mut self, handle: &[u8], text: &[u8]) -> Keep {
        let lease = self.lease(Subject::Inode);
        self.keep(handle, lease, |shard, hash, fetched, _| {
            shard.keep_content(handle, hash, text, fetched);
            None::<()>
        });
        Keep::default()
    }

    fn xattr(&mut self, handle: &[u8], (name, size): (&[u8], u32), result: &Result<Reply, Errno>) -> Keep {
        let value = match result {
            Ok(Reply::Bytes(value)) if size > 0 => Some(&value[..]),
            Err(Errno::ENODATA) => None,
            _ => return Keep::default(),
        };
        let Some(name) = kept_xattr(name) else { return Keep::default() };
        let lease = self.lease(Subject::Inode).filter(|_| self.leases.keeps_attributes(self.asked));
        self.keep(handle, lease, |shard, hash, fetched, _| {
            shard.keep_xattr(handle, hash, (name, value), fetched);
            None::<()>
        });
        Keep::default()
    }

    fn open(&mut self, handle: &[u8], flags: OpenFlags, context: &Context) -> Keep {
        let lease = self.lease(Subject::Inode);
        let Some(rights) = rights(flags) else { return Keep::default() };
        let credential = self.leases.credential(&context.credential);
        let data = self.keep(handle, lease, |shard, hash, fetched, view| {
            if let Some(credential) = &credential {
                shard.keep_verdict(handle, hash, (credential, rights), fetched);
            }
            shard.data(handle, hash, view).then_some(())
        });
        Keep { data: data.is_some(), ..Keep::default() }
    }

    fn open_directory(&mut self, handle: &[u8], lease: Option<(LeaseId, Aspects)>, context: &Context) -> Keep {
        let credential = self.leases.credential(&context.credential);
        self.keep(handle, lease, |shard, hash, fetched, _| {
            shard.keep_verdict(handle, hash, (&credential?, RIGHT_TO_LIST), fetched);
            None::<()>
        });
        Keep::default()
    }

    /// A whole file that was fetched ahead, and who may read it.
    pub(super) fn file(
        &mut self,
        handle: &[u8],
        lease: Option<(LeaseId, Aspects)>,
        (attr, data): (&Attr, &[u8]),
        context: &Context,
    ) {
        let may = self.leases.keeps_attributes(self.asked);
        let credential = self.leases.credential(&context.credential);
        self.keep(handle, lease, |shard, hash, fetched, _| {
            if may && shard.keep_attr(handle, hash, attr, fetched) && data.len() as u64 == attr.size {
                shard.keep_verdict(handle, hash, (&credential?, OpenFlags::READ.bits()), fetched);
                shard.keep_content(handle, hash, data, fetched);
            }
            None::<()>
        });
    }

    /// The files and directories of a page, for who goes through them one after another.
    fn note_entries(&self, handle: &[u8], cookie: u64, page: &DirPage) {
        let key = |handle: &[u8]| self.leases.key(handle);
        let inodes = page.entries().filter_map(|entry| entry.inode);
        let entries = inodes.filter_map(|(handle, attr)| {
            let size = attr.is_regular().then_some(attr.size);
            (size.is_some() || attr.is_directory()).then(|| (key(handle), size))
        });
        let entries: Vec<_> = entries.collect();
        lock(&self.leases.scans).listed(&key(handle), cookie == 0, entries.into_iter());
    }

    /// The leases on what grants name by numbers.
    pub(super) fn numbered(&self) -> Vec<Option<(LeaseId, Aspects)>> {
        let mut leases = Vec::new();
        for grant in &self.brought.grants {
            let Subject::Entry(at) = grant.subject else { continue };
            let at = usize::from(at);
            if at >= GRANTS_MAX {
                continue;
            }
            if at >= leases.len() {
                leases.resize(at + 1, None);
            }
            leases[at] = Some((grant.lease, grant.aspects));
        }
        leases
    }

    /// The first page of a directory that was fetched ahead, and who may list it, under the leases on the directory and its entries.
    pub(super) fn directory(
        &mut self,
        handle: &[u8],
        page: &DirPage,
        leases: &[Option<(LeaseId, Aspects)>],
        context: &Context,
    ) {
        let (lease, of_entries) = leases.split_first().map_or((None, leases), |(lease, rest)| (*lease, rest));
        self.open_directory(handle, lease, context);
        self.page(handle, (None, 0, page), lease, of_entries);
    }

    /// A page of a listing, with what it says of its entries.
    pub(super) fn page(
        &mut self,
        handle: &[u8],
        (open, cookie, page): (Option<OpenId>, u64, &DirPage),
        of_directory: Option<(LeaseId, Aspects)>,
        of_entries: &[Option<(LeaseId, Aspects)>],
    ) -> Keep {
        let inodes = || page.entries().filter_map(|entry| entry.inode.map(|(handle, _)| (entry.name, handle)));
        let directory = self.leases.hash(handle);
        let known: Vec<_> = inodes()
            .map(|(name, to)| (name, self.leases.name_hash(directory, name), Some(self.leases.key(to))))
            .collect();
        let tells = self.tells;
        // At once, so that a change of one of them that begins now finds that the kernel was told.
        let names = self.keep(handle, of_directory, |shard, hash, fetched, view| {
            let fresh = Fresh { open, cookie, page, came: view.now };
            let may_tell = shard.keep_page(handle, hash, fresh, fetched) && !known.is_empty() && tells;
            for (name, name_hash, to) in known {
                shard.keep_name(handle, (hash, name_hash), (name, to), fetched);
            }
            if page.end {
                shard.is_listed(handle);
            }
            may_tell.then(|| shard.tell_names(handle, hash, inodes().map(|(name, _)| name), view))
        });
        let (mut attributes, mut is_written) = (None, false);
        let mut names = names.unwrap_or_default();
        for (entry, at) in page.entries().zip(0..) {
            let Some((inode, attr)) = entry.inode else { continue };
            let told = self.attr_under(inode, of_entries.get(at).copied().flatten(), &attr);
            if told.is_none() && !is_dots(entry.name) {
                names = Duration::ZERO; // as for a name that is looked up
            }
            let told = told.unwrap_or_default();
            attributes = Some(attributes.map_or(told.attributes, |least: Duration| least.min(told.attributes)));
            is_written |= told.is_written;
        }
        self.note_entries(handle, cookie, page);
        Keep { attributes: attributes.unwrap_or_default(), is_written, names, ..Keep::default() }
    }
}
