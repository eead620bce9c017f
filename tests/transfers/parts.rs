//! Temporary names: which are ours, and what becomes of them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;

use crate::common::{Process, SOON, Server, aqueduct, directory, test, wait_until};
use crate::resume::parts;
use crate::tree::{set_time, text, told, transfer};

/// As a copy that was killed leaves it.
const LEFT: &str = ".aqueduct-part-0123456789abcdef-1f";

#[test]
fn only_temporary_names_of_ours_are_left_out() {
    test(|| {
        let (home, source, target, export) = (directory(), directory(), directory(), directory());
        let server = Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0"], &[export.path()]);
        let others = [".aqueduct-part-notes", ".aqueduct-part-d/f", &format!("{LEFT}.d/f"), &format!("{LEFT}d/x")];
        fs::create_dir(source.path().join("d")).unwrap();
        for name in others.into_iter().chain([LEFT, "d/kept"]) {
            fs::create_dir_all(source.path().join(name).parent().unwrap()).unwrap();
            fs::write(source.path().join(name), name).unwrap();
        }
        let manifest = home.path().join("manifest");
        let from = format!("{}/", source.path().display());
        let there = server.source(export.path());
        for (to, seen_at) in [(text(target.path()), target.path()), (&*there, export.path())] {
            let (code, said) = told(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, to]);
            assert_eq!((code, &said["files"], &said["unfinished"]), (0, &5.into(), &1.into()), "{said}");
            for name in others {
                assert_eq!(fs::read_to_string(seen_at.join(name)).unwrap(), name);
            }
            assert!(!seen_at.join(LEFT).exists());
            let times = fs::metadata(seen_at).unwrap();
            let write = |name: &str| {
                fs::write(seen_at.join(name), "").unwrap();
                set_time(seen_at, times.mtime(), times.mtime_nsec());
            };
            // One that is there is another copy's, which has not ended.
            write(LEFT);
            transfer(home.path(), &["verify", text(&manifest), to]).succeeded();
            write(".aqueduct-part-mine");
            let (code, said) = told(home.path(), &["verify", text(&manifest), to]);
            assert_eq!((code, said["troubles"][0]["path"].as_str()), (1, Some(".aqueduct-part-mine")), "{said}");
        }
        let said = transfer(home.path(), &["cp", "-r", &from, text(target.path())]).succeeded();
        assert!(said.contains("1 names of the source were left out"), "{said}");
        // Listed ones are copied as well.
        let list = home.path().join("list");
        fs::write(&list, ".aqueduct-part-notes\n").unwrap();
        let copy = home.path().join("copy");
        let arguments = ["cp", "-r", "--files-from", text(&list), &from, text(&copy)];
        assert_eq!(told(home.path(), &arguments).1["files"], 1);
        assert!(copy.join(".aqueduct-part-notes").exists() && !copy.join("d").exists());
    });
}

#[test]
fn what_is_not_whole_goes_with_its_directory() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        fs::write(source.path().join("kept"), "").unwrap();
        let at = |name: &str| target.path().join(name);
        fs::create_dir_all(at("old/d")).unwrap();
        fs::create_dir(at("half")).unwrap();
        for name in [&format!("old/d/{LEFT}"), "old/f", "half/stays", &format!("half/{LEFT}"), LEFT] {
            fs::write(at(name), "").unwrap();
        }
        let from = format!("{}/", source.path().display());
        let arguments = ["sync", "--delete", "--exclude", "stays", &from, text(target.path())];
        let (code, said) = told(home.path(), &arguments);
        assert_eq!((code, &said["not_deleted"], &said["deleted"]), (0, &serde_json::Value::Null, &4.into()), "{said}");
        assert!(!at("old").exists() && at(LEFT).exists() && at(&format!("half/{LEFT}")).exists());
    });
}

/// With a journal --resume goes on with what is there; without, it would lie there for ever.
#[test]
fn a_copy_without_a_journal_that_is_ended_leaves_nothing_unfinished() {
    test(|| {
        let (home, source) = (directory(), directory());
        fs::write(source.path().join("large"), vec![1; 64 << 20]).unwrap();
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let target = directory();
            let mut command = aqueduct();
            command.args(["cp", "-r", "--no-journal", "--bwlimit", "4MB/s"]);
            command.arg(format!("{}/", source.path().display())).arg(target.path());
            let mut process = Process::start(&mut command, &home.path().join("log"));
            wait_until("a file that is begun", SOON, || !parts(target.path()).is_empty());
            process.signal(signal);
            let status = process.ends_within(SOON);
            assert_eq!(status.code(), Some(code), "{}", process.output());
            assert!(process.output().contains("was ended by a signal"), "{}", process.output());
            assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
        }
    });
}
