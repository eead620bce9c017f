//! What has its name is on the disk, wherever below the destination the disk is.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{FileSystem, Mount, Server, aqueduct, directory, disk_directory, have, run, test};
use crate::tree::{noise, text, told, transfer};

/// ext4 on a file, mounted somewhere.
struct Disk {
    image: PathBuf,
    point: PathBuf,
}

impl Disk {
    fn new(image: &Path, point: &Path) -> Disk {
        File::create(image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image)).succeeded();
        Disk::mount(image, point)
    }

    fn mount(image: &Path, point: &Path) -> Disk {
        fs::create_dir_all(point).unwrap();
        let options: &[&str] = if image.starts_with("/dev") { &[] } else { &["-o", "loop"] };
        run(Command::new("mount").args(options).args([image, point])).succeeded();
        Disk { image: image.to_owned(), point: point.to_owned() }
    }

    /// What would be there if the power went now, mounted at another place.
    fn after_a_power_cut(&self, point: &Path) -> Disk {
        let image = self.image.with_extension("cut");
        fs::copy(&self.image, &image).unwrap();
        Disk::mount(&image, point)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).status();
    }
}

/// A file as a disk that says of each block that it has no room for it: of several at once the
/// driver takes some for all.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &Path) -> Loop {
        let output = run(Command::new("losetup").args(["-f", "--show"]).arg(image));
        let device = Loop(PathBuf::from(output.succeeded().trim()));
        let name = device.0.file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/block/{name}/queue/max_sectors_kb"), "4").unwrap();
        device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// The destination itself is in memory, or on another disk.
#[test]
fn what_lies_on_a_disk_that_is_mounted_below_is_stable_in_the_end() {
    test(|| {
        if !have(&["mkfs.ext4", "mount", "umount"]) {
            return;
        }
        let (home, source, images, on_disk) = (directory(), directory(), disk_directory(), disk_directory());
        for number in 0..30 {
            fs::create_dir_all(source.path().join("m/d")).unwrap();
            fs::write(source.path().join(format!("m/d/{number}")), noise(10_000, number)).unwrap();
        }
        fs::write(source.path().join("m/large"), noise(9 << 20, 99)).unwrap();
        let memory = FileSystem::tmpfs("size=1m");
        for (number, top) in [&*memory.0, on_disk.path()].into_iter().enumerate() {
            let disk = Disk::new(&images.path().join(number.to_string()), &top.join("m"));
            let from = format!("{}/", source.path().display());
            transfer(home.path(), &["cp", "-r", &from, text(top)]).succeeded();
            let cut = disk.after_a_power_cut(&home.path().join(format!("cut{number}")));
            let is_there = |name: &str| {
                let [from, to] = [source.path().join("m"), cut.point.clone()].map(|root| fs::read(root.join(name)));
                assert!(from.unwrap() == to.unwrap_or_default(), "{name} is lost below {}", top.display());
            };
            (0..30).for_each(|number| is_there(&format!("d/{number}")));
            is_there("large");
        }
    });
}

/// What could not be written back is told once, to one of the threads: of the files that it may be
/// about only those have a name in the end that are on the disk.
#[test]
fn what_could_not_be_written_back_has_no_name() {
    test(|| {
        if !have(&["mkfs.ext4", "mount", "umount", "losetup"]) {
            return;
        }
        let (home, source) = (directory(), directory());
        let name = |number: u64| format!("{}/{number}", number % 7);
        for number in 0..340 {
            let path = source.path().join(name(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, noise(if number < 60 { 700_000 } else { 7000 }, number)).unwrap();
        }
        // A disk that promises more than it has, as thin ones do.
        let thin = FileSystem::tmpfs("size=32m");
        let image = thin.0.join("image");
        File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let without_journal = ["-q", "-F", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        run(Command::new("mkfs.ext4").args(without_journal).arg(&image)).succeeded();
        // It has what it needs for itself, so that only data are lost.
        let beginning = fs::read(&image).unwrap();
        File::options().write(true).open(&image).unwrap().write_all_at(&beginning[..10 << 20], 0).unwrap();
        let device = Loop::new(&image);
        let disk = Disk::mount(&device.0, &home.path().join("disk"));
        let from = format!("{}/", source.path().display());
        let (code, said) = told(home.path(), &["cp", "-r", &from, text(&disk.point.join("copy"))]);
        assert_eq!(code, 1, "{said}");
        let point = disk.point.clone();
        drop(disk); // what is only in memory is gone
        let disk = Disk::mount(&device.0, &point);
        let mut whole = 0;
        for number in 0..340 {
            let Ok(copy) = fs::read(disk.point.join("copy").join(name(number))) else { continue };
            assert!(copy == fs::read(source.path().join(name(number))).unwrap(), "{} is lost: {said}", name(number));
            whole += 1;
        }
        assert_eq!(said["files"], whole, "{said}");
    });
}

/// A mount holds back what is written, and tells a flush, or who closes the file, that there is no
/// room for it.
#[test]
fn what_a_mount_tells_late_is_told() {
    test(|| {
        let (home, source) = (directory(), directory());
        for number in 0..12 {
            fs::write(source.path().join(number.to_string()), noise(1_000_000, number)).unwrap();
        }
        let small = FileSystem::tmpfs("size=4m");
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[&small.0]);
        let mount = Mount::start(&mut aqueduct(), &[&server.source(&small.0)], "");
        let from = format!("{}/", source.path().display());
        for more in [&[][..], &["--no-flush"]] {
            let there = mount.join(format!("copy{}", more.len()));
            let (code, said) = told(home.path(), &[&["cp", "-r", &from, text(&there)], more].concat());
            assert_eq!(code, 1, "{more:?}: {said}");
            let mut whole = 0;
            for entry in fs::read_dir(small.0.join(there.file_name().unwrap())).unwrap() {
                let name = entry.unwrap().file_name();
                let to = small.0.join(there.file_name().unwrap()).join(&name);
                let is_whole = fs::read(source.path().join(&name)).unwrap() == fs::read(&to).unwrap();
                assert!(is_whole, "{more:?}: {name:?} is not what it is said to be: {said}");
                whole += 1;
            }
            assert_eq!(said["files"], whole, "{more:?}: {said}");
            fs::remove_dir_all(small.0.join(there.file_name().unwrap())).unwrap();
        }
    });
}
