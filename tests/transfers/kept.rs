//! What is there already, and what it lacks: attributes alone, names of two sources, listed paths.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::XattrFlags;

use crate::common::{Server, TEST_MAX, aqueduct, directory, directory_for_devices, program_for_all, run_within, test};
use crate::tree::{acl, assert_same, body, command, plant, set_time, text, told, transfer};

fn set(path: &Path, name: &str, value: &str) {
    rustix::fs::lsetxattr(path, name, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// Changes extended attributes and access control lists, and neither sizes nor times.
fn change_attributes(root: &Path) {
    let at = |name: &str| root.join(name);
    let before = fs::metadata(at("d/4")).unwrap();
    set(&at("d/4"), "user.one", "another");
    rustix::fs::removexattr(at("d/4"), "user.two").unwrap();
    set(&at("d/8"), "user.new", "1");
    set(&at("d/8"), "user.long", &"x".repeat(2000)); // more than is asked for at first
    acl(&at("d/9"), "system.posix_acl_access");
    rustix::fs::removexattr(at("d/5"), "system.posix_acl_access").unwrap();
    rustix::fs::removexattr(at("empty"), "system.posix_acl_default").unwrap();
    rustix::fs::removexattr(at("d"), "user.two").unwrap();
    set(&at("d/link"), "trusted.of_a_link", "1");
    let after = fs::metadata(at("d/4")).unwrap();
    assert_eq!((before.len(), before.mtime_nsec()), (after.len(), after.mtime_nsec()));
}

fn attributes_alone_arrive(source: &Path, target: &Path, there: &str) {
    let home = directory();
    plant(source);
    let from = format!("{}/", source.display());
    assert_eq!(told(home.path(), &["sync", &from, there]).0, 0);
    change_attributes(source);
    let (code, said) = told(home.path(), &["sync", &from, there]);
    assert_eq!((code, &said["files"], &said["lost_count"]), (0, &0.into(), &0.into()), "{said}");
    assert_same(source, target);
    // Now that they are the same, nothing is changed.
    let looked = fs::metadata(target.join("d/4")).unwrap().ctime_nsec();
    assert_eq!(told(home.path(), &["sync", &from, there]).0, 0);
    assert_eq!(fs::metadata(target.join("d/4")).unwrap().ctime_nsec(), looked);
    // And what a manifest says is so.
    set(&source.join("d/8"), "user.new", "2");
    let manifest = home.path().join("manifest");
    assert_eq!(told(home.path(), &["sync", "--manifest", text(&manifest), &from, there]).0, 0);
    assert!(body(&manifest).contains("user.new"));
    transfer(home.path(), &["verify", text(&manifest), there]).succeeded();
}

#[test]
fn attributes_that_alone_have_changed_arrive() {
    test(|| {
        let (source, target) = (directory_for_devices(), directory_for_devices());
        let copy = target.path().join("copy");
        attributes_alone_arrive(source.path(), &copy, text(&copy));
    });
}

#[test]
fn attributes_that_alone_have_changed_arrive_at_a_server() {
    test(|| {
        let (source, export) = (directory_for_devices(), directory_for_devices());
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let there = format!("{}/copy", server.source(export.path()));
        attributes_alone_arrive(source.path(), &export.path().join("copy"), &there);
    });
}

/// What `-n` says is what would be done, and whoever reads JSON reads nothing else.
#[test]
fn what_gets_other_attributes_is_told() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for side in [source.path(), target.path()] {
            fs::write(side.join("f"), "same").unwrap();
            set_time(&side.join("f"), 1_000_000_000, 0);
            fs::create_dir_all(side.join("d/same")).unwrap();
        }
        for (name, mode) in [("f", 0o600), ("d", 0o700)] {
            fs::set_permissions(target.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let from = format!("{}/", source.path().display());
        for (more, told) in [("-n", "would change the attributes of "), ("-v", "changed the attributes of ")] {
            let output =
                command(home.path(), &["sync", more, "-v", "--json", &from, text(target.path())]).output().unwrap();
            let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let said: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert_eq!((&said["attributes"], &said["unchanged"]), (&2.into(), &0.into()), "{said}");
            let names = errors.lines().filter_map(|line| Some(line.split_once(told)?.1));
            assert_eq!(BTreeSet::from_iter(names), BTreeSet::from(["d", "f"]), "{errors}");
        }
        let mode_of = |name: &str| fs::metadata(target.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode_of("f"), mode_of("d")), (0o644, mode_of("d/same")));
    });
}

#[test]
fn what_would_be_a_surprise_is_refused() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        fs::write(source.path().join("f"), "").unwrap();
        let copy = target.path().join("copy");
        let said = transfer(home.path(), &["cp", text(source.path()), text(&copy)]).failed();
        assert!(said.contains("it is a directory") && said.contains("give -r") && !copy.exists(), "{said}");
        // A manifest is given the name, which was something else's.
        let fifo = target.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let said = transfer(home.path(), &["cp", "-r", "--manifest", text(&fifo), text(source.path()), text(&copy)]);
        assert!(said.failed().contains("no regular file") && !copy.exists());
    });
}

