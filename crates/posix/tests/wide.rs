//! Over how many servers the blocks of files are spread, as their directories say.

mod common;

use aqueduct_fs::wide::{KEPT, WIDTH, Wide};
use aqueduct_fs::*;
use common::*;

#[test]
fn files_have_the_width_of_their_directory_and_what_has_content_stays_as_it_is() {
    if !is_root() {
        return skip("only root may set the attribute that keeps it");
    }
    everywhere(|served| {
        let wide = Wide { below: served.restarted() };
        let call = |request: Request<'_>| block_on(wide.call(&context(1, own()), request));
        let root = call(Request::Root).unwrap().entry().unwrap().handle;
        let make = |name: &[u8]| {
            let create = Request::Create { parent: root.bytes(), name, mode: 0o644, umask: 0, flags: READ_WRITE };
            call(create).unwrap().created().unwrap()
        };
        let (_, before) = make(b"before");
        call(Request::Release { open: before.id }).unwrap();
        std::fs::write(served.path.join("before"), "content").unwrap();
        let set = Request::SetXattr { handle: root.bytes(), name: WIDTH, value: b"2", mode: XattrMode::Any };
        assert_eq!(call(set), Ok(Reply::Done));
        // Whoever makes what is there opens it.
        let (entry, again) = make(b"before");
        assert_eq!((entry.attr.size, again.width), (7, 0));
        let (entry, new) = make(b"new");
        assert_eq!(new.width, 2);
        let opened = call(Request::Open { handle: entry.handle.bytes(), flags: READ_WRITE }).unwrap();
        let Reply::Opened(opened) = opened else { panic!("{opened:?}") };
        assert_eq!(opened.width, 2);
    });
}

/// Who copies all attributes of a file, as root does, would give its width to what has content.
#[test]
fn where_the_width_is_kept_is_nobodys_attribute() {
    if !is_root() {
        return skip("only root may set the attribute that keeps it");
    }
    everywhere(|served| {
        let wide = Wide { below: served.restarted() };
        let call = |request: Request<'_>| block_on(wide.call(&context(1, own()), request));
        let root = call(Request::Root).unwrap().entry().unwrap().handle;
        let handle = root.bytes();
        let set = |name, value| Request::SetXattr { handle, name, value, mode: XattrMode::Any };
        assert_eq!(call(set(WIDTH, b"2")), Ok(Reply::Done));
        assert_eq!(call(set(b"trusted.other", b"1")), Ok(Reply::Done));
        assert_eq!(call(set(KEPT, b"3")), Err(Errno::EPERM));
        assert_eq!(call(Request::RemoveXattr { handle, name: KEPT }), Err(Errno::ENODATA));
        assert_eq!(call(Request::GetXattr { handle, name: KEPT, size: 8 }), Err(Errno::ENODATA));
        let shown = b"trusted.other\0";
        assert_eq!(call(Request::ListXattr { handle, size: 1000 }), Ok(Reply::Bytes(shown.to_vec())));
        assert_eq!(call(Request::ListXattr { handle, size: 0 }), Ok(Reply::Size(shown.len() as u64)));
        assert_eq!(call(Request::ListXattr { handle, size: 3 }), Err(Errno::ERANGE));
        assert_eq!(call(Request::GetXattr { handle, name: WIDTH, size: 8 }), Ok(Reply::Bytes(b"2".to_vec())));
    });
}

/// A program that has made a file finds it as it was told, when nobody has changed it.
#[test]
fn what_is_told_of_a_new_file_is_so_with_its_width() {
    if !is_root() {
        return skip("only root may set the attribute that keeps it");
    }
    everywhere(|served| {
        let wide = Wide { below: served.restarted() };
        let call = |request: Request<'_>| block_on(wide.call(&context(1, own()), request));
        let root = call(Request::Root).unwrap().entry().unwrap().handle;
        let parent = root.bytes();
        call(Request::SetXattr { handle: parent, name: WIDTH, value: b"2", mode: XattrMode::Any }).unwrap();
        for number in 0..20 {
            let name = format!("file-{number}");
            let name = name.as_bytes();
            let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
            let (entry, opened) = call(create).unwrap().created().unwrap();
            let seen = call(Request::GetAttr { handle: entry.handle.bytes(), open: None }).unwrap();
            assert_eq!(seen, Reply::Attr(entry.attr));
            call(Request::Release { open: opened.id }).unwrap();
        }
    });
}
