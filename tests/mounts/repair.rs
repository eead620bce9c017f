//! Repair of volumes of plain directories, with whole processes: while they are used, when it is
//! killed, and without their servers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Output, Process, SOON, aqueduct, directory, run_within, wait_until, within};
use crate::plain::{LONG, Plain, STRIPED, WHOLE, content};

const LAYOUT: &str = "trusted.aqueduct.layout";

fn check(volume: &Plain, arguments: &[&str]) -> Output {
    let mut command = aqueduct();
    command.args(["volume", "check"]).arg(&volume.file).args(arguments);
    run_within(Duration::from_secs(60), &mut command)
}

fn store(volume: &Plain, number: usize) -> PathBuf {
    let dir = volume.dir(number);
    if number == 0 { dir.join(".aqueduct-volume/store") } else { dir }
}

fn lost(volume: &Plain) -> usize {
    let of = |number| fs::read_dir(store(volume, number).join(".lost")).map_or(0, |entries| entries.count());
    (0..3).map(of).sum()
}

/// An object of nobody's at each server, of other names each round.
fn plant_orphans(volume: &Plain, round: usize) {
    for number in 0..3 {
        let name = format!("{number:x}{round:031x}.0");
        fs::write(store(volume, number).join("objects").join(number.to_string()).join(name), b"nobody's").unwrap();
    }
}

/// All that is below a directory, by the paths from there.
fn all(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => _ = found.insert(path.strip_prefix(directory).unwrap().to_owned(), fs::read(&path).unwrap()),
            }
        }
    }
    found
}

/// Makes, writes, moves, links and removes files, and moves directories, so many times: the whole
/// of it takes a few seconds.
fn storm(directory: &Path, seed: usize) -> Command {
    let script = "mkdir -p s$0/a/deep s$0/b; cd s$0
        for i in $(seq 20); do
            seq $((i * 900)) > a/f$((i % 5)); mv a/f$((i % 5)) b/g$((i % 3)); ln -f b/g$((i % 3)) a/link
            if [ -d a/deep ]; then mv a/deep b/deep; seq 9000 > b/deep/h; else mv b/deep a/deep; rm -f a/deep/h; fi
            [ $((i % 4)) = 0 ] && rm -f b/g$((i % 3))
            truncate -s $((i * 700)) a/link
        done; true";
    let mut command = Command::new("bash");
    command.args(["-euc", script, &seed.to_string()]).current_dir(directory);
    command
}

#[test]
fn what_is_wrong_is_mended_while_files_are_made_moved_and_removed() {
    within(LONG, || {
        let volume = Plain::new(STRIPED, 3);
        let (left, right) = (volume.mount(""), volume.mount("cache=none"));
        fs::create_dir(left.join("kept")).unwrap();
        for number in 0..10 {
            let length = if number < 8 { 400_000 } else { 3_000 };
            fs::write(left.join(format!("kept/{number}")), content(number, length)).unwrap();
        }
        let before = all(&left.join("kept"));
        let object = |number: usize| {
            let folders = fs::read_dir(store(&volume, number).join("objects")).unwrap();
            folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap()).next().unwrap().unwrap().path()
        };
        // One that lost its attribute, one that lost an object, and objects that lost their file.
        fs::write(left.join("broken"), content(30, 400_000)).unwrap();
        let (tree, known) = (volume.dir(0), object(1));
        let id = known.file_name().unwrap().to_str().unwrap()[..32].to_owned();
        rustix::fs::removexattr(tree.join("kept/0"), LAYOUT).unwrap();
        plant_orphans(&volume, 0);
        let told = check(&volume, &["--repair", "--dry-run"]).failed();
        assert!(told.contains("4 found, 4 would be mended") && lost(&volume) == 0, "{told}\n{id}");
        let home = directory();
        let mut storms: Vec<Process> = (0..4)
            .map(|seed| {
                let mount = if seed % 2 == 0 { &left } else { &right };
                Process::start(&mut storm(mount.path(), seed), &home.path().join(format!("storm-{seed}")))
            })
            .collect();
        let mut rounds = 0;
        while storms.iter_mut().any(|storm| storm.has_ended().is_none()) {
            let told = check(&volume, &["--repair"]).succeeded();
            let expected = if rounds == 0 { "4 found, 4 mended" } else { "3 found, 3 mended" };
            assert!(told.contains(expected), "round {rounds}: {told}");
            rounds += 1;
            plant_orphans(&volume, rounds);
        }
        for storm in &mut storms {
            storm.ends_within(SOON);
            assert!(storm.has_ended().unwrap().success(), "{}", storm.output());
        }
        assert!(rounds > 1);
        assert_eq!(lost(&volume), 3 * rounds);
        assert!(all(&left.join("kept")) == before && all(&right.join("kept")) == before);
        for seed in 0..4 {
            let (one, other) = (all(&left.join(format!("s{seed}"))), all(&right.join(format!("s{seed}"))));
            assert!(!one.is_empty() && one == other, "storm {seed}");
        }
        check(&volume, &["--repair"]).succeeded();
        check(&volume, &[]).succeeded();
        assert!(check(&volume, &["--purge"]).succeeded().contains("mended") && lost(&volume) == 0);
        // What cannot be mended is told, and gives EIO.
        let object = fs::read_dir(store(&volume, 1).join("objects").join(&id[..1])).unwrap();
        object.for_each(|object| fs::remove_file(object.unwrap().path()).unwrap());
        let told = check(&volume, &["--repair", "--json"]).failed();
        assert!(told.contains("cannot be made again") && told.contains("\"done\":false"), "{told}");
        // Names are told as a check tells them.
        let name = "it's a \"name\" \u{1b}[2J";
        let copied = Command::new("cp").arg("--sparse=never").args(["kept/0", name]).current_dir(&tree).status();
        assert!(copied.unwrap().success());
        let shown = "it's a \"name\" \u{fffd}[2J: it is a copy of a file's stub";
        for arguments in [&[][..], &["--repair"]] {
            let told = check(&volume, arguments).failed();
            assert!(told.contains(shown), "{told}");
        }
    });
}

