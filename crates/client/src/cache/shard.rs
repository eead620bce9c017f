//! What is kept of some inodes, and what may be told of it. Pure: time, numbers and answers come with each call.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ahash::HashMap;
use aqueduct_fs::{Aspects, Attr, Credential, Keep, Layout, SetAttr};
use aqueduct_session::Nanos;
use aqueduct_wire::LeaseId;
use bytes::Bytes;

use super::gate::{Gate, Gates, Number};
use super::inode::{Inode, Kept};
use super::names::{Fresh, Listed, Part};
use super::own::Setter;
use super::view::{Fetched, GATES, Hash, NAME_GATES, RIGHT_TO_LIST, Reach, Rights, Touch, View};

/// Credentials whose opens are known to be allowed, of one inode.
const VERDICTS_MAX: usize = 8;

/// Extended attributes that are kept of one inode: those that a kernel asks for by itself.
const XATTRS_MAX: usize = 4;

/// What the end of a change says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its answer tells how things are now: nothing else was changed or given back since it was asked for.
    pub(super) is_alone: bool,
    /// It was the last one of those whose names others might have changed first.
    pub(super) mends: bool,
}

/// What a lease was granted on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Granted {
    /// What came with it may be kept, as far as the gates let it.
    Kept,
    /// As before, and the inode is new here: its lease has to be found by its name.
    New,
    /// It came too late.
    Late,
}

