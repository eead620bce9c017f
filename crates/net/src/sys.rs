//! System calls that no crate has as they are needed: socket options (what the kernel knows about a
//! connection, who is at its other end and by which interface it came, the longest pause between
//! its tries, buffers), and moving bytes between sockets and pipes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `TCP_INFO` of linux/tcp.h, up to the last field that is looked at. Linux 4.10 has them all;
/// what an older one does not write is 0.
const INFO_LENGTH: usize = 192;

/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// What the kernel knows about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Times in a row that the oldest data were sent again when no answer had come.
    pub(crate) retransmits: u32,
    /// Questions in a row, whether there is room for data, that were not answered.
    pub(crate) probes: u32,
    /// Segments that are sent and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Bytes that are not sent yet.
    pub(crate) unsent: u32,
    /// Milliseconds since the last segment with data was sent, for the first time or again.
    pub(crate) sent_age: u32,
    /// Bytes that were acknowledged since the connection began.
    pub(crate) acknowledged: u64,
    /// Milliseconds since the last segment with data came.
    pub(crate) data_age: u32,
    /// Milliseconds since the last acknowledgement came, of whatever.
    pub(crate) acknowledgement_age: u32,
    /// The smoothed round trip in microseconds.
    pub(crate) round_trip: u32,
    /// The least round trip of the last minutes in microseconds.
    pub(crate) round_trip_min: u32,
    /// Segments with data that were sent, and that were sent again.
    pub(crate) segments: u32,
    pub(crate) resent: u32,
    /// Microseconds in which something was to be sent; of these, those in which the peer had no
    /// room, and in which this side's buffer was too small.
    pub(crate) busy: u64,
    pub(crate) window_limited: u64,
    pub(crate) buffer_limited: u64,
}

/// Asks the kernel about a TCP socket.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut bytes = [0u8; INFO_LENGTH];
    let mut length = INFO_LENGTH as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, which has as many, and what it wrote to `length`; both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    Ok(TcpInfo {
        retransmits: bytes[2].into(),
        probes: bytes[3].into(),
        unacknowledged: word(24),
        unsent: word(144),
        sent_age: word(44),
        acknowledged: long(120),
        data_age: word(52),
        acknowledgement_age: word(56),
        round_trip: word(68),
        round_trip_min: word(148),
        segments: word(156),
        resent: word(100),
        busy: long(168),
        window_limited: long(176),
        buffer_limited: long(184),
    })
}

/// The user and the process that connected, or listened, at the other end of a connected Unix
/// socket. No crate gives the process 0, of another namespace, soundly.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`, which has as many and is valid
    // with any, and what it wrote to `length`; both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok((found.uid, found.pid.max(0) as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel choose the port of a bound socket when it connects, and not before: for then it
/// has to be free for one remote, and not for all. Kernels before 4.2 do not know this.
pub(crate) fn set_bind_without_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), 1)
}

/// Has the kernel try again after at most so many milliseconds, at least 1000. Kernels before 6.15 do not know this (ENOPROTOOPT).
pub(crate) fn set_retry_max(socket: BorrowedFd<'_>, milliseconds: u32) -> io::Result<()> {
    set_int(socket, (libc::IPPROTO_TCP, TCP_RTO_MAX_MS), milliseconds as libc::c_int)
}

fn set_int(socket: BorrowedFd<'_>, (level, option): (libc::c_int, libc::c_int), value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one int, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// By which interface the connection of an accepted TCP socket came, by its number: where its last
/// packet of the handshake did. 0: the kernel does not say.
pub(crate) fn arrival(socket: BorrowedFd<'_>, is_v6: bool) -> io::Result<u32> {
    let (level, asks, options, answer, at) = if is_v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_2292PKTOPTIONS, libc::IPV6_PKTINFO, 16)
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_PKTOPTIONS, libc::IP_PKTINFO, 0)
    };
    set_int(socket, (level, asks), 1)?;
    // One message: its length, level and kind (`cmsghdr`), then `in_pktinfo` or `in6_pktinfo`,
    // with the number of the interface before the address, or behind it.
    let mut words = [0u64; 8];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `words`, which has as many and is valid
    // with any, and what it wrote to `length`; both live through the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, options, words.as_mut_ptr().cast(), &raw mut length) };
    let error = io::Error::last_os_error();
    set_int(socket, (level, asks), 0)?;
    if result != 0 {
        return Err(error);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let int = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let header = size_of::<libc::cmsghdr>();
    let is_it = int(header - 8) == level as u32 && int(header - 4) == answer as u32;
    let is_whole = length as usize >= header + at + 4;
    Ok(if is_it && is_whole { int(header + at) } else { 0 })
}

/// Which buffer of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    Receive,
    Send,
}

/// Sets the size of a socket's buffer in bytes, of which the kernel takes twice for what it needs
/// itself. Above the limit of this machine (net.core.rmem_max, wmem_max) only who administers its
/// network may; others get the limit.
pub(crate) fn set_buffer(socket: BorrowedFd<'_>, which: Buffer, bytes: usize) -> io::Result<()> {
    let (forced, usual) = match which {
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    };
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
    let set = |option| {
        // SAFETY: the kernel reads one int, which lives through the call.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        }
    };
    if set(forced) == 0 || set(usual) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A pipe that never waits, of about this size in bytes: less where this user may have no more.
/// Returns its ends, for reading and writing, and the size.
pub(crate) fn pipe(bytes: usize) -> io::Result<(OwnedFd, OwnedFd, usize)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors to `ends`, which has room for them.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made both, and nobody else owns them.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let wanted = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: both calls look at a descriptor that lives through them, and at no memory of ours.
    let size = unsafe {
        libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, wanted);
        libc::fcntl(write.as_raw_fd(), libc::F_GETPIPE_SZ)
    };
    let size = usize::try_from(size).map_err(|_| io::Error::last_os_error())?;
    Ok((read, write, size))
}

/// Moves at most `length` bytes from a socket to a pipe or back, without waiting. 0: the end.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize, more: bool) -> io::Result<usize> {
    let mut flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    if more {
        flags |= libc::SPLICE_F_MORE;
    }
    // SAFETY: both descriptors live through the call; without offsets it looks at no memory of
    // ours.
    let splice = || unsafe {
        libc::splice(from.as_raw_fd(), std::ptr::null_mut(), to.as_raw_fd(), std::ptr::null_mut(), length, flags)
    };
    loop {
        match usize::try_from(splice()).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
