//! Histories that could not have happened, made by hand, and beside each one that could: what a protection that is missing would show.

use super::{Limits, Promise, check};
use crate::history::{BLOCK, Call, Event, History, How, MODE, PATHS, Place, Truth, Value, WORD, token};

/// The file of the first name, and another.
const FILE: u64 = 100;
const OTHER: u64 = 200;

/// Makes histories; workers are told apart by their numbers, and times are small.
struct Story {
    history: History,
}

impl Story {
    /// The first name leads to a file of two blocks of zeros.
    fn new() -> Story {
        let mut before = Truth { pages: vec![0; 2], ..Truth::default() };
        before.names[0] = Some(FILE);
        before.files.insert(FILE, vec![0; 2 * BLOCK]);
        Story {
            history: History {
                after: before.clone(),
                before,
                events: Vec::new(),
                ended: 1_000_000,
                may_fail: false,
                troubles: Vec::new(),
            },
        }
    }

    fn did(mut self, worker: usize, (begin, end): (u64, u64), call: Call, result: Result<Value, i32>) -> Story {
        self.history.events.push(Event { worker, mount: worker, begin, end, call, result: Some(result) });
        self
    }

    /// It was never heard of again.
    fn lost(mut self, worker: usize, begin: u64, call: Call) -> Story {
        self.history.events.push(Event { worker, mount: worker, begin, end: u64::MAX, call, result: None });
        self.history.may_fail = true;
        self
    }

    /// Everybody has a descriptor, with the number of the worker.
    fn opened(mut self, workers: usize, place: Place) -> Story {
        let node = if place == Place::Name(0) { FILE } else { OTHER };
        for worker in 0..workers {
            let call = Call::Open { handle: 1, place, how: How::Write };
            self = self.did(worker, (1, 2), call, Ok(Value::Node(node)));
        }
        self
    }

    fn wrote(self, worker: usize, time: (u64, u64), block: usize, number: usize) -> Story {
        let call = Call::Write { handle: 1, block, count: 1, token: token(0, worker, number) };
        self.did(worker, time, call, Ok(Value::Done))
    }

    fn read(self, worker: usize, time: (u64, u64), block: usize, word: u64) -> Story {
        let value = Value::Words { bytes: BLOCK, runs: vec![(0, word)] };
        self.did(worker, time, Call::Read { handle: 1, block, count: 1 }, Ok(value))
    }

    fn read_nothing(self, worker: usize, time: (u64, u64), block: usize) -> Story {
        let value = Value::Words { bytes: 0, runs: Vec::new() };
        self.did(worker, time, Call::Read { handle: 1, block, count: 1 }, Ok(value))
    }

    fn closed(self, worker: usize, time: (u64, u64)) -> Story {
        self.did(worker, time, Call::Close { handle: 1 }, Ok(Value::Done))
    }

    fn synced(self, worker: usize, time: (u64, u64)) -> Story {
        self.did(worker, time, Call::Sync { handle: 1 }, Ok(Value::Done))
    }

    fn set_mode(self, worker: usize, time: (u64, u64), mode: u32) -> Story {
        self.did(worker, time, Call::SetMode { handle: 1, mode }, Ok(Value::Done))
    }

    fn looked_at_mode(self, worker: usize, time: (u64, u64), mode: u32) -> Story {
        let value = Value::Attributes { node: FILE, size: 2 * BLOCK as u64, links: 1, mode };
        self.did(worker, time, Call::LookAt { handle: 1 }, Ok(value))
    }

    fn looked_at_size(self, worker: usize, time: (u64, u64), size: u64) -> Story {
        let value = Value::Attributes { node: FILE, size, links: 1, mode: MODE };
        self.did(worker, time, Call::LookAt { handle: 1 }, Ok(value))
    }

