//! What `sync --delete` removes, and when it removes nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::common::{
    FileSystem, Server, aqueduct, directory, directory_for_devices, program_for_all, run_within, test,
};
use crate::tree::{assert_same, plant, text, told, transfer};

/// A tree, and a copy of it with more in it.
struct Grown {
    home: TempDir,
    source: TempDir,
    target: TempDir,
}

impl Grown {
    fn new() -> Grown {
        let grown = Grown { home: directory(), source: directory_for_devices(), target: directory_for_devices() };
        plant(grown.source.path());
        assert_eq!(grown.sync(&[]).0, 0);
        for name in ["more/deep/er/f", "more/f", "d/more", "d/e/more.o"] {
            let path = grown.target.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "more").unwrap();
        }
        symlink("/etc", grown.target.path().join("d/away")).unwrap();
        grown
    }

    fn sync(&self, more: &[&str]) -> (i32, serde_json::Value) {
        let from = format!("{}/", self.source.path().display());
        told(self.home.path(), &[&["sync", &from, text(self.target.path())], more].concat())
    }

    /// Nothing was removed, for this reason.
    #[track_caller]
    fn keeps(&self, said: &(i32, serde_json::Value), why: &str) {
        let (code, said) = said;
        assert_eq!((*code, &said["deleted"]), (1, &0.into()), "{said}");
        assert!(said["not_deleted"].as_str().unwrap().contains(why), "{said}");
        assert!(self.target.path().join("more/deep/er/f").exists() && self.target.path().join("d/more").exists());
    }
}

#[test]
fn what_the_source_does_not_have_is_removed() {
    test(|| {
        let grown = Grown::new();
        let (code, said) = grown.sync(&["-n", "--delete"]);
        assert_eq!((code, &said["deleted"]), (0, &8.into()), "{said}");
        assert!(grown.target.path().join("more/f").exists(), "a dry run removes nothing");
        grown.keeps(&grown.sync(&["--delete", "--max-delete", "7"]), "more than 7");
        let (code, said) = grown.sync(&["--delete", "--exclude", "*.o"]);
        assert_eq!((code, &said["deleted"]), (0, &7.into()), "{said}");
        assert!(grown.target.path().join("d/e/more.o").exists(), "what is excluded stays");
        let (code, said) = grown.sync(&["--delete"]);
        assert_eq!((code, &said["deleted"]), (0, &1.into()), "{said}");
        assert_same(grown.source.path(), grown.target.path());
        assert!(Path::new("/etc/passwd").exists());
    });
}

/// mpifileutils #587: a directory of the source that cannot be read looks as if it were empty.
#[test]
fn an_error_of_the_walk_forbids_removing() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for name in ["open/f", "closed/f", "closed/g"] {
            for root in [&source, &target] {
                let path = root.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "x").unwrap();
            }
        }
        fs::write(target.path().join("open/more"), "x").unwrap();
        fs::set_permissions(source.path().join("closed"), Permissions::from_mode(0o000)).unwrap();
        let own = |path: &Path| chown(path, Some(4000), Some(4000)).unwrap();
        ["", "open", "open/f", "open/more", "closed", "closed/f", "closed/g"]
            .iter()
            .flat_map(|name| [source.path().join(name), target.path().join(name)])
            .filter(|path| path.exists())
            .for_each(|path| own(&path));
        let mut user = std::process::Command::new("setpriv");
        user.args(["--reuid=4000", "--regid=4000", "--clear-groups"]).arg(program_for_all(home.path()));
        user.args(["sync", "--delete", "--no-journal"]).arg(format!("{}/", source.path().display())).arg(target.path());
        let output = run_within(Duration::from_secs(20), &mut user);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        for name in ["open/more", "closed/f", "closed/g"] {
            assert!(target.path().join(name).exists(), "{name} was removed: {output:?}");
        }
        assert!(output.text.contains("nothing was deleted"), "{output:?}");
    });
}

/// In a directory with the sticky bit only the owner of a file removes it.
#[test]
fn what_was_deleted_before_an_error_is_told() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let root = target.path();
        for name in ["a/kept", "b/kept"] {
            fs::create_dir_all(source.path().join(name).parent().unwrap()).unwrap();
            fs::write(source.path().join(name), "x").unwrap();
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        }
        ["a/old", "b/old"].iter().for_each(|name| fs::write(root.join(name), "x").unwrap());
        for path in [source.path(), home.path(), root, &root.join("a"), &root.join("b"), &source.path().join("b")] {
            fs::set_permissions(path, Permissions::from_mode(0o1777)).unwrap();
        }
        ["a", "a/old"].iter().for_each(|name| chown(root.join(name), Some(4000), Some(4000)).unwrap());
        let mut user = std::process::Command::new("setpriv");
        user.args(["--reuid=4000", "--regid=4000", "--clear-groups"]).arg(program_for_all(home.path()));
        user.args(["sync", "--delete", "--no-journal"]).arg(format!("{}/", source.path().display())).arg(root);
        let output = run_within(Duration::from_secs(20), &mut user);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.text.contains("1 names were deleted, and no more: b/old could not be removed"), "{output:?}");
        assert!(root.join("b/old").exists() && !root.join("a/old").exists());
    });
}

