//! Manifests: what `verify` makes of them and of trees.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::{directory, directory_for_devices, test};
use crate::tree::{plant, set_time, text, told, transfer};

/// Whatever is changed afterwards, `verify` says which name it is of.
#[test]
fn verify_notices_what_was_changed() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let (copy, manifest) = (target.path().join("copy"), home.path().join("manifest"));
        let arguments = ["cp", "-r", "--manifest", text(&manifest), text(source.path()), text(&copy)];
        transfer(home.path(), &arguments).succeeded();
        let verify = || transfer(home.path(), &["verify", text(&manifest), text(&copy)]);
        verify().succeeded();
        let big = copy.join("big");
        let (mut content, stat) = (fs::read(&big).unwrap(), fs::metadata(&big).unwrap());
        content[19_999_999] ^= 1;
        fs::write(&big, &content).unwrap();
        set_time(&big, stat.mtime(), stat.mtime_nsec());
        let said = verify().failed();
        assert!(said.contains("big: comparing it: the hash") && said.contains(" 1 are not"), "{said}");
        content[19_999_999] ^= 1;
        fs::write(&big, &content).unwrap();
        set_time(&big, stat.mtime(), stat.mtime_nsec());
        fs::write(copy.join("d/new"), "").unwrap();
        fs::remove_file(copy.join("d/10")).unwrap();
        fs::remove_file(copy.join("first")).unwrap();
        fs::copy(copy.join("d/1"), copy.join("first")).unwrap();
        set_time(&copy.join("first"), 1, 1);
        let said = verify().failed();
        for expected in ["d/new: comparing it: it is there", "d/10: looking at it", "first: comparing it: its time"] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        let whole = fs::read_to_string(&manifest).unwrap();
        fs::write(&manifest, whole.replacen("\"uid\":0", "\"uid\":1", 1)).unwrap();
        let said = verify().failed();
        assert!(said.contains("cannot believe the manifest"), "{said}");
    });
}

/// Two files of the source, of which one is private, are names of one inode at the destination:
/// the attributes of one would be those of both, and the manifest would not be true.
#[test]
fn files_that_are_one_at_the_destination_are_parted() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let [from, to] = [&source, &target].map(|at| move |name: &str| at.path().join(name));
        for (name, mode) in [("a", 0o644), ("b", 0o600), ("linked", 0o640)] {
            fs::write(from(name), "the same").unwrap();
            fs::set_permissions(from(name), Permissions::from_mode(mode)).unwrap();
            set_time(&from(name), 1_000_000, 5);
        }
        fs::hard_link(from("linked"), from("too")).unwrap();
        ["s1", "s2"].iter().for_each(|name| {
            symlink("text", from(name)).unwrap();
            set_time(&from(name), 1_000_000, 5);
        });
        let manifest = home.path().join("manifest");
        let from_here = format!("{}/", source.path().display());
        let sync = |more: &[&str]| told(home.path(), &[&["sync", &from_here, text(target.path())], more].concat()).1;
        sync(&[]);
        for (name, other) in [("a", "b"), ("s1", "s2")] {
            fs::remove_file(to(other)).unwrap();
            fs::hard_link(to(name), to(other)).unwrap();
        }
        let said = sync(&["--manifest", text(&manifest)]);
        // What are names of one at the source as well are left as they are.
        assert_eq!((&said["files"], &said["others"], &said["links"]), (&1.into(), &1.into(), &0.into()), "{said}");
        let stat = |name: &str| fs::symlink_metadata(to(name)).unwrap();
        let modes = ["a", "b", "linked", "too"].map(|name| (stat(name).mode() & 0o777, stat(name).nlink()));
        assert_eq!(modes, [(0o644, 1), (0o600, 1), (0o640, 2), (0o640, 2)]);
        assert_ne!(stat("s1").ino(), stat("s2").ino());
        transfer(home.path(), &["verify", text(&manifest), text(target.path())]).succeeded();
        let said = sync(&[]);
        assert_eq!((&said["files"], &said["others"]), (&0.into(), &0.into()), "{said}");
    });
}

/// A manifest in a Parquet file says what one in lines does.
#[test]
fn a_manifest_may_be_a_parquet_file() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let copy = target.path().join("copy");
        let [lines, table] = ["m.manifest", "m.parquet"].map(|name| home.path().join(name));
        for manifest in [&lines, &table] {
            let _ = fs::remove_dir_all(&copy);
            let arguments = ["cp", "-r", "--manifest", text(manifest), text(source.path()), text(&copy)];
            transfer(home.path(), &arguments).succeeded();
        }
        assert!(fs::read(&table).unwrap().ends_with(b"PAR1"));
        // One name is no text.
        let sums = [&lines, &table].map(|of| transfer(home.path(), &["verify", "--b3sum", text(of)]).failed());
        assert!(sums[0] == sums[1] && sums[0].lines().count() > 10, "{sums:?}");
        let verify = || transfer(home.path(), &["verify", text(&table), text(&copy)]);
        verify().succeeded();
        fs::write(copy.join("d/new"), "").unwrap();
        assert!(verify().failed().contains("d/new: comparing it: it is there"));
        let bytes = fs::read(&table).unwrap();
        fs::write(&table, &bytes[..500]).unwrap();
        assert!(verify().failed().contains("cannot believe the manifest"));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2, "nothing is left beside the manifests");
    });
}