    fn stat(self, worker: usize, time: (u64, u64), name: usize, node: Option<(u64, u64)>) -> Story {
        let value = node.map(|(node, links)| Value::Attributes { node, size: 2 * BLOCK as u64, links, mode: MODE });
        self.did(worker, time, Call::Stat { name }, value.ok_or(libc::ENOENT))
    }

    fn listed(self, worker: usize, time: (u64, u64), names: &[(&str, u64)]) -> Story {
        let names = names.iter().map(|(name, node)| ((*name).to_owned(), *node)).collect();
        self.did(worker, time, Call::List { directory: 0 }, Ok(Value::Names(names)))
    }

    fn removed(self, worker: usize, time: (u64, u64), name: usize) -> Story {
        self.did(worker, time, Call::Remove { name }, Ok(Value::Done))
    }

    fn renamed(self, worker: usize, time: (u64, u64), from: usize, to: usize) -> Story {
        self.did(worker, time, Call::Rename { from, to }, Ok(Value::Done))
    }

    fn locked(self, worker: usize, time: (u64, u64)) -> Story {
        self.did(worker, time, Call::Lock { handle: 1, wait: false }, Ok(Value::Done))
    }

    fn unlocked(self, worker: usize, time: (u64, u64)) -> Story {
        self.did(worker, time, Call::Unlock { handle: 1 }, Ok(Value::Done))
    }

    fn appended(self, worker: usize, time: (u64, u64), number: usize) -> Story {
        let call = Call::Append { handle: 1, token: token(0, worker, number) };
        self.did(worker, time, call, Ok(Value::Done))
    }

    fn read_log(self, worker: usize, time: (u64, u64), records: &[(usize, usize)]) -> Story {
        let records = records.iter().map(|(worker, number)| token(0, *worker, *number)).collect();
        self.did(worker, time, Call::ReadLog { handle: 1 }, Ok(Value::Records(records)))
    }

    /// What the server has in the end: a block of the first file.
    fn leaves(mut self, block: usize, word: u64) -> Story {
        let content = self.history.after.files.get_mut(&FILE).unwrap();
        content[block * BLOCK..][..BLOCK].copy_from_slice(&word.to_le_bytes().repeat(BLOCK / WORD));
        self
    }

    fn leaves_name(mut self, name: usize, node: Option<u64>) -> Story {
        self.history.after.names[name] = node;
        self
    }

    fn leaves_log(mut self, records: &[(usize, usize)]) -> Story {
        self.history.after.log = records.iter().map(|(worker, number)| token(0, *worker, *number)).collect();
        self
    }

    fn found(&self, promise: Promise) -> Vec<String> {
        check(&self.history, promise, Limits::default()).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn holds(self) {
        assert_eq!(self.found(Promise::Linearizable), Vec::<String>::new());
    }

    /// Something is found, and told with these operations alone: they are numbered as they were told.
    #[track_caller]
    fn fails(self, what: &str, operations: &[usize]) {
        let found = check(&self.history, Promise::Linearizable, Limits::default());
        let [violation] = &found[..] else { panic!("one thing is wrong, not these: {found:?}") };
        assert!(violation.what.contains(what), "{violation}");
        assert_eq!(violation.operations, operations, "{violation}");
    }
}

const ONE: u64 = 1 << 24 | 1;

#[test]
fn a_stale_read() {
    let story =
        |read| Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 0, 1).read(1, read, 0, 0).leaves(0, ONE);
    story((15, 25)).holds();
    story((21, 25)).fails("block 0", &[2, 3]);
}

#[test]
fn a_read_that_goes_back() {
    // While the write runs, each may see either; but not the new one first and the old one then.
    let story = |first, second| {
        let story = Story::new().opened(3, Place::Name(0)).wrote(0, (10, 90), 0, 1);
        story.read(1, (20, 30), 0, first).read(2, (40, 50), 0, second).leaves(0, ONE)
    };
    story(0, ONE).holds();
    story(ONE, ONE).holds();
    story(ONE, 0).fails("block 0", &[4, 5]);
}

