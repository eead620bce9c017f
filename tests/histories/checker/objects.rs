//! A history taken apart into objects that have nothing to do with each other: the names, and for each file its size and every block.
//!
//! This asks for less than one order of everything: a program that reads while another truncates and writes again may see the size of before and the bytes of
//! after, on a local file system too. Where two files' operations are ordered, their times already say so.
//!
//! - **readdir** is held to what POSIX says, and no more: a name that it lists led there at some time while it ran, and one that it does not list was not there at
//!   some time. What it lists need not all have been there at one time.
//! - **link** looks where the old name leads, and makes the new one later, as the kernel does; **rename** may find that both names are one file, and do nothing.
//! - **stat** looks where the name leads, and then at the file. Whoever finds it removed by then gets ENOENT or ESTALE.
//! - A block is one value for each of its words: reads and writes of one page may be torn by others at the same time.
//! - A write that crosses a page may be seen with the size of a part.
//! - A write that was answered may be **lost** if something happened that takes outcomes from programs, and neither fsync nor close has said since, without an
//!   error before it, that it is safe. It is lost then and for ever: it does not come later, over what others saw.

use std::collections::{BTreeMap, BTreeSet};

use super::linear::Timed;
use super::locks::Hold;
use super::names::{Entry, Step};
use super::registers::{Length, Record, Word};
use crate::history::{BLOCK, BLOCKS, Call, Event, History, How, NAMES, PAGE, PATHS, Place, RECORD, Value, WORD, runs};

/// Errors of a mount that lost its server, its session or its life; ECANCELED and EINTR are of requests that the kernel was handing to its ring then.
const LOSSES: [i32; 7] =
    [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ESTALE, libc::EINTR, libc::ENODEV];

/// A block's words: those of a read begin where they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    Write(u64),
    /// One that may have been lost.
    MayWrite(u64),
    Read(Vec<(usize, u64)>),
}

/// A block of a file, or a page of the mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Block(u64, usize),
    Page(usize),
}

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    pub node: u64,
    pub place: Place,
    /// When its open began.
    pub opened: u64,
    /// When its close was over.
    pub closed: u64,
}

#[derive(Default)]
pub struct Objects {
    pub names: Vec<Timed<Step>>,
    pub sizes: BTreeMap<u64, Vec<Timed<Length>>>,
    pub modes: BTreeMap<u64, Vec<Timed<Word>>>,
    pub parts: BTreeMap<Part, Vec<Timed<Block>>>,
    pub log: Vec<Timed<Record>>,
    pub lock: Vec<Timed<Hold>>,
    pub handles: BTreeMap<(usize, u32), Handle>,
    /// Operations that gave what they never may.
    pub faults: Vec<(usize, String)>,
}

/// What became of an operation.
enum Seen<'a> {
    Value(&'a Value),
    Errno(i32),
    Unknown,
}

/// An operation that is being taken apart.
struct At<'a> {
    number: usize,
    event: &'a Event,
    required: bool,
}

impl At<'_> {
    fn timed<T>(&self, step: T) -> Timed<T> {
        Timed { required: self.required, ..self.look(step) }
    }

    fn look<T>(&self, step: T) -> Timed<T> {
        let end = if self.required { self.event.end } else { u64::MAX };
        Timed { begin: self.event.begin, end, required: true, origin: self.number, step }
    }

    fn maybe<T>(&self, step: T) -> Timed<T> {
        Timed { required: false, end: u64::MAX, ..self.look(step) }
    }
}

impl Objects {
    pub fn of(history: &History) -> Objects {
        let mut objects = Objects { handles: handles(history), ..Objects::default() };
        let renames: Vec<&Event> =
            history.events.iter().filter(|event| matches!(event.call, Call::Rename { .. })).collect();
        for (number, event) in history.events.iter().enumerate() {
            let seen = objects.seen(history, number, event);
            let at = At { number, event, required: !matches!(seen, Seen::Unknown) };
            match event.call {
                Call::Open { place: Place::Name(name), how, .. } => objects.open(&at, name, how, &seen),
                Call::Stat { .. }
                | Call::Remove { .. }
                | Call::Rename { .. }
                | Call::Link { .. }
                | Call::List { .. } => {
                    objects.name(&at, &seen, &renames);
                }
                Call::Lock { .. } | Call::Unlock { .. } => objects.lock(&at, &seen, history),
                Call::Open { .. } | Call::Close { .. } | Call::Sync { .. } => objects.expect_done(&at, &seen),
                _ => objects.file(&at, &seen, history),
            }
        }
        objects.unknown_cuts(history);
        objects.in_the_end(history);
        objects
    }

