//! Processes that end at each step of each operation.

use super::*;

/// What a file may have after an operation that did not end: as before, or as after.
pub(super) struct Plan {
    pub(super) before: fn(&Process),
    pub(super) operation: fn(&Process) -> Result<(), Errno>,
    /// The files, as the operation finds and leaves them.
    pub(super) states: fn() -> [BTreeMap<String, Vec<u8>>; 2],
    /// Between the two, a file may also have any prefix of what is written.
    pub(super) may_be_partial: bool,
}

pub(super) fn files(list: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    list.iter().map(|(name, data)| ((*name).to_owned(), data.clone())).collect()
}

/// Whether a file has a beginning of `after`, and behind that what `before` has there.
fn is_between(found: &[u8], before: &[u8], after: &[u8]) -> bool {
    let common = found.iter().zip(after).take_while(|(one, other)| one == other).count();
    let rest = &found[common..];
    found.len() <= before.len().max(after.len())
        && (rest.is_empty() || before.get(common..).is_some_and(|before| before.starts_with(rest)))
}

fn play(plan: &Plan) {
    play_after(|_| {}, plan);
}

/// The same, over a tree in which something is already.
pub(super) fn play_after(prepare: fn(&Volume), plan: &Plan) {
    let [before, after] = (plan.states)();
    for changes in 0.. {
        assert!(changes < 300, "it never ends");
        let volume = Volume::new(2, 0);
        prepare(&volume);
        (plan.before)(&volume.start(usize::MAX));
        let process = volume.start(changes);
        let done = (plan.operation)(&process);
        let was_dead = process.is_dead();
        drop(process);
        let process = volume.start(usize::MAX);
        process.sweep();
        let found = process.all();
        let found: BTreeMap<String, Vec<u8>> = found
            .into_iter()
            .map(|(name, data)| (name.clone(), data.unwrap_or_else(|error| panic!("{changes}: {name}: {error}"))))
            .collect();
        if done.is_ok() {
            assert!(found == after, "after {changes} changes: answered, and not so");
        } else if found != before && found != after {
            assert!(plan.may_be_partial, "after {changes} changes: {:?}", found.keys());
            for (name, data) in &found {
                let nothing = Vec::new();
                let of = |files: &BTreeMap<String, Vec<u8>>| files.get(name).unwrap_or(&nothing).clone();
                assert!(is_between(data, &of(&before), &of(&after)), "after {changes} changes: {name}");
            }
        }
        // Whatever happened: it can be gone on with, and nothing is left behind.
        for name in found.keys() {
            let open = process.open(name, READ_WRITE).unwrap();
            process.write(open, 200_000, b"end").unwrap();
            process.close(open).unwrap();
            let data = process.get(name).unwrap();
            let size = found[name].len();
            assert!(data[..size] == found[name][..], "after {changes} changes: {name}");
            assert!(data[size..200_000].iter().all(|byte| *byte == 0), "after {changes} changes: {name} has old data");
            process.unlink(name).unwrap();
        }
        assert_eq!((volume.objects(), volume.gone()), (0, 0), "after {changes} changes");
        if !was_dead {
            assert!(done.is_ok());
            return;
        }
    }
}

#[test]
fn a_promotion_may_end_at_each_step() {
    play(&Plan {
        before: |process| process.put("file", &content(1, 5000)).unwrap(),
        operation: |process| {
            let open = process.open("file", READ_WRITE)?;
            process.write(open, 5000, &content(2, 60_000)).map(drop)
        },
        states: || {
            let longer = [content(1, 5000), content(2, 60_000)].concat();
            [files(&[("file", content(1, 5000))]), files(&[("file", longer)])]
        },
        may_be_partial: true,
    });
}

