//! Reads of objects at the servers of data of plain directories, past the server of the names.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags};

use crate::common::{Mount, SOON, aqueduct, errno, run, server_status, wait_until, within};
use crate::plain::{LONG, Plain, STRIPED, WHOLE, content, work};

/// What clients have read of objects at a server.
pub(crate) fn read_at(volume: &Plain, number: usize) -> u64 {
    of_sessions(volume, number, "bytes_read", |export| export == "(data)")
}

fn of_sessions(volume: &Plain, number: usize, which: &str, is_it: impl Fn(&str) -> bool) -> u64 {
    let status = server_status(&volume.addresses[number]);
    let sessions = status["sessions"].as_array().unwrap().iter();
    let sessions = sessions.filter(|session| session["export"].as_str().is_some_and(&is_it));
    sessions.map(|session| if which.is_empty() { 1 } else { session[which].as_u64().unwrap() }).sum()
}

/// What clients have read through the server of the names.
fn read_by_names(volume: &Plain) -> u64 {
    of_sessions(volume, 0, "bytes_read", |_| true)
}

/// A mount that has found all servers of data.
pub(crate) fn mount(volume: &Plain, options: &str) -> Mount {
    let count = || -> Vec<u64> {
        (1..volume.addresses.len()).map(|number| of_sessions(volume, number, "", |export| export == "(data)")).collect()
    };
    let before = count();
    let mount = volume.mount(options);
    wait_until("the mount has found all servers", SOON, || {
        count().iter().zip(&before).all(|(now, before)| now > before)
    });
    mount
}

/// All of a file, without what the kernel has of it.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut data = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut data, 0)?;
    Ok(data)
}

#[test]
fn objects_are_read_where_they_lie() {
    within(LONG, || {
        const LENGTH: usize = 3_000_000;
        for lines in [STRIPED, WHOLE] {
            let volume = Plain::with_names(lines, 4, false);
            let writer = volume.mount("");
            for number in 0..6 {
                fs::write(writer.join(format!("file-{number}")), content(number, LENGTH)).unwrap();
            }
            let reader = mount(&volume, "");
            let (names, stores) = (read_by_names(&volume), [1, 2, 3].map(|number| read_at(&volume, number)));
            for number in 0..6 {
                assert!(read(&reader.join(format!("file-{number}"))).unwrap() == content(number, LENGTH), "{lines}");
            }
            let by_names = read_by_names(&volume) - names;
            let straight: Vec<u64> = (1..4).map(|number| read_at(&volume, number) - stores[number - 1]).collect();
            assert!(
                straight.iter().sum::<u64>() >= 6 * LENGTH as u64,
                "{lines}: {straight:?}, {by_names} by the names"
            );
            assert!(by_names < 6 * 200_000, "{lines}: {by_names} bytes by the server of the names");
            if lines == STRIPED {
                assert!(straight.iter().all(|bytes| *bytes > LENGTH as u64), "{straight:?}");
            }
        }
    });
}

/// Whoever reads objects sees what another mount has just done to the file.
/// What clients have brought to servers of data, and what they have written through that of the
/// names.
pub(crate) fn written(volume: &Plain) -> (u64, u64) {
    let brought = (1..volume.addresses.len())
        .map(|number| of_sessions(volume, number, "bytes_written", |export| export == "(data)"));
    (brought.sum(), of_sessions(volume, 0, "bytes_written", |_| true))
}

/// Blocks that are worth to be brought.
pub(crate) const LARGE: [&str; 2] = ["mode = 'striped'\nstripe_size = '1MiB'", "mode = 'whole-file'"];

#[test]
fn what_is_written_goes_where_it_lies() {
    within(LONG, || {
        const LENGTH: usize = 24 << 20;
        for lines in LARGE {
            let volume = Plain::with_names(lines, 3, false);
            let writer = mount(&volume, "");
            for number in 0..4 {
                let mut file = File::create(writer.join(format!("file-{number}"))).unwrap();
                file.write_all(&content(number, LENGTH)).unwrap();
                file.sync_all().unwrap();
            }
            let (brought, by_names) = written(&volume);
            assert!(brought >= 4 * LENGTH as u64 * 3 / 4, "{lines}: {brought} brought, {by_names} by the names");
            assert!(by_names <= 4 * LENGTH as u64 / 4, "{lines}: {brought} brought, {by_names} by the names");
            // Written over in part, with holes, and past the cache.
            let file = OpenOptions::new().write(true).open(writer.join("file-1")).unwrap();
            file.write_all_at(&content(7, 3 << 20), 5_000_001).unwrap();
            file.write_all_at(&content(8, 2 << 20), 40 << 20).unwrap();
            file.sync_all().unwrap();
            let mut expected = content(1, LENGTH);
            expected.resize(42 << 20, 0);
            expected[5_000_001..5_000_001 + (3 << 20)].copy_from_slice(&content(7, 3 << 20));
            expected[40 << 20..].copy_from_slice(&content(8, 2 << 20));
            let other = mount(&volume, "");
            for mount in [&writer, &other] {
                assert!(read(&mount.join("file-1")).unwrap() == expected, "{lines}");
                assert!(read(&mount.join("file-3")).unwrap() == content(3, LENGTH), "{lines}");
            }
        }
    });
}

