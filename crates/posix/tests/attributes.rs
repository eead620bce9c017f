//! Attributes, extended attributes, and what the file system says of itself.

mod common;

use std::os::unix::fs::MetadataExt;

use aqueduct_fs::*;
use common::*;

#[test]
fn attributes_are_set_one_by_one_and_together() {
    everywhere(|served| {
        let me = context(1, own());
        let (file, open) = served.create(b"file");
        let early = Time { seconds: -5, nanos: 123_456_789 };
        let late = Time { seconds: 1 << 33, nanos: 999_999_999 };
        let set = SetAttr {
            mode: Some(0o6755),
            size: Some(12_345),
            atime: Some(SetTime::At(early)),
            mtime: Some(SetTime::At(late)),
            ..SetAttr::default()
        };
        let attr = served.set(&me, &file.handle, set).unwrap();
        assert_eq!((attr.mode, attr.size, attr.atime, attr.mtime), (libc::S_IFREG | 0o6755, 12_345, early, late));
        let attr = served.set(&me, &file.handle, SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
        assert!(attr.atime.seconds > 1_600_000_000 && attr.mtime == late);
        let request = Request::SetAttr {
            handle: file.handle.bytes(),
            open: Some(open),
            set: SetAttr { size: Some(5), ..SetAttr::default() },
        };
        assert_eq!(served.root_call(request).unwrap().attr().unwrap().size, 5);
        let wrong =
            SetAttr { mtime: Some(SetTime::At(Time { seconds: 0, nanos: 1_000_000_000 })), ..SetAttr::default() };
        assert_eq!(served.set(&me, &file.handle, wrong), Err(Errno::EINVAL));
        let wrong = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
        assert_eq!(served.set(&me, &file.handle, wrong), Err(Errno::EFBIG));
        let folder = served.mkdir(&served.root, b"dir", 0o755);
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(served.set(&me, &folder.handle, size), Err(Errno::EISDIR));
        assert_eq!(
            served.set(&me, &file.handle, SetAttr { uid: Some(u32::MAX), ..SetAttr::default() }),
            Err(Errno::EINVAL)
        );
    });
}

#[test]
fn a_symlink_has_attributes_of_its_own() {
    everywhere(|served| {
        let me = context(1, own());
        let (target, _) = served.create(b"target");
        let request = Request::Symlink { parent: &served.root, name: b"link", text: b"target" };
        let link = served.root_call(request).unwrap().entry().unwrap();
        let time = Time { seconds: 77, nanos: 7 };
        let times = SetAttr { atime: Some(SetTime::At(time)), mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        assert_eq!(served.set(&me, &link.handle, times).unwrap().mtime, time);
        if is_root() {
            let owner = SetAttr { uid: Some(1000), gid: Some(1001), ..SetAttr::default() };
            let attr = served.set(&me, &link.handle, owner).unwrap();
            assert_eq!((attr.uid, attr.gid), (1000, 1001));
            let handle = link.handle.bytes();
            let set = Request::SetXattr { handle, name: b"trusted.x", value: b"own", mode: XattrMode::Any };
            assert_eq!(served.root_call(set), Ok(Reply::Done));
            let get = Request::GetXattr { handle: target.handle.bytes(), name: b"trusted.x", size: 10 };
            assert_eq!(served.root_call(get), Err(Errno::ENODATA), "not its target's");
        }
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(served.set(&me, &link.handle, mode), Err(Errno::EOPNOTSUPP));
        let attr = served.attr(&target.handle).unwrap();
        assert!(attr.mtime != time && attr.mode & 0o777 == 0o644 && attr.uid != 1000);
    });
}

#[test]
fn extended_attributes_round_trip() {
    everywhere(|served| {
        let (file, _) = served.create(b"file");
        let handle = file.handle.bytes();
        let name = &b"user.some"[..];
        let set = |value, mode| served.root_call(Request::SetXattr { handle, name, value, mode });
        let get = |size| served.root_call(Request::GetXattr { handle, name, size });
        assert_eq!(get(10), Err(Errno::ENODATA));
        assert_eq!(set(b"value", XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(set(b"value", XattrMode::Create), Ok(Reply::Done));
        assert_eq!(set(b"value", XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(get(0), Ok(Reply::Size(5)));
        assert_eq!(get(4), Err(Errno::ERANGE));
        assert_eq!(get(5), Ok(Reply::Bytes(b"value".to_vec())));
        assert_eq!(get(u32::MAX), Ok(Reply::Bytes(b"value".to_vec())));
        assert_eq!(set(b"", XattrMode::Replace), Ok(Reply::Done));
        assert_eq!(get(5), Ok(Reply::Bytes(Vec::new())));
        let list = |size| served.root_call(Request::ListXattr { handle, size });
        assert_eq!(list(0), Ok(Reply::Size(10)));
        assert_eq!(list(100), Ok(Reply::Bytes(b"user.some\0".to_vec())));
        assert_eq!(list(3), Err(Errno::ERANGE));
        let remove = Request::RemoveXattr { handle, name };
        assert_eq!(served.root_call(remove.clone()), Ok(Reply::Done));
        assert_eq!(served.root_call(remove), Err(Errno::ENODATA));
        let odd = |name| served.root_call(Request::GetXattr { handle, name, size: 0 });
        assert_eq!(odd(b""), Err(Errno::ERANGE));
        assert_eq!(odd(&[b'x'; 256]), Err(Errno::ERANGE));
        assert_eq!(odd(b"user.a\0b"), Err(Errno::EINVAL));
        assert_eq!(odd(b"nonsense"), Err(Errno::EOPNOTSUPP));
        let huge = vec![0; XATTR_SIZE_MAX + 1];
        assert_eq!(set(&huge, XattrMode::Any), Err(Errno::E2BIG));
    });
}

#[test]
fn the_file_system_tells_its_space_and_answers_access() {
    everywhere(|served| {
        let space = served.root_call(Request::Statfs { handle: &served.root }).unwrap().statfs().unwrap();
        assert!(space.blocks > 0 && space.blocks_free <= space.blocks && space.block_size >= 512);
        assert_eq!(space.name_length, 255);
        let (file, _) = served.create(b"file");
        let access = |mask| served.root_call(Request::Access { handle: file.handle.bytes(), mask });
        assert_eq!(access(AccessMask::empty()), Ok(Reply::Done));
        assert_eq!(access(AccessMask::READ | AccessMask::WRITE), Ok(Reply::Done));
        assert_eq!(access(AccessMask::EXECUTE), Err(Errno::EACCES), "not even root runs what nobody may");
        let meta = std::fs::metadata(served.path.join("file")).unwrap();
        let attr = served.attr(&file.handle).unwrap();
        assert_eq!((attr.ino, attr.blocks, u64::from(attr.blksize)), (meta.ino(), meta.blocks(), meta.blksize()));
    });
}

/// CAP_NET_RAW, effective, in what the kernel keeps of a file's capabilities (struct vfs_cap_data,
/// revision 2).
const NET_RAW: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];

/// Whoever may change a file ends its capabilities thereby; nobody else does, and no other
/// attribute goes this way.
#[test]
fn who_may_change_a_file_may_end_its_capabilities_and_nobody_else() {
    if !is_root() {
        return skip("other users take root");
    }
    everywhere(|served| {
        let value: Vec<u8> = NET_RAW.iter().flat_map(|word| word.to_le_bytes()).collect();
        let path = served.path.join("file");
        let end = |who: &Context, handle: &Handle, name| {
            served.call(who, Request::RemoveXattr { handle: handle.bytes(), name })
        };
        let has = || {
            aqueduct_posix::restore();
            rustix::fs::getxattr(&path, "security.capability", &mut [0; 64][..]).is_ok()
        };
        let name = b"security.capability";
        // The owner's; one that all may write; one of others, which a third had open before its
        // mode changed.
        for (mode, uid, may) in [(0o600, 1000, true), (0o666, 71, true), (0o644, 71, false)] {
            let (file, open) = served.create(b"file");
            served.release(open);
            std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            rustix::fs::setxattr(&path, "security.capability", &value, rustix::fs::XattrFlags::empty()).unwrap();
            rustix::fs::setxattr(&path, "trusted.mine", b"x", rustix::fs::XattrFlags::empty()).unwrap();
            let alice = context(2, user(1000, 1000, &[]));
            assert!(end(&alice, &file.handle, b"trusted.mine").is_err());
            assert_eq!(end(&alice, &file.handle, name), if may { Ok(Reply::Done) } else { Err(Errno::EPERM) });
            assert_eq!(has(), !may);
            assert_eq!(rustix::fs::getxattr(&path, "trusted.mine", &mut [0; 8][..]), Ok(1));
            if !may {
                // As alice: the right was for that one call.
                let again =
                    Request::SetXattr { handle: file.handle.bytes(), name, value: &value, mode: XattrMode::Any };
                assert_eq!(served.call(&alice, again), Err(Errno::EPERM));
                aqueduct_posix::restore();
                std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
                let open = served.open_as(&alice, &file.handle, READ_WRITE).unwrap();
                aqueduct_posix::restore();
                std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
                let other = context(3, user(1000, 1000, &[]));
                assert_eq!(end(&other, &file.handle, name), Err(Errno::EPERM), "of another client");
                assert_eq!(end(&alice, &file.handle, name), Ok(Reply::Done), "it may still write");
                served.call(&alice, Request::Release { open }).unwrap();
            }
            aqueduct_posix::restore();
            std::fs::remove_file(&path).unwrap();
        }
    });
}
