//! What is kept of one inode, and what the kernel was told of it.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Aspects, Attr, Credential, Layout, Part};
use aqueduct_session::Nanos;
use aqueduct_wire::LeaseId;
use bytes::Bytes;

use super::names::Names;
use super::view::{Reach, Rights, View};

/// A kernel is told of no shorter time: it counts in ticks, and handles the answer a little later.
const TELLING_MIN: Nanos = 1_000_000;

/// Names of a directory of which the kernel had to forget some for a change of this client's own it is not told of for so long: before the next change it would have
/// to be made to forget all names, at the cost of some ten questions. Attributes it forgets by the inode, in 2 us.
const FORGOTTEN_NAMES_PAUSE: Nanos = 50_000_000;

/// The same of listings of a directory that was changed, which are told in bulk.
const LISTING_PAUSE: Nanos = 1_000_000_000;

/// A kernel may handle what it is told so much later, and then counts from there: as long as the server's patience.
pub(super) const KERNEL_DELAY: Nanos = 2_000_000_000;

/// What an inode takes beside what it points to: itself, its handle, and its places in the table
/// and in the index of leases, with room for these to grow.
const INODE_COST: usize = size_of::<Inode>() + 200;

#[derive(Clone, Debug)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) at: Nanos,
}

/// What the kernel has been told, and when it has forgotten that by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) attributes: Nanos,
    pub(super) names: Nanos,
    pub(super) data: bool,
    /// Pages of a file that is written here. The kernel keeps them true itself through this
    /// client's own changes: they are dropped with the lease only.
    pub(super) written_pages: bool,
}

/// The value of an extended attribute, if there is one of that name.
pub(super) type Xattr = Option<Box<[u8]>>;

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) lease: LeaseId,
    pub(super) aspects: Aspects,
    /// It is being given back: nothing more of it is used or kept.
    pub(super) leaves: bool,
    /// When it came to cover what it covers now.
    pub(super) held: Nanos,
    pub(super) used: Nanos,
    pub(super) changed: Nanos,
    /// When the kernel was last made to forget names in it.
    pub(super) names_forgotten: Nanos,
    pub(super) told: Told,
    pub(super) attr: Option<Kept<Attr>>,
    /// They are what they will be when the server has all that is held back of the file, or was, but for times that were not set, and blocks: nobody is told.
    pub(super) is_own: bool,
    /// The text of a link, or all of a small file that was fetched ahead and not read yet.
    pub(super) content: Option<Kept<Bytes>>,
    /// Where the bytes of a file lie, with its size.
    pub(super) layout: Option<Kept<Arc<Layout>>>,
    /// By name; no value: there is no such attribute.
    pub(super) xattrs: Vec<(&'static [u8], Kept<Xattr>)>,
    /// When it was known that there are none of those that are kept.
    pub(super) bare: Option<Nanos>,
    pub(super) verdicts: Vec<Kept<(Arc<Credential>, Rights)>>,
    pub(super) names: Option<Box<Names>>,
}

impl Inode {
    pub(super) fn new(lease: LeaseId, now: Nanos) -> Inode {
        Inode {
            lease,
            aspects: Aspects::empty(),
            leaves: false,
            held: now,
            used: now,
            changed: 0,
            names_forgotten: 0,
            told: Told::default(),
            attr: None,
            is_own: false,
            content: None,
            layout: None,
            xattrs: Vec::new(),
            bare: None,
            verdicts: Vec::new(),
            names: None,
        }
    }

    pub(super) fn has(&self, aspects: Aspects) -> bool {
        !self.leaves && self.aspects.contains(aspects)
    }

    pub(super) fn cost(&self, handle: &[u8]) -> usize {
        let xattrs: usize =
            self.xattrs.iter().map(|(_, kept)| kept.value.as_ref().map_or(0, |value| value.len())).sum();
        let content = self.content.as_ref().map_or(0, |content| content.value.len());
        let layout = self.layout.as_ref().map_or(0, |layout| layout_cost(&layout.value));
        let names = self.names.as_ref().map_or(0, |names| size_of::<Names>() + names.bytes());
        let verdicts = self.verdicts.capacity() * size_of::<Kept<(Arc<Credential>, Rights)>>();
        let places = self.xattrs.capacity() * size_of::<(&[u8], Kept<Xattr>)>();
        INODE_COST + handle.len() + xattrs + content + layout + names + verdicts + places
    }

