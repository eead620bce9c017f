use std::sync::Arc;

use aqueduct_fs::Layout;
use aqueduct_session::Nanos;
use aqueduct_wire::LeaseId;

use super::gate::Number;
use super::shard::{Granted, Shard};
use super::view::{BOTH, Fetched, Hash, Reach, Touch, View};

const HASH: Hash = Hash(77 << 8);

fn fetched(asked: Number, at: Nanos) -> Fetched {
    Fetched { asked, at }
}

#[test]
fn where_a_file_lies_is_kept_until_something_of_it_is_changed() {
    let mut shard = Shard::default();
    let key: Arc<[u8]> = b"f".as_slice().into();
    let lease = (LeaseId(1 << 32 | 1), BOTH);
    assert_eq!(shard.grant((&key, HASH), lease, (fetched(1, 5), 5), 0), Granted::New);
    let view = View { now: 6, until: 100, age_max: 50 };
    let layout = Arc::new(Layout::default());
    shard.keep_layout(b"f", HASH, layout.clone(), fetched(1, 5));
    assert!(shard.layout(b"f", HASH, &view).is_some_and(|kept| Arc::ptr_eq(&kept, &layout)));
    assert!(shard.layout(b"f", HASH, &View { now: 100, ..view }).is_none(), "the lease is over");
    assert!(shard.layout(b"f", HASH, &View { now: 60, ..view }).is_none(), "it is too old");
    let touch = Touch::Inode { handle: b"f", aspects: BOTH, reach: Reach::Itself };
    shard.begin(&touch, HASH, 7);
    assert!(shard.layout(b"f", HASH, &view).is_none(), "it is being written to");
    shard.end(&touch, HASH, (1, 8), true);
    assert!(shard.layout(b"f", HASH, &view).is_none(), "and is another now");
    shard.keep_layout(b"f", HASH, layout.clone(), fetched(7, 6));
    assert!(shard.layout(b"f", HASH, &view).is_none(), "it was asked for before that");
    shard.keep_layout(b"f", HASH, layout, fetched(8, 6));
    assert!(shard.layout(b"f", HASH, &view).is_some());
    shard.forget_layout(b"f");
    assert!(shard.layout(b"f", HASH, &view).is_none());
}
