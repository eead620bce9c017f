//! Notifications: what we tell the kernel unasked. Encoders only; [`Session`](crate::Session) sends them.

use crate::abi::{Field, NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyRetrieve, NotifyStore, notify};

/// A notification: its code and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) code: i32,
    pub(crate) body: Vec<u8>,
}

/// Drops cached attributes and ACLs of an inode and, unless `offset` is negative, its cached pages of `length` bytes from there (0: to the end).
pub(crate) fn inval_inode(node: u64, offset: i64, length: i64) -> Notification {
    Notification { code: notify::INVAL_INODE, body: NotifyInvalInode { ino: node, off: offset, len: length }.to_vec() }
}

/// Drops a cached name; with `expire_only` it merely has to be looked up again.
pub(crate) fn inval_entry(parent: u64, name: &[u8], expire_only: bool) -> Notification {
    let flags = if expire_only { notify::EXPIRE_ONLY } else { 0 };
    let mut body = NotifyInvalEntry { parent, namelen: name.len() as u32, flags }.to_vec();
    push_name(&mut body, name);
    Notification { code: notify::INVAL_ENTRY, body }
}

/// Says that the name of `child` was removed.
pub(crate) fn delete(parent: u64, child: u64, name: &[u8]) -> Notification {
    let mut body = Vec::new();
    NotifyDelete { parent, child, namelen: name.len() as u32, padding: 0 }.put(&mut body);
    push_name(&mut body, name);
    Notification { code: notify::DELETE, body }
}

/// Makes every cached name be looked up again.
pub(crate) fn inc_epoch() -> Notification {
    Notification { code: notify::INC_EPOCH, body: Vec::new() }
}

/// Puts what a file holds from `offset` to its end into pages. A size that is greater than the
/// kernel's is the kernel's from then on.
pub(crate) fn store(node: u64, offset: u64, data: &[u8]) -> Notification {
    let mut body = NotifyStore { node, offset, size: data.len() as u32, padding: 0 }.to_vec();
    body.extend_from_slice(data);
    Notification { code: notify::STORE, body }
}

/// Has the kernel send a request of this number, a NOTIFY_REPLY without data, to the queue of the calling thread's processor. It refuses to
/// for what is no regular file.
pub(crate) fn retrieve_nothing(node: u64, unique: u64) -> Notification {
    let body = NotifyRetrieve { unique, node, offset: 0, size: 0, padding: 0 }.to_vec();
    Notification { code: notify::RETRIEVE, body }
}

fn push_name(body: &mut Vec<u8>, name: &[u8]) {
    body.extend_from_slice(name);
    body.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_laid_out_as_the_kernel_reads_them() {
        let inode = inval_inode(5, -1, 0);
        assert_eq!((inode.code, inode.body.len()), (2, 24));
        assert_eq!(NotifyInvalInode::parse(&inode.body).unwrap().0, NotifyInvalInode { ino: 5, off: -1, len: 0 });
        let entry = inval_entry(1, b"name", true);
        let (fields, rest) = NotifyInvalEntry::parse(&entry.body).unwrap();
        assert_eq!((entry.code, fields.parent, fields.namelen, fields.flags, rest), (3, 1, 4, 1, &b"name\0"[..]));
        let gone = delete(1, 17, b"x");
        let (fields, rest) = NotifyDelete::parse(&gone.body).unwrap();
        assert_eq!((gone.code, fields.parent, fields.child, fields.namelen, rest), (6, 1, 17, 1, &b"x\0"[..]));
        let nothing = retrieve_nothing(5, 8);
        let (fields, _) = NotifyRetrieve::parse(&nothing.body).unwrap();
        assert_eq!((nothing.code, nothing.body.len(), fields.unique, fields.node, fields.size), (5, 32, 8, 5, 0));
        assert_eq!(inc_epoch(), Notification { code: 8, body: Vec::new() });
    }
}