#[test]
fn a_lost_update() {
    let story =
        |left| Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 1, 1).wrote(1, (30, 40), 0, 1).leaves(0, left);
    let second = 1 << 24 | 1 << 16 | 1;
    story(second).leaves(1, ONE).holds();
    story(second).leaves(1, 0).fails("block 1", &[2, 4]);
}

/// Something happened that takes outcomes from programs.
fn troubled(mut story: Story) -> Story {
    story.history.may_fail = true;
    story
}

#[test]
fn what_is_not_known_to_be_safe_may_be_lost() {
    let wrote = || Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 0, 1);
    let seen = |story: Story| story.read(1, (60, 70), 0, 0);
    seen(troubled(wrote())).holds();
    seen(wrote()).fails("block 0", &[2, 3]);
    // Its program has been told that it is safe, by fsync or close.
    seen(troubled(wrote()).synced(0, (30, 40))).fails("block 0", &[2, 4]);
    seen(troubled(wrote()).closed(0, (30, 40))).fails("block 0", &[2, 4]);
    // It has been told that it is lost: what comes later without an error says nothing of it.
    let failed = |call| troubled(wrote()).did(0, (30, 40), call, Err(libc::EIO));
    for call in [Call::Close { handle: 1 }, Call::Sync { handle: 1 }] {
        seen(failed(call)).holds();
    }
    let more = Call::Write { handle: 1, block: 1, count: 1, token: token(0, 0, 2) };
    seen(failed(more.clone()).synced(0, (45, 50)).closed(0, (51, 55))).holds();
    // But not of what was written after the error, nor by another descriptor.
    let again = |story: Story| seen(story.wrote(0, (45, 50), 0, 3).synced(0, (51, 55)));
    again(failed(more)).fails("block 0", &[4, 6]);
    let other = Call::Open { handle: 2, place: Place::Name(0), how: How::Write };
    let other = troubled(wrote()).did(0, (21, 22), other, Ok(Value::Node(FILE)));
    seen(other.did(0, (30, 40), Call::Close { handle: 2 }, Ok(Value::Done))).holds();
    // Without a trouble nobody may be told of an error.
    let alone = wrote().did(0, (30, 40), Call::Close { handle: 1 }, Err(libc::EIO)).leaves(0, ONE);
    alone.fails("must not", &[3]);
}

#[test]
fn what_is_lost_does_not_come_later() {
    let wrote = || troubled(Story::new()).opened(3, Place::Name(0)).wrote(0, (10, 20), 0, 1);
    wrote().read(1, (30, 40), 0, 0).holds();
    wrote().read(1, (30, 40), 0, 0).read(2, (50, 60), 0, ONE).leaves(0, ONE).fails("block 0", &[3, 4, 5]);
    wrote().read(1, (30, 40), 0, 0).leaves(0, ONE).fails("block 0", &[3, 4, 5]);
    // Over what another has written since.
    let second = token(0, 1, 1);
    wrote().wrote(1, (30, 40), 0, 1).synced(1, (41, 42)).leaves(0, second).holds();
    wrote().wrote(1, (30, 40), 0, 1).synced(1, (41, 42)).leaves(0, ONE).fails("block 0", &[3, 4, 6]);
    // Nor does what was seen go away.
    wrote().read(1, (30, 40), 0, ONE).leaves(0, ONE).holds();
    wrote().read(1, (30, 40), 0, ONE).fails("block 0", &[4, 5]);
}

#[test]
fn a_mode_that_others_do_not_see() {
    let set = || Story::new().opened(3, Place::Name(0)).set_mode(0, (10, 20), 0o600);
    set().looked_at_mode(1, (15, 25), MODE).looked_at_mode(2, (30, 40), 0o600).holds();
    set().looked_at_mode(1, (30, 40), MODE).fails("mode", &[3, 4]);
    set().looked_at_mode(1, (12, 14), 0o600).looked_at_mode(2, (16, 18), MODE).fails("mode", &[4, 5]);
    // What was not known to be safe may be lost, and does not come later.
    troubled(set()).looked_at_mode(1, (30, 40), MODE).holds();
    troubled(set()).closed(0, (21, 25)).looked_at_mode(1, (30, 40), MODE).fails("mode", &[3, 5]);
    troubled(set()).looked_at_mode(1, (30, 40), MODE).looked_at_mode(2, (50, 60), 0o600).fails("mode", &[3, 4, 5]);
}

