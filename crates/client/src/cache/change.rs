//! Changes of this client's own. What they touch is not used from their beginning on, here and in the kernel, and what was asked before their end is not kept.
//!
//! The server does not recall from whoever makes a change what it touches, so that this client has to know itself. What a name stands for it knows under a lease
//! on the names; without one it looks once the change has begun. Should another client give the name to another inode after that, then the lease on
//! that inode's attributes is recalled first; so while such a change is under way no attributes are kept, of whatever inode.

use std::sync::Arc;
use std::time::Instant;

use aqueduct_fs::{Aspects, Context, Errno, OpenFlags, OpenId, Reply, Request, Source, WriteAt, Written};
use aqueduct_session::{Brought, now};
use aqueduct_wire::{Flags, Subject};
use aqueduct_worker::Done;

use super::gate::Number;
use super::leases::Leases;
use super::parts::Cache;
use super::recalls::Forget;
use super::view::{BOTH, Reach, Touch};
use crate::volume::{Opens, holds_back};

/// What is changed of an inode.
type Part = (Arc<[u8]>, Aspects, Reach);

/// What a request changes.
#[derive(Default)]
pub(super) struct Plan<'a> {
    names: Vec<Named<'a>>,
    /// Inodes, what of them, and what it concerns beside that.
    inodes: Vec<Part>,
    /// Is opened for writing.
    opens: Option<&'a [u8]>,
}

struct Named<'a> {
    parent: &'a [u8],
    name: &'a [u8],
    /// What becomes of the inode that has the name now, if it matters.
    of_victim: Option<Aspects>,
}

impl<'a> Plan<'a> {
    /// `None`: nothing that others may keep.
    pub(super) fn of(request: &Request<'a>, leases: &Leases, opens: &Opens) -> Option<Plan<'a>> {
        use Request::*;
        let named = |parent, name, of_victim| vec![Named { parent, name, of_victim }];
        let inode = |handle: &[u8], aspects, reach| vec![(leases.key(handle), aspects, reach)];
        let written = |open: OpenId| {
            opens.writer(open).map(|open| (open.handle.clone(), BOTH, Reach::Itself)).into_iter().collect()
        };
        let plan = match *request {
            SetAttr { handle, set, .. } => {
                let aspects = if set.size.is_some() { BOTH } else { Aspects::ATTRIBUTES };
                let of_rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
                let reach = if of_rights { Reach::Rights } else { Reach::Itself };
                Plan { inodes: inode(handle, aspects, reach), ..Plan::default() }
            }
            SetXattr { handle, .. } | RemoveXattr { handle, .. } => {
                Plan { inodes: inode(handle, Aspects::ATTRIBUTES, Reach::Xattrs), ..Plan::default() }
            }
            Fallocate { open, .. } | CopyRange { to: open, .. } => Plan { inodes: written(open), ..Plan::default() },
            Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => {
                let inodes = inode(handle, BOTH, Reach::Itself);
                Plan { inodes, opens: flags.contains(OpenFlags::WRITE).then_some(handle), ..Plan::default() }
            }
            Open { handle, flags } if flags.contains(OpenFlags::WRITE) => {
                Plan { opens: Some(handle), ..Plan::default() }
            }
            Create { parent, name, flags, .. } => {
                let may_empty = flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::EXCLUSIVE);
                Plan { names: named(parent, name, may_empty.then_some(BOTH)), ..Plan::default() }
            }
            CreateUnnamed { .. } => Plan::default(),
            MakeDirectory { parent, name, .. } | MakeNode { parent, name, .. } | Symlink { parent, name, .. } => {
                Plan { names: named(parent, name, None), ..Plan::default() }
            }
            PutFiles { parent, files, .. } => {
                let files = aqueduct_fs::put::unpack(files).unwrap_or_default();
                let named = |file: aqueduct_fs::put::PutFile<'a>| Named { parent, name: file.name, of_victim: None };
                Plan { names: files.into_iter().map(named).collect(), ..Plan::default() }
            }
            Link { handle, parent, name } => {
                let inodes = inode(handle, Aspects::ATTRIBUTES, Reach::Rights);
                Plan { names: named(parent, name, None), inodes, opens: None }
            }
            Unlink { parent, name } => {
                Plan { names: named(parent, name, Some(Aspects::ATTRIBUTES)), ..Plan::default() }
            }
            RemoveDirectory { parent, name } => {
                Plan { names: named(parent, name, Some(Aspects::all())), ..Plan::default() }
            }
            Rename { parent, name, new_parent, new_name, .. } => {
                let mut names = named(parent, name, Some(Aspects::all()));
                names.extend(named(new_parent, new_name, Some(Aspects::all())));
                Plan { names, ..Plan::default() }
            }
            _ => return None,
        };
        Some(plan.with_parents(leases))
    }

