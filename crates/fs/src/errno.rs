//! The error of every file system operation: an errno, as Linux numbers them.

use std::fmt;

/// A Linux errno with the generic (x86-64, arm64, riscv) numbering, which is also what travels on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(i32);

macro_rules! names {
    ($($name:ident)*) => {
        #[allow(missing_docs, reason = "errno(3) documents them")]
        impl Errno { $(pub const $name: Errno = Errno(libc::$name);)* }
        const NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name)),)*];
    };
}

names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR
    EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE EDEADLK ENAMETOOLONG
    ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA ETIME EPROTO EBADMSG EOVERFLOW EOPNOTSUPP ENOBUFS ENOTCONN ESHUTDOWN
    ETIMEDOUT ECONNREFUSED ECONNRESET ECONNABORTED EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED ENOKEY
    EKEYREJECTED EREMCHG EREMOTE
}

impl Errno {
    /// An errno from its number. Numbers outside 1..=4095 (Linux's MAX_ERRNO), which a hostile peer may send, become EIO.
    pub const fn from_raw(number: i32) -> Errno {
        if number >= 1 && number <= 4095 { Errno(number) } else { Errno::EIO }
    }

    /// The number, always within 1..=4095.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The symbolic name, `E?` for one that has none here.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(number, _)| *number == self.0).map_or("E?", |(_, name)| name)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), std::io::Error::from_raw_os_error(self.0))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno::from_raw(error.raw_os_error())
    }
}

impl From<Errno> for std::io::Error {
    fn from(error: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_number_becomes_eio() {
        for number in [0, -1, i32::MIN, 4096, i32::MAX] {
            assert_eq!(Errno::from_raw(number), Errno::EIO);
        }
        assert_eq!(Errno::from_raw(28), Errno::ENOSPC);
        assert_eq!(Errno::ENOSPC.name(), "ENOSPC");
    }
}
