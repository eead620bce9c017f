//! What lanes do when another map comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use super::*;

const PLACE: u16 = 7;

fn key(file: &str, map: u64) -> Key {
    Key { handle: file.as_bytes().into(), place: PLACE, map }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn board(lanes: &AllLanes, key: &Key, opens: bool) -> Poll<Boarded> {
    lanes.poll_board((key, 0), opens, &TaskContext::from_waker(Waker::noop()))
}

fn kept(verifier: u64) -> Kept {
    Kept::new((OpenId(1), &Credential::root()), (0, Bytes::from_static(b"abc")), verifier)
}

/// With a write on its way under its right.
fn opened(file: &str, map: u64) -> (AllLanes, Key) {
    let (lanes, key) = (AllLanes::default(), key(file, map));
    assert!(matches!(board(&lanes, &key, true), Poll::Ready(Boarded::Opens)));
    assert!(!lanes.opened(&key, 0, Some(b"token"[..].into())));
    assert!(matches!(board(&lanes, &key, true), Poll::Ready(Boarded::Flies(_))));
    (lanes, key)
}

#[test]
fn a_file_is_written_by_another_map_when_all_of_before_has_closed() {
    let (lanes, old) = opened("file", 1);
    assert_eq!(lanes.set_map(2), [(old.clone(), 0)]);
    let new = key("file", 2);
    assert!(matches!(board(&lanes, &old, true), Poll::Ready(Boarded::Flies(_))), "as long as it is there");
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    assert!(lanes.poll_board((&new, 0), true, &TaskContext::from_waker(&waker)).is_pending());
    assert!(
        matches!(board(&lanes, &key("other", 2), true), Poll::Ready(Boarded::Opens)),
        "another file waits for nothing"
    );
    (0..2).for_each(|_| _ = lanes.landed((&old, 0), kept(5)));
    assert!(lanes.close(&old, 0) && board(&lanes, &new, true).is_pending(), "what it kept is not stable yet");
    let (_, _, below) = lanes.unstable(Some(b"file")).remove(0);
    assert!(lanes.committed((&old, 0), below, Some(5)) && lanes.has_before(PLACE, 2));
    assert!(!woken.0.load(Ordering::SeqCst));
    lanes.closed(&old, 0);
    assert!(woken.0.load(Ordering::SeqCst) && !lanes.has_before(PLACE, 2));
    assert!(matches!(board(&lanes, &old, true), Poll::Ready(Boarded::Moved)), "by the map that holds, then");
    assert!(matches!(board(&lanes, &new, true), Poll::Ready(Boarded::Opens)));
}

#[test]
fn what_is_on_its_way_to_the_server_of_the_names_is_waited_for_too() {
    let (lanes, old) = (AllLanes::default(), key("file", 1));
    assert!(matches!(board(&lanes, &old, false), Poll::Ready(Boarded::Straight)));
    // Whoever goes by a newer map says so before anybody else does.
    let new = Key { place: NAMES, ..key("file", 2) };
    assert!(board(&lanes, &new, false).is_pending());
    lanes.landed_straight(&old);
    assert!(matches!(board(&lanes, &new, false), Poll::Ready(Boarded::Straight)));
    lanes.landed_straight(&new);
    // What has all lanes of a file close belongs to no map.
    let all = Key { place: ALL, map: 0, ..key("file", 0) };
    lanes.begin_straight(&all);
    assert!(matches!(board(&lanes, &key("file", 3), true), Poll::Ready(Boarded::Straight)));
    lanes.landed_straight(&key("file", 3));
    lanes.landed_straight(&all);
    assert!(matches!(board(&lanes, &key("file", 3), true), Poll::Ready(Boarded::Opens)));
}

/// Who asks for a right when the map changes ends its lane, which keeps nothing.
#[test]
fn a_lane_that_gets_no_right_holds_nobody_up() {
    let (lanes, old) = (AllLanes::default(), key("file", 1));
    assert!(matches!(board(&lanes, &old, true), Poll::Ready(Boarded::Opens)));
    for (key, epoch) in lanes.set_map(2) {
        assert!(!lanes.close(&key, epoch), "who asks sees to it");
    }
    assert!(board(&lanes, &key("file", 2), true).is_pending());
    assert!(!lanes.opened(&old, 0, None));
    assert!(matches!(board(&lanes, &key("file", 2), true), Poll::Ready(Boarded::Opens)));
}
