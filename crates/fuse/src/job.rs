//! A request under way: what it asks for, and what its reply gives the kernel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::{Answer, Attr, Context, Credential, Entry, Errno, Hold, OpenId, Reply, Request};
use aqueduct_worker::Entered;
use bytes::Bytes;

use crate::abi::{self, AttrOut, EntryOut, Field, InHeader, opcode};
use crate::channel::Responder;
use crate::convert;
use crate::hot_names::Told;
use crate::kept::{Kept, Lease, now};
use crate::nodes::Marks;
use crate::notify;
use crate::shared::Shared;
use crate::sizes::{Turn, Use};

/// One request under way.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) header: InHeader,
    /// The whole request.
    pub(crate) frame: Bytes,
    pub(crate) context: Context,
    pub(crate) responder: Responder,
    /// When it came.
    pub(crate) began: Instant,
    /// Others may wait for it.
    _release: Option<Entered>,
}

/// How an operation ended well.
pub(crate) enum Outcome {
    /// With these bytes.
    Done(Vec<u8>),
    /// With these bytes, which tell the kernel of something that it must release again: if it does
    /// not take them, that is done here.
    Granted(Vec<u8>, Grant),
    /// The answer was sent by whoever had the data.
    Delivered,
}

/// What a reply gives the kernel to hold.
#[derive(Default)]
pub(crate) struct Grant {
    /// Nodes, one lookup each.
    pub(crate) nodes: Vec<u64>,
    pub(crate) file: Option<OpenId>,
    pub(crate) directory: Option<OpenId>,
    /// A name that the kernel is to keep for a moment; goes before its lease.
    pub(crate) told: Option<Told>,
    /// What stands behind the timeouts in the reply.
    pub(crate) lease: Lease,
    /// The kernel is to be told of a size before anybody else.
    pub(crate) _turn: Option<Turn>,
    /// The reply begins with an entry that was made, and cannot be asked for again.
    pub(crate) is_change: bool,
}

impl Outcome {
    /// With these bytes, when a size has changed.
    pub(crate) fn resized(body: Vec<u8>, turn: Option<Turn>) -> Outcome {
        Outcome::Done(body).with(turn)
    }

    /// Until the kernel has it, others wait for this.
    pub(crate) fn with(self, turn: Option<Turn>) -> Outcome {
        match (self, turn) {
            (Outcome::Granted(body, grant), turn) => Outcome::Granted(body, Grant { _turn: turn, ..grant }),
            (Outcome::Done(body), turn @ Some(_)) => Outcome::Granted(body, Grant { _turn: turn, ..Grant::default() }),
            (outcome, _) => outcome,
        }
    }

    /// Until the kernel has it, this is not given back.
    pub(crate) fn holding(self, hold: Option<Hold>) -> Outcome {
        match (self, hold.map(Lease::of_pages)) {
            (Outcome::Granted(body, grant), Some(lease)) => Outcome::Granted(body, Grant { lease, ..grant }),
            (Outcome::Done(body), Some(lease)) => Outcome::Granted(body, Grant { lease, ..Grant::default() }),
            (outcome, _) => outcome,
        }
    }

    /// With these bytes, of which the kernel may keep what the lease says.
    pub(crate) fn kept(body: Vec<u8>, kept: Kept) -> Outcome {
        Outcome::Granted(body, Grant { lease: kept.into_lease(), ..Grant::default() })
    }
}

type Parser<T> = fn(&[u8]) -> Option<(T, &[u8])>;

impl Job {
    pub(crate) fn new(shared: Arc<Shared>, header: InHeader, frame: Bytes, responder: Responder) -> Job {
        let began = Instant::now();
        let InHeader { uid, gid, pid, .. } = header;
        let credential = Credential { uid, gid, groups: shared.groups.of(pid, uid, gid) };
        let job = shared.jobs.of(pid, began);
        let context = Context { client: shared.config.client, credential, pid, cancel: shared.tracer.cancel(), job };
        let release = (header.opcode == opcode::RELEASE).then(|| shared.releases.enter());
        Job { shared, header, frame, context, responder, began, _release: release }
    }

    /// What follows the header.
    pub(crate) fn body(&self) -> &[u8] {
        self.frame.get(<InHeader as Field>::SIZE..).unwrap_or_default()
    }

    /// The arguments of the request, and what follows them.
    pub(crate) fn args<T>(&self, parse: Parser<T>) -> Result<(T, &[u8]), Errno> {
        parse(self.body()).ok_or(Errno::EINVAL)
    }

    /// The inode that the request is about.
    pub(crate) fn handle(&self) -> Result<Arc<[u8]>, Errno> {
        self.handle_of(self.header.nodeid)
    }

