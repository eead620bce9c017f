//! What `sync` puts in the place of names of another type, and sides that lie in one another.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Server, aqueduct, directory, directory_for_devices, run_within, test};
use crate::tree::{assert_same, text, told, transfer};

/// Two trees that have all names as other types.
struct Other {
    home: TempDir,
    source: TempDir,
    target: TempDir,
    outside: TempDir,
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// What is there, by type and content.
fn kinds(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        let what = match () {
            () if kind.is_dir() => {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                "directory".to_owned()
            }
            () if kind.is_symlink() => format!("to {}", fs::read_link(&path).unwrap().display()),
            () if kind.is_fifo() => "fifo".to_owned(),
            () => fs::read_to_string(&path).unwrap(),
        };
        found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), what);
    }
    found
}

impl Other {
    fn new() -> Other {
        let other = Other {
            home: directory(),
            source: directory_for_devices(),
            target: directory_for_devices(),
            outside: directory(),
        };
        other.plant(other.target.path());
        let at = |name: &str| other.source.path().join(name);
        write(&at("over_file/f"), "f");
        write(&at("over_empty"), "file");
        write(&at("over_link/f"), "f");
        write(&at("over_names"), "file");
        write(&at("d/over_empties"), "file");
        symlink("over_names", at("d/link")).unwrap();
        rustix::fs::mknodat(CWD, at("d/fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
        other
    }

    fn plant(&self, target: &Path) {
        let at = |name: &str| target.join(name);
        write(&at("over_file"), "old");
        fs::create_dir(at("over_empty")).unwrap();
        write(&self.outside.path().join("precious"), "precious");
        symlink(self.outside.path(), at("over_link")).unwrap();
        write(&at("over_names/deep/er"), "old");
        write(&at("over_names/k.o"), "old");
        fs::create_dir_all(at("d/over_empties/x")).unwrap();
        write(&at("d/link/k"), "old");
        symlink("/etc", at("d/link/away")).unwrap();
        write(&at("d/fifo/k"), "old");
    }

    fn sync(&self, target: &str, more: &[&str]) -> (i32, Value) {
        let from = format!("{}/", self.source.path().display());
        told(self.home.path(), &[&["sync", &from, target], more].concat())
    }

    /// What rsync makes of the same.
    fn by_rsync(&self, more: &[&str]) -> TempDir {
        let target = directory_for_devices();
        self.plant(target.path());
        let from = format!("{}/", self.source.path().display());
        let mut rsync = Command::new("rsync");
        run_within(crate::common::TEST_MAX, rsync.arg("-a").args(more).arg(from).arg(target.path()));
        target
    }
}

#[test]
fn names_of_another_type_are_replaced_as_rsync_does() {
    test(|| {
        let other = Other::new();
        let target = text(other.target.path());
        let before = kinds(other.target.path());
        let (code, said) = other.sync(target, &["-n"]);
        assert_eq!((code, &said["replaced"], &said["trouble_count"]), (1, &3.into(), &4.into()), "{said}");
        assert_eq!(kinds(other.target.path()), before, "a dry run changes nothing");
        let (code, said) = other.sync(target, &[]);
        assert_eq!((code, &said["replaced"], &said["trouble_count"]), (1, &3.into(), &4.into()), "{said}");
        assert!(said["troubles"][0]["why"].as_str().unwrap().contains("--delete"), "{said}");
        assert_eq!(kinds(other.target.path()), kinds(other.by_rsync(&[]).path()));
        let (code, dry) = other.sync(target, &["-n", "--delete"]);
        assert_eq!((code, &dry["replaced"]), (0, &4.into()), "{dry}");
        let (code, said) = other.sync(target, &["--delete"]);
        assert_eq!((code, &said["replaced"], &said["deleted"]), (0, &4.into(), &dry["deleted"]), "{said}");
        assert_same(other.source.path(), other.target.path());
        assert_eq!(kinds(other.target.path()), kinds(other.by_rsync(&["--delete"]).path()));
        assert_eq!(fs::read(other.outside.path().join("precious")).unwrap(), b"precious");
        assert!(Path::new("/etc/passwd").exists());
    });
}

/// All of it goes, or nothing; and cp, like cp, replaces no directory and makes none over a file.
#[test]
fn what_may_not_go_stays_whole() {
    test(|| {
        let other = Other::new();
        let target = text(other.target.path());
        let stays = || {
            let found = kinds(other.target.path());
            for name in ["over_names/k.o", "over_names/deep/er", "d/link/k", "d/fifo/k", "d/over_empties/x"] {
                assert!(found.contains_key(name), "{name}: {found:?}");
            }
            assert!(!found.keys().any(|name| name.contains(".aqueduct-part-")), "{found:?}");
        };
        let before = kinds(other.target.path());
        let from = format!("{}/", other.source.path().display());
        let said = transfer(other.home.path(), &["cp", "-r", &from, target]).failed();
        assert!(said.contains("not replaced") && said.contains("something else"), "{said}");
        assert_eq!(kinds(other.target.path()), before);
        let (code, said) = other.sync(target, &["--delete", "--exclude", "*.o"]);
        assert_eq!((code, &said["deleted"], &said["trouble_count"]), (1, &0.into(), &4.into()), "{said}");
        assert!(said["troubles"][0]["why"].as_str().unwrap().contains("excluded"), "{said}");
        stays();
        let (code, said) = other.sync(target, &["--delete", "--max-delete", "3"]);
        assert_eq!((code, &said["deleted"], &said["trouble_count"]), (1, &0.into(), &4.into()), "{said}");
        assert!(said["not_deleted"].as_str().unwrap().contains("more than 3"), "{said}");
        stays();
        // Another name that cannot be copied forbids it as well.
        fs::create_dir(other.source.path().join("closed")).unwrap();
        fs::write(other.source.path().join("closed/f"), "f").unwrap();
        let bind =
            |arguments: &[&str]| assert!(Command::new(arguments[0]).args(&arguments[1..]).status().unwrap().success());
        let closed = other.target.path().join("closed");
        fs::create_dir(&closed).unwrap();
        bind(&["mount", "--bind", "-o", "ro", text(other.outside.path()), text(&closed)]);
        let (code, said) = other.sync(target, &["--delete"]);
        bind(&["umount", text(&closed)]);
        assert_eq!((code, &said["deleted"]), (1, &0.into()), "{said}");
        stays();
        let (code, said) = other.sync(target, &["--delete"]);
        assert_eq!((code, &said["replaced"]), (0, &4.into()), "{said}");
        assert_same(other.source.path(), other.target.path());
    });
}

#[test]
fn names_of_one_inode_wait_for_a_directory_that_makes_way() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for name in ["a", "b", "c"] {
            write(&target.path().join(name).join("k"), "old");
        }
        write(&source.path().join("a"), "one");
        ["b", "c", "e"]
            .iter()
            .for_each(|name| fs::hard_link(source.path().join("a"), source.path().join(name)).unwrap());
        let from = format!("{}/", source.path().display());
        let (code, said) = told(home.path(), &["sync", "--delete", &from, text(target.path())]);
        assert_eq!((code, &said["replaced"], &said["deleted"], &said["links"]), (0, &3.into(), &3.into(), &3.into()));
        assert_same(source.path(), target.path());
    });
}