#[test]
fn a_volume_may_have_all_written_through_the_server_of_the_names() {
    within(LONG, || {
        let volume = Plain::with_names(&format!("{}\nwrites = 'namespace'", LARGE[0]), 3, false);
        let writer = mount(&volume, "");
        fs::write(writer.join("file"), content(1, 16 << 20)).unwrap();
        File::open(writer.join("file")).unwrap().sync_all().unwrap();
        let (brought, by_names) = written(&volume);
        // What was brought before the first answer.
        assert!(by_names >= 16 << 20 && brought <= 8 << 20, "{brought} brought, {by_names} by the names");
        assert!(read(&writer.join("file")).unwrap() == content(1, 16 << 20));
    });
}

#[test]
fn what_others_change_is_seen_at_once_where_objects_are_read() {
    within(LONG, || {
        for lines in [STRIPED, WHOLE] {
            let volume = Plain::with_names(lines, 3, false);
            let (left, right) = (mount(&volume, ""), mount(&volume, ""));
            let (path, other) = (left.join("file"), right.join("file"));
            let mut expected = content(1, 900_000);
            fs::write(&path, &expected).unwrap();
            let check = |expected: &[u8], what: &str| {
                for _ in 0..2 {
                    let found = read(&other).unwrap();
                    assert_eq!(found.len(), expected.len(), "{lines}, {what}");
                    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
                    assert_eq!(differs, None, "{lines}, {what}");
                }
            };
            check(&expected, "written");
            let straight = || (1..3).map(|number| read_at(&volume, number)).sum::<u64>();
            // While it is open for writing others have no leases on it, and read it through the
            // server of the names.
            let changed = |how: &dyn Fn(&File)| how(&OpenOptions::new().write(true).open(&path).unwrap());
            for round in 0..12u8 {
                let at = usize::from(round) * 70_001;
                expected[at..at + 4000].fill(round);
                changed(&|file| file.write_all_at(&expected[at..at + 4000], at as u64).unwrap());
                check(&expected, "written over");
            }
            changed(&|file| file.set_len(100_000).unwrap());
            check(&expected[..100_000], "cut");
            changed(&|file| file.set_len(900_000).unwrap());
            expected[100_000..].fill(0);
            check(&expected, "grown again, with zeros behind the cut");
            changed(&|file| file.write_all_at(&[7; 1000], 899_000).unwrap());
            expected[899_000..].fill(7);
            check(&expected, "written at the end");
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            changed(&|file| rustix::fs::fallocate(file, punch, 30_000, 50_000).unwrap());
            expected[30_000..80_000].fill(0);
            check(&expected, "punched");
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(0).unwrap();
            file.write_all_at(&content(2, 300_000), 200_000).unwrap();
            expected = [vec![0; 200_000], content(2, 300_000)].concat();
            check(&expected, "begun anew, and still open");
            drop(file);
            // More than what was read before anything changed. A look comes too soon for a lease where
            // others have just had the file.
            wait_until("that is read where it lies", SOON, || {
                check(&expected, "nobody writes it any more");
                straight() > 2_500_000
            });
            // A small file that becomes one with objects while the other mount has it open.
            fs::write(left.join("grows"), content(3, 10_000)).unwrap();
            let open = File::open(right.join("grows")).unwrap();
            let mut found = vec![0; 10_000];
            open.read_exact_at(&mut found, 0).unwrap();
            fs::write(left.join("grows"), content(4, 500_000)).unwrap();
            let mut found = vec![0; 500_000];
            open.read_exact_at(&mut found, 0).unwrap();
            assert!(found == content(4, 500_000), "{lines}");
            fs::remove_file(left.join("grows")).unwrap();
            rustix::fs::fadvise(&open, 0, None, Advice::DontNeed).unwrap();
            open.read_exact_at(&mut found, 0).unwrap();
            assert!(found == content(4, 500_000), "{lines}: removed while it is open");
        }
    });
}