    /// Whoever changes names in a directory changes its attributes.
    fn with_parents(mut self, leases: &Leases) -> Plan<'a> {
        for named in &self.names {
            self.inodes.push((leases.key(named.parent), Aspects::ATTRIBUTES, Reach::Itself));
        }
        self
    }
}

/// An open for writing that is being made: dropped before, it is none.
struct Opening<'a> {
    leases: &'a Leases,
    handle: &'a [u8],
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.leases.remove_writer(self.handle) {
            self.leases.end_sharing(self.handle, self.leases.epoch()); // nobody is told: the next who writes has it for himself anyway
        }
    }
}

/// A change under way. Dropped before it was answered, it may still be made.
struct Change<'a> {
    leases: &'a Leases,
    names: Vec<Named<'a>>,
    inodes: Vec<Part>,
    /// How many of the inodes it has begun with.
    begun: (usize, usize),
    asked: Number,
    is_uncertain: bool,
    is_settled: bool,
}

impl<'a> Change<'a> {
    fn touch_name<'b>(leases: &Leases, named: &'b Named<'a>) -> Touch<'b> {
        let hash = leases.name_hash(leases.hash(named.parent), named.name);
        Touch::Name { parent: named.parent, name: named.name, hash }
    }

    fn touch_inode<'b>((handle, aspects, reach): &'b Part) -> Touch<'b> {
        Touch::Inode { handle, aspects: *aspects, reach: *reach }
    }

    /// It has been answered. With what the answer says of names and of one inode, which is kept if it is the latest.
    fn end(
        mut self,
        settled: bool,
        names: &[Option<Option<Arc<[u8]>>>],
        attr: Option<(&[u8], &Reply)>,
        brought: &Brought,
    ) {
        self.is_settled = settled;
        let is_directory = matches!(attr, Some((_, Reply::Entry(entry))) if entry.attr.is_directory());
        for (at, named) in self.names.iter().enumerate().take(std::mem::take(&mut self.begun.0)) {
            let touch = Change::touch_name(self.leases, named);
            let now_there = names.get(at).cloned().flatten();
            self.leases.end(&touch, self.asked, settled, |shard| {
                if let Some(to) = now_there {
                    shard.keep_own_name(named.parent, (named.name, to, is_directory), brought.sent);
                }
            });
        }
        let of_directory = brought.lease(Subject::Changed).zip(brought.changed);
        for inode in self.inodes.iter().take(std::mem::take(&mut self.begun.1)) {
            let value = match attr {
                Some((handle, Reply::Attr(attr))) if *handle == *inode.0 => brought.of_inode().zip(Some(*attr)),
                Some((_, Reply::Entry(entry))) if *entry.handle.bytes() == *inode.0 => {
                    brought.of_inode().zip(Some(entry.attr))
                }
                _ if self.names.first().is_some_and(|named| *named.parent == *inode.0) => of_directory,
                _ => None,
            };
            let may = self.leases.keeps_attributes(self.asked);
            self.leases.end(&Change::touch_inode(inode), self.asked, settled, |shard| {
                if let (Some((lease, attr)), true) = (value, may) {
                    let hash = self.leases.hash(&inode.0);
                    let times = (&attr, brought.sent, now(), brought.epoch);
                    shard.keep_own_attr(&inode.0, hash, lease, times);
                }
            });
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for named in self.names.iter().take(self.begun.0) {
            let touch = Change::touch_name(self.leases, named);
            self.leases.end(&touch, self.asked, self.is_settled, |_| {});
        }
        for inode in self.inodes.iter().take(self.begun.1) {
            self.leases.end(&Change::touch_inode(inode), self.asked, self.is_settled, |_| {});
        }
        match (self.is_uncertain, self.is_settled) {
            (true, true) => self.leases.end_uncertain(),
            (true, false) => self.leases.leave_uncertain(),
            _ => {}
        }
    }
}

