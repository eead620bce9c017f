//! Opens that the server does not know of, until it has to.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use aqueduct_fs::*;

use crate::common::*;
use crate::fixture::*;

/// A mount that has opened a file once, so that the next time needs nobody.
fn opened(process: &Process) -> (Mount, Handle) {
    std::fs::write(process.path("file"), "text").unwrap();
    let mount = process.mount();
    let file = mount.look_up("file").unwrap().handle;
    let first = mount.open(&file, READ).unwrap();
    mount.release(first);
    (mount, file)
}

#[test]
fn an_open_that_was_allowed_once_costs_nothing() {
    let process = Process::new();
    let (mount, file) = opened(&process);
    mount.warm(|| {
        let open = mount.open(&file, READ).unwrap();
        mount.ask(Request::GetAttr { handle: file.bytes(), open: Some(open) }).unwrap();
        mount.ask(Request::Flush { open, owner: 7 }).unwrap();
        mount.release(open);
        assert_eq!(mount.ask(Request::Flush { open, owner: 7 }), Err(Errno::EBADF));
    });
    let (count, open) = mount.round_trips(|| {
        let open = mount.open(&file, READ).unwrap();
        assert_eq!(mount.read(open), Ok("text".into()));
        open
    });
    assert_eq!(count, 2, "an open and a read");
    assert_eq!(mount.round_trips(|| mount.read(open)), (1, Ok("text".into())));
    assert_eq!(mount.cached.inode(ClientId(0), open).now(), Some(Ok(file)));
    assert_eq!(mount.round_trips(|| mount.release(open)).0, 1);
    assert_eq!(mount.read(open), Err(Errno::EBADF));
}

