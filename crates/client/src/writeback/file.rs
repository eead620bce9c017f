//! What is held back of one file, in the order in which it was written or set. Pure: no sockets, no threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use aqueduct_fs::{Credential, OpenId, SetAttr, TRANSFER_SIZE_MAX};
use aqueduct_session::KeptSlot;
use bytes::Bytes;

/// Writes up to this size are copied, and gathered to larger ones. Larger ones go at once: a request for each costs little beside its data.
const GATHERED_MAX: usize = 128 << 10;

/// What has grown beyond this is likely to grow to the largest, for which memory is set aside then: it is not touched before it is used.
const GROWS: usize = 64 << 10;

/// Pieces of a file that wait: so many small writes to different places go out together.
const WAITING_MAX: usize = 64;

/// Writes of a file that are under way at once: enough that the next is there when the server is done with one.
pub(super) const FLYING_MAX: usize = 4;

/// What a piece counts for beside its data: a request costs the server about as much as so many bytes, and who waits for the file waits for all of them. Its
/// place takes less memory, also with all the groups that a caller can have.
pub(super) const PIECE_COST: usize = 4096;

/// What the pieces of one file cost that wait or are under way.
const COST_MAX: usize = (FLYING_MAX + 1) * (TRANSFER_SIZE_MAX + PIECE_COST);

/// Where something is written, and by whom. Of an append the offset is where the end was thought to
/// be. Of attributes that are set only the caller counts, and the open by which he is told of
/// errors.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) open: OpenId,
    pub(crate) credential: Credential,
    pub(crate) offset: u64,
}

/// What was answered to its program and not by the server: a write, or several that lie next to each other, or attributes, set at once or one after another.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Grows from piece to piece.
    pub(super) number: u64,
    pub(crate) place: Place,
    pub(crate) content: Content,
    /// It goes to the end of the file, wherever that is then. In this slot the server executes it
    /// once, however often it is asked.
    pub(crate) end: Option<Arc<KeptSlot>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Data(Bytes),
    /// Nothing of before comes after it, and nothing of later before it.
    Attributes(SetAttr),
}

/// One that waits.
#[derive(Debug)]
struct Waiting {
    number: u64,
    place: Place,
    data: Data,
    /// See [`Piece::end`].
    end: Option<Arc<KeptSlot>>,
}

#[derive(Debug)]
enum Data {
    /// Copied from small writes; may grow as long as it is the latest.
    Gathered(Vec<u8>),
    Whole(Bytes),
    Attributes(SetAttr),
}

/// See the module.
#[derive(Debug)]
pub(super) struct File {
    waiting: VecDeque<Waiting>,
    /// Those that wait and have smaller numbers go as soon as they may.
    sealed: u64,
    flying: Vec<Piece>,
    cost: usize,
    /// Pieces that set attributes.
    sets: usize,
    /// How far has been written.
    end: u64,
    /// When the first came of those that wait.
    since: Instant,
    /// Tasks that wait for some to land.
    pub(super) wakers: Vec<Waker>,
}

impl Piece {
    /// The bytes that it writes.
    pub(crate) fn length(&self) -> usize {
        match &self.content {
            Content::Data(data) => data.len(),
            Content::Attributes(_) => 0,
        }
    }

    fn cost(&self) -> usize {
        self.length() + PIECE_COST
    }

    fn is_set(&self) -> bool {
        matches!(self.content, Content::Attributes(_))
    }

    /// Whether it goes by itself: nothing of before comes after it, and nothing of later before it.
    fn is_alone(&self) -> bool {
        self.is_set() || self.end.is_some()
    }

    fn range(&self) -> (u64, u64) {
        (self.place.offset, self.place.offset.saturating_add(self.length() as u64))
    }
}

impl From<Piece> for Waiting {
    fn from(Piece { number, place, content, end }: Piece) -> Waiting {
        let data = match content {
            Content::Data(data) => Data::Whole(data),
            Content::Attributes(set) => Data::Attributes(set),
        };
        Waiting { number, place, data, end }
    }
}

impl Waiting {
    fn length(&self) -> usize {
        match &self.data {
            Data::Gathered(data) => data.len(),
            Data::Whole(data) => data.len(),
            Data::Attributes(_) => 0,
        }
    }

    fn is_set(&self) -> bool {
        matches!(self.data, Data::Attributes(_))
    }