#[test]
fn a_repair_that_is_killed_is_gone_on_with_and_needs_no_server() {
    within(LONG, || {
        let mut volume = Plain::new(STRIPED, 3);
        let mount = volume.mount("");
        for number in 0..40 {
            fs::write(mount.join(format!("file-{number}")), content(number, 200_000)).unwrap();
        }
        let before: Vec<_> = all(mount.path()).into_values().collect();
        drop(mount);
        let mut rounds = 0;
        let mut harm = |volume: &Plain| {
            rounds += 1;
            plant_orphans(volume, rounds);
            for number in 0..20 {
                rustix::fs::removexattr(volume.dir(0).join(format!("file-{number}")), LAYOUT).unwrap();
            }
        };
        // The command is killed, then the server of the names, at several places each.
        for wait in [5, 60, 150] {
            for kills_server in [false, true] {
                harm(&volume);
                let mut command = aqueduct();
                command.args(["volume", "check", "--repair"]).arg(&volume.file);
                let home = directory();
                let mut repair = Process::start(&mut command, &home.path().join("log"));
                std::thread::sleep(Duration::from_millis(wait));
                match kills_server {
                    true => volume.kill(0),
                    false => repair.signal(Signal::KILL),
                }
                repair.ends_within(SOON);
                if kills_server {
                    volume.start_server(0);
                }
                wait_until("the volume is mended", LONG, || check(&volume, &["--repair"]).status.success());
                check(&volume, &[]).succeeded();
            }
        }
        let mount = volume.mount("");
        assert!(all(mount.path()).into_values().eq(before.iter().cloned()));
        drop(mount);
        harm(&volume);
        let stores: Vec<String> = (1..3).map(|n| format!("--store=s{n}={}", volume.dir(n).display())).collect();
        let told = check(&volume, &["--repair", &stores[0], &stores[1]]).failed();
        assert!(told.contains("leave --store out"), "{told}");
        (0..3).for_each(|number| volume.kill(number));
        let told = check(&volume, &["--repair", &stores[0]]).failed();
        assert!(told.contains("'s2' is not given"), "{told}");
        let told = check(&volume, &["--repair", &stores[0], &stores[1]]).succeeded();
        assert!(told.contains("23 found, 23 mended"), "{told}");
        let told = check(&volume, &["--dry-run"]).failed();
        assert!(told.contains("give --dry-run with"), "{told}");
        (0..3).rev().for_each(|number| volume.start_server(number));
        let mount = volume.mount("");
        assert!(all(mount.path()).into_values().eq(before));
    });
}

#[test]
fn an_export_waits_for_no_server_that_is_dead() {
    within(LONG, || {
        let mut volume = Plain::with_names(WHOLE, 3, false);
        let mount = volume.mount("");
        (0..12).for_each(|number| fs::write(mount.join(number.to_string()), content(number, 100_000)).unwrap());
        drop(mount);
        let there = volume.objects(2);
        assert!((1..12).contains(&there) && there + volume.objects(1) == 12);
        volume.kill(1);
        let home = directory();
        let export = |name: &str, stores: &[String]| {
            let mut command = aqueduct();
            command.args(["volume", "export"]).arg(&volume.file).arg(home.path().join(name)).args(stores);
            run_within(Duration::from_secs(60), &mut command)
        };
        let told = export("part", &[]).failed();
        assert!(told.contains("say where its store is: --store s1=DIR"), "{told}");
        let copied = all(&home.path().join("part"));
        assert_eq!((copied.len(), told.matches("not copied: ").count()), (there, 12 - there), "{told}");
        for (path, data) in copied {
            let number = path.to_str().unwrap().parse().unwrap();
            assert!(data == content(number, 100_000), "{number}");
        }
        export("whole", &[format!("--store=s1={}", volume.dir(1).display())]).succeeded();
        assert_eq!(all(&home.path().join("whole")).len(), 12);
    });
}