#[test]
fn a_promotion_by_length_alone_may_end_at_each_step() {
    play(&Plan {
        before: |process| process.put("file", &content(1, 100)).unwrap(),
        operation: |process| process.set_size("file", 50_000).map(drop),
        states: || {
            let mut longer = content(1, 100);
            longer.resize(50_000, 0);
            [files(&[("file", content(1, 100))]), files(&[("file", longer)])]
        },
        may_be_partial: false,
    });
}

#[test]
fn a_truncate_may_end_at_each_step() {
    fn to(size: u64) -> [BTreeMap<String, Vec<u8>>; 2] {
        let mut other = content(1, 100_000);
        other.resize(size as usize, 0);
        [files(&[("file", content(1, 100_000))]), files(&[("file", other)])]
    }
    let before = |process: &Process| process.put("file", &content(1, 100_000)).unwrap();
    let (operation, states): (fn(&Process) -> _, fn() -> _) =
        (|process| process.set_size("file", 0).map(drop), || to(0));
    play(&Plan { before, operation, states, may_be_partial: false });
    let (operation, states): (fn(&Process) -> _, fn() -> _) =
        (|process| process.set_size("file", 4096).map(drop), || to(4096));
    play(&Plan { before, operation, states, may_be_partial: false });
    let (operation, states): (fn(&Process) -> _, fn() -> _) =
        (|process| process.set_size("file", 40_000).map(drop), || to(40_000));
    play(&Plan { before, operation, states, may_be_partial: false });
    let (operation, states): (fn(&Process) -> _, fn() -> _) =
        (|process| process.set_size("file", 150_000).map(drop), || to(150_000));
    play(&Plan { before, operation, states, may_be_partial: false });
}

#[test]
fn an_open_that_empties_a_file_may_end_at_each_step() {
    play(&Plan {
        before: |process| process.put("file", &content(1, 100_000)).unwrap(),
        operation: |process| {
            let (_, open) = process.create("file", OpenFlags::TRUNCATE)?;
            process.close(open)
        },
        states: || [files(&[("file", content(1, 100_000))]), files(&[("file", Vec::new())])],
        may_be_partial: false,
    });
}

#[test]
fn writes_and_appends_may_end_at_each_step() {
    play(&Plan {
        before: |process| process.put("file", &content(1, 30_000)).unwrap(),
        operation: |process| {
            let open = process.open("file", READ_WRITE)?;
            process.write(open, u64::MAX, &content(2, 40_000)).map(drop)
        },
        states: || {
            let longer = [content(1, 30_000), content(2, 40_000)].concat();
            [files(&[("file", content(1, 30_000))]), files(&[("file", longer)])]
        },
        may_be_partial: true,
    });
}

#[test]
fn a_removal_may_end_at_each_step() {
    play(&Plan {
        before: |process| process.put("file", &content(1, 100_000)).unwrap(),
        operation: |process| process.unlink("file"),
        states: || [files(&[("file", content(1, 100_000))]), files(&[])],
        may_be_partial: false,
    });
}

#[test]
fn a_rename_over_a_file_may_end_at_each_step() {
    play(&Plan {
        before: |process| {
            process.put("old", &content(1, 100_000)).unwrap();
            process.put("new", &content(2, 50_000)).unwrap();
        },
        operation: |process| process.rename("new", "old"),
        states: || {
            let before = [("old", content(1, 100_000)), ("new", content(2, 50_000))];
            [files(&before), files(&[("old", content(2, 50_000))])]
        },
        may_be_partial: false,
    });
}

#[test]
fn files_that_were_open_and_removed_go_when_the_process_dies() {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    process.put("file", &content(1, 100_000)).unwrap();
    let open = process.open("file", READ_WRITE).unwrap();
    process.unlink("file").unwrap();
    process.read(open, 0, 10).unwrap();
    drop(process);
    let process = volume.start(usize::MAX);
    assert_eq!((volume.objects(), volume.gone()), (2, 1));
    process.sweep();
    assert_eq!((volume.objects(), volume.gone()), (0, 0));
}
