//! The first exchange: versions and capabilities.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{Field, InHeader, InitFlags, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, opcode};
use crate::buffer::Pool;
use crate::config::{CacheMode, Config};
use crate::device::{self, Device, Read};
use crate::error::StartError;
use crate::negotiated::Negotiated;

/// The kernel sends INIT from within mount(2), so it waits already; a connection that stays silent this long is none.
const PATIENCE: Duration = Duration::from_secs(30);

/// The least that the kernel lets be read at once (FUSE_MIN_READ_BUFFER).
const MIN_READ_BUFFER: usize = 8192;

/// What a kernel that does not know MAX_PAGES transfers, whatever it is told: 32 pages.
const MAX_TRANSFER_OLD: u32 = 128 << 10;

/// Answers INIT on a fresh connection. With `has_rings` requests are taken by io_uring where the kernel offers it.
pub(crate) fn negotiate(
    device: &Device,
    pool: &Arc<Pool>,
    config: &Config,
    has_rings: bool,
) -> Result<Negotiated, StartError> {
    let fd = device.fd.as_fd();
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = pool.take()?;
    loop {
        let length = receive(fd, buffer.request_area(), deadline)?;
        let (header, body) = parse(buffer.request(length))?;
        let answer = answer(body, config, has_rings);
        let (error, out) = match &answer {
            Ok((out, _)) => (0, out.to_vec()),
            Err(_) => (-libc::EPROTO, Vec::new()),
        };
        device::write(fd, header.unique, error, &[&out])?;
        if let (_, Some(negotiated)) = answer? {
            tracing::debug!(?negotiated, "connected to the kernel");
            return Ok(negotiated);
        }
    }
}

/// What is offered by the first request of a connection, which stays unanswered.
pub(crate) fn peek(device: &Device) -> Result<Offered, StartError> {
    let mut buffer = [0; MIN_READ_BUFFER];
    let length = receive(device.fd.as_fd(), &mut buffer, Instant::now() + PATIENCE)?;
    offered(parse(&buffer[..length])?.1)
}

/// Waits for a request, and returns its length.
fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], deadline: Instant) -> Result<usize, StartError> {
    loop {
        wait(fd, deadline)?;
        match device::read(fd, buffer) {
            Read::Request(length) => return Ok(length),
            Read::Empty => {}
            Read::Ended => return Err(StartError::Ended),
        }
    }
}

/// The header and body of an INIT.
fn parse(request: &[u8]) -> Result<(InHeader, &[u8]), StartError> {
    InHeader::parse(request).filter(|(header, _)| header.opcode == opcode::INIT).ok_or(StartError::NoInit)
}

/// What a kernel says of itself in INIT.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) flags: InitFlags,
    max_readahead: u32,
}

fn offered(body: &[u8]) -> Result<Offered, StartError> {
    let (init, rest) = InitIn::parse(body).ok_or(StartError::NoInit)?;
    let mut flags = InitFlags::from_bits_retain(init.flags.into());
    if flags.contains(InitFlags::INIT_EXT) && rest.len() >= size_of::<u32>() {
        let flags2 = u32::take(&mut &rest[..]);
        flags |= InitFlags::from_bits_retain(u64::from(flags2) << 32);
    }
    Ok(Offered { major: init.major, minor: init.minor, flags, max_readahead: init.max_readahead })
}

fn wait(fd: BorrowedFd<'_>, deadline: Instant) -> Result<(), StartError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(0) => Err(StartError::NoInit),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(StartError::Io(error.into())),
    }
}

