//! Data: what is written is read, wherever the file stands and whatever became of its name.

mod common;

use aqueduct_fs::*;
use common::*;

#[test]
fn what_is_written_is_read() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        assert_eq!(served.read(open, 0, 100).unwrap(), b"", "empty");
        assert_eq!(served.write(open, 0, b"hello world").unwrap(), 11);
        assert_eq!(served.read(open, 6, 100).unwrap(), b"world");
        assert_eq!(served.read(open, 11, 100).unwrap(), b"");
        assert_eq!(served.read(open, 1 << 40, 100).unwrap(), b"");
        assert_eq!(served.read(open, u64::MAX, 1), Err(Errno::EINVAL));
        assert_eq!(served.write(open, u64::MAX, b"x"), Err(Errno::EFBIG));
        assert_eq!(served.attr(&entry.handle).unwrap().size, 11);
        let append = WriteAt { open, offset: 0, append: true, stable: true };
        assert_eq!(served.write_as(&context(1, own()), append, b"!").unwrap().count, 1);
        assert_eq!(served.read(open, 0, 100).unwrap(), b"hello world!");
        served.release(open);
        assert_eq!(served.read(open, 0, 1), Err(Errno::EBADF));
        assert_eq!(std::fs::read(served.path.join("file")).unwrap(), b"hello world!");
    });
}
