//! What arrives is all that was there, and what the manifest says of it is true.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use crate::common::{Server, aqueduct, directory, directory_for_devices, test};
use crate::tree::{assert_same, body, names, plant, text, told, transfer};

#[test]
fn a_tree_arrives_whole_from_here_to_here() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        let copy = target.path().join("copy");
        plant(source.path());
        let manifest = home.path().join("manifest");
        for verify in ["wire", "stable", "off"] {
            let _ = fs::remove_dir_all(&copy);
            let from = format!("{}/", source.path().display());
            let arguments = ["cp", "-r", "--verify", verify, "--manifest", text(&manifest), &from, text(&copy)];
            transfer(home.path(), &arguments).succeeded();
            assert_same(source.path(), &copy);
            let sparse = fs::metadata(copy.join("sparse")).unwrap();
            assert!(sparse.blocks() * 512 < 4 << 20, "holes stay holes: {}", sparse.blocks());
            for side in [source.path(), &copy] {
                transfer(home.path(), &["verify", text(&manifest), text(side)]).succeeded();
            }
        }
        assert!(fs::read_dir(home.path()).unwrap().count() == 1, "a journal stays of what is done");
    });
}

#[test]
fn a_tree_arrives_whole_at_a_server_and_back() {
    test(|| {
        let (home, source, export, back) =
            (directory(), directory_for_devices(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let server =
            Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--squash", "none"], &[export.path()]);
        let there = format!("{}/copy", server.source(export.path()));
        let [first, second] = ["first", "second"].map(|name| home.path().join(name));
        let from = format!("{}/", source.path().display());
        transfer(home.path(), &["cp", "-r", "--manifest", text(&first), &from, &there]).succeeded();
        assert_same(source.path(), &export.path().join("copy"));
        transfer(home.path(), &["verify", text(&first), &there]).succeeded();
        // The manifest says where the time went, all of it.
        let whole = fs::read_to_string(&first).unwrap();
        let last: serde_json::Value = serde_json::from_str(whole.lines().last().unwrap()).unwrap();
        let spent = last["spent"].as_object().unwrap();
        assert_eq!(spent.values().map(|percent| percent.as_u64().unwrap()).sum::<u64>(), 100, "{last}");
        assert!(!spent.contains_key("destination disk") && !spent.contains_key("network and source server"), "{last}");
        let copy = back.path().join("copy");
        let arguments = ["cp", "-r", "--verify", "stable", "--manifest", text(&second), &there, text(&copy)];
        transfer(home.path(), &arguments).succeeded();
        assert_same(source.path(), &copy);
        assert_eq!(body(&first), body(&second), "two copies of one tree have one manifest");
        let between = format!("{}/again", server.source(export.path()));
        transfer(home.path(), &["cp", "-r", &there, &between]).succeeded();
        assert_same(source.path(), &export.path().join("again"));
    });
}

/// An export that has a name is called by it, whatever directory it is.
#[test]
fn an_export_with_a_name_is_copied_to_and_from() {
    test(|| {
        let (home, source, export, back) =
            (directory(), directory_for_devices(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let config = home.path().join("aqueduct.toml");
        let text_of = format!("[[export]]\npath = '{}'\nname = 'data'\nsquash = 'none'\n", export.path().display());
        fs::write(&config, text_of).unwrap();
        let server = Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--config", text(&config)], &[]);
        let (from, there) = (format!("{}/", source.path().display()), format!("{}:data/a/copy", server.address));
        fs::create_dir(export.path().join("a")).unwrap();
        let manifest = back.path().join("manifest");
        transfer(home.path(), &["cp", "-r", "--manifest", text(&manifest), &from, &there]).succeeded();
        assert_same(source.path(), &export.path().join("a/copy"));
        transfer(home.path(), &["verify", text(&manifest), &there]).succeeded();
        let copy = back.path().join("copy");
        transfer(home.path(), &["sync", &format!("{there}/"), text(&copy)]).succeeded();
        assert_same(source.path(), &copy);
        let refused = transfer(home.path(), &["cp", &format!("{}:other/x", server.address), text(&copy)]);
        assert!(refused.failed().contains("it has: data"), "an export that is not there");
    });
}

#[test]
fn a_second_sync_has_nothing_to_do() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let (from, copy) = (format!("{}/", source.path().display()), target.path().join("copy"));
        transfer(home.path(), &["sync", &from, text(&copy)]).succeeded();
        assert_same(source.path(), &copy);
        let before = names(&copy);
        let (code, said) = told(home.path(), &["sync", &from, text(&copy)]);
        assert_eq!((code, &said["files"], &said["moved"]), (0, &0.into(), &0.into()), "{said}");
        assert_eq!(names(&copy), before);
        // What differs comes over, also where only an attribute does.
        fs::write(source.path().join("d/9"), "other").unwrap();
        fs::set_permissions(source.path().join("d/8"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let (_, said) = told(home.path(), &["sync", &from, text(&copy)]);
        assert_eq!(said["files"], 1, "{said}");
        assert_same(source.path(), &copy);
    });
}

/// As cp has it, and for a slash at the end as rsync has it.
#[test]
fn a_source_goes_where_it_should() {
    test(|| {
        let home = directory();
        let at = |name: &str| home.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/f"), "f").unwrap();
        fs::create_dir(at("into")).unwrap();
        let done = |arguments: &[&str]| {
            let paths: Vec<String> = arguments
                .iter()
                .map(|path| {
                    if path.starts_with('-') || path.len() > 6 {
                        (*path).to_owned()
                    } else {
                        format!("{}/{path}", home.path().display())
                    }
                })
                .collect();
            let command = if arguments[0] == "--sync" { vec!["sync"] } else { vec!["cp", "-r"] };
            let paths: Vec<&str> = paths.iter().map(String::as_str).filter(|path| *path != "--sync").collect();
            transfer(&at("j"), &[command, paths].concat())
        };
        done(&["a", "n1"]).succeeded();
        done(&["a", "into"]).succeeded();
        done(&["a/", "n2"]).succeeded();
        done(&["a/b/f", "n3"]).succeeded();
        done(&["a/b/f", "n1", "into"]).succeeded();
        done(&["--sync", "a", "n4"]).succeeded();
        done(&["--sync", "a/", "n5"]).succeeded();
        for file in ["n1/b/f", "into/a/b/f", "n2/b/f", "n3", "into/f", "into/n1/b/f", "n4/a/b/f", "n5/b/f"] {
            assert_eq!(fs::read(at(file)).unwrap(), b"f", "{file}");
        }
        for wrong in [&["a/b/f", "n1", "none"] as &[&str], &["a", "n3"], &["none", "n6"], &["a/", "a"]] {
            done(wrong).failed();
        }
        let said = done(&["a/b/f", "a/b/f"]).failed();
        assert!(said.contains("same file"), "{said}");
        let said = done(&["a", "a/b/c"]).failed();
        assert!(said.contains("into itself"), "{said}");
    });
}

/// As rsync and cp have it; without the slash the link itself is copied.
#[test]
fn a_link_with_a_slash_is_what_is_in_its_directory() {
    test(|| {
        let (home, export) = (directory(), directory());
        let at = |name: &str| export.path().join(name);
        fs::create_dir_all(at("a/real/d")).unwrap();
        fs::write(at("a/real/d/f"), "f").unwrap();
        symlink("../b/second", at("a/first")).unwrap();
        fs::create_dir(at("b")).unwrap();
        symlink(at("a/./real"), at("b/second")).unwrap();
        symlink("../..", at("a/out")).unwrap();
        symlink("/etc", at("a/etc")).unwrap();
        symlink("round", at("a/round")).unwrap();
        let server = Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0"], &[export.path()]);
        let there = server.source(export.path());
        for (round, from) in [export.path().display().to_string(), there.clone()].into_iter().enumerate() {
            let copy = home.path().join(format!("copy{round}"));
            transfer(home.path(), &["cp", "-r", &format!("{from}/a/first/"), text(&copy)]).succeeded();
            assert_eq!(fs::read(copy.join("d/f")).unwrap(), b"f");
            let copy = home.path().join(format!("link{round}"));
            transfer(home.path(), &["cp", "-r", &format!("{from}/a/first"), text(&copy)]).succeeded();
            assert_eq!(fs::read_link(&copy).unwrap(), Path::new("../b/second"));
        }
        // At a server no link leads out of what it serves.
        for name in ["out", "etc", "round"] {
            let copy = home.path().join(name);
            let said = transfer(home.path(), &["cp", "-r", &format!("{there}/a/{name}/"), text(&copy)]).failed();
            assert!(said.contains("cannot follow the link") && !copy.exists(), "{said}");
        }
    });
}

/// However many threads copy: the same arrives, and fixed numbers stay.
#[test]
fn the_number_of_threads_is_found_or_given() {
    test(|| {
        let (home, source, target) = (directory(), directory_for_devices(), directory_for_devices());
        plant(source.path());
        let from = format!("{}/", source.path().display());
        for (arguments, least, most) in
            [(&["--tune", "off"][..], 4, 4), (&["--streams", "7"], 7, 7), (&["--tune", "on"], 1, 16)]
        {
            let copy = target.path().join(arguments.join(""));
            let (code, said) = told(home.path(), &[&["cp", "-r", &from, text(&copy)], arguments].concat());
            let streams = said["streams"].as_u64().unwrap();
            assert!(code == 0 && (least..=most).contains(&streams), "{arguments:?}: {said}");
            assert_same(source.path(), &copy);
        }
    });
}

/// Two disks (xfs) whose file system keeps projects: `source` with a tree of project 42, a file of
/// 43 in it; `target`, where `counted` gives 9 to what is made in it.
const PROJECTS: &str = r#"
mount --make-rprivate /
for disk in source target; do
    mkdir $disk
    truncate -s 320M $disk.image # the least that mkfs.xfs takes
    mkfs.xfs -q $disk.image
    mount -o loop $disk.image $disk
done
mkdir -p source/tree/sub target/counted
chattr -p 42 +P source/tree source/tree/sub
echo small > source/tree/small
echo deep > source/tree/sub/deep
ln -s small source/tree/link
head -c 3000000 /dev/urandom > source/tree/large
echo other > source/tree/other
chattr -p 43 source/tree/other
echo none > source/none
chattr -p 9 +P target/counted
"$AQUEDUCT" cp -r --no-journal --json source/tree source/none target > told || echo "exit $?"
"$AQUEDUCT" cp -r --no-journal --json source/tree source/none target/counted > told.counted || echo "exit $?"
# One that is given, and then another, when all else is there already.
mkdir source/late
echo late > source/late/file
"$AQUEDUCT" sync --no-journal source/late target
for number in 50 51; do
    chattr -p $number source/late source/late/file
    "$AQUEDUCT" sync --no-journal --json source/late target > told.$number
    lsattr -pd target/late target/late/file | grep -c "^ *$number" || true
done
lsattr -pd target/tree target/none target/counted target/counted/none
lsattr -pR target
"#;

#[test]
fn projects_arrive_and_the_destination_has_its_own() {
    test(|| {
        let home = directory_for_devices();
        let mut script = std::process::Command::new("unshare");
        script.args(["-m", "sh", "-ec", PROJECTS]).current_dir(home.path());
        script.env("AQUEDUCT", env!("CARGO_BIN_EXE_aqueduct"));
        let out = script.output().unwrap();
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            return eprintln!("skipped: no disk with projects: {}", String::from_utf8_lossy(&out.stderr));
        }
        let project = |name: &str| {
            let of = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                (*words.last()? == name).then(|| words[0].parse::<u32>().ok()).flatten()
            };
            shown.lines().find_map(of).unwrap_or_else(|| panic!("{name} is not in {shown}"))
        };
        for (name, expected) in [
            ("target/tree", 42),
            ("target/tree/sub", 42),
            ("target/tree/small", 42),
            ("target/tree/large", 42),
            ("target/tree/sub/deep", 42),
            ("target/none", 0),
            ("target/late", 51),
            ("target/late/file", 51),
            // What counts for the destination's own project stays there.
            ("target/counted/tree", 9),
            ("target/counted/tree/small", 9),
            ("target/counted/none", 9),
        ] {
            assert_eq!(project(name), expected, "{name}: {shown}");
        }
        assert!(shown.contains("\n2\n2\n"), "{shown}");
        let told = |name: &str| -> serde_json::Value {
            serde_json::from_str(&fs::read_to_string(home.path().join(name)).unwrap()).unwrap()
        };
        assert_eq!(told("told.51")["files"], 0);
        let told = told("told.counted");
        let lost: Vec<&str> = told["lost"].as_array().unwrap().iter().filter_map(|one| one["what"].as_str()).collect();
        assert!(lost.contains(&"project 42, since its directory gives 9"), "{told}");
        assert!(shown.contains("exit 3"), "{shown}");
    });
}
