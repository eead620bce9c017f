//! What /proc tells of a calling thread: its supplementary groups and its pending signals.

/// The parts of /proc/TID/status that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The user and group that file systems see.
    pub(crate) fsuid: u32,
    pub(crate) fsgid: u32,
    pub(crate) groups: Vec<u32>,
    /// Signals that have come and are neither blocked nor ignored; bit n - 1 is signal n.
    pub(crate) pending: u64,
}

/// Signals that end a program, or that its user sent to end it.
const FATAL: [i32; 5] = [libc::SIGKILL, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

impl Status {
    /// Whether a signal has come after which nobody wants the answer. The kernel adds SIGKILL to whatever ends a program, so the
    /// others count when they are handled: a program that handles SIGINT wants to be stopped, too.
    pub(crate) fn is_dying(&self) -> bool {
        FATAL.iter().any(|signal| self.pending & bit(*signal) != 0)
    }
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What could be found out about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Alive(Status),
    /// There is no such thread (any more).
    Gone,
    /// It is outside this process's pid namespace, or /proc cannot be read.
    Unknown,
}

/// Looks at a thread; 0 stands for one that this pid namespace does not know.
pub(crate) fn look(tid: u32) -> Caller {
    if tid == 0 {
        return Caller::Unknown;
    }
    match std::fs::read(format!("/proc/{tid}/status")) {
        Ok(text) => parse(&text).map_or(Caller::Unknown, Caller::Alive),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Caller::Gone,
        Err(_) => Caller::Unknown,
    }
}

/// Parses /proc/TID/status; `None` when a line is missing.
fn parse(text: &[u8]) -> Option<Status> {
    let line = |name: &[u8]| {
        let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        std::str::from_utf8(line).ok()
    };
    let last = |name: &[u8]| line(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
    let signals = |name: &[u8]| u64::from_str_radix(line(name)?.trim(), 16).ok();
    let pending = signals(b"SigPnd:")? | signals(b"ShdPnd:")?;
    let held_back = (signals(b"SigBlk:")? | signals(b"SigIgn:")?) & !bit(libc::SIGKILL);
    Some(Status {
        fsuid: last(b"Uid:")?,
        fsgid: last(b"Gid:")?,
        groups: line(b"Groups:")?.split_ascii_whitespace().map(|group| group.parse().ok()).collect::<Option<_>>()?,
        pending: pending & !held_back,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\ta b\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 27 1000 \nSigPnd:\t0000000000000002\n\
        ShdPnd:\t0000000000004001\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000001000\n";

    #[test]
    fn status_is_parsed_and_blocked_signals_do_not_count() {
        let status = parse(TEXT.as_bytes()).unwrap();
        assert_eq!((status.fsuid, status.fsgid, &status.groups[..]), (4, 8, &[4, 27, 1000][..]));
        assert_eq!(status.pending, 3);
        assert!(status.is_dying());
        assert!(!Status { pending: bit(libc::SIGALRM), ..Status::default() }.is_dying());
        assert_eq!(parse(b"Name:\tx\n"), None);
    }

    #[test]
    fn this_thread_is_alive_and_no_thread_has_the_highest_id() {
        assert!(matches!(look(std::process::id()), Caller::Alive(_)));
        assert_eq!(look(u32::MAX), Caller::Gone);
        assert_eq!(look(0), Caller::Unknown);
    }
}