/// The answer to one INIT. A kernel of a later major version is told ours, and asks again with it.
fn answer(body: &[u8], config: &Config, has_rings: bool) -> Result<(InitOut, Option<Negotiated>), StartError> {
    let init = offered(body)?;
    if init.major > MAJOR {
        return Ok((InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() }, None));
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return Err(StartError::KernelTooOld { major: init.major, minor: init.minor });
    }
    let mut wanted = wanted(config);
    // The kernel then waits for the rings before it sends anything.
    wanted.set(InitFlags::OVER_IO_URING, has_rings);
    let flags = wanted & init.flags & !InitFlags::from_bits_retain(config.withheld);
    let sized = flags.contains(InitFlags::MAX_PAGES);
    let max_transfer = if sized { config.max_transfer } else { MAX_TRANSFER_OLD };
    let minor = init.minor.min(config.minor_max);
    let out = InitOut {
        major: MAJOR,
        minor,
        max_readahead: init.max_readahead,
        flags: flags.bits() as u32,
        max_background: config.max_background,
        // Above this share the kernel tells writers to slow down; 3/4 as its own default is.
        congestion_threshold: (u32::from(config.max_background) * 3 / 4) as u16,
        max_write: max_transfer,
        time_gran: 1,
        max_pages: (max_transfer / rustix::param::page_size() as u32) as u16,
        flags2: (flags.bits() >> 32) as u32,
        ..InitOut::default()
    };
    Ok((out, Some(Negotiated { minor, flags, max_transfer })))
}