#[test]
fn only_those_open_whom_the_server_has_let() {
    let process = Process::new();
    let (mount, file) = opened(&process);
    std::fs::set_permissions(process.path("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
    mount.set_mode(&file, 0o600);
    let first = mount.open(&file, READ).unwrap();
    mount.warm(|| mount.open(&file, READ)).unwrap();
    assert_eq!(mount.open_as(&user(1234), &file, READ), Err(Errno::EACCES));
    assert_eq!(mount.round_trips(|| mount.open_as(&user(1234), &file, READ)), (1, Err(Errno::EACCES)));
    let (count, _) = mount.round_trips(|| mount.open(&file, READ_WRITE).unwrap());
    assert_eq!(count, 1, "the right to read is not that to write");
    mount.release(first);
}

/// The descriptor keeps its right and its file, whoever takes the one or the other away.
#[test]
fn a_descriptor_keeps_its_right_and_its_file() {
    for by_itself in [true, false] {
        for what in ["chmod", "unlink", "rename over"] {
            let process = Process::new();
            let (mount, file) = opened(&process);
            std::fs::write(process.path("over"), "another").unwrap();
            process.directory.path().metadata().unwrap();
            let reader = user(1234);
            mount.release(mount.open_as(&reader, &file, READ).unwrap());
            let open = mount.warm(|| mount.open_as(&reader, &file, READ).unwrap());
            let other = process.mount();
            let changer = if by_itself { &mount } else { &other };
            match what {
                "chmod" => changer.set_mode(&file, 0),
                "unlink" => drop(changer.unlink("file").unwrap()),
                _ => drop(changer.rename("over", "file").unwrap()),
            }
            assert_eq!(mount.read(open), Ok("text".into()), "{what}, by itself: {by_itself}");
            if what == "chmod" {
                assert_eq!(mount.open_as(&reader, &file, READ), Err(Errno::EACCES), "and nobody new");
            }
            mount.release(open);
        }
    }
}

/// Those of this process, which the server has for its clients.
fn descriptors_of(path: &Path) -> usize {
    let descriptors =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    descriptors.filter(|target| target == path).count()
}

/// A process on the server waits for no lease, but what stays open is soon known there.
#[test]
fn what_stays_open_is_read_on_whatever_is_changed_past_the_server() {
    for what in ["chmod", "unlink", "rename over"] {
        let process = Process::new();
        let (mount, file) = opened(&process);
        let (path, reader) = (process.path("file"), user(1234));
        mount.release(mount.open_as(&reader, &file, READ).unwrap());
        let opens: Vec<_> = (0..40).map(|_| mount.open_as(&reader, &file, READ).unwrap()).collect();
        until("the server has them open", || descriptors_of(&path) == opens.len());
        match what {
            "chmod" => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap(),
            "unlink" => std::fs::remove_file(path).unwrap(),
            _ => {
                std::fs::write(process.path("over"), "another").unwrap();
                std::fs::rename(process.path("over"), path).unwrap();
            }
        }
        for open in opens {
            assert_eq!(mount.read(open), Ok("text".into()), "{what}");
            mount.release(open);
        }
    }
}

/// Also what is opened when nothing has been open for a while.
#[test]
fn what_stays_open_is_asked_for_once() {
    let process = Process::new();
    let (mount, file) = opened(&process);
    for round in 0..3 {
        let before = mount.operations();
        let open = mount.open(&file, READ).unwrap();
        until("the server knows of it", || mount.operations() == before + 1);
        std::thread::sleep(Duration::from_millis(100 * round));
        assert_eq!(mount.round_trips(|| mount.read(open)), (1, Ok("text".into())));
        mount.release(open);
        assert_eq!(mount.operations(), before + 3);
    }
}

#[test]
fn locks_through_a_descriptor_of_this_client_are_locks() {
    let process = Process::new();
    let (mount, file) = opened(&process);
    let other = process.mount();
    let others = other.open(&file, READ_WRITE).unwrap();
    let lock = |mount: &Mount, open, owner, kind| {
        let lock = Lock { start: 0, end: 9, kind, pid: 1 };
        mount.ask(Request::SetLock { open, owner, space: LockSpace::Posix, lock, wait: false })
    };
    let open = mount.open(&file, READ).unwrap();
    lock(&mount, open, 1, LockKind::Read).unwrap();
    assert_eq!(lock(&other, others, 2, LockKind::Write), Err(Errno::EAGAIN));
    // Closing any descriptor of the file gives up the process's locks.
    let second = mount.open(&file, READ).unwrap();
    mount.ask(Request::Flush { open: second, owner: 1 }).unwrap();
    lock(&other, others, 2, LockKind::Write).unwrap();
    lock(&other, others, 2, LockKind::Unlock).unwrap();
    lock(&mount, open, 1, LockKind::Read).unwrap();
    mount.release(open);
    lock(&other, others, 2, LockKind::Write).unwrap();
}

#[test]
fn opens_outlive_a_restart_of_the_server() {
    let mut process = Process::new();
    let (mount, file) = opened(&process);
    let reader = user(1234);
    mount.release(mount.open_as(&reader, &file, READ).unwrap());
    let open = mount.warm(|| mount.open_as(&reader, &file, READ).unwrap());
    process.kill();
    process.start();
    let other = process.mount();
    other.set_mode(&file, 0);
    assert_eq!(mount.read(open), Ok("text".into()), "it was had before others could change anything");
}

/// What is being asked for when the server is restarted, by somebody who reads or because it stays open, is had before others go on who waited for that.
#[test]
fn opens_that_are_asked_for_while_the_server_is_away_outlive_its_restart() {
    for (is_read, _round) in (0..6).flat_map(|round| [(false, round), (true, round)]) {
        let mut process = Process::new();
        let (mount, file) = opened(&process);
        let reader = user(1234);
        mount.release(mount.open_as(&reader, &file, READ).unwrap());
        let other = process.mount();
        let before = mount.operations();
        let opens: Vec<_> = (0..16).map(|_| mount.open_as(&reader, &file, READ).unwrap()).collect();
        process.kill();
        let read = |open: OpenId| (open, mount.read(open));
        std::thread::scope(|scope| {
            let early = opens.iter().filter(|_| is_read).map(|open| scope.spawn(|| read(*open)));
            let early: Vec<_> = early.collect();
            let asked = if is_read { opens.len() as u64 } else { 1 };
            until("they are asked for", || mount.operations() >= before + asked);
            let removed_before = other.operations();
            let removal = scope.spawn(|| other.unlink("file").map(drop));
            until("the removal waits", || other.operations() > removed_before);
            process.start();
            removal.join().unwrap().unwrap();
            let early: Vec<_> = early.into_iter().map(|read| read.join().unwrap()).collect();
            for (open, text) in early.into_iter().chain(opens.iter().map(|open| read(*open))) {
                assert_eq!(text, Ok("text".into()), "{open:?}, read meanwhile: {is_read}");
            }
        });
        opens.into_iter().for_each(|open| mount.release(open));
        until("nothing stays open at the server", || descriptors_of(&process.path("file (deleted)")) == 0);
    }
}