#[test]
fn a_size_that_is_lost_or_not() {
    let story = |troubled: bool, size, left: usize| {
        let mut story = Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 2, 1);
        story.history.may_fail = troubled;
        let content = story.history.after.files.get_mut(&FILE).unwrap();
        content.extend(ONE.to_le_bytes().repeat(BLOCK / WORD * left));
        story.looked_at_size(1, (30, 40), size * BLOCK as u64)
    };
    story(false, 3, 1).holds();
    story(false, 2, 1).fails("size", &[2, 3]);
    story(true, 2, 0).holds();
    story(true, 2, 1).fails("size", &[2, 3, 4]);
    story(true, 3, 0).fails("size", &[3, 4]);
}

#[test]
fn words_of_a_torn_read() {
    let torn = |time| {
        let value = Value::Words { bytes: BLOCK, runs: vec![(0, ONE), (7, 0)] };
        let story = Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 0, 1).leaves(0, ONE);
        story.did(1, time, Call::Read { handle: 1, block: 0, count: 1 }, Ok(value))
    };
    torn((15, 30)).holds();
    torn((21, 30)).fails("at byte 56", &[2, 3]);
}

#[test]
fn a_stale_size_after_a_truncation() {
    let story = |look| {
        let story = Story::new().opened(2, Place::Name(0));
        let story = story.did(0, (10, 20), Call::Resize { handle: 1, blocks: 1 }, Ok(Value::Done));
        let mut story = story.looked_at_size(1, look, 2 * BLOCK as u64);
        story.history.after.files.insert(FILE, vec![0; BLOCK]);
        story
    };
    story((5, 9)).holds();
    story((15, 25)).holds();
    story((21, 25)).fails("size", &[2, 3]);
}

#[test]
fn an_end_of_file_that_is_old() {
    let story = |read| {
        let story = Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 2, 1).read_nothing(1, read, 2);
        let mut story = story;
        let content = story.history.after.files.get_mut(&FILE).unwrap();
        content.extend(ONE.to_le_bytes().repeat(BLOCK / WORD));
        story
    };
    story((15, 30)).holds();
    story((21, 30)).fails("size", &[2, 3]);
}

#[test]
fn what_was_cut_off_comes_back() {
    let story = |word| {
        let story = Story::new().opened(2, Place::Name(0)).wrote(0, (10, 20), 1, 1);
        let story = story.did(0, (30, 40), Call::Resize { handle: 1, blocks: 1 }, Ok(Value::Done));
        let story = story.did(0, (50, 60), Call::Resize { handle: 1, blocks: 2 }, Ok(Value::Done));
        story.read(1, (70, 80), 1, word)
    };
    story(0).holds();
    story(ONE).fails("block 1", &[2, 3, 5]);
}

#[test]
fn a_name_that_comes_back() {
    let story = |look| Story::new().removed(0, (10, 20), 0).stat(1, look, 0, Some((FILE, 1))).leaves_name(0, None);
    story((5, 15)).holds();
    // Its file has no link any more either: one of the two looks is enough.
    story((21, 25)).fails("names", &[0, 1]);
}

#[test]
fn a_negative_name_that_is_old() {
    let story = |look| {
        let make = Call::Open { handle: 1, place: Place::Name(1), how: How::MakeNew };
        Story::new().did(0, (10, 20), make, Ok(Value::Node(OTHER))).stat(1, look, 1, None).leaves_name(1, Some(OTHER))
    };
    story((15, 25)).holds();
    story((21, 25)).fails("names", &[0, 1]);
}