/// Whether an answer leaves no doubt that the request will not be executed later. EIO and EINTR are also the answers of a client that has given up.
fn settles<T>(result: &Result<T, Errno>) -> bool {
    !matches!(result, Err(Errno::EIO | Errno::EINTR))
}

impl Cache {
    /// Begins a change; the server can be asked for it when this returns.
    async fn begin<'a>(
        &'a self,
        context: &Context,
        leases: &'a Arc<Leases>,
        plan: Plan<'a>,
    ) -> Result<(Change<'a>, Vec<Option<Arc<[u8]>>>), Errno> {
        let (begun, asked) = ((0, 0), leases.asks());
        let Plan { names, inodes, .. } = plan;
        let mut change = Change { leases, names, inodes, begun, asked, is_uncertain: false, is_settled: true };
        let mut forget: Vec<(Arc<[u8]>, Aspects)> = Vec::new();
        let mut victims = Vec::new();
        for at in 0..change.names.len() {
            let named = &change.names[at];
            let (parent, name) = (named.parent, named.name);
            let (known, told) = leases.begin_name(&Change::touch_name(leases, named), parent, name);
            change.begun.0 += 1;
            forget.push((leases.key(parent), told));
            let of_victim = change.names[at].of_victim;
            let victim = match (known, of_victim) {
                (_, None) => None,
                (Some(known), Some(_)) => known,
                (None, Some(_)) => {
                    if !std::mem::replace(&mut change.is_uncertain, true) {
                        leases.begin_uncertain();
                    }
                    Box::pin(self.victim(context, leases, parent, name)).await?
                }
            };
            if let (Some(handle), Some(aspects)) = (&victim, of_victim) {
                if aspects.contains(Aspects::DATA) {
                    // What was written to it by another name, and is held back, would come to the
                    // server after its bytes are gone.
                    leases.writeback.settle(leases.which(handle), &context.cancel).await?;
                }
                change.inodes.push((handle.clone(), aspects, Reach::Rights));
            }
            victims.push(victim);
        }
        for inode in &change.inodes {
            forget.push((inode.0.clone(), leases.begin(&Change::touch_inode(inode))));
            change.begun.1 += 1;
        }
        self.have_forgotten(leases, forget).await;
        let of_rights = change.inodes.iter().filter(|(_, _, reach)| *reach >= Reach::Rights);
        let opens: Vec<_> = of_rights.flat_map(|(handle, ..)| self.volume.opens.unsettled_of(handle)).collect();
        opens.iter().for_each(|open| self.volume.make_real(open));
        for open in &opens {
            // One that cannot be had gives an error to whoever uses it.
            let _made = self.volume.made(open, context.steps()).await;
        }
        change.asked = leases.asks();
        Ok((change, victims))
    }

    /// What a name stands for at the server now.
    async fn victim(
        &self,
        context: &Context,
        leases: &Leases,
        parent: &[u8],
        name: &[u8],
    ) -> Result<Option<Arc<[u8]>>, Errno> {
        match self.volume.call(context, &Request::Lookup { parent, name }, &mut Brought::default()).await {
            Ok(reply) => Ok(Some(leases.key(reply.entry()?.handle.bytes()))),
            // Should there be something, then whoever asks may not change it either.
            Err(Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::ESTALE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel forget what it was told, and waits until it has.
    async fn have_forgotten(&self, leases: &Leases, forget: Vec<(Arc<[u8]>, Aspects)>) {
        if leases.observer().is_none() {
            return;
        }
        let mut waits = Vec::new();
        for (handle, told) in forget {
            let data = told & Aspects::DATA;
            for (aspects, is_data) in [(told - data, false), (data, true)] {
                if aspects.is_empty() || !is_data && leases.forget_at_once(&handle, aspects) {
                    continue;
                }
                let done = Arc::<Done>::default();
                waits.push(done.clone());
                let forget = Forget { handle: handle.clone(), aspects, done: Some(done) };
                if is_data { leases.recalls.forget(forget) } else { leases.recalls.forgets.add(forget) }
            }
        }
        for done in waits {
            done.wait().await;
        }
    }

    /// Makes a change.
    pub(super) async fn change<'a>(
        &'a self,
        context: &Context,
        request: Request<'a>,
        leases: &'a Arc<Leases>,
        plan: Plan<'a>,
    ) -> Result<Reply, Errno> {
        let opening = plan.opens.map(|handle| Opening { leases, handle });
        if let Some(Opening { handle, .. }) = opening {
            let told = leases.add_writer(handle);
            self.have_forgotten(leases, vec![(leases.key(handle), told)]).await;
        }
        let begun = self.begin(context, leases, plan).await;
        let result = match begun {
            Ok((change, victims)) => self.make(context, &request, (change, victims)).await,
            Err(error) => Err(error),
        };
        if let (Some(opening), Ok(Reply::Opened(_))) = (opening, &result) {
            std::mem::forget(opening); // until it is closed
        }
        if let (Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. }, Ok(Reply::Created(entry, _))) =
            (&request, &result)
            && flags.contains(OpenFlags::WRITE)
        {
            let handle = leases.key(entry.handle.bytes());
            let told = leases.add_writer(&handle);
            self.have_forgotten(leases, vec![(handle, told)]).await;
        }
        result
    }

    async fn make(
        &self,
        context: &Context,
        request: &Request<'_>,
        (mut change, victims): (Change<'_>, Vec<Option<Arc<[u8]>>>),
    ) -> Result<Reply, Errno> {
        let leases = change.leases;
        let asked = change.asked;
        let asks = self.asks(leases, written_through(request)) | asks_bare(request, leases);
        let mut brought = Brought { asks, ..Brought::default() };
        change.is_settled = false;
        let result = self.volume.call(context, request, &mut brought).await;
        let settled = !brought.is_open;
        if let Ok(reply) = &result {
            let victims = if change.is_uncertain { &[][..] } else { &victims };
            let names = names_after(request, reply, leases, victims);
            let handle = if let Request::SetAttr { handle, .. } | Request::Link { handle, .. } = request {
                *handle
            } else {
                &[]
            };
            change.end(settled, &names, Some((handle, reply)), &brought);
            self.keep_made(leases, asked, (request, reply), &brought);
            if let (Some(uid), true) = (owner_of_new(request, reply), settled) {
                leases.has_made(context, uid, brought.epoch);
            }
            if let (Request::Open { handle, .. }, Some(lease)) = (request, brought.of_inode()) {
                leases.keep(handle, lease, (asked, &brought), |_, _, _| ());
            }
        } else {
            change.end(settled, &[], None, &brought);
        }
        result
    }

    /// What a request has made is kept as any other answer.
    fn keep_made(&self, leases: &Leases, asked: Number, (request, reply): (&Request<'_>, &Reply), brought: &Brought) {
        let (Reply::Entry(entry) | Reply::Created(entry, _)) = reply else { return };
        let Some(lease) = brought.of_inode() else { return };
        let (may, handle) = (leases.keeps_attributes(asked), entry.handle.bytes());
        let is_empty = match request {
            Request::MakeDirectory { parent, .. } => {
                leases.shard(leases.hash(parent), |shard| shard.lists_exactly(parent))
            }
            _ => false,
        };
        leases.keep(handle, lease, (asked, brought), |shard, hash, fetched| {
            if is_empty {
                shard.keep_new(handle, hash, fetched);
            }
            if may && brought.is_bare() {
                shard.keep_bare(handle, hash, fetched);
            }
            may && shard.keep_attr(handle, hash, &entry.attr, fetched)
        });
    }

    /// What is asked for by who would hold writes back.
    fn asks(&self, leases: &Leases, through: Option<OpenFlags>) -> Flags {
        let gathers = through.is_some_and(|flags| {
            holds_back(flags) && (!flags.contains(OpenFlags::APPEND) || self.holds_appends(leases))
        });
        if gathers && leases.writeback.is_on() { Flags::EXCLUSIVE } else { Flags::empty() }
    }

    /// Writes, as a change of the file.
    pub(super) async fn write_changing(
        &self,
        context: &Context,
        write: WriteAt,
        source: Source,
        leases: &Arc<Leases>,
    ) -> Result<Written, Errno> {
        let writer = self.volume.opens.writer(write.open);
        let inodes = writer.iter().map(|writer| (writer.handle.clone(), BOTH, Reach::Itself)).collect();
        let (mut change, _) = self.begin(context, leases, Plan { inodes, ..Plan::default() }).await?;
        change.is_settled = false;
        writer.iter().for_each(|open| open.wrote());
        let straight = writer.clone();
        let writer = writer.filter(|writer| writer.gathers() && !write.stable);
        let through = writer.as_ref().and_then(|writer| writer.flags());
        let (asked, asks) = (change.asked, self.asks(leases, through));
        let mut brought = Brought { asks, ..Brought::default() };
        let data = source.memory()?;
        let (writeback, length) = (&leases.writeback, data.len());
        let sent = (!writeback.may_take(length)).then(Instant::now);
        // Else the wire would stay as slow as it was once, for who writes nothing small.
        let measure = |result: &Result<Written, Errno>| {
            if let (Some(sent), true) = (sent, result.is_ok()) {
                writeback.went_straight(length, sent.elapsed());
            }
        };
        if let Some(open) = &straight
            && self.volume.movers.is_some()
            && let Some(result) = Box::pin(self.write_straight(context, leases, (open, write), &data)).await
        {
            measure(&result);
            change.end(settles(&result), &[], None, &Brought::default());
            return result;
        }
        let result = self.volume.write(context, (write, data), &mut brought).await;
        measure(&result);
        if let (Some(writer), true) = (&writer, result.is_ok()) {
            let lease = brought.of_inode();
            writer.set_contended(lease.is_none_or(|(_, aspects)| !aspects.contains(Aspects::WRITES)));
            lease.into_iter().for_each(|lease| _ = leases.keep(&writer.handle, lease, (asked, &brought), |_, _, _| ()));
        }
        change.end(settles(&result), &[], None, &Brought::default());
        result
    }
}

/// The flags of the open that a request makes.
fn written_through(request: &Request<'_>) -> Option<OpenFlags> {
    match request {
        Request::Open { flags, .. } | Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. } => {
            Some(*flags)
        }
        _ => None,
    }
}

/// Whether a request that succeeds has made an inode that nobody knew before.
pub(super) fn makes_anew(request: &Request<'_>) -> bool {
    use Request::*;
    match request {
        Create { flags, .. } => flags.contains(OpenFlags::EXCLUSIVE),
        CreateUnnamed { .. } | MakeDirectory { .. } | MakeNode { .. } | Symlink { .. } => true,
        _ => false,
    }
}

/// Whose is what a request has made, if it surely has: another may have made what Create has found.
fn owner_of_new(request: &Request<'_>, reply: &Reply) -> Option<u32> {
    match reply {
        Reply::Entry(entry) | Reply::Created(entry, _) if makes_anew(request) => Some(entry.attr.uid),
        _ => None,
    }
}

/// Whether what a request makes is bare is asked for where a kernel may ask for it.
fn asks_bare(request: &Request<'_>, leases: &Leases) -> Flags {
    use Request::*;
    let may_have_lists =
        matches!(request, Create { .. } | CreateUnnamed { .. } | MakeDirectory { .. } | MakeNode { .. });
    if may_have_lists && leases.asks_bare() { Flags::BARE } else { Flags::empty() }
}

/// What the names that a request has changed stand for afterwards, in the order of its plan; `None`: unknown. `before`: what they stood for, if that is certain.
fn names_after(
    request: &Request<'_>,
    reply: &Reply,
    leases: &Leases,
    before: &[Option<Arc<[u8]>>],
) -> [Option<Option<Arc<[u8]>>>; 2] {
    match (request, reply) {
        (Request::Unlink { .. } | Request::RemoveDirectory { .. }, _) => [Some(None), None],
        (Request::Rename { flags, .. }, _) => match before {
            // Two names of one inode are left as they are.
            [Some(moved), victim] if flags.is_empty() && victim.as_ref() != Some(moved) => {
                [Some(None), Some(Some(moved.clone()))]
            }
            _ => [None, None],
        },
        (_, Reply::Entry(entry) | Reply::Created(entry, _)) => [Some(Some(leases.key(entry.handle.bytes()))), None],
        _ => [None, None],
    }
}
