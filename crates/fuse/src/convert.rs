//! Between the kernel's values and ours.

use std::time::Duration;

use aqueduct_fs::{Attr, Errno, Lock, LockKind, OpenFlags, SetAttr, SetTime, Time, check_name};

use crate::abi::{self, SetattrValid};

/// The kernel's mark for files opened for execution, `__FMODE_EXEC`.
const FMODE_EXEC: i32 = 0x20;

/// The kernel's largest offset: the end of a lock that reaches to the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;

const NANOS: u32 = 1_000_000_000;

/// Attributes as the kernel has them.
pub(crate) fn attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.seconds as u64,
        mtime: attr.mtime.seconds as u64,
        ctime: attr.ctime.seconds as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Attributes as STATX returns them.
pub(crate) fn statx(attr: &Attr) -> abi::Statx {
    let time = |time: Time| abi::SxTime { sec: time.seconds, nsec: time.nanos, reserved: 0 };
    let birth_known = attr.btime != Time::default();
    abi::Statx {
        mask: libc::STATX_BASIC_STATS | if birth_known { libc::STATX_BTIME } else { 0 },
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: (attr.rdev >> 32) as u32,
        rdev_minor: attr.rdev as u32,
        ..abi::Statx::default()
    }
}

/// A device number (major in the upper, minor in the lower half) as the kernel's new_encode_dev has it: 12 bits of major and 20 of minor.
pub(crate) fn encode_device(device: u64) -> u32 {
    let (major, minor) = ((device >> 32) as u32, device as u32);
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`encode_device`].
pub(crate) fn decode_device(device: u32) -> u64 {
    let major = (device >> 8) & 0xfff;
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    u64::from(major) << 32 | u64::from(minor)
}

/// What a SETATTR changes.
pub(crate) fn set_attr(set: &abi::SetattrIn) -> Result<SetAttr, Errno> {
    let valid = SetattrValid::from_bits_retain(set.valid);
    let time = |flag, now, seconds: u64, nanos| match (valid.contains(flag), valid.contains(now)) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(SetTime::Now)),
        (true, false) if nanos >= NANOS => Err(Errno::EINVAL),
        (true, false) => Ok(Some(SetTime::At(Time { seconds: seconds as i64, nanos }))),
    };
    Ok(SetAttr {
        mode: valid.contains(SetattrValid::MODE).then_some(set.mode & 0o7777),
        uid: valid.contains(SetattrValid::UID).then_some(set.uid),
        gid: valid.contains(SetattrValid::GID).then_some(set.gid),
        size: valid.contains(SetattrValid::SIZE).then_some(set.size),
        atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, set.atime, set.atimensec)?,
        mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, set.mtime, set.mtimensec)?,
    })
}

/// The flags of an open.
pub(crate) fn open_flags(flags: u32) -> OpenFlags {
    let flags = flags as i32;
    let mut open = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => OpenFlags::READ,
        libc::O_WRONLY => OpenFlags::WRITE,
        // 3 asks for ioctl only, and Linux checks for both rights.
        _ => OpenFlags::READ | OpenFlags::WRITE,
    };
    // O_SYNC contains the bit of O_DSYNC.
    let sync = flags & libc::O_SYNC == libc::O_SYNC;
    open.set(OpenFlags::SYNC, sync);
    open.set(OpenFlags::DATA_SYNC, !sync && flags & libc::O_DSYNC != 0);
    for (bit, flag) in [
        (libc::O_APPEND, OpenFlags::APPEND),
        (libc::O_TRUNC, OpenFlags::TRUNCATE),
        (libc::O_EXCL, OpenFlags::EXCLUSIVE),
        (libc::O_DIRECT, OpenFlags::DIRECT),
        (libc::O_NOATIME, OpenFlags::NOATIME),
        (FMODE_EXEC, OpenFlags::EXECUTE),
    ] {
        open.set(flag, flags & bit != 0);
    }
    open
}

