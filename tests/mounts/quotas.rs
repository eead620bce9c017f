//! Quotas of plain directories: for whom and for what the objects of a file count.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::{aqueduct, directory_for_devices, run, skip, wait_until, within};
use crate::plain::{LONG, Plain, STRIPED, WHOLE, content, work};

const TREE: u32 = 7;
const OURS: u32 = 42;

/// File systems of their own over directories, which keep projects, until it is dropped.
struct Disks {
    mounted: Vec<PathBuf>,
    images: TempDir,
}

impl Disks {
    fn over(&mut self, number: usize, directory: &Path) -> bool {
        let image = self.images.path().join(format!("{number}.image"));
        // The least that mkfs.xfs takes.
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let does = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_made = does(Command::new("mkfs.xfs").arg("-q").arg(&image))
            && does(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(directory));
        self.mounted.extend(is_made.then(|| directory.to_owned()));
        is_made
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for directory in &self.mounted {
            let _ = Command::new("umount").arg("-l").arg(directory).status();
        }
    }
}

/// A volume on such file systems, whose tree and a folder `ours` in it have projects.
fn volume(lines: &str, count: usize) -> Option<(Plain, Disks)> {
    let mut disks = Disks { mounted: Vec::new(), images: directory_for_devices() };
    let mut is_whole = true;
    let volume = Plain::prepared(lines, (count, false), |number, directory| {
        is_whole &= disks.over(number, directory);
        if is_whole && number == 0 {
            give(TREE, directory, true);
            fs::create_dir(directory.join("ours")).unwrap();
            give(OURS, &directory.join("ours"), true);
        }
    });
    if !is_whole {
        skip("needs xfs on loop devices");
        return None;
    }
    Some((volume, disks))
}

fn give(project: u32, path: &Path, is_inherited: bool) {
    let mut command = Command::new("chattr");
    command.args(["-p", &project.to_string()]).args(is_inherited.then_some("+P")).arg(path);
    run(&mut command).succeeded();
}

/// The project in a line about an object.
fn project_of(line: &str) -> Option<u32> {
    let (words, path) = line.split_once('/')?;
    let is_object = path.rsplit_once('/')?.1.contains('.');
    words.split_whitespace().next().filter(|_| is_object)?.parse().ok()
}

/// The projects of all objects of a server: what its file system counts their blocks for.
fn projects(volume: &Plain, number: usize) -> Vec<u32> {
    let told = run(Command::new("lsattr").arg("-pR").arg(volume.dir(number).join("objects"))).succeeded();
    let mut projects: Vec<u32> = told.lines().filter_map(project_of).collect();
    projects.sort_unstable();
    projects
}

#[test]
fn objects_have_the_project_of_their_file() {
    within(LONG, || {
        for (lines, [of_tree, of_ours]) in [(WHOLE, [1, 1]), (STRIPED, [2, 2])] {
            let Some((mut volume, _disks)) = volume(lines, 3) else { return };
            let mount = volume.mount("cache=none");
            let all = |volume: &Plain| {
                let mut all = [projects(volume, 1), projects(volume, 2)].concat();
                all.sort_unstable();
                all
            };
            let expected = [vec![TREE; of_tree], vec![OURS; of_ours]].concat();
            fs::write(mount.join("file"), content(1, 1 << 20)).unwrap();
            fs::write(mount.join("ours/file"), content(2, 1 << 20)).unwrap();
            assert_eq!(all(&volume), expected);
            // So it is after somebody else has it, and where it lies after a move.
            chown(mount.join("ours/file"), Some(1000), Some(1000)).unwrap();
            work(&volume, &["drain", "s1"]).succeeded();
            assert_eq!((projects(&volume, 1).len(), projects(&volume, 2)), (0, expected.clone()));
            work(&volume, &["drain", "s1", "--undo"]).succeeded();
            assert!(fs::read(mount.join("ours/file")).unwrap() == content(2, 1 << 20));
            run(aqueduct().args(["volume", "check"]).arg(&volume.file)).succeeded();
            // What the server keeps for who has it open has no project in common with its folder.
            fs::write(mount.join("ours/small"), "small").unwrap();
            // Another process: this one would wait for the mount in each that it starts meanwhile.
            let script = "exec 3< \"$1\"; echo; read line; cat <&3";
            let mut holder = Command::new("sh");
            holder.args(["-c", script, "sh"]).arg(mount.join("ours/small"));
            let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let (mut goes_on, mut told) = (holder.stdin.take().unwrap(), holder.stdout.take().unwrap());
            told.read_exact(&mut [0]).unwrap();
            fs::remove_file(mount.join("ours/small")).unwrap();
            volume.kill(0);
            volume.start_server(0);
            goes_on.write_all(b"\n").unwrap();
            let mut text = String::new();
            told.read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), holder.wait().unwrap().success()), ("small", true));
            for name in ["ours/file", "file"] {
                fs::remove_file(mount.join(name)).unwrap();
            }
            wait_until("the objects are gone", LONG, || all(&volume).is_empty());
        }
    });
}

/// Projects that somebody gives files on the server itself are followed when that is asked for.
#[test]
fn a_repair_gives_objects_the_project_that_their_file_has_now() {
    within(LONG, || {
        let Some((volume, _disks)) = volume(WHOLE, 2) else { return };
        let mount = volume.mount("cache=none");
        fs::write(mount.join("file"), content(1, 1 << 20)).unwrap();
        assert_eq!(projects(&volume, 1), [TREE]);
        let check = |more: &[&str]| run(aqueduct().args(["volume", "check"]).args(more).arg(&volume.file));
        check(&[]).succeeded();
        give(OURS, &volume.dir(0).join("file"), false);
        let text = check(&[]).failed();
        assert!(text.contains("counts for another project than 42"), "{text}");
        check(&["--repair"]).succeeded();
        check(&[]).succeeded();
        assert_eq!(projects(&volume, 1), [OURS]);
        assert!(fs::read(mount.join("file")).unwrap() == content(1, 1 << 20));
        fs::rename(mount.join("file"), mount.join("ours/file")).unwrap();
    });
}
