//! What clients have brought to servers of data whose machines die.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{SOON, aqueduct, have, own_mounts, run, skip, wait_until, within};
use crate::objects::{LARGE, mount, read, written};
use crate::plain::{LONG, Plain, content};
use crate::sys;

/// The least that is enough for what is written here.
const IMAGE_SIZE: u64 = 200 << 20;

/// A directory with an ext4 of its own, until it is dropped.
struct Disk {
    directory: PathBuf,
    device: String,
}

impl Disk {
    fn over(directory: &Path) -> Option<Disk> {
        let image = directory.with_extension("image");
        File::create(&image).unwrap().set_len(IMAGE_SIZE).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image)).succeeded();
        let attached = run(Command::new("losetup").args(["-f", "--show"]).arg(&image));
        if !attached.status.success() {
            skip(&format!("there are no loop devices: {}", attached.text));
            return None;
        }
        let disk = Disk { directory: directory.to_owned(), device: attached.text.trim().to_owned() };
        disk.mount();
        Some(disk)
    }

    fn mount(&self) {
        run(Command::new("mount").arg(&self.device).arg(&self.directory)).succeeded();
    }

    /// What nobody has made stable is lost, as by a power failure. Nobody uses it.
    fn dies(&self) {
        sys::shut_down(File::open(&self.directory).unwrap().as_fd()).unwrap();
        let umount = || run(Command::new("umount").arg(&self.directory)).status.success();
        wait_until("nobody uses the disk", SOON, umount);
        let in_use = Path::new("/sys/fs/ext4").join(self.device.trim_start_matches("/dev/"));
        wait_until("the file system has ended", SOON, || !in_use.exists());
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.directory).output();
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

/// A program on a machine that says that it was booted so often.
fn booted(times: u32, folder: &Path) -> Option<Command> {
    let mut command = own_mounts()?;
    let boot = folder.join(format!("boot-{times}"));
    fs::write(&boot, format!("00000000-0000-0000-0000-{times:012}\n")).unwrap();
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    command.args(["sh", "-c", script]).arg(&boot).arg(aqueduct().get_program());
    Some(command)
}

#[test]
fn a_machine_that_dies_loses_nothing_of_what_was_brought_to_it() {
    within(LONG, || {
        if !have(&["mkfs.ext4", "losetup", "unshare"]) || own_mounts().is_none() {
            return;
        }
        const LENGTH: usize = 12 << 20;
        for lines in LARGE {
            let mut disks = Vec::new();
            let mut volume = Plain::prepared(lines, (2, false), |_, directory| disks.extend(Disk::over(directory)));
            if disks.len() < 2 {
                return;
            }
            let folder = volume.file.parent().unwrap().to_owned();
            volume.kill(1);
            volume.start_server_by(1, booted(1, &folder).unwrap());
            let writer = mount(&volume, "");
            let before = written(&volume).0;
            let files: Vec<_> = (0..3).map(|number| writer.join(format!("file-{number}"))).collect();
            // Closed at once: what is started while one is open closes it, too, and waits for that.
            for (number, path) in files.iter().enumerate() {
                File::create_new(path).unwrap().write_all_at(&content(number, LENGTH), 0).unwrap();
            }
            assert!(written(&volume).0 > before + (3 << 20), "it was not brought");
            // Written over, at a place that was brought before.
            File::options().write(true).open(&files[0]).unwrap().write_all_at(&content(9, 5000), 3 << 20).unwrap();
            // And brought over what went by the server of the names, which has a copy of that.
            for (seed, length) in [(8, 7000), (7, 1 << 20)] {
                let file = File::options().write(true).open(&files[0]).unwrap();
                file.write_all_at(&content(seed, length), 5 << 20).unwrap();
            }
            volume.kill(1);
            disks[1].dies();
            volume.start_server_by(1, booted(2, &folder).unwrap());
            let mut expected = content(0, LENGTH);
            expected[5 << 20..][..1 << 20].copy_from_slice(&content(7, 1 << 20));
            expected[3 << 20..][..5000].copy_from_slice(&content(9, 5000));
            let reader = mount(&volume, "");
            for (number, path) in files.iter().enumerate() {
                let expected = if number == 0 { expected.clone() } else { content(number, LENGTH) };
                assert!(read(path).unwrap() == expected, "{lines}: file {number}");
                let other = reader.join(format!("file-{number}"));
                assert!(read(&other).unwrap() == expected, "{lines}: file {number} of another mount");
            }
        }
    });
}