    /// The inode of another node id.
    pub(crate) fn handle_of(&self, node: u64) -> Result<Arc<[u8]>, Errno> {
        self.shared.nodes.handle(node).ok_or(Errno::ESTALE)
    }

    pub(crate) async fn call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.shared.filesystem.call(&self.context, request).await
    }

    /// As [`call`](Job::call), and what the kernel may keep of the answer, of an error too.
    pub(crate) async fn ask(&self, request: Request<'_>) -> (Result<Reply, Errno>, Kept) {
        let shared = &self.shared;
        if !shared.policy.leases {
            return (self.call(request).await, Kept::fixed(shared.config.attr_timeout, shared.config.entry_timeout));
        }
        let answer = shared.filesystem.ask(&self.context, request).await;
        let Answer { result, keep } = answer.unwrap_or_else(|errno| Err(errno).into());
        let mut kept = Kept::leased(keep, shared.policy, shared.keeps_names());
        if shared.policy.names {
            kept.names = shared.keeping.tell(kept.names);
        }
        (result, kept)
    }

    /// As [`ask`](Job::ask), where nothing is kept of errors.
    pub(crate) async fn ask_value(&self, request: Request<'_>) -> Result<(Reply, Kept), Errno> {
        let (result, kept) = self.ask(request).await;
        Ok((result?, kept))
    }

    /// The attributes of the request's inode, through an open file of it or not.
    pub(crate) async fn get_attr(&self, open: Option<OpenId>) -> Result<(Attr, Kept), Errno> {
        let (reply, kept) = self.ask_value(Request::GetAttr { handle: &self.handle()?, open }).await?;
        Ok((reply.attr()?, kept))
    }

    /// The reply that tells of an inode.
    pub(crate) fn entry(&self, entry: &Entry, kept: Kept) -> (EntryOut, Grant) {
        let nodeid = self.shared.nodes.look_up(entry.handle.bytes(), kept.names, None);
        let out = self.entry_out(nodeid, &entry.attr, &kept);
        (out, Grant { nodes: vec![nodeid], lease: kept.into_lease(), ..Grant::default() })
    }

    /// The reply that tells of an inode that was made, or given a name. The kernel believes the
    /// attributes that come with it whatever it was told meanwhile; of an inode that is new to it,
    /// it is told again until it has heard.
    pub(crate) fn made(&self, entry: &Entry, kept: Kept) -> (EntryOut, Grant) {
        let (nodeid, is_new) = self.shared.nodes.enter(entry.handle.bytes(), kept.names, None);
        let kept = if is_new { kept } else { kept.of_change(self.shared.policy) };
        let out = self.entry_out(nodeid, &entry.attr, &kept);
        (out, Grant { nodes: vec![nodeid], lease: kept.into_lease(), is_change: true, ..Grant::default() })
    }

    pub(crate) fn entry_out(&self, nodeid: u64, attr: &Attr, kept: &Kept) -> EntryOut {
        let (entry_valid, entry_valid_nsec) = convert::timeout(kept.names);
        let (attr_valid, attr_valid_nsec) = self.attributes_valid(nodeid, attr, kept);
        // Node ids are unique, so a generation would tell nothing.
        let generation = 0;
        let attr = self.attr(nodeid, attr);
        EntryOut { nodeid, generation, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec, attr }
    }

    /// Attributes as an answer about the request's inode.
    pub(crate) fn attr_out(&self, attr: &Attr, kept: Kept) -> Outcome {
        let nodeid = self.header.nodeid;
        let (attr_valid, attr_valid_nsec) = self.attributes_valid(nodeid, attr, &kept);
        let out = AttrOut { attr_valid, attr_valid_nsec, padding: 0, attr: self.attr(nodeid, attr) };
        Outcome::kept(out.to_vec(), kept)
    }

    /// For how long the kernel may use attributes. Where it may read from pages that no lease
    /// covers, it has to ask before each read, so that they are dropped first; the same with
    /// listings that nobody answers for.
    pub(crate) fn attributes_valid(&self, nodeid: u64, attr: &Attr, kept: &Kept) -> (u64, u32) {
        convert::timeout(match () {
            () if !self.shared.policy.pages => kept.attributes,
            () if attr.is_regular() => kept.attributes_of_file(self.shared.nodes.marks(nodeid)),
            () if attr.is_directory() && self.reads_stale_listing(nodeid) => Duration::ZERO,
            () => kept.attributes,
        })
    }

    /// Attributes for the kernel.
    pub(crate) fn attr(&self, nodeid: u64, attr: &Attr) -> abi::Attr {
        self.told(nodeid, attr);
        convert::attr(attr)
    }

    /// The kernel is told of an inode under a name in the directory of the request.
    pub(crate) fn named(&self, nodeid: u64, name: &[u8]) {
        self.shared.tracer.named(nodeid, self.header.nodeid, name);
    }

    /// The kernel is told of these attributes, and may keep them.
    pub(crate) fn told(&self, nodeid: u64, attr: &Attr) {
        if attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0 && attr.is_regular() {
            self.shared.nodes.mark(nodeid, |marks| marks.set_id = true);
        }
        if self.shared.policy.pages && attr.is_regular() {
            self.shared.nodes.mark(nodeid, |marks| marks.tell_size(attr.size));
        }
    }

    /// Whether the kernel keeps attributes.
    fn keeps_attributes(&self) -> bool {
        self.shared.policy.leases || !self.shared.config.attr_timeout.is_zero()
    }

    /// Makes the kernel forget attributes that it keeps. Waits for nothing; an inode that the
    /// kernel does not find has none.
    pub(crate) fn drop_attributes(&self, nodeid: u64) {
        if self.keeps_attributes()
            && let Err(error) = self.shared.notify(&notify::inval_inode(nodeid, -1, 0))
        {
            tracing::debug!(%error, nodeid, "the kernel did not take a notification");
        }
    }

    /// A file was changed: the file system may have taken its set-id bits away, and the kernel,
    /// which runs programs by the mode that it keeps and leaves it alone when files are written,
    /// must ask again.
    pub(crate) fn changed(&self, nodeid: u64) {
        if self.keeps_attributes() && self.shared.nodes.marks(nodeid).set_id {
            self.drop_attributes(nodeid);
        }
    }

    /// The size of a file may be about to change. To be kept until the kernel has the reply.
    pub(crate) async fn changes_size(&self, nodeid: u64) -> Option<Turn> {
        let Shared { policy, nodes, sizes, .. } = &*self.shared;
        // Most files nobody reads from pages while they are written.
        let may_be_read = policy.pages && (nodes.marks(nodeid).cached_opens > 0 || sizes.is_used(nodeid));
        if may_be_read { Some(sizes.enter(nodeid, Use::Change, &self.context.cancel).await) } else { None }
    }

    /// The data of a file were changed: pages that the kernel was fetching meanwhile may be older.
    pub(crate) fn written(&self, nodeid: u64) {
        if self.shared.policy.pages {
            self.shared.nodes.mark(nodeid, Marks::distrust);
        }
        self.changed(nodeid);
    }

    /// A file was made so long, or was emptied with its opening, which the kernel sees by itself.
    pub(crate) fn resized(&self, nodeid: u64, size: u64) {
        if self.shared.policy.pages {
            self.shared.nodes.mark(nodeid, |marks| marks.stores_size(size));
        }
        self.written(nodeid);
    }

    /// Whether the kernel may read from pages of this node that no lease covers.
    pub(crate) fn reads_unleased_pages(&self, nodeid: u64) -> bool {
        self.shared.policy.pages && self.shared.nodes.marks(nodeid).reads_unleased_pages()
    }

    /// Whether the kernel may read a listing from pages of which nobody knows any more whether
    /// they are true.
    pub(crate) fn reads_stale_listing(&self, nodeid: u64) -> bool {
        self.shared.policy.names && self.shared.nodes.marks(nodeid).reads_stale_listing(now())
    }

    /// The kernel was told to keep something so late that it may keep it for too long.
    pub(crate) fn distrust(&self, grant: &Grant) {
        tracing::debug!(opcode = self.header.opcode, "an answer came late: the kernel is to forget it");
        grant.nodes.iter().chain([&self.header.nodeid]).for_each(|node| self.drop_attributes(*node));
        if self.shared.policy.names {
            // Where that would have to be waited for, they end by themselves a moment too late.
            self.shared.forget_all_names();
        }
        // It ends soon in any case, and nobody waits for this.
        grant.told.iter().for_each(|told| self.shared.entry_drops.push(told.place()));
    }

    pub(crate) async fn take_back(&self, grant: Grant) {
        if let Some(open) = grant.file.or(grant.directory) {
            self.shared.caches_no_more(grant.nodes.first().copied().unwrap_or(self.header.nodeid), open);
        }
        grant.nodes.iter().for_each(|node| self.shared.nodes.forget(*node, 1));
        let releases = [
            grant.file.map(|open| Request::Release { open }),
            grant.directory.map(|open| Request::ReleaseDirectory { open }),
        ];
        for request in releases.into_iter().flatten() {
            if let Err(error) = self.call(request).await {
                tracing::debug!(%error, "could not release what the kernel did not take");
            }
        }
    }
}
