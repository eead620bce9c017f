//! `aqueduct volume check` of servers before one directory.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{SOON, aqueduct, directory, run, test, wait_until};
use crate::volumes::Volume;

/// The check by a file or `VOLUME@ADDR`: whether it found all right, and what it found.
fn check(volume: impl AsRef<std::ffi::OsStr>) -> (bool, Value) {
    let output = run(aqueduct().args(["volume", "check", "--json"]).arg(volume));
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{output:?}");
    let told: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(told["ok"], code == Some(0), "{told:#}");
    (code == Some(0), told["checked"].clone())
}

/// What is wrong with each server, by its id.
fn wrong(checked: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let servers = checked["servers"].as_array().unwrap().iter();
    let all = servers.flat_map(|server| {
        let wrong = server["wrong"].as_array().unwrap().iter();
        wrong.map(|wrong| {
            assert!(!text(&wrong["remedy"]).is_empty(), "{wrong}");
            (text(&server["id"]), text(&wrong["what"]))
        })
    });
    all.collect()
}

/// Another copy of the volume's file, with its key, changed.
fn copy(volume: &Volume, to: &Path, change: impl Fn(String) -> String) -> PathBuf {
    let file = to.join("volume.toml");
    fs::write(&file, change(fs::read_to_string(&volume.file).unwrap())).unwrap();
    fs::copy(volume.file.with_extension("key"), file.with_extension("key")).unwrap();
    file
}

/// Starts a server anew, by another file.
fn start_by(volume: &mut Volume, number: usize, file: &Path) {
    volume.kill(number);
    let own = std::mem::replace(&mut volume.file, file.to_owned());
    volume.start_server(number);
    volume.file = own;
}

/// All that lies in a directory, the hidden folder's files included.
fn names(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => names.extend(self::names(&entry.path())),
            false => names.push(entry.file_name().into_string().unwrap()),
        }
    }
    names
}

#[test]
fn a_volume_that_is_as_its_file_says_is_right_and_stays_as_it_was() {
    test(|| {
        for lines in ["mode = 'cluster'", "mode = 'stripe'\nwrites = 'data'", "mode = 'loadbalance'"] {
            let volume = Volume::with(lines, 3);
            fs::write(volume.export.path().join("file"), "text").unwrap();
            let of_server = format!("scratch@{}", volume.addresses[2]);
            for what in [volume.file.as_os_str(), of_server.as_ref()] {
                let (is_right, checked) = check(what);
                assert!(is_right, "{lines}: {checked:#}");
                let servers = checked["servers"].as_array().unwrap();
                assert_eq!(servers.len(), 3);
                for (number, server) in servers.iter().enumerate() {
                    assert_eq!(server["id"], format!("s{number}"));
                    assert_eq!(server["role"], if number == 0 { "names, data" } else { "data" });
                    assert_eq!((&server["same_directory"], &server["epoch"]), (&true.into(), &1.into()), "{server:#}");
                    assert_eq!(server["version"], env!("CARGO_PKG_VERSION"));
                    assert!(server["clock_ahead_ms"].as_i64().unwrap().abs() < 1000, "{server:#}");
                    let allowed = if lines.contains("loadbalance") { "read-only" } else { "coherent = true" };
                    assert_eq!(server["allowed"], allowed);
                }
                let by = checked["compared"].as_str().unwrap();
                let expected =
                    if lines.contains("loadbalance") { "1 of their files" } else { "written, changed and removed" };
                assert!(by.contains(expected), "{by}");
            }
            wait_until("nothing of it is left", SOON, || names(volume.export.path()) == ["file"]);
        }
        let volume = Volume::with("mode = 'cluster'", 2);
        let told = run(aqueduct().args(["volume", "check"]).arg(&volume.file)).succeeded();
        assert!(told.contains("nothing is wrong") && told.contains("coherent = true"), "{told}");
    });
}

