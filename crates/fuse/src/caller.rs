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

/// What a thread has asked of the kernel and not been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Syscall {
    /// To read or write so many bytes; with what tells this call from others.
    Moves(u64, Box<str>),
    /// Something else, or nothing.
    Other,
    /// It runs just now, so that it cannot be seen.
    Runs,
    /// There is no such thread, or this process may not see it.
    Unseen,
}

/// The most parts of a vectored read or write (IOV_MAX), and bytes of a part's description.
const PARTS_MAX: u64 = 1024;
const PART: usize = 16;

/// The system call of a thread that waits for it.
pub(crate) fn syscall(tid: u32) -> Syscall {
    let text = match tid {
        0 => return Syscall::Unseen,
        tid => std::fs::read_to_string(format!("/proc/{tid}/syscall")),
    };
    let Ok(text) = text else { return Syscall::Unseen };
    if text.starts_with("running") {
        return Syscall::Runs;
    }
    let parts = |address, count| parts(tid, address, count);
    moves(&text, parts).map_or(Syscall::Other, |length| Syscall::Moves(length, text.trim_end().into()))
}

/// How many bytes a read or write of /proc/TID/syscall is about; `parts` sums those of a vector.
fn moves(text: &str, parts: impl Fn(u64, u64) -> Option<u64>) -> Option<u64> {
    let mut words = text.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let mut arguments = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let (_, address, length) = (arguments.next()??, arguments.next()??, arguments.next()??);
    match number {
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => Some(length),
        libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv | libc::SYS_pwritev => parts(address, length),
        libc::SYS_preadv2 | libc::SYS_pwritev2 => parts(address, length),
        _ => None,
    }
}

/// The bytes of a thread's vector of parts.
fn parts(tid: u32, address: u64, count: u64) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let mut vector = vec![0; count.min(PARTS_MAX) as usize * PART];
    std::fs::File::open(format!("/proc/{tid}/mem")).ok()?.read_exact_at(&mut vector, address).ok()?;
    let length = |part: &[u8]| part[PART / 2..].try_into().map(u64::from_ne_bytes).ok();
    vector.chunks_exact(PART).try_fold(0u64, |sum, part| sum.checked_add(length(part)?))
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
    fn how_much_a_call_moves_is_read() {
        let none = |_, _| None;
        let call = |number: libc::c_long| format!("{number} 0x5 0x7f00 0x800000 0x0 0x0 0x0 0x7ff 0x7fe\n");
        assert_eq!(moves(&call(libc::SYS_pwrite64), none), Some(8 << 20));
        assert_eq!(moves(&call(libc::SYS_readv), |address, count| Some(address + count)), Some(0x807f00));
        assert_eq!(moves(&call(libc::SYS_close), none), None);
        for text in ["-1 0x7ff 0x7fe", "", "1 0x5 nonsense 0x3", "x"] {
            assert_eq!(moves(text, none), None, "{text}");
        }
        assert_eq!(syscall(0), Syscall::Unseen);
        assert_eq!(syscall(u32::MAX), Syscall::Unseen);
    }

    #[test]
    fn a_thread_that_waits_for_its_bytes_is_seen() {
        use std::io::Write;
        let (mut from, mut to) = std::io::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let reads = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_pid() as u32).unwrap();
            std::io::Read::read(&mut from, &mut [0; 12_345]).unwrap()
        });
        let tid = told.recv().unwrap();
        let started = std::time::Instant::now();
        while !matches!(syscall(tid), Syscall::Moves(12_345, _)) {
            assert!(started.elapsed() < std::time::Duration::from_secs(30), "{:?}", syscall(tid));
        }
        to.write_all(b"x").unwrap();
        reads.join().unwrap();
    }

    #[test]
    fn this_thread_is_alive_and_no_thread_has_the_highest_id() {
        assert!(matches!(look(std::process::id()), Caller::Alive(_)));
        assert_eq!(look(u32::MAX), Caller::Gone);
        assert_eq!(look(0), Caller::Unknown);
    }
}
