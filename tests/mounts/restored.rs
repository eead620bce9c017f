//! Stores of plain directories that are put back from older copies, and objects that lose something
//! past the volume.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{aqueduct, errno, run, wait_until, within};
use crate::objects;
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

/// Whether it is written down at the stub of a file what its objects have.
fn is_settled(volume: &Plain, name: &str) -> bool {
    let mut value = [0; 4096];
    let stub = volume.dir(0).join(name);
    let length = rustix::fs::getxattr(stub, "trusted.aqueduct.layout", &mut value).unwrap();
    let blocks = value[..length].get(56..64).unwrap();
    value[0] == 3 && *blocks != [0xff; 8]
}

/// The only object of a store that has one.
fn object_of(volume: &Plain, number: usize) -> PathBuf {
    let folders = fs::read_dir(volume.dir(number).join("objects")).unwrap();
    let mut objects = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    objects.next().unwrap().unwrap().path()
}

/// However little an object has lost at its end, that is neither zeros nor a hole.
#[test]
fn an_object_that_was_cut_past_the_volume_gives_an_error_and_one_line_in_the_log() {
    within(LONG, || {
        const LENGTH: usize = 3_000_000;
        let mut volume = Plain::with_names(WHOLE, 2, false);
        let (cached, mount) = (objects::mount(&volume, ""), volume.mount("cache=none"));
        let data = content(1, LENGTH);
        fs::write(mount.join("file"), &data).unwrap();
        wait_until("it is read where it lies", LONG, || {
            assert!(objects::read(&cached.join("file")).unwrap() == data);
            objects::read_at(&volume, 1) > LENGTH as u64
        });
        wait_until("what it takes is written down", LONG, || is_settled(&volume, "file"));
        let check = |volume: &Plain| run(aqueduct().args(["volume", "check"]).arg(&volume.file));
        check(&volume).succeeded();
        volume.kill(1);
        let object = File::options().write(true).open(object_of(&volume, 1)).unwrap();
        object.set_len(LENGTH as u64 - 5000).unwrap();
        volume.start_server(1);
        for path in [cached.join("file"), mount.join("file")] {
            assert_eq!(errno(objects::read(&path)), libc::EIO);
            let file = File::open(&path).unwrap();
            // A kernel that caches reads whole pages.
            let mut found = vec![0; (LENGTH - 5000) / 4096 * 4096];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == data[..found.len()], "what there is can be read");
        }
        let text = check(&volume).failed();
        assert!(text.contains("has lost 5000 bytes at its end"), "{text}");
        let log = fs::read_to_string(volume.log(0)).unwrap();
        assert_eq!(log.matches("what is lost of a file gives EIO").count(), 1, "{log}");
        // Nothing is written behind what is lost, and what was lost may be written again.
        let file = File::options().append(true).open(mount.join("file")).unwrap();
        assert_eq!(errno((&file).write_all(b"more")), libc::EIO);
        drop(file);
        fs::write(mount.join("file"), &data).unwrap();
        assert!(read(&mount.join("file")).unwrap() == data && read(&cached.join("file")).unwrap() == data);
        wait_until("what it takes is written down", LONG, || is_settled(&volume, "file"));
        check(&volume).succeeded();
    });
}

/// A copy that was taken since its server was started has the present generation.
#[test]
fn an_older_copy_of_the_present_generation_gives_no_zeros_and_is_told_of() {
    within(LONG, || {
        let mut volume = Plain::with_names(WHOLE, 2, false);
        let mount = volume.mount("cache=none");
        let old = volume.dir(1).with_extension("old");
        let check = |volume: &Plain| run(aqueduct().args(["volume", "check"]).arg(&volume.file));
        let settle = |volume: &Plain| {
            let are_settled = || ["grown", "changed"].iter().all(|name| is_settled(volume, name));
            wait_until("all is written down", LONG, are_settled);
        };
        for name in ["grown", "changed"] {
            fs::write(mount.join(name), content(1, 200_000)).unwrap();
        }
        settle(&volume);
        copy(&volume.dir(1), &old);
        // The check compares whole seconds.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let mut file = File::options().append(true).open(mount.join("grown")).unwrap();
        file.write_all(&content(2, 10_000)).unwrap();
        drop(file);
        let file = File::options().write(true).open(mount.join("changed")).unwrap();
        file.write_all_at(&content(2, 10_000), 0).unwrap();
        drop(file);
        settle(&volume);
        check(&volume).succeeded();
        volume.kill(1);
        copy(&old, &volume.dir(1));
        volume.start_server(1);
        assert!(read(&mount.join("grown")).is_none());
        let text = check(&volume).failed();
        assert!(text.contains("has lost 10000 bytes at its end") && text.contains("may be an older copy"), "{text}");
    });
}