/// The capabilities that we use, and why; the rest is left out on purpose.
fn wanted(config: &Config) -> InitFlags {
    // Read-ahead is sent in parallel, without waiting for one piece before the next.
    let mut flags = InitFlags::ASYNC_READ | InitFlags::ASYNC_DIO
        // Locks are the file system's, so that they hold between clients.
        | InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS
        // O_TRUNC comes with the open: one request, and one decision about permission.
        | InitFlags::ATOMIC_O_TRUNC
        // Needed before ABI 7.28 for writes of more than a page; then MAX_PAGES sets the size.
        | InitFlags::BIG_WRITES | InitFlags::MAX_PAGES
        // The umask comes with the request: a default ACL replaces it, which only the file system knows.
        | InitFlags::DONT_MASK
        // The file system clears set-id bits and capabilities itself, as the backing kernel does for the caller's
        // identity; else each write would ask for security.capability first.
        | InitFlags::HANDLE_KILLPRIV | InitFlags::HANDLE_KILLPRIV_V2
        // Lookups and listings of one directory side by side.
        | InitFlags::PARALLEL_DIROPS
        // Tells an abort (ECONNABORTED) from an unmount (ENODEV).
        | InitFlags::ABORT_ERROR
        // Cached pages are dropped when size or mtime have changed. In strict mode that concerns mappings and sendfile, which
        // use the page cache even so; for close-to-open it is the rule itself.
        | InitFlags::AUTO_INVAL_DATA
        // flags2 counts.
        | InitFlags::INIT_EXT
        // MAP_SHARED works on files that are opened for direct I/O.
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        // Node ids end with the mount, so file handles made from them would not be what name_to_handle_at promises.
        | InitFlags::NO_EXPORT_SUPPORT;
    // Attributes with each entry of a listing pay only where the names may then be used without a LOOKUP.
    let leases = config.cache == CacheMode::Lease && config.posix_acl;
    if !config.entry_timeout.is_zero() {
        flags |= InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO;
    }
    // Under leases with every page: those who list and then look at all (find, git, ls -l) read whole directories first, and AUTO asks with the first
    // page only. It also renews in bulk what the kernel keeps, which nothing else does: so a listing is read from pages (FOPEN_CACHE_DIR) only while that
    // lasts. A source tree of 3,221 files, find -ls: 30 ms, from pages 20 ms; once the timeouts are over 60 ms, from pages 150 ms, with a LOOKUP for each.
    if leases {
        flags |= InitFlags::DO_READDIRPLUS;
    }
    // The kernel then decides on mode and ACL (it turns default_permissions on). Without it, ACLs pass through as the extended
    // attributes that they are, and the file system decides.
    if config.posix_acl {
        flags |= InitFlags::POSIX_ACL;
    }
    // Immutable: one inode's text never changes. But a cached text asks nobody for permission, so strict mode asks each time.
    if config.cache == CacheMode::CloseToOpen || leases {
        flags |= InitFlags::CACHE_SYMLINKS;
    }
    // Not wanted: WRITEBACK_CACHE (write(2) would return before the file system has been asked, and the kernel would own size and mtime), NO_OPEN_SUPPORT,
    // NO_OPENDIR_SUPPORT and other ENOSYS switches (they are for the whole mount and for ever), EXPORT_SUPPORT (lookups
    // of "." by node ids that are long forgotten), SETXATTR_EXT (the backing kernel clears set-gid with an ACL itself).
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let mut body = InitIn { major, minor, max_readahead: 131_072, flags: flags as u32 }.to_vec();
        if flags & InitFlags::INIT_EXT.bits() != 0 {
            ((flags >> 32) as u32).put(&mut body);
            body.resize(64, 0);
        }
        body
    }

    #[test]
    fn the_oldest_kernel_gets_small_transfers_and_no_more_than_it_offers() {
        let (out, negotiated) = answer(&init(7, 26, 0x1fffff), &Config::default(), false).unwrap();
        let negotiated = negotiated.unwrap();
        assert_eq!(
            (out.major, out.minor, negotiated.minor, out.max_write, out.flags2),
            (7, 26, 26, MAX_TRANSFER_OLD, 0)
        );
        assert!(!negotiated.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP));
        assert_eq!(out.flags & !0x1fffff, 0);
    }

    #[test]
    fn a_later_minor_gets_ours_and_the_upper_flags() {
        let (out, negotiated) = answer(&init(7, 99, !0), &Config::default(), false).unwrap();
        assert_eq!((out.minor, out.max_write, out.max_pages, out.max_readahead), (MINOR, 1 << 20, 256, 131_072));
        assert_eq!((out.max_background, out.congestion_threshold), (64, 48));
        let flags = negotiated.unwrap().flags;
        assert!(flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP | InitFlags::INIT_EXT));
        assert!(!flags.intersects(InitFlags::WRITEBACK_CACHE | InitFlags::POSIX_ACL | InitFlags::DO_READDIRPLUS));
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, flags.bits());
    }

    #[test]
    fn a_later_major_is_asked_to_come_again_and_an_older_one_refused() {
        let (out, negotiated) = answer(&init(8, 1, 0), &Config::default(), false).unwrap();
        assert_eq!((out.major, negotiated), (7, None));
        assert!(matches!(
            answer(&init(7, 25, 0), &Config::default(), false),
            Err(StartError::KernelTooOld { major: 7, minor: 25 })
        ));
        assert!(matches!(answer(&init(6, 99, 0), &Config::default(), false), Err(StartError::KernelTooOld { .. })));
        assert!(matches!(answer(&[0; 7], &Config::default(), false), Err(StartError::NoInit)));
    }

    #[test]
    fn what_is_asked_for_by_options_is_asked_of_the_kernel() {
        let config = Config {
            posix_acl: true,
            entry_timeout: Duration::from_secs(1),
            cache: CacheMode::CloseToOpen,
            ..Config::default()
        };
        let flags = answer(&init(7, 45, !0), &config, false).unwrap().1.unwrap().flags;
        assert!(flags.contains(InitFlags::POSIX_ACL | InitFlags::DO_READDIRPLUS | InitFlags::CACHE_SYMLINKS));
        let leases = Config { cache: CacheMode::Lease, posix_acl: true, ..Config::default() };
        let flags = answer(&init(7, 45, !0), &leases, false).unwrap().1.unwrap().flags;
        assert!(flags.contains(InitFlags::DO_READDIRPLUS | InitFlags::CACHE_SYMLINKS));
        assert!(!flags.contains(InitFlags::READDIRPLUS_AUTO));
    }
}