/// As rsync does, which ends with 23.
#[test]
fn a_listed_path_that_is_not_there_is_told() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        for name in ["d/f", "d/g", "e/h"] {
            fs::create_dir_all(source.path().join(name).parent().unwrap()).unwrap();
            fs::write(source.path().join(name), name).unwrap();
        }
        symlink("d", source.path().join("link")).unwrap();
        fs::write(target.path().join("kept"), "").unwrap();
        let list = home.path().join("list");
        fs::write(&list, "d/f\nd/missing\ngone/x\nlink/f\ne\n").unwrap();
        let from = format!("{}/", source.path().display());
        for more in [&["cp", "-r"][..], &["sync", "--delete"]] {
            let arguments = [more, &["--files-from", text(&list), &from, text(target.path())]].concat();
            let (code, said) = told(home.path(), &arguments);
            let told: Vec<_> = said["troubles"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
            assert_eq!((code, told), (1, vec!["d/missing".into(), "gone/x".into(), "link/f".into()]), "{said}");
            assert!(["d/f", "e/h", "kept"].iter().all(|name| target.path().join(name).exists()));
        }
        // What a pattern leaves out is there.
        fs::write(&list, "d\ne/h\n").unwrap();
        let arguments = ["cp", "-r", "--exclude", "h", "--files-from", text(&list), &from, text(target.path())];
        let (code, said) = told(home.path(), &arguments);
        assert_eq!((code, &said["trouble_count"]), (0, &0.into()), "{said}");
    });
}

/// As rsync has it: they are writable while something is made in them.
#[test]
fn directories_that_may_not_be_written_are_updated_by_their_owner() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let (inner, copy) = (source.path().join("d/e"), target.path().join("copy"));
        fs::create_dir_all(&inner).unwrap();
        for name in ["changed", "removed", "one"] {
            fs::write(inner.join(name), name).unwrap();
        }
        [source.path(), target.path(), home.path()].iter().for_each(|path| set_mode(path, 0o777));
        ["d", "d/e"].iter().for_each(|name| set_mode(&source.path().join(name), 0o555));
        let sync = || {
            let mut user = std::process::Command::new("setpriv");
            user.args(["--reuid=4000", "--regid=4000", "--clear-groups"]).arg(program_for_all(home.path()));
            user.args(["sync", "--delete", "--no-journal"]).arg(format!("{}/", source.path().display())).arg(&copy);
            run_within(TEST_MAX, &mut user)
        };
        // The owner of what is copied cannot be given, which is told.
        assert_eq!(sync().status.code(), Some(3));
        fs::write(inner.join("changed"), "after").unwrap();
        fs::hard_link(inner.join("one"), inner.join("other")).unwrap();
        fs::remove_file(inner.join("removed")).unwrap();
        fs::create_dir(inner.join("new")).unwrap();
        symlink("new", inner.join("link")).unwrap();
        let said = sync();
        assert_eq!(said.status.code(), Some(3), "{said:?}");
        let there = copy.join("d/e");
        assert_eq!(fs::read_to_string(there.join("changed")).unwrap(), "after");
        assert_eq!(fs::metadata(there.join("other")).unwrap().nlink(), 2);
        assert_eq!(fs::read_link(there.join("link")).unwrap(), Path::new("new"));
        assert!(there.join("new").is_dir() && !there.join("removed").exists());
        assert!([&there, &copy.join("d")].iter().all(|path| fs::metadata(path).unwrap().mode() & 0o777 == 0o555));
    });
}