#[test]
fn a_rename_in_two_halves() {
    // The new name is there, and the old one still.
    let story = |second| {
        let story = Story::new().renamed(0, (10, 90), 0, 1).stat(1, (20, 30), 1, Some((FILE, 1)));
        story.stat(1, (40, 50), 0, second).leaves_name(0, None).leaves_name(1, Some(FILE))
    };
    story(None).holds();
    story(Some((FILE, 1))).fails("names", &[1, 2]);
}

#[test]
fn an_exclusive_name_with_two_makers() {
    let make = |place| Call::Open { handle: 1, place: Place::Name(place), how: How::MakeNew };
    let story = |second| {
        let story = Story::new().did(0, (10, 30), make(1), Ok(Value::Node(OTHER)));
        story.did(1, (20, 40), make(1), second).leaves_name(1, Some(OTHER))
    };
    story(Err(libc::EEXIST)).holds();
    story(Ok(Value::Node(OTHER + 1))).fails("names", &[0, 1]);
}

#[test]
fn a_listing_may_be_of_several_times_but_not_of_none() {
    let names =
        |first, second| Story::new().renamed(0, (10, 20), 0, 1).listed(1, (first, second), &[("a", FILE), ("b", FILE)]);
    let left = |story: Story| story.leaves_name(0, None).leaves_name(1, Some(FILE));
    left(names(5, 25)).holds();
    left(names(21, 25)).fails("names", &[0, 1]);
    // Not to list what was there all the time.
    left(Story::new().renamed(0, (10, 20), 0, 1).listed(1, (21, 25), &[])).fails("names", &[0, 1]);
}

#[test]
fn a_link_count_that_is_old() {
    let link = Call::Link { from: 0, to: 5 };
    let story = |links| {
        let story = Story::new().did(0, (10, 20), link.clone(), Ok(Value::Done));
        story.stat(1, (30, 40), 0, Some((FILE, links))).leaves_name(5, Some(FILE))
    };
    story(2).holds();
    story(1).fails("names", &[0, 1]);
}

#[test]
fn a_rename_of_two_names_of_one_file_does_nothing() {
    // The second one looked at the old name before the first one's rename, and at the new one after it.
    let story = |second: (u64, u64)| {
        Story::new().renamed(0, (10, 30), 0, 1).renamed(1, second, 0, 1).leaves_name(0, None).leaves_name(1, Some(FILE))
    };
    story((20, 40)).holds();
    story((31, 40)).fails("names", &[0, 1]);
}

#[test]
fn a_store_that_is_seen_early() {
    let story = |stored: (u64, u64), seen_on: usize| {
        let store = Call::Store { handle: 1, block: 0, token: token(0, 0, 1) };
        let load = |worker, time, word: u64| {
            let seen = Value::Words { bytes: BLOCK, runs: vec![(0, word)] };
            Story::new().did(worker, time, Call::Load { handle: 1, block: 0 }, Ok(seen)).history.events.remove(0)
        };
        let mut story = Story::new().opened(3, Place::Pages).did(0, stored, store, Ok(Value::Done));
        let early = Event { mount: seen_on, ..load(1, (20, 30), token(0, 0, 1)) };
        story.history.events.extend([early, load(2, (40, 50), 0)]);
        story.history.after.pages[0] = token(0, 0, 1);
        story
    };
    story((10, 60), 0).holds();
    story((10, 60), 1).fails("page 0", &[4, 5]);
    story((10, 15), 0).fails("page 0", &[3, 5]);
}

#[test]
fn a_lock_with_two_holders() {
    let story = |first: (u64, u64)| {
        let story = Story::new().opened(2, Place::Lock).locked(0, (10, 20)).unlocked(0, first);
        story.locked(1, (40, 50)).unlocked(1, (60, 70))
    };
    story((30, 35)).holds();
    story((30, 45)).holds();
    story((51, 55)).fails("the lock", &[2, 4]);
}