    fn seen<'a>(&mut self, history: &History, number: usize, event: &'a Event) -> Seen<'a> {
        match &event.result {
            Some(Ok(value)) => Seen::Value(value),
            Some(Err(errno)) if LOSSES.contains(errno) && history.may_fail => Seen::Unknown,
            Some(Err(errno)) => Seen::Errno(*errno),
            None => {
                if !history.may_fail {
                    self.faults.push((number, "it gave nothing".to_owned()));
                }
                Seen::Unknown
            }
        }
    }

    fn expect_done(&mut self, at: &At, seen: &Seen) {
        if let Seen::Errno(_) = seen {
            self.fault(at);
        }
    }

    fn fault(&mut self, at: &At) {
        self.faults.push((at.number, "it must not give that".to_owned()));
    }

    fn open(&mut self, at: &At, name: usize, how: How, seen: &Seen) {
        match (how, seen) {
            (How::Make, Seen::Value(Value::Node(node))) => self.names.push(at.timed(Step::OpenOrMake(name, *node))),
            (How::MakeNew, Seen::Value(Value::Node(node))) => {
                self.names.push(at.timed(Step::Make(name, Entry::Node(*node))));
            }
            (How::MakeNew, Seen::Errno(libc::EEXIST)) => self.names.push(at.look(Step::IsThere(name))),
            (How::Make | How::MakeNew, Seen::Unknown) => {
                self.names.push(at.timed(Step::Make(name, Entry::Made(at.number))));
            }
            (How::Read | How::Write | How::Truncate, Seen::Value(Value::Node(node))) => {
                self.names.push(at.look(Step::Leads(name, Some(*node))));
                if how == How::Truncate {
                    self.resize(at, *node, 0);
                }
            }
            (How::Read | How::Write | How::Truncate, Seen::Errno(libc::ENOENT)) => {
                self.names.push(at.look(Step::Leads(name, None)));
            }
            (How::Read | How::Write | How::Truncate | How::Make, Seen::Errno(libc::ESTALE)) => self.gone(at, name),
            (_, Seen::Unknown) => {}
            _ => self.fault(at),
        }
    }

    /// The name led to a file that was removed before the operation got there. The kernel looks once more, and meets the same again on a busy day.
    fn gone(&mut self, at: &At, name: usize) {
        self.names.push(at.look(Step::Look(at.number, name)));
        self.names.push(at.look(Step::IsGone(at.number)));
    }

    fn name(&mut self, at: &At, seen: &Seen, renames: &[&Event]) {
        match (&at.event.call, seen) {
            (Call::Stat { name }, Seen::Value(Value::Attributes { node, size, links, mode })) => {
                self.modes.entry(*node).or_default().push(at.look(Word::Read(u64::from(*mode))));
                self.names.push(at.look(Step::Leads(*name, Some(*node))));
                self.names.push(at.look(Step::Links(*node, *links)));
                self.sizes.entry(*node).or_default().push(at.look(Length::Is(*size)));
            }
            (Call::Stat { name } | Call::Remove { name }, Seen::Errno(libc::ENOENT)) => {
                self.names.push(at.look(Step::Leads(*name, None)));
            }
            (Call::Remove { name }, Seen::Value(_) | Seen::Unknown) => self.names.push(at.timed(Step::Remove(*name))),
            (Call::Rename { from, to }, Seen::Value(_) | Seen::Unknown) => {
                // Whoever finds the same file at both names found it at the old one before somebody else moved it from there.
                let moves_it = |other: &&&Event| {
                    matches!(&other.call, Call::Rename { from: moved, .. } if moved == from)
                        && other.worker != at.event.worker
                        && other.begin <= at.event.end
                        && other.end >= at.event.begin
                };
                if renames.iter().any(|event| moves_it(&event)) {
                    self.names.push(Timed { end: at.event.end, ..at.maybe(Step::Look(at.number, *from)) });
                }
                self.names.push(at.timed(Step::Rename(at.number, *from, *to)));
            }
            (Call::Rename { from, .. }, Seen::Errno(libc::ENOENT)) => {
                self.names.push(at.look(Step::Leads(*from, None)));
            }
            (Call::Link { from, to }, Seen::Value(_) | Seen::Unknown) => {
                self.names.push(at.timed(Step::Look(at.number, *from)));
                self.names.push(at.timed(Step::Link(at.number, *to)));
            }
            (Call::Link { from, .. }, Seen::Errno(libc::ENOENT)) => self.gone(at, *from),
            (Call::Link { from: name, .. } | Call::Stat { name }, Seen::Errno(libc::ESTALE)) => self.gone(at, *name),
            (Call::Link { to, .. }, Seen::Errno(libc::EEXIST)) => self.names.push(at.look(Step::IsThere(*to))),
            (Call::List { directory }, Seen::Value(Value::Names(listed))) => self.list(at, *directory, listed),
            (_, Seen::Unknown) => {}
            _ => self.fault(at),
        }
    }

    fn list(&mut self, at: &At, directory: usize, listed: &[(String, u64)]) {
        let prefix = format!("{}/", crate::history::DIRECTORIES[directory]);
        let mut found = BTreeSet::new();
        for (name, node) in listed {
            match PATHS.iter().position(|path| path.strip_prefix(&prefix) == Some(name)) {
                Some(name) => {
                    found.insert(name);
                    self.names.push(at.look(Step::Leads(name, Some(*node))));
                }
                None => self.faults.push((at.number, format!("nobody made the name {name:?}"))),
            }
        }
        for name in (0..NAMES).filter(|name| PATHS[*name].starts_with(&prefix) && !found.contains(name)) {
            self.names.push(at.look(Step::Leads(name, None)));
        }
    }

    fn file(&mut self, at: &At, seen: &Seen, history: &History) {
        let Some(handle) = at.event.call.handle().and_then(|handle| self.handles.get(&(at.event.worker, handle)))
        else {
            return self.faults.push((at.number, "its descriptor was never opened".to_owned()));
        };
        let node = handle.node;
        match (&at.event.call, seen) {
            (Call::Read { block, count, .. }, Seen::Value(Value::Words { bytes, runs })) => {
                self.read(at, node, (*block, *count), (*bytes, runs));
            }
            (Call::Write { block, count, token, .. }, Seen::Value(_) | Seen::Unknown) => {
                self.write(at, node, (*block, *count), *token, may_be_lost(history, at));
            }
            (Call::Resize { blocks, .. }, Seen::Value(_) | Seen::Unknown) => self.resize(at, node, *blocks),
            (Call::Append { token, .. }, Seen::Value(_) | Seen::Unknown) => {
                let step = at.timed(Record::Append(*token));
                let required = step.required && !may_be_lost(history, at);
                self.log.push(Timed { required, ..step });
            }
            (Call::ReadLog { .. }, Seen::Value(Value::Records(records))) => {
                match records.strip_prefix(&history.before.log[..]) {
                    Some(new) => self.log.push(at.look(Record::Read(new.to_vec()))),
                    None => self.faults.push((at.number, "the log has lost what it had".to_owned())),
                }
            }
            (Call::Store { block, token, .. }, Seen::Value(_) | Seen::Unknown) => {
                self.part(Part::Page(*block)).push(at.timed(Block::Write(*token)));
            }
            (Call::Load { block, .. }, Seen::Value(Value::Words { runs, .. })) => {
                if !is_early(history, at.event, runs) {
                    self.part(Part::Page(*block)).push(at.look(Block::Read(runs.clone())));
                }
            }
            (Call::SetMode { mode, .. }, Seen::Value(_) | Seen::Unknown) => {
                let mode = u64::from(*mode);
                let step = if may_be_lost(history, at) { Word::MayWrite(mode) } else { Word::Write(mode) };
                self.modes.entry(node).or_default().push(at.timed(step));
            }
            (Call::LookAt { .. }, Seen::Value(Value::Attributes { node: shown, size, links, mode })) => {
                if *shown != node {
                    self.faults.push((at.number, format!("it was inode {node}")));
                } else if let Place::Name(_) = handle.place {
                    self.modes.entry(node).or_default().push(at.look(Word::Read(u64::from(*mode))));
                    self.sizes.entry(node).or_default().push(at.look(Length::Is(*size)));
                    self.names.push(at.look(Step::Links(node, *links)));
                } else if handle.place == Place::Log {
                    let records = (*size as usize / RECORD).checked_sub(history.before.log.len());
                    match records.filter(|_| (*size as usize).is_multiple_of(RECORD)) {
                        Some(new) => self.log.push(at.look(Record::Count(new))),
                        None => self.faults.push((at.number, "the log has lost what it had".to_owned())),
                    }
                }
            }
            (_, Seen::Unknown) => {}
            _ => self.fault(at),
        }
    }

    fn part(&mut self, part: Part) -> &mut Vec<Timed<Block>> {
        self.parts.entry(part).or_default()
    }

    fn read(&mut self, at: &At, node: u64, (block, count): (usize, usize), (bytes, words): (usize, &[(usize, u64)])) {
        let (start, wanted) = (block * BLOCK, count * BLOCK);
        let sizes = self.sizes.entry(node).or_default();
        let reached = (start + bytes) as u64;
        // Over several pages the size is looked at for each.
        let one_page = start / PAGE == (start + wanted - 1) / PAGE;
        match bytes {
            _ if bytes == wanted => sizes.push(at.look(Length::IsAtLeast(reached))),
            0 => sizes.push(at.look(Length::IsAtMost(reached))),
            _ if one_page => sizes.push(at.look(Length::Is(reached))),
            _ => sizes.extend([at.look(Length::IsAtLeast(reached)), at.look(Length::IsAtMost(reached))]),
        }
        for number in 0..bytes / BLOCK {
            let first = number * BLOCK / WORD;
            self.part(Part::Block(node, block + number)).push(at.look(Block::Read(cut_runs(words, first))));
        }
    }

    fn write(&mut self, at: &At, node: u64, (block, count): (usize, usize), token: u64, may_be_lost: bool) {
        let (start, end) = (block * BLOCK, (block + count) * BLOCK);
        let sizes = self.sizes.entry(node).or_default();
        let pages = (start / PAGE + 1..=(end - 1) / PAGE).map(|page| (page * PAGE) as u64);
        sizes.extend(pages.map(|boundary| Timed { end: at.event.end, ..at.maybe(Length::ReachesTo(boundary)) }));
        let (reaches, writes) = match may_be_lost {
            true => (Length::MayReachTo(end as u64), Block::MayWrite(token)),
            false => (Length::ReachesTo(end as u64), Block::Write(token)),
        };
        sizes.push(at.timed(reaches));
        for number in block..block + count {
            self.part(Part::Block(node, number)).push(at.timed(writes.clone()));
        }
    }

    fn resize(&mut self, at: &At, node: u64, blocks: usize) {
        self.sizes.entry(node).or_default().push(at.timed(Length::Becomes((blocks * BLOCK) as u64)));
        for number in blocks..BLOCKS {
            self.part(Part::Block(node, number)).push(at.timed(Block::Write(0)));
        }
    }

    /// An open that truncates and of which nothing is known may have truncated any file.
    fn unknown_cuts(&mut self, history: &History) {
        let nodes: Vec<u64> = self.sizes.keys().copied().chain(history.before.files.keys().copied()).collect();
        for (number, event) in history.events.iter().enumerate() {
            let known = matches!(event.result, Some(Ok(_) | Err(libc::ENOENT)));
            if matches!(event.call, Call::Open { how: How::Truncate, .. }) && !known {
                let at = At { number, event, required: false };
                nodes.iter().for_each(|node| self.resize(&at, *node, 0));
            }
        }
    }

    fn lock(&mut self, at: &At, seen: &Seen, history: &History) {
        let worker = at.event.worker;
        match (&at.event.call, seen) {
            (Call::Lock { .. }, Seen::Value(_) | Seen::Unknown) => {
                self.lock.push(at.timed(Hold::Take(worker)));
                if let Some(lost) = lost_at(history, at.number) {
                    let end = u64::MAX;
                    self.lock.push(Timed { begin: lost, end, ..at.maybe(Hold::Free(worker)) });
                }
            }
            // While a server recovers, or a lock's holder is gone, there may be a refusal although nobody has it.
            (Call::Lock { .. }, Seen::Errno(libc::EAGAIN | libc::EACCES)) if !history.troubles.is_empty() => {}
            (Call::Lock { .. }, Seen::Errno(libc::EAGAIN | libc::EACCES)) => {
                self.lock.push(at.look(Hold::Refused(worker)));
            }
            (Call::Unlock { .. }, Seen::Value(_)) => self.lock.push(at.timed(Hold::Free(worker))),
            (Call::Unlock { .. }, Seen::Unknown) => {}
            _ => self.fault(at),
        }
    }

    fn in_the_end(&mut self, history: &History) {
        let (time, origin) = (history.ended, history.events.len());
        fn at<T>(time: u64, origin: usize, step: T) -> Timed<T> {
            Timed { begin: time, end: time, required: true, origin, step }
        }
        let after = &history.after;
        for (name, node) in after.names.iter().enumerate() {
            self.names.push(at(time, origin, Step::Leads(name, *node)));
        }
        for (node, content) in &after.files {
            let size = Length::Is(content.len() as u64);
            self.sizes.entry(*node).or_default().push(at(time, origin, size));
            for (number, block) in content.chunks_exact(BLOCK).enumerate() {
                self.part(Part::Block(*node, number)).push(at(time, origin, Block::Read(runs(block))));
            }
        }
        for (node, mode) in &after.modes {
            self.modes.entry(*node).or_default().push(at(time, origin, Word::Read(u64::from(*mode))));
        }
        for (number, word) in after.pages.iter().enumerate() {
            self.part(Part::Page(number)).push(at(time, origin, Block::Read(vec![(0, *word)])));
        }
        match after.log.strip_prefix(&history.before.log[..]) {
            Some(new) => self.log.push(at(time, origin, Record::Read(new.to_vec()))),
            None => self.faults.push((origin, "the log has lost what it had".to_owned())),
        }
    }
}