/// Inodes and gates of one shard.
pub(super) struct Shard {
    /// Each apart: a table of many grows often, and moves what is in it.
    inodes: HashMap<Arc<[u8]>, Box<Inode>>,
    gates: Box<[Gates]>,
    name_gates: Box<[Gate]>,
    /// Opens of this client for writing, by inode.
    writers: HashMap<Arc<[u8]>, u32>,
    bytes: usize,
    /// The session, by its epoch, whose answers are kept.
    epoch: u64,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            inodes: HashMap::default(),
            gates: vec![Gates::default(); GATES].into(),
            name_gates: vec![Gate::default(); NAME_GATES].into(),
            writers: HashMap::default(),
            bytes: 0,
            epoch: 0,
        }
    }
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The inodes of which something is kept.
    pub(super) fn handles(&self) -> impl Iterator<Item = Arc<[u8]>> {
        self.inodes.keys().cloned()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Changes what is kept of an inode, if anything is.
    fn change<T>(&mut self, handle: &[u8], change: impl FnOnce(&mut Inode) -> T) -> Option<T> {
        let inode = self.inodes.get_mut(handle)?;
        let before = inode.cost(handle);
        let value = change(inode);
        self.bytes = self.bytes + inode.cost(handle) - before;
        Some(value)
    }

    /// Keeps something of an inode under a lease on these aspects, if their gates let it. False: it came too late.
    fn keep(&mut self, handle: &[u8], (lets, aspects): (bool, Aspects), keep: impl FnOnce(&mut Inode)) -> bool {
        lets && self.change(handle, |inode| inode.has(aspects).then(|| keep(inode))).flatten().is_some()
    }

    /// An inode of which these aspects may be used now.
    fn usable(&mut self, handle: &[u8], gate: &Gate, aspects: Aspects, view: &View) -> Option<&mut Inode> {
        if !gate.is_open() {
            return None;
        }
        let inode = self.inodes.get_mut(handle).filter(|inode| inode.has(aspects))?;
        inode.used = view.now;
        Some(inode)
    }

    fn attributes_of(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<&mut Inode> {
        let gate = self.gates[hash.gate()].attributes;
        self.usable(handle, &gate, Aspects::ATTRIBUTES, view)
    }

    /// Whether this client has it open for writing.
    pub(super) fn is_written(&self, handle: &[u8]) -> bool {
        !self.writers.is_empty() && self.writers.contains_key(handle)
    }

    /// The attributes, and for how long the kernel may use them.
    pub(super) fn attr(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<(Attr, Duration)> {
        let inode = self.attributes_of(handle, hash, view)?;
        let kept = inode.attr.as_ref().filter(|_| !inode.is_own)?;
        let (attr, left) = (kept.value, view.left(kept.at)?);
        Some((attr, inode.tell(Aspects::ATTRIBUTES, left, view.now)))
    }

    /// As [`attr`](Shard::attr), with all that is to be said of them.
    pub(super) fn show(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<(Attr, Keep)> {
        let is_written = self.is_written(handle);
        let (attr, attributes) = self.attr(handle, hash, view)?;
        Some((attr, Keep { attributes, is_written, ..Keep::default() }))
    }

    /// The text of a symbolic link, or a whole file.
    pub(super) fn content(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<Bytes> {
        let gate = self.gates[hash.gate()].data;
        let inode = self.usable(handle, &gate, Aspects::DATA, view)?;
        let kept = inode.content.as_ref()?;
        view.left(kept.at).map(|_| kept.value.clone())
    }

    /// Where the bytes of a file lie.
    pub(super) fn layout(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<Arc<Layout>> {
        let gate = self.gates[hash.gate()].data;
        let inode = self.usable(handle, &gate, Aspects::DATA, view)?;
        let kept = inode.layout.as_ref()?;
        view.left(kept.at).map(|_| kept.value.clone())
    }

    pub(super) fn keep_layout(&mut self, handle: &[u8], hash: Hash, layout: Arc<Layout>, fetched: Fetched) {
        let lets = self.gates[hash.gate()].data.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::DATA), |inode| inode.layout = Some(Kept { value: layout, at: fetched.at }));
    }

    pub(super) fn forget_layout(&mut self, handle: &[u8]) {
        self.change(handle, |inode| inode.layout = None);
    }

    /// Whether nobody else uses the file, so that what is written to it may be held back.
    pub(super) fn may_hold_back(&self, handle: &[u8], view: &View) -> bool {
        let is_exclusive = self.inodes.get(handle).is_some_and(|inode| inode.has(Aspects::WRITES));
        is_exclusive && view.left(view.now).is_some()
    }

    /// The size of a file whose content others do not change.
    pub(super) fn size(&mut self, handle: &[u8], hash: Hash, view: &View) -> Option<u64> {
        let (of_attributes, of_data) = (self.gates[hash.gate()].attributes, self.gates[hash.gate()].data);
        let inode = self.usable(handle, &of_data, Aspects::DATA | Aspects::ATTRIBUTES, view)?;
        let kept = inode.attr.as_ref().filter(|_| of_attributes.is_open() && !inode.is_own)?;
        view.left(kept.at).map(|_| kept.value.size)
    }

    /// An extended attribute, one of those that are kept; the inner `None`: there is none of that name.
    pub(super) fn xattr(&mut self, handle: &[u8], hash: Hash, name: &[u8], view: &View) -> Option<Option<Box<[u8]>>> {
        let is_open = self.gates[hash.gate()].attributes.is_open();
        let inode = self.inodes.get_mut(handle).filter(|inode| inode.has(Aspects::ATTRIBUTES))?;
        inode.used = view.now;
        if inode.bare.is_some_and(|at| view.left(at).is_some()) {
            return Some(None);
        }
        let (_, kept) = inode.xattrs.iter().find(|(of, _)| *of == name)?;
        // That there is none stays so while this client changes other things: see `Inode::lose_xattrs`.
        let kept = Some(kept).filter(|kept| is_open || kept.value.is_none())?;
        view.left(kept.at).map(|_| kept.value.clone())
    }

    /// What a name in a directory stands for; the inner `None`: it is not there. With the time for the kernel.
    pub(super) fn name(
        &mut self,
        parent: &[u8],
        (hash, name_hash): (Hash, Hash),
        name: &[u8],
        view: &View,
    ) -> Option<(Option<Arc<[u8]>>, Duration)> {
        if !self.name_gates[name_hash.name_gate()].is_open() {
            return None;
        }
        let gate = self.gates[hash.gate()].names;
        let inode = self.usable(parent, &gate, Aspects::NAMES, view)?;
        let names = inode.names.as_mut()?;
        let (to, left) = names.get(name, view)?;
        names.note_use();
        let told =
            if names.may_tell(name, view.now) { inode.tell_names([name], left, view.now) } else { Duration::ZERO };
        Some((to, told))
    }

    /// Keeps that a name of which nothing is known is not there, if the listing says so. Returns whether that may help.
    pub(super) fn conclude(&mut self, parent: &[u8], hash: Hash, name: &[u8], view: &View) -> bool {
        let conclude = |inode: &mut Inode| inode.names.as_mut().is_some_and(|names| names.conclude(name, view));
        self.gates[hash.gate()].listing.is_open() && self.change(parent, conclude).unwrap_or(false)
    }

    /// A part of a directory's listing, with the time for the kernel.
    pub(super) fn page(
        &mut self,
        handle: &[u8],
        hash: Hash,
        (cookie, room): (u64, usize),
        (view, plus): (&View, bool),
        size: impl Fn(&Listed) -> usize,
    ) -> Option<(Part, Duration)> {
        let gates = self.gates[hash.gate()];
        if !gates.listing.is_open() {
            return None;
        }
        let inode = self.usable(handle, &gates.names, Aspects::NAMES, view)?;
        let part = inode.names.as_mut()?.page(cookie, room, view, size)?;
        // Without inodes the kernel enters no names.
        let listed = part.entries.iter().filter(|entry| entry.handle.is_some()).map(|entry| &*entry.name);
        let told = if plus { inode.tell_names(listed, part.left, view.now) } else { Duration::ZERO };
        Some((part, told))
    }

    /// The whole listing of a directory is here, and the kernel may keep it: for how long it could be told of the entries now. Zero: it may not.
    pub(super) fn listing(&mut self, handle: &[u8], hash: Hash, view: &View) -> Duration {
        let gates = self.gates[hash.gate()];
        let inode = self.usable(handle, &gates.names, Aspects::NAMES, view).filter(|_| gates.listing.is_open());
        let left = |inode: &Inode| inode.names.as_ref()?.listing_left(view);
        let Some((left, inode)) = inode.and_then(|inode| Some((left(inode)?, inode))) else { return Duration::ZERO };
        if !inode.may_tell_listing(left, view.now) {
            return Duration::ZERO;
        }
        inode.told.data = true;
        Duration::from_nanos(left)
    }

    /// Whether somebody's open is answered here: the server has allowed it under the present lease, and what will be read through it is leased as well.
    pub(super) fn allows(
        &mut self,
        handle: &[u8],
        hash: Hash,
        (credential, rights): (&Credential, Rights),
        view: &View,
    ) -> bool {
        let gates = self.gates[hash.gate()];
        let (gate, with) = match rights {
            RIGHT_TO_LIST => (gates.listing, Aspects::NAMES),
            _ => (gates.data, Aspects::DATA),
        };
        if !gate.is_open() || !gates.names.is_open() {
            return false;
        }
        let Some(inode) = self.usable(handle, &gates.attributes, Aspects::ATTRIBUTES | with, view) else {
            return false;
        };
        let is_it = |kept: &&Kept<(Arc<Credential>, Rights)>| kept.value.1 == rights && *kept.value.0 == *credential;
        let is_allowed = inode.verdicts.iter().find(is_it).is_some_and(|kept| view.left(kept.at).is_some());
        if rights != RIGHT_TO_LIST || !is_allowed {
            return is_allowed;
        }
        let names = inode.names.as_mut().filter(|names| names.listing_left(view).is_some());
        names.map(|names| names.note_use()).is_some()
    }

    /// What a file may be written under now: [`Aspects::WRITES`] or [`Aspects::CONCURRENT`].
    pub(super) fn writes_under(&mut self, handle: &[u8], now: Nanos) -> Option<Aspects> {
        let inode = self.inodes.get_mut(handle).filter(|inode| !inode.leaves)?;
        let aspects = inode.aspects & (Aspects::WRITES | Aspects::CONCURRENT);
        inode.used = now;
        (!aspects.is_empty()).then_some(aspects)
    }

    /// When a file was used last that is written beside others; `None`: it is not any more.
    pub(super) fn beside_used(&self, handle: &[u8]) -> Option<Nanos> {
        let inode = self.inodes.get(handle).filter(|inode| inode.has(Aspects::CONCURRENT));
        inode.map(|inode| inode.used)
    }

    /// Whether no other client changes the content of a file now.
    pub(super) fn has_content(&mut self, handle: &[u8], hash: Hash, view: &View) -> bool {
        let gate = self.gates[hash.gate()].data;
        self.usable(handle, &gate, Aspects::DATA, view).is_some() && view.now < view.until
    }

    /// Whether the kernel may keep what is read of the file from now on.
    pub(super) fn data(&mut self, handle: &[u8], hash: Hash, view: &View) -> bool {
        if !self.writers.is_empty() && self.writers.contains_key(handle) {
            return false;
        }
        let gate = self.gates[hash.gate()].data;
        let Some(inode) = self.usable(handle, &gate, Aspects::DATA, view) else { return false };
        let may = view.now < view.until;
        inode.told.data |= may;
        may
    }

    /// Whether the kernel may keep what it reads of a file that this client writes, since nobody
    /// else uses it; `opens`: and it has no more than so many bytes, and any, of a descriptor that
    /// is being opened. Only where one was opened so does it from then on.
    pub(super) fn written_pages(&mut self, handle: &[u8], hash: Hash, opens: Option<u64>, view: &View) -> bool {
        if !self.is_written(handle) || view.now >= view.until {
            return false;
        }
        let is_small = opens.map(|most| self.size(handle, hash, view).is_some_and(|size| (1..=most).contains(&size)));
        let Some(inode) = self.inodes.get_mut(handle).filter(|inode| inode.has(Aspects::WRITES)) else { return false };
        inode.told.written_pages |= is_small.unwrap_or(false);
        is_small.unwrap_or(inode.told.written_pages)
    }

    /// A lease has come with an answer.
    pub(super) fn grant(
        &mut self,
        (handle, hash): (&Arc<[u8]>, Hash),
        (lease, aspects): (LeaseId, Aspects),
        (fetched, now): (Fetched, Nanos),
        epoch: u64,
    ) -> Granted {
        if epoch != self.epoch {
            return Granted::Late;
        }
        let gates = &self.gates[hash.gate()];
        let mut lets = Aspects::empty();
        lets.set(Aspects::ATTRIBUTES, gates.attributes.lets(fetched.asked));
        lets.set(Aspects::DATA, gates.data.lets(fetched.asked));
        lets.set(Aspects::NAMES, gates.names.lets(fetched.asked));
        lets.set(Aspects::WRITES, gates.data.lets_be_exclusive(fetched.asked));
        lets.insert(Aspects::CONCURRENT); // under which nothing is kept
        if let Some(inode) = self.inodes.get_mut(handle) {
            let is_same = inode.lease.place() == lease.place();
            if is_same && lease < inode.lease {
                return Granted::Late; // a later answer came first
            }
            if inode.leaves {
                // What is given back is what it is called by then.
                inode.lease = if is_same { lease } else { inode.lease };
                return Granted::Late;
            }
            if is_same {
                let covers = (inode.aspects | lets & aspects) & aspects;
                inode.held = if inode.aspects.contains(covers) { inode.held } else { now };
                (inode.lease, inode.aspects) = (lease, covers);
                return Granted::Kept;
            }
            return Granted::Late; // the server has given one inode two leases, and will be asked again
        }
        if (lets & aspects).is_empty() {
            return Granted::Late;
        }
        let inode = Inode { aspects: lets & aspects, ..Inode::new(lease, now) };
        self.bytes += inode.cost(handle);
        self.inodes.insert(handle.clone(), Box::new(inode));
        Granted::New
    }

    /// False: they came too late.
    ///
    /// Where changes from outside are not told, content that was fetched before is let go if they tell of a change since: a kernel that fills its pages after it was
    /// told of the latest times believes them for ever.
    pub(super) fn keep_attr(&mut self, handle: &[u8], hash: Hash, attr: &Attr, fetched: Fetched) -> bool {
        let lets = self.gates[hash.gate()].attributes.lets(fetched.asked);
        let kept = self.inodes.get_mut(handle).filter(|inode| lets && inode.has(Aspects::ATTRIBUTES));
        let Some(inode) = kept else { return false };
        let version = |attr: &Attr| (attr.size, attr.mtime, attr.ctime);
        let is_same = inode.attr.as_ref().is_some_and(|before| version(&before.value) == version(attr));
        let is_older = inode.content.as_ref().is_some_and(|content| content.at < fetched.at);
        (inode.attr, inode.is_own) = (Some(Kept { value: *attr, at: fetched.at }), false);
        if is_older && !is_same {
            self.drop_content(handle);
        }
        true
    }

    /// The answer to a change of this client's own that was alone has the attributes as they are now.
    pub(super) fn keep_own_attr(
        &mut self,
        handle: &Arc<[u8]>,
        hash: Hash,
        (lease, aspects): (LeaseId, Aspects),
        (attr, at, now, epoch): (&Attr, Nanos, Nanos, u64),
    ) {
        let fetched = Fetched { asked: Number::MAX, at };
        if self.inodes.contains_key(handle)
            && self.grant((handle, hash), (lease, aspects), (fetched, now), epoch) == Granted::Kept
        {
            self.keep_attr(handle, hash, attr, fetched);
        }
    }

    pub(super) fn keep_content(&mut self, handle: &[u8], hash: Hash, content: &[u8], fetched: Fetched) {
        let lets = self.gates[hash.gate()].data.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::DATA), |inode| {
            inode.content = Some(Kept { value: Bytes::copy_from_slice(content), at: fetched.at });
        });
    }

    /// It has been read: the kernel has it now.
    pub(super) fn drop_content(&mut self, handle: &[u8]) {
        self.change(handle, |inode| inode.content = None);
    }

    pub(super) fn keep_xattr(
        &mut self,
        handle: &[u8],
        hash: Hash,
        (name, value): (&'static [u8], Option<&[u8]>),
        fetched: Fetched,
    ) {
        let lets = self.gates[hash.gate()].attributes.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::ATTRIBUTES), |inode| {
            inode.xattrs.retain(|(of, _)| *of != name);
            if inode.xattrs.len() < XATTRS_MAX {
                inode.xattrs.push((name, Kept { value: value.map(Box::from), at: fetched.at }));
            }
        });
    }

    /// There are none of those that are kept.
    pub(super) fn keep_bare(&mut self, handle: &[u8], hash: Hash, fetched: Fetched) {
        let lets = self.gates[hash.gate()].attributes.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::ATTRIBUTES), |inode| inode.bare = Some(fetched.at));
    }

    /// The server has allowed an open.
    pub(super) fn keep_verdict(
        &mut self,
        handle: &[u8],
        hash: Hash,
        (credential, rights): (&Arc<Credential>, Rights),
        fetched: Fetched,
    ) {
        let lets = self.gates[hash.gate()].attributes.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::ATTRIBUTES), |inode| {
            inode.verdicts.retain(|kept| kept.value.1 != rights || *kept.value.0 != **credential);
            if inode.verdicts.len() >= VERDICTS_MAX {
                inode.verdicts.remove(0); // the oldest
            }
            inode.verdicts.push(Kept { value: (credential.clone(), rights), at: fetched.at });
        });
    }

    /// False: it came too late.
    pub(super) fn keep_name(
        &mut self,
        parent: &[u8],
        (hash, name_hash): (Hash, Hash),
        (name, to): (&[u8], Option<Arc<[u8]>>),
        fetched: Fetched,
    ) -> bool {
        let gate = self.name_gates[name_hash.name_gate()];
        let lets = self.gates[hash.gate()].names.lets(fetched.asked) && gate.lets(fetched.asked);
        self.keep(parent, (lets, Aspects::NAMES), |inode| {
            inode.names.get_or_insert_default().keep(name, to, fetched.at);
        })
    }

    /// A change of this client's own that was alone has given a name to an inode or taken it away; `at`: when it was sent. Kept if there was a lease
    /// before: else others may have come in between.
    pub(super) fn keep_own_name(
        &mut self,
        parent: &[u8],
        (name, to, is_directory): (&[u8], Option<Arc<[u8]>>, bool),
        at: Nanos,
    ) {
        self.change(parent, |inode| {
            if inode.has(Aspects::NAMES) && inode.held < at {
                inode.names.get_or_insert_default().keep_own(name, to, at, is_directory);
            }
        });
    }

    /// A directory was made, and is empty. A name that is not known in it is not there.
    pub(super) fn keep_new(&mut self, handle: &[u8], hash: Hash, fetched: Fetched) {
        let gates = self.gates[hash.gate()];
        let lets = gates.names.lets(fetched.asked) && gates.listing.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::NAMES), |inode| inode.names.get_or_insert_default().is_new(fetched.at));
    }

    /// The last page of a listing has been kept, and what its names stand for.
    pub(super) fn is_listed(&mut self, handle: &[u8]) {
        if let Some(names) = self.inodes.get_mut(handle).and_then(|inode| inode.names.as_mut()) {
            names.is_listed();
        }
    }

    /// Whether what the listings of a directory do not have is not there.
    pub(super) fn lists_exactly(&self, handle: &[u8]) -> bool {
        let inode = self.inodes.get(handle).filter(|inode| inode.has(Aspects::NAMES));
        inode.and_then(|inode| inode.names.as_ref()).is_some_and(|names| names.is_exact())
    }

    /// A name in a directory has been changed by this client.
    pub(super) fn name_changed(&mut self, parent: &[u8], name: &[u8]) {
        if let Some(names) = self.inodes.get_mut(parent).and_then(|inode| inode.names.as_mut()) {
            names.has_changed(name);
        }
    }

    pub(super) fn keep_page(&mut self, handle: &[u8], hash: Hash, page: Fresh<'_>, fetched: Fetched) -> bool {
        let gates = self.gates[hash.gate()];
        let lets = gates.names.lets(fetched.asked) && gates.listing.lets(fetched.asked);
        self.keep(handle, (lets, Aspects::NAMES), |inode| {
            inode.names.get_or_insert_default().keep_page(page, fetched.at);
        })
    }

    /// The whole listing of a directory that was fetched before anybody asked for it: `uses` counts it when it is used first.
    pub(super) fn set_ahead(&mut self, handle: &[u8], uses: &Arc<AtomicUsize>) {
        if let Some(names) = self.inodes.get_mut(handle).and_then(|inode| inode.names.as_mut()) {
            names.set_ahead(uses);
        }
    }

    /// Whether the whole listing of a directory is here.
    pub(super) fn has_listing(&self, handle: &[u8], view: &View) -> bool {
        let inode = self.inodes.get(handle).filter(|inode| inode.has(Aspects::NAMES));
        inode.and_then(|inode| inode.names.as_ref()).is_some_and(|names| names.listing_left(view).is_some())
    }

    /// For how long the kernel may use these names of a directory, all of a page that has just been fetched.
    pub(super) fn tell_names<'a>(
        &mut self,
        handle: &[u8],
        hash: Hash,
        names: impl IntoIterator<Item = &'a [u8]>,
        view: &View,
    ) -> Duration {
        let gate = self.gates[hash.gate()].names;
        let left = view.until.saturating_sub(view.now).min(view.age_max);
        self.usable(handle, &gate, Aspects::NAMES, view)
            .map_or(Duration::ZERO, |inode| inode.tell_names(names, left, view.now))
    }

    /// The handle as it is kept here, to be shared.
    pub(super) fn key(&self, handle: &[u8]) -> Option<Arc<[u8]>> {
        self.inodes.get_key_value(handle).map(|(key, _)| key.clone())
    }

    /// What a name stands for, if that is known under a lease.
    pub(super) fn known(&self, parent: &[u8], hash: Hash, name: &[u8], view: &View) -> Option<Option<Arc<[u8]>>> {
        let inode = self.inodes.get(parent).filter(|inode| inode.has(Aspects::NAMES))?;
        let names = inode.names.as_ref().filter(|_| self.gates[hash.gate()].names.is_open())?;
        names.get(name, view).map(|(to, _)| to)
    }

    /// A change of the client's own begins: what it touches is used no more. Returns what the kernel has to forget of it first.
    pub(super) fn begin(&mut self, touch: &Touch<'_>, hash: Hash, now: Nanos) -> Aspects {
        let gates = &mut self.gates[hash.gate()];
        match *touch {
            Touch::Inode { handle, aspects, reach } => {
                touched(gates, aspects).for_each(Gate::begin);
                let dropped = self.change(handle, |inode| {
                    if aspects.contains(Aspects::ATTRIBUTES) {
                        (inode.attr, inode.is_own) = (None, false);
                        inode.lose_xattrs(reach);
                    }
                    if reach >= Reach::Rights {
                        inode.verdicts.clear();
                    }
                    if aspects.contains(Aspects::DATA) {
                        (inode.content, inode.layout) = (None, None);
                    }
                    if aspects.contains(Aspects::NAMES) {
                        inode.names = None;
                    }
                    inode.changed = now;
                    inode.take_told(aspects, now)
                });
                dropped.unwrap_or_default()
            }
            Touch::Name { parent, name, hash } => {
                gates.listing.begin();
                self.name_gates[hash.name_gate()].begin();
                let dropped = self.change(parent, |inode| {
                    inode.changed = now;
                    inode.begin_name(name, now)
                });
                dropped.unwrap_or_default()
            }
        }
    }

    /// Something is held back of a file of which nothing was: what its attributes will be is known from what they were.
    pub(super) fn begin_held(&mut self, touch: &Touch<'_>, hash: Hash, now: Nanos) -> Aspects {
        let before = self.change(touch.handle(), |inode| inode.attr.take()).flatten();
        let told = self.begin(touch, hash, now);
        self.change(touch.handle(), |inode| (inode.is_own, inode.attr) = (before.is_some(), before));
        told
    }

    /// Attributes are set and held back: see [`Inode::set_own`].
    pub(super) fn set_held(
        &mut self,
        handle: &[u8],
        by: Setter<'_>,
        (set, end): (&SetAttr, u64),
        view: &View,
    ) -> Option<Attr> {
        let inode = self.inodes.get_mut(handle).filter(|inode| inode.has(Aspects::WRITES))?;
        inode.set_own(by, set, end, view)
    }

    /// A file has been written so far.
    pub(super) fn grow_own(&mut self, handle: &[u8], end: u64) {
        self.inodes.get_mut(handle).into_iter().for_each(|inode| inode.grow_own(end));
    }

    pub(super) fn forget_own(&mut self, handle: &[u8]) {
        self.inodes.get_mut(handle).into_iter().for_each(|inode| inode.forget_own());
    }

    /// It has ended; `settled`: it will not be made later.
    pub(super) fn end(
        &mut self,
        touch: &Touch<'_>,
        hash: Hash,
        (asked, now): (Number, Number),
        settled: bool,
    ) -> Ended {
        let gates = &mut self.gates[hash.gate()];
        match *touch {
            Touch::Inode { aspects, .. } => {
                let mut is_alone = true;
                for gate in touched(gates, aspects) {
                    is_alone &= gate.end(asked, now, settled);
                }
                Ended { is_alone, mends: false }
            }
            Touch::Name { hash, .. } => {
                gates.listing.end(asked, now, settled);
                let is_alone = self.name_gates[hash.name_gate()].end(asked, now, settled) && gates.names.lets(asked);
                let mends = gates.is_broken && !gates.listing.is_changing();
                gates.is_broken &= !mends;
                Ended { is_alone, mends }
            }
        }
    }

    /// An inode is about to be given back: nothing of it is told any more. False: nothing is kept of it.
    pub(super) fn leave(&mut self, handle: &[u8]) -> bool {
        self.inodes.get_mut(handle).is_some_and(|inode| {
            inode.leaves = true;
            true
        })
    }

    pub(super) fn is_leaving(&self, handle: &[u8]) -> bool {
        self.inodes.get(handle).is_some_and(|inode| inode.leaves)
    }

    /// The name of the lease on an inode, and what it covers.
    pub(super) fn lease(&self, handle: &[u8]) -> Option<(LeaseId, Aspects)> {
        self.inodes.get(handle).map(|inode| (inode.lease, inode.aspects))
    }

    /// What the kernel may still have of an inode, whose lease is given back, and is to forget
    /// now.
    pub(super) fn take_told(&mut self, handle: &[u8], aspects: Aspects, now: Nanos) -> Aspects {
        let Some(inode) = self.inodes.get_mut(handle) else { return Aspects::empty() };
        let mut told = inode.take_told(aspects, now);
        if aspects.contains(Aspects::DATA) && std::mem::take(&mut inode.told.written_pages) {
            told.insert(Aspects::DATA);
        }
        told
    }

    /// Drops an inode that is new, since its lease was recalled before it came: nothing was told of it, and no change has relied on it.
    pub(super) fn take_back(&mut self, handle: &[u8]) {
        if let Some(inode) = self.inodes.remove(handle) {
            self.bytes -= inode.cost(handle);
        }
    }

    /// Drops an inode whose lease is given back. Returns the lease's name by now, and whether names are being changed here that others may change first now.
    pub(super) fn give_back(&mut self, handle: &[u8], hash: Hash, now: Number) -> Option<(LeaseId, bool)> {
        let inode = self.inodes.remove(handle)?;
        self.bytes -= inode.cost(handle);
        let gates = &mut self.gates[hash.gate()];
        gates.each().into_iter().for_each(|gate| gate.pass(now));
        Some((inode.lease, inode.aspects.contains(Aspects::NAMES) && breaks(gates)))
    }

    /// The part of the inodes that was not used for longest, which leaves.
    pub(super) fn leave_eldest(&mut self, part: usize) -> Vec<Arc<[u8]>> {
        let mut ages: Vec<(Nanos, Arc<[u8]>)> = self
            .inodes
            .iter()
            .filter(|(_, inode)| !inode.leaves)
            .map(|(handle, inode)| (inode.used, handle.clone()))
            .collect();
        let count = ages.len().div_ceil(part);
        if count == 0 {
            return Vec::new();
        }
        ages.select_nth_unstable_by_key(count - 1, |(used, _)| *used);
        ages.truncate(count);
        for (_, handle) in &ages {
            self.leave(handle);
        }
        ages.into_iter().map(|(_, handle)| handle).collect()
    }

    /// Another session, or the same after a restart of the server: nothing is kept of the one before. Returns in how many places names are being changed.
    pub(super) fn begin_epoch(&mut self, epoch: u64, now: Number) -> usize {
        self.epoch = epoch;
        self.inodes.clear();
        self.bytes = 0;
        self.gates.iter_mut().flat_map(Gates::each).for_each(|gate| gate.settle(now));
        self.name_gates.iter_mut().for_each(|gate| gate.settle(now));
        self.gates.iter_mut().map(breaks).filter(|breaks| *breaks).count()
    }

    /// This client opens a file for writing: what pages its kernel keeps of it meanwhile says
    /// [`written_pages`](Shard::written_pages). Returns what it has to forget.
    pub(super) fn add_writer(&mut self, handle: &[u8], now: Nanos) -> Aspects {
        match self.writers.get_mut(handle) {
            Some(count) => *count += 1,
            None => _ = self.writers.insert(handle.into(), 1),
        }
        self.inodes.get_mut(handle).map_or(Aspects::empty(), |inode| inode.take_told(Aspects::DATA, now))
    }

    /// Whether it was the last of a file that the client has for itself: from now on it shares it, and the server has to be told.
    pub(super) fn remove_writer(&mut self, handle: &[u8], hash: Hash, now: Number) -> bool {
        let Some(count) = self.writers.get_mut(handle) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.writers.remove(handle);
        let exclusive = self.inodes.get_mut(handle).filter(|inode| inode.aspects.contains(Aspects::WRITES));
        let Some(inode) = exclusive else { return false };
        inode.aspects.remove(Aspects::WRITES);
        inode.told.data |= std::mem::take(&mut inode.told.written_pages);
        inode.forget_own();
        self.gates[hash.gate()].data.begin_sharing(now);
        true
    }

    /// The server has been told.
    pub(super) fn end_sharing(&mut self, hash: Hash, now: Number) {
        self.gates[hash.gate()].data.end_sharing(now);
    }
}

/// The lease on the names behind a gate is lost: whether some are being changed, which was not known before.
fn breaks(gates: &mut Gates) -> bool {
    gates.listing.is_changing() && !std::mem::replace(&mut gates.is_broken, true)
}

/// The gates that stand before these aspects.
fn touched(gates: &mut Gates, aspects: Aspects) -> impl Iterator<Item = &mut Gate> {
    let of = [Aspects::ATTRIBUTES, Aspects::DATA, Aspects::NAMES, Aspects::NAMES];
    gates.each().into_iter().zip(of).filter(move |(_, of)| aspects.contains(*of)).map(|(gate, _)| gate)
}
