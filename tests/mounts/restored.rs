//! Stores of plain directories that are put back from older copies.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;

use crate::common::{aqueduct, run, wait_until, within};
use crate::plain::{LONG, Plain, WHOLE, content};

/// Has a directory contain what another does, as a restored file system has the same root.
fn copy(from: &Path, to: &Path) {
    let _ = fs::create_dir(to);
    for entry in fs::read_dir(to).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    assert!(Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap().success());
}

/// A file as it is, or EIO.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut data)) {
        Ok(_) => Some(data),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            None
        }
    }
}

#[test]
fn a_store_that_was_restored_from_an_older_copy_gives_an_error_and_one_line_in_the_log() {
    within(LONG, || {
        let mut volume = Plain::new(WHOLE, 3);
        let (cached, mount) = (volume.mount(""), volume.mount("cache=none"));
        let path = |number: usize| mount.join(format!("file-{number}"));
        (0..16).for_each(|number| fs::write(path(number), content(number, 300_000)).unwrap());
        let (old, present) = (volume.dir(1).with_extension("old"), volume.dir(1).with_extension("present"));
        volume.kill(1);
        copy(&volume.dir(1), &old);
        volume.start_server(1);
        // What is written since lies in the present store alone.
        (0..16).for_each(|number| fs::write(path(number), content(number + 50, 300_000)).unwrap());
        let of = |number: usize| cached.join(format!("file-{number}"));
        (0..16).for_each(|number| assert!(fs::read(of(number)).unwrap() == content(number + 50, 300_000)));
        volume.kill(1);
        copy(&volume.dir(1), &present);
        copy(&old, &volume.dir(1));
        volume.start_server(1);
        let mut failed = 0;
        for number in 0..16 {
            for path in [path(number), of(number)] {
                match read(&path) {
                    Some(data) => assert!(data == content(number + 50, 300_000), "file {number} is old"),
                    None => failed += 1,
                }
            }
        }
        assert!((2..32).contains(&failed), "{failed}");
        let log = fs::read_to_string(volume.log(0)).unwrap();
        assert_eq!(log.matches("the store of server s1 is not used: it is an older copy").count(), 1, "{log}");
        // Nor does the next server of the names use it.
        volume.kill(0);
        volume.start_server(0);
        (0..16).for_each(|number| {
            assert!(
                read(&path(number)).is_none_or(|data| data == content(number + 50, 300_000)),
                "file {number} is old"
            )
        });
        volume.kill(1);
        copy(&present, &volume.dir(1));
        volume.start_server(1);
        (0..16).for_each(|number| assert!(read(&path(number)).unwrap() == content(number + 50, 300_000)));
        // Unless somebody says that it is the one that is to be used.
        volume.kill(1);
        copy(&old, &volume.dir(1));
        volume.start_server(1);
        let lies_there = (0..16).find(|number| read(&path(*number)).is_none()).unwrap();
        let accept = |id: &str| run(aqueduct().args(["volume", "check", "--accept", id]).arg(&volume.file));
        assert!(accept("s9").failed().contains("none of that name"));
        accept("s1").succeeded();
        wait_until("the store is used", LONG, || read(&path(lies_there)).is_some());
        assert!(read(&path(lies_there)).unwrap() == content(lies_there, 300_000));
    });
}

#[test]
fn a_store_that_another_directory_stands_for_is_told_for_what_it_is() {
    within(LONG, || {
        let mut volume = Plain::with_names(WHOLE, 3, false);
        let mount = volume.mount("cache=none");
        let path = |number: usize| mount.join(format!("file-{number}"));
        (0..16).for_each(|number| fs::write(path(number), content(number, 100_000)).unwrap());
        let log = |volume: &Plain| fs::read_to_string(volume.log(0)).unwrap();
        let (dir, present, other) =
            (volume.dir(1), volume.dir(1).with_extension("present"), volume.dir(1).with_extension("other"));
        volume.kill(1);
        copy(&dir, &other);
        volume.start_server(1);
        (0..16).for_each(|number| assert!(read(&path(number)).unwrap() == content(number, 100_000)));
        let older = ("it is an older copy of the store", other.clone());
        for (why, store) in [older, ("it is the store of another server of the volume", volume.dir(2))] {
            volume.kill(1);
            fs::rename(&dir, &present).unwrap();
            copy(&store, &dir);
            volume.start_server(1);
            wait_until("it is told", LONG, || {
                let told = (0..16).filter(|number| read(&path(*number)).is_none()).count();
                told > 0 && log(&volume).contains(&format!("the store of server s1 is not used: {why}"))
            });
            volume.kill(1);
            fs::remove_dir_all(&dir).unwrap();
            fs::rename(&present, &dir).unwrap();
            volume.start_server(1);
            wait_until("it is used again", LONG, || (0..16).all(|number| read(&path(number)).is_some()));
        }
        assert!(!log(&volume).contains("ESTALE"), "{}", log(&volume));
        // Also what is somewhere else is used if somebody says so.
        volume.kill(1);
        fs::rename(&dir, &present).unwrap();
        copy(&other, &dir);
        volume.start_server(1);
        wait_until("it is not used", LONG, || (0..16).any(|number| read(&path(number)).is_none()));
        run(aqueduct().args(["volume", "check", "--accept", "s1"]).arg(&volume.file)).succeeded();
        wait_until("it is used", LONG, || (0..16).all(|number| read(&path(number)).is_some()));
    });
}