#[test]
fn a_server_that_does_not_answer_is_named_and_the_others_are_checked() {
    test(|| {
        let mut volume = Volume::with("mode = 'cluster'", 3);
        volume.kill(2);
        let (is_right, checked) = check(&volume.file);
        let found = wrong(&checked);
        assert!(!is_right && matches!(&found[..], [(id, what)] if id == "s2" && what.contains("refused")), "{found:?}");
        assert_eq!(checked["servers"][1]["same_directory"], true);
        // Those that are left are compared with each other.
        volume.start_server(2);
        volume.kill(0);
        let (_, checked) = check(&volume.file);
        let found = wrong(&checked);
        assert!(matches!(&found[..], [(id, _)] if id == "s0"), "{found:?}");
        assert_eq!(checked["servers"][2]["same_directory"], true);
        let told = run(aqueduct().args(["volume", "check"]).arg(&volume.file)).failed();
        assert!(told.contains("NO ANSWER") && told.contains("server s0") && told.contains("do: "), "{told}");
        // One that stands still is not waited for long.
        volume.start_server(0);
        let still = volume.servers[1].as_ref().unwrap();
        still.stop();
        let (_, checked) = check(&volume.file);
        still.signal(Signal::CONT);
        let found = wrong(&checked);
        assert!(matches!(&found[..], [(id, what)] if id == "s1" && what.contains("says nothing")), "{found:?}");
    });
}

#[test]
fn a_server_with_another_directory_key_or_file_is_named() {
    test(|| {
        for lines in ["mode = 'cluster'", "mode = 'loadbalance'"] {
            let mut volume = Volume::with(lines, 3);
            let (other, folder) = (directory(), directory());
            let shared = volume.export.path().display().to_string();
            // The first of the three keeps its directory.
            let change = |text: String| text.replacen(&shared, &other.path().display().to_string(), 3);
            let file = copy(&volume, folder.path(), change);
            start_by(&mut volume, 1, &file);
            let (is_right, checked) = check(&volume.file);
            let found = wrong(&checked);
            assert!(
                !is_right && matches!(&found[..], [(id, what)] if id == "s1" && what.contains("is another one")),
                "{found:?}"
            );
            let same: Vec<_> = (0..3).map(|number| checked["servers"][number]["same_directory"].clone()).collect();
            assert_eq!(same, [true, false, true]);
        }

        let mut volume = Volume::with("mode = 'cluster'", 3);
        let folder = directory();
        let file = copy(&volume, folder.path(), |text| text.replace("'cluster'", "'stripe'\nstripe_size = '256KiB'"));
        start_by(&mut volume, 2, &file);
        let (_, checked) = check(&volume.file);
        let found = wrong(&checked);
        assert!(
            matches!(&found[..], [(id, what)] if id == "s2" && what.contains("mode stripe instead of cluster") && what.contains("stripe_size")),
            "{found:?}"
        );

        fs::remove_file(file.with_extension("key")).unwrap();
        fs::copy(&volume.file, &file).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        start_by(&mut volume, 2, &file);
        let (_, checked) = check(&volume.file);
        let found = wrong(&checked);
        assert!(found.iter().all(|(id, what)| id == "s2" && what.contains("volume.key")), "{found:?}");
        assert_eq!(checked["servers"][2]["same_directory"], Value::Null, "{checked:#}");
        assert!(!found.is_empty());
    });
}

#[test]
fn a_file_system_that_the_mode_does_not_allow_is_named() {
    test(|| {
        let volume = Volume::with("mode = 'cluster'", 3);
        let text = fs::read_to_string(&volume.file).unwrap();
        fs::write(&volume.file, text.replace("coherent = true\n", "")).unwrap();
        let (is_right, checked) = check(&volume.file);
        let found = wrong(&checked);
        assert!(!is_right, "{checked:#}");
        for number in 0..3 {
            let of_it = found.iter().filter(|(id, _)| *id == format!("s{number}"));
            let told: Vec<_> = of_it.map(|(_, what)| what.as_str()).collect();
            assert!(told.iter().any(|what| what.contains("does not allow")), "{told:?}");
            assert!(
                told.iter().any(|what| what.contains("another volume file") && what.contains("coherent")),
                "{told:?}"
            );
            assert_eq!(checked["servers"][number]["allowed"], Value::Null);
        }
        // By one of the servers, their word counts.
        let (is_right, checked) = check(format!("scratch@{}", volume.addresses[1]));
        assert!(is_right, "{checked:#}");
    });
}
