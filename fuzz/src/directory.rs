//! Pages of directory entries. The first byte says whether the listing ends.

use aqueduct_fs::{DirPage, dirpage};

use crate::samples;

/// The entries of a page fill it, and packed again they are the same.
pub fn run(data: &[u8]) {
    let Some((end, packed)) = data.split_first() else { return };
    if let Some(attr) = packed.first_chunk().and_then(dirpage::unpack_attr) {
        assert_eq!(dirpage::unpack_attr(&dirpage::pack_attr(&attr)), Some(attr));
    }
    let Ok(page) = DirPage::from_packed(packed.to_vec(), end % 2 == 1) else { return };
    let mut again = DirPage::default();
    for entry in page.entries() {
        assert!(!entry.name.is_empty() && !entry.name.contains(&b'/'));
        again.push(&entry);
    }
    assert_eq!(again.packed().len(), packed.len());
    assert!(again.entries().eq(page.entries()));
}

/// A page with every form of entry, an empty one, and attributes.
pub fn seeds() -> Vec<Vec<u8>> {
    let attr = dirpage::pack_attr(&samples::entry().attr);
    vec![[&[0], samples::page().packed()].concat(), vec![1], [&[0], &attr[..]].concat()]
}