#[test]
fn a_lock_that_may_be_lost_and_one_that_may_not() {
    let refused = Call::Lock { handle: 1, wait: false };
    let story = || Story::new().opened(2, Place::Lock).locked(0, (10, 20)).locked(1, (40, 50)).unlocked(1, (60, 70));
    let mut lost = story().did(0, (80, 90), Call::Unlock { handle: 1 }, Err(libc::EIO));
    lost.history.may_fail = true;
    lost.holds();
    story().unlocked(0, (80, 90)).fails("the lock", &[2, 3]);
    // What the same worker says of another descriptor says nothing of this one.
    let open = Call::Open { handle: 2, place: Place::Lock, how: How::Write };
    let again = Story::new().opened(1, Place::Lock).locked(0, (10, 20)).did(0, (30, 35), open, Ok(Value::Node(OTHER)));
    let again = again.did(0, (40, 50), Call::Lock { handle: 2, wait: true }, Ok(Value::Done));
    again.did(0, (60, 70), Call::Unlock { handle: 2 }, Ok(Value::Done)).holds();
    // Nobody has it, and yet it is refused.
    let free = Story::new().opened(2, Place::Lock).locked(0, (10, 20)).unlocked(0, (30, 40));
    free.did(1, (50, 60), refused, Err(libc::EAGAIN)).fails("the lock", &[3, 4]);
}

#[test]
fn a_record_that_is_lost_or_doubled_or_out_of_order() {
    let story = |records: &[(usize, usize)]| {
        let story = Story::new().opened(2, Place::Log).appended(0, (10, 20), 1).appended(1, (30, 40), 1);
        story.read_log(1, (50, 60), records).leaves_log(&[(0, 1), (1, 1)])
    };
    story(&[(0, 1), (1, 1)]).holds();
    for wrong in [&[(0, 1)][..], &[(1, 1), (0, 1)], &[(0, 1), (1, 1), (1, 1)]] {
        assert_eq!(story(wrong).found(Promise::Linearizable).len(), 1, "{wrong:?}");
    }
    // Both at the same time: either order, but the same for all.
    let story = |second: &[(usize, usize)]| {
        let story = Story::new().opened(2, Place::Log).appended(0, (10, 40), 1).appended(1, (10, 40), 1);
        story.read_log(1, (50, 60), second).leaves_log(&[(0, 1), (1, 1)])
    };
    story(&[(0, 1), (1, 1)]).holds();
    story(&[(1, 1), (0, 1)]).fails("the log", &[4, 5]);
}

/// It was held back, and its mount was killed before it was synced or closed.
#[test]
fn a_record_that_may_be_lost_and_one_that_may_not() {
    let story = |troubled: bool, safe: Option<Call>| {
        let mut story = Story::new().opened(2, Place::Log).appended(0, (10, 20), 1).appended(1, (30, 40), 1);
        if let Some(call) = safe {
            story = story.did(0, (25, 28), call, Ok(Value::Done));
        }
        story.history.may_fail = troubled;
        story.read_log(1, (50, 60), &[(1, 1)]).leaves_log(&[(1, 1)])
    };
    story(true, None).holds();
    assert_eq!(story(false, None).found(Promise::Linearizable).len(), 1);
    assert_eq!(story(true, Some(Call::Sync { handle: 1 })).found(Promise::Linearizable).len(), 1, "it was synced");
}