/// Objects that come to lie elsewhere while clients read them, and then change.
#[test]
fn objects_move_while_they_are_read_where_they_lie() {
    within(LONG, || {
        const FILES: usize = 12;
        let volume = Plain::with_names(WHOLE, 4, false);
        let (writer, reader) = (mount(&volume, ""), mount(&volume, ""));
        let name = |number: usize| format!("file-{number}");
        (0..FILES).for_each(|number| fs::write(writer.join(name(number)), content(number, 400_000)).unwrap());
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                // Of some it has the same open all the time, so perhaps an object that is gone.
                let open: Vec<File> = (0..4).map(|number| File::open(reader.join(name(number))).unwrap()).collect();
                while !ends.load(Ordering::SeqCst) {
                    for number in 0..FILES {
                        assert!(read(&reader.join(name(number))).unwrap() == content(number, 400_000), "{number}");
                    }
                    for (number, file) in open.iter().enumerate() {
                        let mut data = vec![0; 400_000];
                        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
                        file.read_exact_at(&mut data, 0).unwrap();
                        assert!(data == content(number, 400_000), "{number}, open all the time");
                    }
                }
            });
            for server in ["s3", "s2"] {
                work(&volume, &["drain", server]).succeeded();
                work(&volume, &["drain", server, "--undo"]).succeeded();
                work(&volume, &["rebalance"]).succeeded();
            }
            ends.store(true, Ordering::SeqCst);
            reading.join().unwrap();
        });
        // What is written then goes to where the objects are now, and is read there.
        let open: Vec<File> = (0..FILES).map(|number| File::open(reader.join(name(number))).unwrap()).collect();
        work(&volume, &["drain", "s1"]).succeeded();
        for (number, open) in open.iter().enumerate() {
            let file = OpenOptions::new().write(true).open(writer.join(name(number))).unwrap();
            file.write_all_at(&content(99, 200_000), 100_000).unwrap();
            let mut data = vec![0; 400_000];
            open.read_exact_at(&mut data, 0).unwrap();
            assert!(data[100_000..300_000] == content(99, 200_000), "{number}");
            assert!(data[..100_000] == content(number, 400_000)[..100_000], "{number}");
        }
    });
}

/// A server of data that is dead is waited for, as through the server of the names, unless the
/// mount is soft; and is used again when it is back.
#[test]
fn a_dead_server_of_data_is_waited_for_and_read_again() {
    within(LONG, || {
        let mut volume = Plain::with_names(WHOLE, 3, false);
        let (hard, soft) = (mount(&volume, ""), mount(&volume, "soft,timeo=2"));
        let mut of = [None, None, None];
        for number in 0..16 {
            let before = [0, 1, 2].map(|server| if server == 0 { 0 } else { volume.objects(server) });
            fs::write(hard.join(format!("file-{number}")), content(number, 300_000)).unwrap();
            let place = (1..3).find(|server| volume.objects(*server) > before[*server]).unwrap();
            of[place] = Some(number);
        }
        let (lives, dies) = (of[1].unwrap(), of[2].unwrap());
        let path = |mount: &Mount, number: usize| mount.join(format!("file-{number}"));
        assert!(read(&path(&soft, dies)).unwrap() == content(dies, 300_000));
        volume.kill(2);
        let waiting = path(&hard, dies);
        let waiting = std::thread::spawn(move || read(&waiting).unwrap());
        assert!(read(&path(&hard, lives)).unwrap() == content(lives, 300_000), "another's files are read");
        assert_eq!(errno(read(&path(&soft, dies))), libc::EIO);
        let show = run(aqueduct().args(["volume", "show"]).arg(format!("spread@{}", volume.addresses[0]))).succeeded();
        assert_eq!((show.matches("no answer").count(), show.matches("answers").count()), (1, 1), "{show}");
        assert!(!waiting.is_finished(), "what lies on the dead one waits");
        volume.start_server(2);
        assert!(waiting.join().unwrap() == content(dies, 300_000));
        let before = read_at(&volume, 2);
        wait_until("it is read where it lies again", Duration::from_secs(30), || {
            assert!(read(&path(&hard, dies)).unwrap() == content(dies, 300_000));
            read_at(&volume, 2) >= before + 300_000
        });
    });
}