    /// Whether it may not be under way beside another.
    fn overlaps(&self, other: &Piece) -> bool {
        let (start, end) = other.range();
        let is_alone = self.is_set() || self.end.is_some() || other.is_alone();
        is_alone || self.place.offset < end && start < self.place.offset.saturating_add(self.length() as u64)
    }

    /// Takes more from the same writer, next to what is here or over it. Returns by how much it has grown, if it takes it.
    fn take(&mut self, place: &Place, more: &[u8]) -> Option<usize> {
        let Data::Gathered(data) = &mut self.data else { return None };
        if self.end.is_some() {
            return None;
        }
        let start = usize::try_from(place.offset.checked_sub(self.place.offset)?).ok()?;
        let end = start.checked_add(more.len()).filter(|end| *end <= TRANSFER_SIZE_MAX)?;
        if start > data.len() || place.open != self.place.open || place.credential != self.place.credential {
            return None;
        }
        let before = data.len();
        make_room(data, end);
        let over = more.len().min(before - start);
        data[start..start + over].copy_from_slice(&more[..over]);
        data.extend_from_slice(&more[over..]);
        Some(data.len() - before)
    }

    /// Whether it takes more of the same writer's that goes to the end.
    fn takes_append(&self, place: &Place, length: usize) -> bool {
        let is_same = place.open == self.place.open && place.credential == self.place.credential;
        let has_room = matches!(&self.data, Data::Gathered(data) if data.len() + length <= TRANSFER_SIZE_MAX);
        self.end.is_some() && is_same && has_room
    }

    /// Sets more of the same setter's. False: it does not.
    fn set(&mut self, place: &Place, more: &SetAttr) -> bool {
        let Data::Attributes(set) = &mut self.data else { return false };
        let is_same = place.open == self.place.open && place.credential == self.place.credential;
        if is_same {
            let SetAttr { mode, uid, gid, size, atime, mtime } = *more;
            *set = SetAttr {
                mode: mode.or(set.mode),
                uid: uid.or(set.uid),
                gid: gid.or(set.gid),
                size: size.or(set.size),
                atime: atime.or(set.atime),
                mtime: mtime.or(set.mtime),
            };
        }
        is_same
    }

    fn into_piece(self) -> Piece {
        let content = match self.data {
            Data::Gathered(data) => Content::Data(data.into()),
            Data::Whole(data) => Content::Data(data),
            Data::Attributes(set) => Content::Attributes(set),
        };
        Piece { number: self.number, place: self.place, content, end: self.end }
    }
}

/// Sets memory aside for as much as a piece that is likely to grow may become.
fn make_room(data: &mut Vec<u8>, end: usize) {
    if end > GROWS && data.capacity() < TRANSFER_SIZE_MAX {
        data.reserve_exact(TRANSFER_SIZE_MAX - data.len());
    }
}

impl File {
    pub(super) fn new() -> File {
        let (waiting, flying, wakers) = (VecDeque::new(), Vec::new(), Vec::new());
        File { waiting, sealed: 0, flying, cost: 0, sets: 0, end: 0, since: Instant::now(), wakers }
    }

    /// Of all that was not answered: its bytes, and what its pieces count for.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// How many pieces that set attributes were not answered.
    pub(super) fn sets(&self) -> usize {
        self.sets
    }

    /// How far has been written of what was held back since anything was.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// How many pieces were not answered.
    pub(super) fn pieces(&self) -> usize {
        self.waiting.len() + self.flying.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }

    pub(super) fn has_room(&self, length: usize) -> bool {
        self.cost + length + PIECE_COST <= COST_MAX
    }