#[test]
fn names_of_another_type_at_a_server_are_replaced() {
    test(|| {
        let other = Other::new();
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[other.target.path()]);
        let there = server.source(other.target.path());
        let (code, said) = other.sync(&there, &["--delete"]);
        assert_eq!((code, &said["replaced"]), (0, &7.into()), "{said}");
        let mut found = kinds(other.target.path());
        found.retain(|name, _| name != ".aqueduct-unlinked"); // the server's
        assert_eq!(found, kinds(other.source.path()));
    });
}

#[test]
fn a_source_in_the_destination_is_not_removed() {
    test(|| {
        let (home, root, elsewhere) = (directory(), directory(), directory());
        let at = |name: &str| root.path().join(name);
        for name in ["a/f", "a/b/f", "a/b/b/f", "a/link/f"] {
            write(&at(name), name);
        }
        symlink(at("a/b"), at("link")).unwrap();
        let before = kinds(root.path());
        let server =
            Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--squash", "none"], &[root.path()]);
        let sync = |from: &str, to: &str, more: &[&str]| {
            transfer(home.path(), &[&["sync", "--delete", from, to], more].concat())
        };
        let path = |name: &str| format!("{}/{name}", root.path().display());
        let there = |name: &str| format!("{}/{name}", server.source(root.path()));
        for (from, to, why) in [
            (path("a/b/"), path("a"), "the source lies in the destination"),
            (path("link/"), path("a/"), "the source lies in the destination"),
            (path("a/b/b"), path("a"), "the source lies in the destination"),
            (path("a/b"), path("a"), "the same directory"),
            (path("a/"), path("a/b"), "the destination lies in the source"),
            (path("a/"), path("a/new"), "the destination lies in the source"),
            (path("a"), path("a/b"), "the destination lies in the source"),
            (there("a/b/"), there("a"), "the source lies in the destination"),
            (there("a/"), there("a/b/"), "the destination lies in the source"),
            (there("a/b"), there("a"), "the same directory"),
        ] {
            for more in [&[] as &[&str], &["-n"]] {
                let output = sync(&from, &to, more);
                assert_eq!(output.status.code(), Some(2), "{from} {to}: {output:?}");
                assert!(output.text.contains(why), "{from} {to}: {output:?}");
            }
        }
        // By another way that no path shows: found before anything is removed.
        let run =
            |arguments: &[&str]| assert!(Command::new(arguments[0]).args(&arguments[1..]).status().unwrap().success());
        run(&["mount", "--bind", text(&at("a/b")), text(elsewhere.path())]);
        let output = sync(&format!("{}/", elsewhere.path().display()), &path("a"), &[]);
        run(&["umount", text(elsewhere.path())]);
        assert!(output.text.contains("nothing was deleted") && output.text.contains("of the source"), "{output:?}");
        let mut after = kinds(root.path());
        after.retain(|name, _| before.contains_key(name));
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        // What is excluded stays, and is no part of the copy.
        sync(&path("a/"), &path("a/b"), &["--exclude", "/b"]).succeeded();
        assert!(at("a/b/link/f").exists() && at("a/b/b/f").exists());
        sync(&path("a/"), &path("a/new"), &["--exclude", "/new"]).succeeded();
        assert!(at("a/new/b/b/f").exists() && !at("a/new/new").exists());
        fs::remove_dir_all(at("a/new")).unwrap();
        sync(&path("a/b/"), &path("a"), &["--exclude", "/b/"]).succeeded();
        assert!(at("a/b/link/f").exists());
    });
}