/// Whether a load shows what somebody on the same mount is just storing: to others that comes with msync.
fn is_early(history: &History, load: &Event, runs: &[(usize, u64)]) -> bool {
    let is_store =
        |store: &&Event| matches!(store.call, Call::Store { token, .. } if runs.iter().any(|(_, word)| *word == token));
    let overlaps = |store: &Event| store.mount == load.mount && store.begin < load.end && load.begin < store.end;
    history.events.iter().filter(is_store).any(overlaps)
}

/// Whether a write that was answered may have been lost all the same: its program was told so, or has not been told that it is safe.
fn may_be_lost(history: &History, at: &At) -> bool {
    let is_later = |later: &&Event| {
        later.worker == at.event.worker && later.begin > at.event.begin && later.call.handle() == at.event.call.handle()
    };
    let told = |later: &Event| match (&later.call, &later.result) {
        (Call::Sync { .. } | Call::Close { .. }, Some(Ok(_))) => Some(false),
        (Call::Write { .. } | Call::Append { .. } | Call::Sync { .. } | Call::Close { .. }, None | Some(Err(_))) => {
            Some(true)
        }
        _ => None,
    };
    history.may_fail && history.events.iter().filter(is_later).find_map(told).unwrap_or(true)
}

/// When a lock may have been lost: since its operation, unless the same worker gave it back and was told that it had it until then.
fn lost_at(history: &History, number: usize) -> Option<u64> {
    let event = &history.events[number];
    let mut later = history.events.iter().filter(|later| later.worker == event.worker && later.begin > event.begin);
    let is_its_end = |call: &Call| matches!(call, Call::Unlock { .. }) && call.handle() == event.call.handle();
    let unlocked = later.find(|later| is_its_end(&later.call));
    let kept = unlocked.is_some_and(|unlocked| matches!((&event.result, &unlocked.result), (Some(Ok(_)), Some(Ok(_)))));
    (!kept).then_some(event.begin)
}