/// As cp has it, which does not replace what it has just made.
#[test]
fn of_two_sources_with_one_name_none_replaces_the_other() {
    test(|| {
        let (home, sources, target) = (directory(), directory(), directory());
        let at = |name: &str| sources.path().join(name);
        for (name, content) in [("a/x/f", "of a"), ("b/x/f", "of b"), ("a/own", "1"), ("b/x/more", "2"), ("b/l", "3")] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), content).unwrap();
            set_time(&at(name), 1_000_000_000, 1);
        }
        symlink("own", at("a/l")).unwrap();
        let said = transfer(home.path(), &["cp", "-r", text(&at("a/x")), text(&at("b/x")), text(target.path())]);
        assert_eq!(said.status.code(), Some(2), "{said:?}");
        assert!(said.text.contains("gets the same name, x"), "{said:?}");
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
        let [a, b] = ["a", "b"].map(|name| format!("{}/", at(name).display()));
        for round in 0..2 {
            let (code, said) = told(home.path(), &["cp", "-r", &a, &b, text(target.path())]);
            let mut told: Vec<_> = said["troubles"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
            told.sort_by_key(ToString::to_string);
            assert_eq!((code, told), (1, vec!["l".into(), "x/f".into()]), "round {round}: {said}");
            assert_eq!(fs::read(target.path().join("x/f")).unwrap(), b"of a");
            assert_eq!(fs::read_link(target.path().join("l")).unwrap(), Path::new("own"));
            assert!(["own", "x/more"].iter().all(|name| target.path().join(name).exists()));
        }
        // Directories that both have are one, whoever makes it first.
        for number in 0..40 {
            for side in ["a", "b"] {
                fs::create_dir(at(&format!("{side}/n{number}"))).unwrap();
                fs::write(at(&format!("{side}/n{number}/of_{side}")), "").unwrap();
            }
        }
        let both = target.path().join("both");
        fs::create_dir(&both).unwrap();
        let (_, said) = told(home.path(), &["cp", "-r", &a, &b, text(&both)]);
        assert_eq!(said["trouble_count"], 2, "{said}");
        for name in (0..40).flat_map(|number| ["a", "b"].map(|side| format!("n{number}/of_{side}"))) {
            assert!(both.join(&name).exists(), "{name}: {said}");
        }
        // The name of one, and what is in the other.
        let (code, said) = told(home.path(), &["cp", "-r", text(&at("b/x/f")), &format!("{a}x/"), text(target.path())]);
        assert_eq!((code, &said["troubles"][0]["path"]), (1, &"f".into()), "{said}");
        assert_eq!(fs::read(target.path().join("f")).unwrap(), b"of b");
        // Who asks for it has the first.
        let copy = target.path().join("copy");
        fs::create_dir(&copy).unwrap();
        let (code, said) = told(home.path(), &["cp", "-r", "--no-clobber", &a, &b, text(&copy)]);
        assert_eq!((code, &said["skipped"], fs::read(copy.join("x/f")).unwrap()), (0, &2.into(), b"of a".to_vec()));
    });
}

/// A copy that did not end well leaves a journal, and the next one removes what it left unfinished.
/// What that one has under way itself, for another source, is none of it.
#[test]
fn what_is_under_way_for_one_source_is_not_removed_for_another() {
    const SOURCES: usize = 20;
    test(|| {
        let (home, sources, target) = (directory(), directory(), directory());
        let names: Vec<_> =
            (0..SOURCES).flat_map(|of| (0..30).map(move |number| (of, format!("{of}-{number}")))).collect();
        let at = |of: usize, name: &str| sources.path().join(format!("{of}/shared")).join(name);
        let sides: Vec<_> =
            (0..SOURCES).map(|of| format!("{}/", sources.path().join(of.to_string()).display())).collect();
        let mut arguments = vec!["cp", "-r"];
        arguments.extend(sides.iter().map(String::as_str).chain([text(target.path())]));
        for round in 0..3 {
            for of in 0..SOURCES {
                fs::create_dir_all(at(of, "")).unwrap();
                fs::write(at(of, "of all"), format!("{of}")).unwrap();
            }
            names.iter().for_each(|(of, name)| fs::write(at(*of, name), format!("{round}")).unwrap());
            let (_, said) = told(home.path(), &arguments);
            assert_eq!(said["trouble_count"], SOURCES - 1, "round {round}: {said}");
            for (_, name) in &names {
                assert_eq!(fs::read_to_string(target.path().join("shared").join(name)).unwrap(), format!("{round}"));
            }
        }
    });
}

/// As rsync has it: patterns are matched from the source's own name on, if it has one there.
#[test]
fn a_pattern_may_leave_out_a_source() {
    test(|| {
        let (home, root) = (directory(), directory());
        let at = |name: &str| root.path().join(name);
        for name in ["run7/d/f", "run7/run8", "run8"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), name).unwrap();
        }
        let path = |name: &str| format!("{}/{name}", root.path().display());
        for (pattern, expected) in [
            ("/run8", ["run7/d/f", "run7/run8"].as_slice()),
            ("run8", &["run7/d/f"]),
            ("/run7/d", &["run7/run8", "run8"]),
        ] {
            let to = directory();
            let from = ["run7", "run8"].map(path);
            let exclude = format!("--exclude={pattern}");
            transfer(home.path(), &["cp", "-r", &exclude, &from[0], &from[1], text(to.path())]).succeeded();
            let by_rsync = directory();
            let mut rsync = std::process::Command::new("rsync");
            rsync.arg("-a").arg(&exclude).args(&from).arg(by_rsync.path());
            run_within(TEST_MAX, &mut rsync).succeeded();
            for name in ["run7/d/f", "run7/run8", "run8"] {
                let is_there = [&to, &by_rsync].map(|to| to.path().join(name).exists());
                assert_eq!(is_there, [expected.contains(&name); 2], "{pattern}: {name}");
            }
        }
    });
}
