//! Small new files, many at a time, packed for [`Request::PutFiles`](crate::Request::PutFiles).

use crate::{Errno, SetAttr, SetTime, Time, check_name};

/// The most bytes of packed files in one request: half of a frame's body, so that bulk of this
/// kind is never in the way of others for long (1 ms at 1 Gbit/s).
pub const PUT_LENGTH_MAX: usize = 64 << 10;

/// The most files in one request: each is a descriptor until all have their names.
pub const PUT_FILES_MAX: usize = 64;

/// Bytes of a packed file beside its name and data.
pub const PUT_OVERHEAD: usize = 2 + 3 * 4 + 2 * 12 + 4;

/// A file to be made: whole, with its attributes, under a name that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutFile<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permissions; no umask takes any away.
    pub mode: u32,
    /// When it was last read.
    pub atime: Time,
    /// When it was last written.
    pub mtime: Time,
    /// Its content.
    pub data: &'a [u8],
}

impl<'a> PutFile<'a> {
    /// Its length when it is packed.
    pub fn packed_length(&self) -> usize {
        PUT_OVERHEAD + self.name.len() + self.data.len()
    }

    /// Packs it behind others. The name is a component of a path, at most 255 bytes.
    pub fn pack(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        out.extend_from_slice(self.name);
        for number in [self.uid, self.gid, self.mode] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for time in [self.atime, self.mtime] {
            out.extend_from_slice(&time.seconds.to_le_bytes());
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
        out.extend_from_slice(&(self.data.len() as u32).to_le_bytes());
        out.extend_from_slice(self.data);
    }

    /// What was packed; `None`: it is no list of 1 to [`PUT_FILES_MAX`] files.
    pub fn unpack(packed: &'a [u8]) -> Option<Vec<PutFile<'a>>> {
        let (mut rest, mut files) = (packed, Vec::new());
        while !rest.is_empty() {
            if files.len() == PUT_FILES_MAX {
                return None;
            }
            files.push(PutFile::take(&mut rest)?);
        }
        (!files.is_empty() && packed.len() <= PUT_LENGTH_MAX).then_some(files)
    }

    fn take(rest: &mut &'a [u8]) -> Option<PutFile<'a>> {
        let length = usize::from(u16::from_le_bytes(array(rest)?));
        let name = bytes(rest, length)?;
        check_name(name).ok()?;
        let [uid, gid, mode] = [number(rest)?, number(rest)?, number(rest)?];
        let [atime, mtime] = [time(rest)?, time(rest)?];
        let length = number(rest)? as usize;
        Some(PutFile { name, uid, gid, mode, atime, mtime, data: bytes(rest, length)? })
    }

    /// Its attributes, in the order in which they are set.
    pub fn attributes(&self) -> SetAttr {
        let at = |time| Some(SetTime::At(time));
        SetAttr {
            uid: Some(self.uid),
            gid: Some(self.gid),
            mode: Some(self.mode),
            atime: at(self.atime),
            mtime: at(self.mtime),
            ..SetAttr::default()
        }
    }
}

/// As [`PutFile::unpack`]; EINVAL instead of nothing.
pub fn unpack(packed: &[u8]) -> Result<Vec<PutFile<'_>>, Errno> {
    PutFile::unpack(packed).ok_or(Errno::EINVAL)
}

fn bytes<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (first, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(first)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    bytes(rest, N)?.try_into().ok()
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    array(rest).map(u32::from_le_bytes)
}

fn time(rest: &mut &[u8]) -> Option<Time> {
    let (seconds, nanos) = (i64::from_le_bytes(array(rest)?), number(rest)?);
    (nanos < 1_000_000_000).then_some(Time { seconds, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(name: &'a [u8], data: &'a [u8]) -> PutFile<'a> {
        let [atime, mtime] = [5, -7].map(|seconds| Time { seconds, nanos: 999_999_999 });
        PutFile { name, uid: 1, gid: u32::MAX, mode: 0o4755, atime, mtime, data }
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let files = [file(b"a", b""), file(b"\xff b", &[7; 5000]), file(&[b'n'; 255], b"x")];
        let mut packed = Vec::new();
        files.iter().for_each(|file| file.pack(&mut packed));
        assert_eq!(packed.len(), files.iter().map(PutFile::packed_length).sum::<usize>());
        assert_eq!(PutFile::unpack(&packed).unwrap(), files);
        for length in 0..packed.len() {
            let cut = PutFile::unpack(&packed[..length]);
            assert!(cut.is_none_or(|some| some.len() < 3), "{length}");
        }
    }

    #[test]
    fn what_is_no_list_of_files_is_refused() {
        let packed = |file: PutFile<'_>| {
            let mut packed = Vec::new();
            file.pack(&mut packed);
            packed
        };
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'n'; 256]] {
            assert_eq!(PutFile::unpack(&packed(file(name, b"data"))), None, "{name:?}");
        }
        assert_eq!(PutFile::unpack(&packed(file(b"a", &vec![0; PUT_LENGTH_MAX]))), None);
        let one = packed(file(b"a", b""));
        assert!(PutFile::unpack(&one.repeat(PUT_FILES_MAX)).is_some());
        assert_eq!(PutFile::unpack(&one.repeat(PUT_FILES_MAX + 1)), None);
        let late = PutFile { mtime: Time { seconds: 0, nanos: 1_000_000_000 }, ..file(b"a", b"") };
        assert_eq!(PutFile::unpack(&packed(late)), None);
        assert_eq!(PutFile::unpack(b""), None);
    }
}