    /// Since when something waits.
    pub(super) fn since(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.since)
    }

    /// Takes a write, as the piece of this number or a part of the latest.
    pub(super) fn add(&mut self, place: &Place, data: &Bytes, number: u64) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.end = self.end.max(place.offset.saturating_add(data.len() as u64));
        let is_small = data.len() <= GATHERED_MAX;
        let latest = self.waiting.back_mut().filter(|latest| is_small && latest.number >= self.sealed);
        let grown = latest.and_then(|latest| latest.take(place, data));
        self.cost += grown.unwrap_or(data.len() + PIECE_COST);
        if grown.is_none() {
            self.push(place, data, (number, None));
        }
        self.seal_large(number, is_small);
    }

    /// Whether an append becomes a part of the latest piece; else it needs a slot of its own.
    pub(super) fn takes_append(&self, place: &Place, length: usize) -> bool {
        let latest = self.waiting.back().filter(|latest| length <= GATHERED_MAX && latest.number >= self.sealed);
        latest.is_some_and(|latest| latest.takes_append(place, length))
    }

    /// Takes an append, as the piece of this number in its slot, or as a part of the latest.
    pub(super) fn append(&mut self, place: &Place, data: &Bytes, (number, slot): (u64, Option<Arc<KeptSlot>>)) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        let is_small = data.len() <= GATHERED_MAX;
        match (slot, self.waiting.back_mut()) {
            (None, Some(Waiting { data: Data::Gathered(latest), .. })) => {
                make_room(latest, latest.len() + data.len());
                latest.extend_from_slice(data);
                self.cost += data.len();
            }
            (slot, _) => {
                self.cost += data.len() + PIECE_COST;
                self.push(place, data, (number, slot));
            }
        }
        self.seal_large(number, is_small);
    }

    fn push(&mut self, place: &Place, data: &Bytes, (number, end): (u64, Option<Arc<KeptSlot>>)) {
        // One that is large is as large as it will be.
        if self.waiting.back().is_some_and(|latest| latest.length() > GATHERED_MAX) {
            self.sealed = number;
        }
        let is_small = data.len() <= GATHERED_MAX;
        let data = if is_small { Data::Gathered(data.to_vec()) } else { Data::Whole(data.clone()) };
        self.waiting.push_back(Waiting { number, place: place.clone(), data, end });
    }

    /// The latest piece has come or grown: what is large, or of many, goes at once.
    fn seal_large(&mut self, number: u64, is_small: bool) {
        let is_whole = self.waiting.back().is_some_and(|latest| latest.length() >= TRANSFER_SIZE_MAX);
        if !is_small || is_whole || self.waiting.len() >= WAITING_MAX {
            self.sealed = number + 1;
        }
    }

    /// Takes attributes that are set, as the piece of this number or a part of the latest.
    pub(super) fn set(&mut self, place: &Place, set: &SetAttr, number: u64) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        let latest = self.waiting.back_mut().filter(|latest| latest.number >= self.sealed);
        if latest.is_some_and(|latest| latest.set(place, set)) {
            return;
        }
        self.cost += PIECE_COST;
        self.sets += 1;
        self.waiting.push_back(Waiting { number, place: place.clone(), data: Data::Attributes(*set), end: None });
        if self.waiting.len() >= WAITING_MAX {
            self.sealed = number + 1;
        }
    }

    /// All that is here is to go now. Returns the number up to which it is: those that come later have larger ones.
    pub(super) fn seal(&mut self, next: u64) -> u64 {
        self.sealed = next;
        next
    }

    /// The next that may go, which is under way from now on: no two that lie over each other are.
    pub(super) fn take_off(&mut self, flying_max: usize) -> Option<Piece> {
        let first = self.waiting.front()?;
        let is_free = !self.flying.iter().any(|flying| first.overlaps(flying));
        if first.number >= self.sealed || self.flying.len() >= flying_max || !is_free {
            return None;
        }
        let piece = self.waiting.pop_front()?.into_piece();
        self.since = Instant::now();
        self.flying.push(piece.clone());
        Some(piece)
    }

    pub(super) fn is_flying(&self, number: u64) -> bool {
        self.flying.iter().any(|flying| flying.number == number)
    }

    /// It has been answered, whatever with.
    pub(super) fn land(&mut self, number: u64) {
        if let Some(at) = self.flying.iter().position(|flying| flying.number == number) {
            let landed = self.flying.swap_remove(at);
            self.cost -= landed.cost();
            self.sets -= usize::from(landed.is_set());
        }
    }

    /// Whether something is left that came before this number was given.
    pub(super) fn has_below(&self, mark: u64) -> bool {
        self.waiting.front().is_some_and(|first| first.number < mark)
            || self.flying.iter().any(|flying| flying.number < mark)
    }

    /// Takes all back that is under way: it will not be answered.
    pub(super) fn ground(&mut self) {
        self.flying.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.number));
        for piece in self.flying.drain(..) {
            self.waiting.push_front(piece.into());
        }
    }

    /// The first that waits, which does not grow any more.
    pub(super) fn first(&mut self) -> Option<Piece> {
        let piece = self.waiting.pop_front()?.into_piece();
        self.waiting.push_front(piece.clone().into());
        Some(piece)
    }

    pub(super) fn drop_first(&mut self) {
        if let Some(first) = self.waiting.pop_front() {
            self.cost -= first.length() + PIECE_COST;
            self.sets -= usize::from(first.is_set());
        }
    }
}