    /// Whether it is known that there is no extended attribute of a name.
    pub(super) fn lacks(&self, name: &[u8], view: &View) -> bool {
        let is_none =
            |(of, kept): &(&[u8], Kept<Xattr>)| *of == name && kept.value.is_none() && view.left(kept.at).is_some();
        self.bare.is_some_and(|at| view.left(at).is_some()) || self.xattrs.iter().any(is_none)
    }

    /// A change of this client's own may make extended attributes others, or take them away; new ones only come by one that is of these.
    pub(super) fn lose_xattrs(&mut self, reach: Reach) {
        let stay = reach < Reach::Xattrs;
        self.xattrs.retain(|(_, kept)| kept.value.is_none() && stay);
        self.bare = self.bare.filter(|_| stay);
    }

    /// What the kernel may still have, and forgets that it was told.
    pub(super) fn take_told(&mut self, aspects: Aspects, now: Nanos) -> Aspects {
        let mut told = Aspects::empty();
        if aspects.contains(Aspects::ATTRIBUTES) {
            told.set(Aspects::ATTRIBUTES, is_believed(std::mem::take(&mut self.told.attributes), now));
        }
        if aspects.contains(Aspects::NAMES) {
            told.set(Aspects::NAMES, is_believed(std::mem::take(&mut self.told.names), now));
        }
        if aspects.contains(Aspects::DATA) {
            told.set(Aspects::DATA, std::mem::take(&mut self.told.data));
        }
        told
    }

    /// Whether the kernel may be told of attributes, names, or (as data) of a whole listing.
    fn may_tell(&self, aspect: Aspects, left: Nanos, now: Nanos) -> bool {
        let (since, pause) = match aspect {
            Aspects::NAMES => (self.names_forgotten, FORGOTTEN_NAMES_PAUSE),
            Aspects::DATA => (self.changed, LISTING_PAUSE),
            _ => (0, 0),
        };
        left >= TELLING_MIN && (since == 0 || now >= since.saturating_add(pause))
    }

    pub(super) fn may_tell_listing(&self, left: Nanos, now: Nanos) -> bool {
        self.may_tell(Aspects::DATA, left, now)
    }

    /// The kernel is told of something for what is left of its time.
    pub(super) fn tell(&mut self, aspect: Aspects, left: Nanos, now: Nanos) -> Duration {
        if !self.may_tell(aspect, left, now) {
            return Duration::ZERO;
        }
        let until = match aspect {
            Aspects::NAMES => &mut self.told.names,
            _ => &mut self.told.attributes,
        };
        *until = (*until).max(now.saturating_add(left));
        Duration::from_nanos(left)
    }

    /// The kernel is told of these names in it.
    pub(super) fn tell_names<'a>(
        &mut self,
        told: impl IntoIterator<Item = &'a [u8]>,
        left: Nanos,
        now: Nanos,
    ) -> Duration {
        let time = self.tell(Aspects::NAMES, left, now);
        if let Some(names) = self.names.as_mut().filter(|_| !time.is_zero()) {
            told.into_iter().for_each(|name| names.tell(name, now.saturating_add(left)));
        }
        time
    }

    /// A name in it is about to be changed. Whether the kernel has to forget it, and so all names.
    pub(super) fn begin_name(&mut self, name: &[u8], now: Nanos) -> Aspects {
        let until = self.names.as_mut().map_or(0, |names| names.drop_name(name));
        if !is_believed(until, now) {
            return Aspects::empty();
        }
        if let Some(names) = &mut self.names {
            names.are_forgotten();
        }
        self.names_forgotten = now;
        self.take_told(Aspects::NAMES, now)
    }
}

fn layout_cost(layout: &Layout) -> usize {
    let tokens = layout.parts.iter().map(|part| match part {
        Part::Hole { .. } | Part::Untold { .. } => 0,
        Part::At { token, .. } => token.len(),
    });
    size_of::<Layout>() + layout.parts.capacity() * size_of::<Part>() + tokens.sum::<usize>()
}

/// Whether the kernel may still go by what it was told until then.
pub(super) fn is_believed(until: Nanos, now: Nanos) -> bool {
    until > 0 && now < until.saturating_add(KERNEL_DELAY)
}