#[test]
fn what_nobody_heard_of_may_have_happened_once() {
    let call = || Call::Append { handle: 1, token: token(0, 0, 1) };
    let story = |records: &[(usize, usize)]| {
        Story::new().opened(2, Place::Log).lost(0, 10, call()).read_log(1, (50, 60), records)
    };
    story(&[]).holds();
    story(&[(0, 1)]).leaves_log(&[(0, 1)]).holds();
    assert_eq!(story(&[(0, 1)]).found(Promise::Linearizable).len(), 1, "seen, and gone");
    assert_eq!(story(&[(0, 1), (0, 1)]).leaves_log(&[(0, 1), (0, 1)]).found(Promise::Linearizable).len(), 1, "twice");
    // A name of which nobody knows whether it was made has one inode.
    let make = Call::Open { handle: 2, place: Place::Name(1), how: How::MakeNew };
    let story = |second| {
        let story = Story::new().lost(0, 10, make.clone()).stat(1, (20, 30), 1, Some((OTHER, 1)));
        story.stat(1, (40, 50), 1, Some((second, 1))).leaves_name(1, Some(OTHER))
    };
    let size = |mut story: Story| {
        [OTHER, OTHER + 1].iter().for_each(|node| drop(story.history.before.files.insert(*node, vec![0; 2 * BLOCK])));
        story
    };
    size(story(OTHER)).holds();
    assert_eq!(size(story(OTHER + 1)).found(Promise::Linearizable).len(), 1);
}

#[test]
fn an_error_that_nothing_explains() {
    let story = Story::new().did(0, (10, 20), Call::Remove { name: 0 }, Err(libc::EIO));
    story.fails("must not", &[0]);
}

#[test]
fn what_close_to_open_promises() {
    let open = |story: Story, worker, time| {
        let call = Call::Open { handle: 1, place: Place::Name(0), how: How::Write };
        story.did(worker, time, call, Ok(Value::Node(FILE)))
    };
    let story = |close, reopen, word| {
        let story = open(Story::new(), 0, (1, 2)).wrote(0, (10, 20), 0, 1).closed(0, close);
        open(story, 1, reopen).read(1, (60, 70), 0, word).found(Promise::CloseToOpen).len()
    };
    assert_eq!(story((30, 40), (50, 55), ONE), 0);
    assert_eq!(story((30, 40), (50, 55), 0), 1, "opened after the close");
    assert_eq!(story((30, 52), (50, 55), 0), 0, "at the same time as the close");
    assert_eq!(story((30, 40), (35, 39), 0), 0, "before the close");
    assert_eq!(story((30, 40), (50, 55), 77), 1, "what nobody wrote");
    let own = open(Story::new(), 0, (1, 2)).wrote(0, (10, 20), 0, 1).read(0, (30, 40), 0, 0);
    assert_eq!(own.found(Promise::CloseToOpen).len(), 1, "what he wrote himself");
    let log = |records: &[(usize, usize)]| {
        let call = Call::Open { handle: 2, place: Place::Log, how: How::Append };
        let story = Story::new().opened(1, Place::Log).appended(0, (10, 20), 1).closed(0, (30, 40));
        let story = story.did(1, (50, 55), call, Ok(Value::Node(OTHER)));
        let records = records.iter().map(|(worker, number)| token(0, *worker, *number)).collect();
        let story = story.did(1, (60, 70), Call::ReadLog { handle: 2 }, Ok(Value::Records(records)));
        story.found(Promise::CloseToOpen).len()
    };
    assert_eq!((log(&[(0, 1)]), log(&[]), log(&[(0, 1), (0, 1)])), (0, 1, 1));
}

#[test]
fn too_many_configurations_are_no_success() {
    // Sixteen writes at the same time, and two reads that no order explains.
    let mut story = Story::new().opened(18, Place::Name(0));
    for worker in 0..16 {
        story = story.wrote(worker, (10, 90), 0, 1);
    }
    let story = story.read(16, (100, 110), 0, token(0, 1, 1)).read(17, (120, 130), 0, token(0, 2, 1));
    let found = check(&story.history, Promise::Linearizable, Limits { search: 100, minimise: 100 });
    assert!(found[0].what.contains("undecided"), "{found:?}");
}

#[test]
fn names_are_what_the_stories_think() {
    assert_eq!([PATHS[0], PATHS[1], PATHS[5]], ["one/a", "one/b", "one/link"]);
}
