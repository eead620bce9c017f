//! Directories that say over how many servers the blocks of their files are spread.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::common::{Mount, aqueduct, run, within};
use crate::plain::{Plain, STRIPED};
use crate::volumes::Volume;

const LENGTH: usize = 8 << 20;

fn set(directory: &Path, width: usize) {
    run(aqueduct().args(["volume", "set"]).arg(directory).arg(format!("width={width}"))).succeeded();
}

fn shown(path: &Path) -> String {
    run(aqueduct().args(["volume", "show"]).arg(path)).succeeded()
}

fn content(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 13 + seed * 7) as u8).collect()
}

/// What each server has read or written.
fn moved(volume: &Volume, by: impl Fn(&Volume, usize) -> u64) -> Vec<u64> {
    (0..volume.servers.len()).map(|server| by(volume, server)).collect()
}

/// By which servers a file is read, as soon as that is as it has to be. For a moment after another
/// mount has written it there is no lease, and the server of the names reads it.
fn readers(
    (volume, mount): (&Volume, &Mount),
    (name, data): (&str, &[u8]),
    is_it: impl Fn(&[usize]) -> bool,
) -> Vec<usize> {
    let mut last = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let before = moved(volume, Volume::read_from);
        assert!(fs::read(mount.join(name)).unwrap() == data, "{name}");
        let after = moved(volume, Volume::read_from);
        let found = shares(volume, &before, &after);
        last = (before, after);
        if is_it(&found) {
            return found;
        }
        // What the kernel has read it need not ask for again.
        let file = File::open(mount.join(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("{name} is not read as it has to be: the servers had read {last:?} bytes before and after");
}

/// Which servers have moved a part of a file that is no accident: half of what each has of it if
/// all have as much.
fn shares(volume: &Volume, before: &[u64], after: &[u64]) -> Vec<usize> {
    let share = (LENGTH / 2 / volume.servers.len()) as u64;
    (0..after.len()).filter(|server| after[*server] - before[*server] >= share).collect()
}

/// A file whose bytes have all been sent, so that none are counted with the next one's.
fn write(path: &Path, data: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_directory_says_how_wide_its_files_are() {
    within(Duration::from_secs(300), || {
        for servers in [2, 3, 5] {
            let volume = Volume::with("mode = 'stripe'\nwrites = 'data'", servers);
            let (left, right) = (volume.mount(0), volume.mount(servers - 1));
            let mut widths = vec![1, 2, servers];
            widths.dedup();
            for width in widths {
                let name = format!("wide-{width}");
                let (directory, below) = (left.join(&name), format!("{name}/a/b"));
                fs::create_dir(&directory).unwrap();
                write(&directory.join("before"), &content(1));
                set(&directory, width);
                assert!(shown(&right.join(&name)).contains(&format!("width={width} ({width} servers)")));
                // Folders inherit it from either mount.
                fs::create_dir(left.join(format!("{name}/a"))).unwrap();
                fs::create_dir(right.join(&below)).unwrap();
                let (path, data) = (format!("{below}/file"), content(width));
                let before = moved(&volume, Volume::written_to);
                write(&left.join(&path), &data);
                let mut written = shares(&volume, &before, &moved(&volume, Volume::written_to));
                assert!(shown(&right.join(&path)).contains(&format!("width={width} ")));
                // The server of the names writes for others now and then.
                written.retain(|server| *server != 0);
                let is_it =
                    |found: &[usize]| found.len() == width && written.iter().all(|server| found.contains(server));
                println!("{servers} servers, width {width}: written at {written:?}");
                let found = readers((&volume, &right), (&path, &data), is_it);
                println!("read at {found:?}");
                let is_all = |found: &[usize]| found.len() == servers;
                readers((&volume, &right), (&format!("{name}/before"), &content(1)), is_all);
            }
            let narrow = left.join("wide-1");
            set(&narrow, 0);
            assert!(shown(&narrow).contains("as the volume says"));
            write(&narrow.join("after"), &content(3));
            readers((&volume, &right), ("wide-1/after", &content(3)), |found| found.len() == servers);
        }
    });
}

#[test]
fn what_makes_no_sense_of_a_width_is_refused_and_says_why() {
    within(Duration::from_secs(120), || {
        let volume = Volume::with("mode = 'stripe'", 2);
        let mount = volume.mount(0);
        fs::write(mount.join("file"), "text").unwrap();
        let refused =
            |path: &Path, setting: &str| run(aqueduct().args(["volume", "set"]).arg(path).arg(setting)).failed();
        for setting in ["width=257", "width=-1", "width=two", "depth=2"] {
            assert!(refused(mount.path(), setting).contains("N from 0 to 256"), "{setting}");
        }
        assert!(refused(&mount.join("file"), "width=1").contains("name a directory"));
        assert!(refused(&mount.join("none"), "width=1").contains("exists"));
        let clustered = Volume::with("mode = 'cluster'", 2);
        let mount = clustered.mount(0);
        assert!(refused(mount.path(), "width=1").contains("stripe"));
    });
}

#[test]
fn files_of_plain_directories_have_as_many_objects_as_their_directory_says() {
    within(Duration::from_secs(120), || {
        let volume = Plain::new(STRIPED, 3);
        let (left, right) = (volume.mount(""), volume.mount("cache=none"));
        let objects = || (0..3).map(|server| volume.objects(server)).sum::<usize>();
        for width in [1, 2] {
            let (directory, before) = (left.join(format!("wide-{width}")), objects());
            fs::create_dir(&directory).unwrap();
            set(&directory, width);
            fs::write(directory.join("file"), content(width)).unwrap();
            assert_eq!(objects() - before, width);
            assert!(fs::read(right.join(format!("wide-{width}/file"))).unwrap() == content(width));
        }
        let before = objects();
        fs::write(left.join("file"), content(5)).unwrap();
        assert_eq!(objects() - before, 3);
        // More than a file can have is refused, and of a file is told what it has.
        let directory = left.join("wide");
        fs::create_dir(&directory).unwrap();
        let refused = run(aqueduct().args(["volume", "set"]).arg(&directory).arg("width=65")).failed();
        assert!(refused.contains("64 servers at most"), "{refused}");
        set(&directory, 64);
        for length in [LENGTH, 10] {
            fs::write(directory.join("file"), &content(6)[..length]).unwrap();
            assert!(shown(&directory.join("file")).contains("width=3 (3 servers)"));
            fs::remove_file(directory.join("file")).unwrap();
        }
    });
}
