//! A small disk that can be full, with users that can be limited.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;
use rustix::mount::UnmountFlags;

use crate::common::{mount_point, run};

/// Room for what all programs write, and little more.
const SIZE: &str = "400M";

/// An ext4 in an image; unmounted in the end.
pub struct Disk {
    point: PathBuf,
    has_quotas: bool,
}

impl Disk {
    /// Makes one, with quotas if this kernel has them; the image lies in `home`.
    pub fn new(home: &Path) -> Disk {
        let point = mount_point();
        let image = home.join("image");
        File::create(&image).unwrap();
        run(Command::new("truncate").args(["-s", SIZE]).arg(&image)).succeeded();
        let has_quotas = [true, false].into_iter().find(|quotas| {
            let mut make = Command::new("mkfs.ext4");
            // Root has no reserve: full is full.
            make.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1"]);
            if *quotas {
                make.args(["-O", "quota", "-E", "quotatype=usrquota"]);
            }
            run(make.arg(&image)).succeeded();
            let options = if *quotas { "loop,usrquota" } else { "loop" };
            run(Command::new("mount").args(["-o", options]).arg(&image).arg(&point)).status.success()
        });
        Disk { point, has_quotas: has_quotas.expect("ext4 on a loop device") }
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn has_quotas(&self) -> bool {
        self.has_quotas
    }

    /// Leaves no block free.
    pub fn fill(&self) {
        let ballast = File::create(self.point.join("ballast")).unwrap();
        let free = rustix::fs::statvfs(&self.point).unwrap();
        let (mut at, mut length) = (0, free.f_bavail * free.f_frsize);
        while length >= free.f_frsize {
            match rustix::fs::fallocate(&ballast, FallocateFlags::empty(), at, length) {
                Ok(()) => at += length,
                Err(_) => length /= 2,
            }
        }
    }

    pub fn make_room(&self) {
        fs::remove_file(self.point.join("ballast")).unwrap();
        // Blocks are free once the removal is written.
        rustix::fs::syncfs(File::open(&self.point).unwrap()).unwrap();
    }

    /// Lets a user have nothing more, or as much as he wants.
    pub fn limit(&self, user: u32, limited: bool) {
        let most = if limited { "1" } else { "0" };
        let user = user.to_string();
        run(Command::new("setquota").args(["-u", &user, "0", most, "0", most]).arg(&self.point)).succeeded();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if rustix::mount::unmount(&self.point, UnmountFlags::empty()).is_err() {
            let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir(&self.point);
    }
}
