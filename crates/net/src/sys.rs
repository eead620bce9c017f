//! Socket options that no crate has: what the kernel knows about a connection, and the longest pause between its tries.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TCP_INFO` of linux/tcp.h, up to the last field that is looked at. Linux 4.6 has them all.
const INFO_LENGTH: usize = 148;

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
    /// Milliseconds since the last segment with data came.
    pub(crate) data_age: u32,
    /// Milliseconds since the last acknowledgement came, of whatever.
    pub(crate) acknowledgement_age: u32,
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
    Ok(TcpInfo {
        retransmits: bytes[2].into(),
        probes: bytes[3].into(),
        unacknowledged: word(24),
        unsent: word(144),
        data_age: word(52),
        acknowledgement_age: word(56),
    })
}

/// Has the kernel try again after at most so many milliseconds, at least 1000. Kernels before 6.15 do not know this (ENOPROTOOPT).
pub(crate) fn set_retry_max(socket: BorrowedFd<'_>, milliseconds: u32) -> io::Result<()> {
    let value = milliseconds as libc::c_int;
    // SAFETY: the kernel reads one int, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