/// The word at a place of a block.
pub fn word_at(runs: &[(usize, u64)], place: usize) -> u64 {
    runs.iter().take_while(|(at, _)| *at <= place).last().map_or(0, |(_, word)| *word)
}

/// The words of one block, from the words of a read; `first` is the number of the block's first word there.
fn cut_runs(words: &[(usize, u64)], first: usize) -> Vec<(usize, u64)> {
    let count = BLOCK / WORD;
    let mut cut: Vec<(usize, u64)> = Vec::new();
    for (at, word) in words {
        match at.checked_sub(first) {
            None | Some(0) => cut = vec![(0, *word)],
            Some(at) if at < count => cut.push((at, *word)),
            Some(_) => break,
        }
    }
    cut
}

fn handles(history: &History) -> BTreeMap<(usize, u32), Handle> {
    let mut handles = BTreeMap::new();
    for event in &history.events {
        match (&event.call, &event.result) {
            (Call::Open { handle, place, .. }, Some(Ok(Value::Node(node)))) => {
                let opened = Handle { node: *node, place: *place, opened: event.begin, closed: u64::MAX };
                handles.insert((event.worker, *handle), opened);
            }
            (Call::Close { handle }, Some(Ok(_))) => {
                if let Some(handle) = handles.get_mut(&(event.worker, *handle)) {
                    handle.closed = event.end;
                }
            }
            _ => {}
        }
    }
    handles
}
