//! The language: what one operation is.

use std::fmt;

/// Threads of one view that act as processes: own file table (so own POSIX lock owner), own umask and credential.
pub const ACTORS: usize = 4;

/// Actors before this are root, the others users.
pub const FIRST_USER: usize = 2;

/// Descriptors that an actor may hold at a time.
pub const SLOTS: usize = 4;

/// A path; an actor's root and working directory is its view.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub Vec<u8>);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The long names of the universe are one letter repeated.
        let mut rest = self.0.as_slice();
        write!(f, "\"")?;
        while let Some(&byte) = rest.first() {
            let run = rest.iter().take_while(|&&b| b == byte).count();
            match run {
                0..=9 => write!(f, "{}", rest[..run].escape_ascii())?,
                _ => write!(f, "<{}*{run}>", [byte].escape_ascii())?,
            }
            rest = &rest[run..];
        }
        write!(f, "\"")
    }
}

/// What an operation is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// What the path leads to.
    Path(Path),
    /// What stands at the path, a symbolic link itself included.
    Link(Path),
    /// An open descriptor.
    Open(usize),
}

/// Descriptors come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// open(2) with these flags (O_NONBLOCK and O_CLOEXEC are added).
    File {
        slot: usize,
        path: Path,
        flags: i32,
        mode: u32,
    },
    /// O_TMPFILE in a directory.
    Temporary {
        slot: usize,
        path: Path,
        flags: i32,
        mode: u32,
    },
    /// linkat(2) of the descriptor's file.
    LinkTo {
        slot: usize,
        path: Path,
    },
    Close {
        slot: usize,
    },
    /// A second descriptor of the same open file.
    Duplicate {
        slot: usize,
        to: usize,
    },
    /// F_SETFL with or without O_APPEND.
    SetAppend {
        slot: usize,
        on: bool,
    },
}

/// Where lseek counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Start,
    Current,
    End,
}

/// What fallocate(2) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    Extend,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroKeepSize,
}

/// Bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Read {
        slot: usize,
        length: usize,
    },
    ReadAt {
        slot: usize,
        offset: u64,
        length: usize,
    },
    Write {
        slot: usize,
        length: usize,
        pattern: u8,
    },
    WriteAt {
        slot: usize,
        offset: u64,
        length: usize,
        pattern: u8,
    },
    Seek {
        slot: usize,
        from: From,
        offset: i64,
    },
    /// SEEK_DATA and SEEK_HOLE; file systems may differ, but not lie.
    SeekSparse {
        slot: usize,
        offset: u64,
        hole: bool,
    },
    Truncate {
        path: Path,
        length: u64,
    },
    TruncateOpen {
        slot: usize,
        length: u64,
    },
    Allocate {
        slot: usize,
        what: Allocation,
        offset: u64,
        length: u64,
    },
    Copy {
        slot: usize,
        to: usize,
        from_offset: u64,
        to_offset: u64,
        length: usize,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    /// A store through a shared mapping, then msync.
    MapStore {
        target: Target,
        offset: u64,
        length: usize,
        pattern: u8,
    },
    /// A load through a private mapping.
    MapLoad {
        target: Target,
        offset: u64,
        length: usize,
    },
}

/// What mknod(2) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Fifo,
    Socket,
    Regular,
    /// A character device with the number 1:3.
    Device,
}

/// Names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    MakeDirectory {
        path: Path,
        mode: u32,
    },
    MakeNode {
        path: Path,
        node: Node,
        mode: u32,
    },
    Symlink {
        target: Path,
        path: Path,
    },
    ReadLink {
        path: Path,
    },
    Link {
        path: Path,
        to: Path,
        follow: bool,
    },
    Unlink {
        path: Path,
    },
    RemoveDirectory {
        path: Path,
    },
    Rename {
        path: Path,
        to: Path,
        exchange: bool,
        no_replace: bool,
    },
    /// All names of a directory with their types.
    List {
        target: Target,
    },
}

/// One of the two times of utimensat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    Now,
    Omit,
    /// Seconds and nanoseconds, long before the test.
    At(i64, i64),
}

/// Attributes and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Stat {
        target: Target,
    },
    Mode {
        target: Target,
        mode: u32,
    },
    Owner {
        target: Target,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Times {
        target: Target,
        access: Time,
        change: Time,
    },
    /// faccessat2(2) with the effective or the real identity.
    Access {
        path: Path,
        mode: u32,
        effective: bool,
    },
    SetXattr {
        target: Target,
        name: &'static str,
        value: Vec<u8>,
        create: bool,
        replace: bool,
    },
    GetXattr {
        target: Target,
        name: &'static str,
    },
    ListXattr {
        target: Target,
    },
    RemoveXattr {
        target: Target,
        name: &'static str,
    },
}