/// What the kernel makes while it is read has no size before.
#[test]
fn files_of_proc_and_sys_arrive_whole() {
    test(|| {
        let (home, target) = (directory(), directory());
        let manifest = home.path().join("manifest");
        let files = ["/proc/version", "/proc/filesystems", "/sys/kernel/uevent_helper", "/proc/sys/kernel/ostype"];
        let files: Vec<&str> = files.into_iter().filter(|file| Path::new(file).exists()).collect();
        let to = text(target.path());
        for command in [&["cp", "--manifest", text(&manifest)] as &[&str], &["cp", "--verify=stable"]] {
            let (code, said) = told(home.path(), &[command, &files, &[to]].concat());
            assert_eq!((code, &said["files"]), (0, &files.len().into()), "{said}");
            for file in &files {
                let copy = target.path().join(Path::new(file).file_name().unwrap());
                assert_eq!(fs::read(copy).unwrap(), fs::read(file).unwrap(), "{file}");
            }
        }
        transfer(home.path(), &["verify", text(&manifest), to]).succeeded();
        let (code, said) = told(home.path(), &["sync", "/proc/sys/kernel/random", to]);
        assert_eq!((code, &said["trouble_count"]), (0, &0.into()), "{said}");
        assert_eq!(fs::read_to_string(target.path().join("random/boot_id")).unwrap().len(), 37);
    });
}
