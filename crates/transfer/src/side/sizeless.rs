//! Files that the kernel makes while they are read, as in `/proc` and `/sys`: their size is nowhere
//! to be seen, and each read may give another content. They are read once, to the end.

use std::sync::Arc;

use aqueduct_fs::{Errno, SetAttr};
use bytes::Bytes;

use super::{File, Node, STEP, Seen, Xattrs};

/// The longest that is taken: some never end.
pub const UNSIZED_MAX: usize = 64 << 20;

/// What was read of such a file.
struct Unsized {
    seen: Seen,
    data: Bytes,
    xattrs: Xattrs,
}

/// Reads such a file. EFBIG: it has more than [`UNSIZED_MAX`].
pub fn read_unsized(file: &dyn File) -> Result<Arc<dyn File>, Errno> {
    let (mut seen, xattrs, mut data, mut piece) = (file.seen()?, file.xattrs()?, Vec::new(), Vec::new());
    if !seen.attr.is_regular() {
        return Err(Errno::EINVAL);
    }
    loop {
        file.read(data.len() as u64, STEP, &mut piece)?;
        data.extend_from_slice(&piece);
        if piece.is_empty() {
            break;
        }
        if data.len() > UNSIZED_MAX {
            return Err(Errno::EFBIG);
        }
    }
    (seen.attr.size, seen.attr.blocks) = (data.len() as u64, 0);
    Ok(Arc::new(Unsized { seen, data: data.into(), xattrs }))
}

impl Node for Unsized {
    fn seen(&self) -> Result<Seen, Errno> {
        Ok(self.seen.clone())
    }

    fn set(&self, _: &SetAttr) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        Ok(self.xattrs.clone())
    }

    fn set_xattr(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
}

impl File for Unsized {
    fn read(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.data.len());
        buffer.clear();
        buffer.extend_from_slice(&self.data[start..start.saturating_add(length).min(self.data.len())]);
        Ok(())
    }

    fn write(&self, _: u64, _: Bytes) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn lock(&self, _: bool) -> Result<bool, Errno> {
        Ok(true)
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn data_after(&self, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
        let end = self.data.len() as u64;
        Ok((offset < end).then_some((offset, end)))
    }

    fn forget(&self, _: u64) -> bool {
        false
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::Place;

    fn file(path: &str) -> Arc<dyn File> {
        let access = crate::Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        let root = Place::parse(path.as_ref()).unwrap().find(&access).unwrap();
        root.parent.file(&root.name.unwrap(), None).unwrap()
    }

    #[test]
    fn what_has_no_size_is_read_to_its_end() {
        let read = read_unsized(&*file("/proc/version")).unwrap();
        let wanted = std::fs::read("/proc/version").unwrap();
        let (mut all, mut rest) = (Vec::new(), Vec::new());
        read.read(0, STEP, &mut all).unwrap();
        read.read(7, STEP, &mut rest).unwrap();
        assert_eq!((&all, &rest[..], read.seen().unwrap().attr.size), (&wanted, &wanted[7..], wanted.len() as u64));
    }

    #[test]
    fn what_never_ends_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        std::fs::File::create(&path).unwrap().set_len(UNSIZED_MAX as u64 + 1).unwrap();
        let read = read_unsized(&*file(path.to_str().unwrap()));
        assert_eq!(read.err(), Some(Errno::EFBIG));
    }
}
