//! Over how many servers the blocks of files are spread, as their directories say.

mod common;

use aqueduct_fs::wide::{WIDTH, Wide};
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