/// A lock's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Read,
    Write,
    Unlock,
}

/// Locks; none of them waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// F_SETLK (of the process) or F_OFD_SETLK (of the open file); length 0 reaches to the end.
    Range { slot: usize, open_file: bool, hold: Hold, start: u64, length: u64 },
    /// F_GETLK or F_OFD_GETLK: would it be refused?
    Test { slot: usize, open_file: bool, hold: Hold, start: u64, length: u64 },
    /// flock(2).
    Whole { slot: usize, hold: Hold },
}

/// One action by one actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Descriptors.
    Open(Open),
    /// Bytes.
    Data(Data),
    /// Names.
    Name(Name),
    /// Attributes and extended attributes.
    Attribute(Attribute),
    /// Locks.
    Lock(Lock),
}

/// A step of a sequence.
#[derive(Clone, PartialEq, Eq)]
pub struct Op {
    /// Its place in the generated sequence; it keeps it when others are left out.
    pub index: usize,
    /// Who acts; an actor's parity is its mount's.
    pub actor: usize,
    /// What is done.
    pub action: Action,
}

impl Op {
    /// The name of what it does.
    pub fn kind(&self) -> String {
        let text = self.text();
        text[..text.find([' ', '{']).unwrap_or(text.len())].to_string()
    }

    /// The descriptor that it uses; of two the first.
    pub fn slot(&self) -> Option<usize> {
        let of = |target: &Target| if let Target::Open(slot) = target { Some(*slot) } else { None };
        match &self.action {
            Action::Open(Open::LinkTo { slot, .. } | Open::Duplicate { slot, .. } | Open::SetAppend { slot, .. }) => {
                Some(*slot)
            }
            Action::Open(_) | Action::Data(Data::Truncate { .. }) => None,
            Action::Data(Data::MapStore { target, .. } | Data::MapLoad { target, .. }) => of(target),
            Action::Data(
                Data::Read { slot, .. }
                | Data::ReadAt { slot, .. }
                | Data::Write { slot, .. }
                | Data::WriteAt { slot, .. }
                | Data::Seek { slot, .. }
                | Data::SeekSparse { slot, .. }
                | Data::TruncateOpen { slot, .. }
                | Data::Allocate { slot, .. }
                | Data::Copy { slot, .. }
                | Data::Sync { slot, .. },
            ) => Some(*slot),
            Action::Name(Name::List { target }) => of(target),
            Action::Name(_) | Action::Attribute(Attribute::Access { .. }) => None,
            Action::Attribute(
                Attribute::Stat { target }
                | Attribute::Mode { target, .. }
                | Attribute::Owner { target, .. }
                | Attribute::Times { target, .. }
                | Attribute::SetXattr { target, .. }
                | Attribute::GetXattr { target, .. }
                | Attribute::ListXattr { target }
                | Attribute::RemoveXattr { target, .. },
            ) => of(target),
            Action::Lock(Lock::Range { slot, .. } | Lock::Test { slot, .. } | Lock::Whole { slot, .. }) => Some(*slot),
        }
    }

    fn text(&self) -> String {
        match &self.action {
            Action::Open(a) => format!("{a:?}"),
            Action::Data(a) => format!("{a:?}"),
            Action::Name(a) => format!("{a:?}"),
            Action::Attribute(a) => format!("{a:?}"),
            Action::Lock(a) => format!("{a:?}"),
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:5} actor {} {}", self.index, self.actor, self.text())
    }
}

/// Byte `position` of the data that a write with `pattern` writes at file offset or stream position `position`. Every third page or so is zero.
pub fn pattern_byte(pattern: u8, position: u64) -> u8 {
    let page = (position >> 12) as u8;
    if page.wrapping_mul(7).wrapping_add(pattern).is_multiple_of(5) {
        return 0;
    }
    let mixed = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed as u8).wrapping_add(pattern)
}

/// `length` bytes of `pattern`.
pub fn pattern_bytes(pattern: u8, start: u64, length: usize) -> Vec<u8> {
    (start..start + length as u64).map(|position| pattern_byte(pattern, position)).collect()
}