#[test]
fn what_is_behind_the_last_line_of_a_manifest_is_refused() {
    test(|| {
        let (home, source) = (directory(), directory());
        fs::write(source.path().join("f"), "f").unwrap();
        let [copy, manifest] = ["copy", "manifest"].map(|name| home.path().join(name));
        let from = format!("{}/", source.path().display());
        transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, text(&copy)]).succeeded();
        let whole = fs::read_to_string(&manifest).unwrap();
        for more in ["\n", &whole] {
            fs::write(&manifest, format!("{whole}{more}")).unwrap();
            let said = transfer(home.path(), &["verify", text(&manifest), text(&copy)]).failed();
            assert!(said.contains("not those that were written"), "{said}");
        }
    });
}

/// What could not be copied is not in it, so that nothing else would tell.
#[test]
fn the_manifest_of_an_incomplete_copy_does_not_pass() {
    test(|| {
        let (home, source) = (directory(), directory());
        ["f", "d"].iter().for_each(|name| fs::write(source.path().join(name), "f").unwrap());
        let [copy, manifest] = ["copy", "manifest"].map(|name| home.path().join(name));
        fs::create_dir_all(copy.join("d")).unwrap(); // in the way of a file
        let from = format!("{}/", source.path().display());
        let (code, _) = told(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, text(&copy)]);
        assert_eq!(code, 1);
        fs::remove_dir(copy.join("d")).unwrap();
        set_time(
            &copy,
            fs::metadata(source.path()).unwrap().mtime(),
            fs::metadata(source.path()).unwrap().mtime_nsec(),
        );
        for more in [&[text(&copy)][..], &["--b3sum"]] {
            let said = transfer(home.path(), &[&["verify", text(&manifest)], more].concat()).failed();
            assert!(said.contains("1 names could not be copied and are not in the manifest"), "{said}");
        }
    });
}

#[test]
fn names_that_became_one_file_are_noticed() {
    test(|| {
        let (home, source) = (directory(), directory());
        for name in ["a", "b"] {
            fs::write(source.path().join(name), "same").unwrap();
            set_time(&source.path().join(name), 1_000_000_000, 1);
        }
        let [copy, manifest] = ["copy", "manifest"].map(|name| home.path().join(name));
        let from = format!("{}/", source.path().display());
        transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, text(&copy)]).succeeded();
        let times = fs::metadata(&copy).unwrap();
        fs::remove_file(copy.join("b")).unwrap();
        fs::hard_link(copy.join("a"), copy.join("b")).unwrap();
        set_time(&copy, times.mtime(), times.mtime_nsec());
        let said = transfer(home.path(), &["verify", text(&manifest), text(&copy)]).failed();
        assert!(said.contains("it is a name of the same file as") && said.contains(" 1 are not"), "{said}");
    });
}

#[test]
fn a_manifest_that_cannot_be_written_is_told_before_anything_is_copied() {
    test(|| {
        let (home, source) = (directory(), directory());
        fs::write(source.path().join("f"), "f").unwrap();
        let copy = home.path().join("copy");
        let missing = home.path().join("missing/m");
        for manifest in [&missing, home.path(), &source.path().join("f/m")] as [&Path; 3] {
            let arguments = ["cp", "-r", "--manifest", text(manifest), text(source.path()), text(&copy)];
            let said = transfer(home.path(), &arguments).failed();
            assert!(said.contains("cannot write the manifest") && !copy.exists(), "{said}");
        }
    });
}

#[test]
fn b3sum_is_given_linked_names_and_told_what_it_cannot_read() {
    test(|| {
        let (home, source) = (directory(), directory());
        let at = |name: &str| source.path().join(name);
        fs::write(at("one"), "1").unwrap();
        fs::hard_link(at("one"), at("other")).unwrap();
        fs::write(at("back\\slash\nline"), "2").unwrap();
        let [copy, manifest] = ["copy", "manifest"].map(|name| home.path().join(name));
        let from = format!("{}/", source.path().display());
        let sums = || {
            transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, text(&copy)]).succeeded();
            transfer(home.path(), &["verify", "--b3sum", text(&manifest)])
        };
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        let said = sums().succeeded();
        let expected = [
            format!("\\{}  back\\\\slash\\nline", hash("2")),
            format!("{}  one", hash("1")),
            format!("{}  other", hash("1")),
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        fs::write(source.path().join(OsStr::from_bytes(b"no\xff")), "3").unwrap();
        let said = sums().failed();
        assert!(said.contains("b3sum reads no such name") && said.contains("  other"), "{said}");
    });
}

/// Of a directory that was there before the manifest says nothing.
#[test]
fn what_was_copied_into_a_directory_is_compared_there() {
    test(|| {
        let home = directory();
        let at = |name: &str| home.path().join(name);
        fs::create_dir_all(at("run7/d")).unwrap();
        fs::create_dir(at("archive")).unwrap();
        ["run7/d/f", "archive/others", "one"].iter().for_each(|name| fs::write(at(name), "f").unwrap());
        let manifest = at("manifest");
        let verify = || transfer(home.path(), &["verify", text(&manifest), text(&at("archive"))]);
        let copy = |from: &str, to: &str| {
            transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), text(&at(from)), text(&at(to))])
                .succeeded()
        };
        copy("one", "archive/two");
        verify().succeeded();
        copy("run7", "archive");
        verify().succeeded();
        fs::write(at("archive/run7/d/more"), "").unwrap();
        let said = verify().failed();
        assert!(said.contains("run7/d/more: comparing it: it is there, and not in the manifest"), "{said}");
        assert!(!said.contains("others"), "{said}");
    });
}
