//! Small disks that can be full, or limit a user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::mount::UnmountFlags;

use crate::common::{is_mounted, mount_point, shell};

/// Room for what all programs write, and little more.
const SIZE: &str = "400M";

/// What bounds those who write to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Only its size.
    Room,
    /// A user's quota.
    User,
    /// The quota of a subvolume, for kernels without the other.
    Subvolume,
}

/// A file system in an image; unmounted in the end.
pub struct Disk {
    point: PathBuf,
    bound: Bound,
}

impl Disk {
    /// An ext4.
    pub fn new(home: &Path) -> Disk {
        Disk::make(home, Bound::Room).expect("ext4 on a loop device")
    }

    /// One with quotas, if this machine can make one.
    pub fn with_quotas(home: &Path) -> Option<Disk> {
        [Bound::User, Bound::Subvolume].into_iter().find_map(|bound| Disk::make(home, bound))
    }

    /// With the directory `export` on it.
    fn make(home: &Path, bound: Bound) -> Option<Disk> {
        let point = mount_point();
        let image = home.join(format!("image-{bound:?}"));
        // Root has no reserve: full is full.
        let make = "mkfs.ext4 -q -F -m 0 -E lazy_itable_init=1";
        let script = match bound {
            Bound::Room => format!("{make} $image; mount -o loop $image $point; mkdir $point/export"),
            Bound::User => format!(
                "{make},quotatype=usrquota -O quota $image; mount -o loop,usrquota $image $point; mkdir $point/export"
            ),
            Bound::Subvolume => "mkfs.btrfs -q -f $image; mount -o loop $image $point
                btrfs quota enable $point; btrfs -q subvolume create $point/export"
                .to_owned(),
        };
        let prepare =
            format!("image={}; point={}; truncate -s {SIZE} $image\n{script}", image.display(), point.display());
        let made = shell(home, &prepare).status.success();
        // Unmounts it if it came so far.
        let disk = Disk { point, bound };
        made.then_some(disk)
    }

    pub fn export(&self) -> PathBuf {
        self.point.join("export")
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
        let point = self.point.display();
        let script = match (self.bound, limited) {
            (Bound::User, true) => format!("setquota -u {user} 0 1 0 1 {point}"),
            (Bound::User, false) => format!("setquota -u {user} 0 0 0 0 {point}"),
            // By its number, which the first subvolume always has: by its path it would be part of what is limited.
            (_, true) => format!("btrfs qgroup limit 64K 0/256 {point}"),
            (_, false) => format!("btrfs qgroup limit none 0/256 {point}"),
        };
        shell(&self.point, &script).succeeded();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if is_mounted(&self.point) && rustix::mount::unmount(&self.point, UnmountFlags::empty()).is_err() {
            let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir(&self.point);
    }
}