/// A file system that is not mounted is an empty directory.
#[test]
fn an_empty_source_removes_nothing() {
    test(|| {
        let grown = Grown::new();
        let empty = directory();
        let from = format!("{}/", empty.path().display());
        let said = told(grown.home.path(), &["sync", "--delete", &from, text(grown.target.path())]);
        grown.keeps(&said, "is it mounted?");
    });
}

/// The same of a source that goes into the destination under its name, and of a part of it alone.
#[test]
fn an_empty_source_without_a_slash_removes_nothing() {
    test(|| {
        let (home, sources, target) = (directory(), directory(), directory());
        let source = sources.path().join("run7");
        fs::create_dir_all(source.join("d")).unwrap();
        fs::write(source.join("d/f"), "precious").unwrap();
        let sync = || told(home.path(), &["sync", "--delete", text(&source), text(target.path())]);
        assert_eq!(sync().0, 0);
        let copy = target.path().join("run7/d/f");
        fs::remove_dir_all(source.join("d")).unwrap();
        let (code, said) = sync();
        assert_eq!((code, &said["deleted"]), (1, &0.into()), "{said}");
        assert!(said["not_deleted"].as_str().unwrap().contains("is it mounted?"), "{said}");
        assert_eq!(fs::read(&copy).unwrap(), b"precious");
        // What only the destination has beside the copy is none of its.
        fs::write(target.path().join("other"), "").unwrap();
        fs::remove_dir(&source).unwrap();
        let said = transfer(home.path(), &["sync", "--delete", text(&source), text(target.path())]).failed();
        assert!(said.contains("cannot look at"), "{said}");
        assert!(copy.exists() && target.path().join("other").exists());
    });
}

#[test]
fn another_file_system_below_the_destination_is_left_alone() {
    test(|| {
        let grown = Grown::new();
        let inner = FileSystem::tmpfs("size=1m");
        fs::write(inner.0.join("f"), "precious").unwrap();
        let point = grown.target.path().join("more/mounted");
        fs::create_dir(&point).unwrap();
        let mount = |arguments: &[&str]| {
            let done = std::process::Command::new(arguments[0]).args(&arguments[1..]).status().unwrap();
            assert!(done.success(), "{arguments:?}");
        };
        mount(&["mount", "--bind", text(&inner.0), text(&point)]);
        let said = grown.sync(&["--delete"]);
        let kept = fs::read(inner.0.join("f"));
        mount(&["umount", text(&point)]);
        grown.keeps(&said, "is another file system");
        assert_eq!(kept.unwrap(), b"precious");
    });
}

/// It has the same device: another directory is there by a bind mount, as data often are in
/// containers and chroots.
#[test]
fn a_directory_of_the_same_file_system_that_is_mounted_below_is_left_alone() {
    test(|| {
        let (grown, other) = (Grown::new(), directory_for_devices());
        fs::write(other.path().join("f"), "precious").unwrap();
        let point = grown.target.path().join("more/mounted");
        fs::create_dir(&point).unwrap();
        let mount = |arguments: &[&str]| {
            let done = std::process::Command::new(arguments[0]).args(&arguments[1..]).status().unwrap();
            assert!(done.success(), "{arguments:?}");
        };
        mount(&["mount", "--bind", text(other.path()), text(&point)]);
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let is_same = device(&point) == device(grown.target.path());
        let said = grown.sync(&["--delete"]);
        // Nor does it make way for a file.
        fs::write(grown.source.path().join("more"), "a file").unwrap();
        let replaced = grown.sync(&["--delete"]);
        let kept = fs::read(other.path().join("f"));
        mount(&["umount", text(&point)]);
        assert!(is_same, "else the device shows it");
        grown.keeps(&said, "something is mounted on more/mounted");
        assert_eq!((replaced.0, &replaced.1["deleted"]), (1, &0.into()), "{}", replaced.1);
        assert!(replaced.1.to_string().contains("something is mounted on more/mounted"), "{}", replaced.1);
        assert_eq!(kept.unwrap(), b"precious");
    });
}

#[test]
fn what_is_at_a_server_is_removed_as_well() {
    test(|| {
        let grown = Grown::new();
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[grown.target.path()]);
        let from = format!("{}/", grown.source.path().display());
        let there = server.source(grown.target.path());
        let (code, said) = told(grown.home.path(), &["sync", "--delete", &from, &there]);
        assert_eq!((code, &said["deleted"]), (0, &8.into()), "{said}");
        assert_same(grown.source.path(), grown.target.path());
    });
}
