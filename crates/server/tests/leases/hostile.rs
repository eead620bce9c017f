//! Peers that return what they do not have, or nothing, or do not listen.

use aqueduct_fs::*;
use aqueduct_server::{Access, Squash};
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

#[test]
fn what_a_client_does_not_hold_it_cannot_return() {
    let fixture = Fixture::limited(quick());
    std::fs::write(fixture.directory.path().join("file"), "").unwrap();
    let (mut holder, mut changer, mut hostile) =
        (Client::new(&fixture), Client::plain(&fixture), Client::new(&fixture));
    let root = holder.root.clone();
    let file = holder.ask(&look_up(&root, "file")).unwrap().entry().unwrap().handle;
    let (_, lease) = holder.granted(Subject::Inode).unwrap();
    let change = changer.send(&chmod(&file, 0o600));
    assert_eq!(holder.recalled(), [lease]);
    // A million, and among them that of another.
    for round in 0..(1 << 20) / LEASES_TOLD_MAX as u64 {
        let ids: Vec<_> = (0..LEASES_TOLD_MAX as u64).map(|at| LeaseId(round << 32 | at)).collect();
        hostile.give_back(&ids);
    }
    hostile.give_back(&[lease, LeaseId(u64::MAX), lease]);
    hostile.give_back(&[]);
    hostile.ask(&get_attr(&root)).unwrap();
    assert!(changer.waits());
    holder.give_back(&[lease, lease]);
    changer.take(change).unwrap();
}

#[test]
fn a_return_that_makes_no_sense_ends_the_connection() {
    let fixture = Fixture::limited(quick());
    for body in [&[1, 0][..], &[255, 255], &[1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[]] {
        let mut client = Client::new(&fixture);
        client.peer.send(Header { class: Class::Callback, ..Header::new(Kind::CallbackReply) }, body);
        assert!(client.peer.goodbye().contains("CALLBACK REPLY"));
    }
    let mut client = Client::new(&fixture);
    client.peer.send(Header::new(Kind::Callback), &[0, 0]);
    assert!(client.peer.goodbye().contains("makes no sense"));
}

/// What a client is asked for and does not read takes no more memory for that.
#[test]
fn who_does_not_read_what_it_is_asked_for_is_closed() {
    const FILES: usize = 3000;
    let fixture = Fixture::limited(quick());
    for name in 0..FILES {
        std::fs::write(fixture.directory.path().join(name.to_string()), "").unwrap();
    }
    // The connection that is asked first is read from no more.
    let mut client = Client::new(&fixture);
    let (second, _) = fixture.joined(&client.session);
    let _deaf = std::mem::replace(&mut client.peer, second);
    let root = client.root.clone();
    let listing = client.ask(&Request::OpenDirectory { handle: root.bytes() }).unwrap().opened().unwrap().id;
    let (mut cookie, mut held) = (0, 0);
    loop {
        let page = Request::ReadDirectory { open: listing, cookie, size: DIRECTORY_PAGE_MAX, plus: true };
        let page = client.ask(&page).unwrap().directory().unwrap();
        held += client.grants.len();
        cookie = page.entries().last().map_or(cookie, |entry| entry.cookie);
        if page.end {
            break;
        }
    }
    assert!(held >= FILES, "{held}");
    fixture.server.changed_everything();
    assert!(client.is_left_alone(), "it is asked elsewhere");
    // Each that goes has it asked for all again.
    for joins in 0.. {
        assert!(joins < 5000, "the deaf connection is closed");
        drop(fixture.joined(&client.session));
        if joins % 50 == 49 && !client.is_left_alone() {
            break;
        }
    }
    client.ask(&get_attr(&root)).unwrap();
}

#[test]
fn a_client_is_told_that_all_its_users_are_one() {
    for (squash, one_user) in [(Squash::All, true), (Squash::Root, false), (Squash::None, false)] {
        let fixture = Fixture::allowing(Access { squash: Some(squash), ..Access::default() });
        let mut peer = fixture.connect();
        peer.hello(0, [0; 16]).unwrap();
        let mut body = Vec::new();
        Attach { export: "/e", read_only: false }.encode(&mut body);
        let (_, body) = peer.call(Op::Attach, (0, 0), &body);
        assert_eq!(AttachReply::decode(&body).unwrap().one_user, one_user, "{squash:?}");
    }
}