/// A lock from the kernel; `whole` for flock, which has no range.
pub(crate) fn lock(lock: &abi::FileLock, whole: bool) -> Result<Lock, Errno> {
    let kind = match lock.kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let (start, end) = match whole {
        true => (0, u64::MAX),
        false if lock.end >= OFFSET_MAX => (lock.start, u64::MAX),
        false => (lock.start, lock.end),
    };
    Ok(Lock { start, end, kind, pid: lock.pid })
}

/// A lock for the kernel.
pub(crate) fn file_lock(lock: &Lock) -> abi::FileLock {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    abi::FileLock { start: lock.start.min(OFFSET_MAX), end: lock.end.min(OFFSET_MAX), kind: kind as u32, pid: lock.pid }
}

/// Takes a text that ends with NUL from the front.
pub(crate) fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// Takes a name from the front.
pub(crate) fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (name, rest) = text(bytes)?;
    check_name(name)?;
    Ok((name, rest))
}

/// Seconds and nanoseconds of a timeout.
pub(crate) fn timeout(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip_as_the_kernel_encodes_them() {
        for (major, minor) in [(0u64, 0u64), (8, 1), (1, 3), (0xfff, 0xf_ffff), (259, 0x1_2345)] {
            let device = major << 32 | minor;
            assert_eq!(decode_device(encode_device(device)), device);
        }
        assert_eq!(encode_device(1 << 32 | 3), 0x103);
        assert_eq!(encode_device(8 << 32 | 0x1_2345), 0x1_2300 << 12 | 8 << 8 | 0x45);
    }

    #[test]
    fn open_flags_are_told_apart() {
        let open = open_flags((libc::O_RDWR | libc::O_APPEND | libc::O_SYNC) as u32);
        assert_eq!(open, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::SYNC);
        assert_eq!(open_flags((libc::O_WRONLY | libc::O_DSYNC) as u32), OpenFlags::WRITE | OpenFlags::DATA_SYNC);
        assert_eq!(open_flags(FMODE_EXEC as u32), OpenFlags::READ | OpenFlags::EXECUTE);
    }

    #[test]
    fn locks_to_the_end_of_the_file_stay_so() {
        let kernel = abi::FileLock { start: 10, end: OFFSET_MAX, kind: libc::F_WRLCK as u32, pid: 3 };
        let ours = lock(&kernel, false).unwrap();
        assert_eq!((ours.start, ours.end, ours.kind), (10, u64::MAX, LockKind::Write));
        assert_eq!(file_lock(&ours), kernel);
        assert_eq!(lock(&kernel, true).unwrap().start, 0);
        assert_eq!(lock(&abi::FileLock { kind: 9, ..kernel }, false), Err(Errno::EINVAL));
    }

    #[test]
    fn times_are_now_exact_or_refused() {
        let valid = (SetattrValid::ATIME | SetattrValid::ATIME_NOW | SetattrValid::MTIME).bits();
        let set = abi::SetattrIn { valid, mtime: -5i64 as u64, mtimensec: 999_999_999, ..abi::SetattrIn::default() };
        let changes = set_attr(&set).unwrap();
        assert_eq!(changes.atime, Some(SetTime::Now));
        assert_eq!(changes.mtime, Some(SetTime::At(Time { seconds: -5, nanos: 999_999_999 })));
        assert_eq!((changes.mode, changes.size), (None, None));
        assert_eq!(set_attr(&abi::SetattrIn { mtimensec: NANOS, ..set }), Err(Errno::EINVAL));
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(name(b"a\0b\0"), Ok((&b"a"[..], &b"b\0"[..])));
        assert_eq!(name(b"a"), Err(Errno::EINVAL));
        assert_eq!(name(b"\0"), Err(Errno::ENOENT));
        assert_eq!(name(b"..\0"), Err(Errno::EINVAL));
    }
}
