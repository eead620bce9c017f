//! What a file holds, as its writer believes. A client may hold back what was written, and lose it when it is killed or there is no room: who has been told of
//! that knows of each byte only what it may be.

use std::ops::Deref;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// With all that was written.
    now: Vec<u8>,
    /// What there was when it was last known that nothing is held back.
    sure: Vec<u8>,
    /// What was written since, and where.
    since: Vec<(usize, Vec<u8>)>,
    /// It may have been cut to this.
    least: usize,
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.now
    }
}

impl Content {
    /// What surely is there.
    pub fn of(content: Vec<u8>) -> Content {
        Content { least: content.len(), sure: content.clone(), now: content, since: Vec::new() }
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.now.resize(self.now.len().max(offset + bytes.len()), 0);
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.since.push((offset, bytes.to_vec()));
    }

    /// It has that length, whatever of what was written before is lost.
    pub fn resize(&mut self, length: usize) {
        self.now.resize(length, 0);
        self.sure.resize(length, 0);
        for (offset, bytes) in &mut self.since {
            bytes.truncate(length.saturating_sub(*offset));
        }
        self.least = length;
    }

    /// It may have that length, or still the one that it had.
    pub fn may_resize(&mut self, length: usize) {
        self.least = self.least.min(length);
        let end = self.now.len().max(length);
        self.now.resize(end, 0);
        self.since.push((length, vec![0; end - length]));
    }

    /// All of it is at the server.
    pub fn settle(&mut self) {
        *self = Content::of(std::mem::take(&mut self.now));
    }

    pub fn is_settled(&self) -> bool {
        self.since.is_empty()
    }

    /// Whether it may be that, after something that was held back has been lost.
    pub fn may_be(&self, got: &[u8]) -> bool {
        let mut right: Vec<_> =
            got.iter().enumerate().map(|(at, byte)| *byte == self.sure.get(at).copied().unwrap_or(0)).collect();
        for (offset, bytes) in &self.since {
            let places = got.iter().zip(&mut right).skip(*offset);
            places.zip(bytes).for_each(|((got, right), byte)| *right |= got == byte);
        }
        (self.least..=self.now.len()).contains(&got.len()) && right.into_iter().all(|right| right)
    }
}

#[test]
fn what_is_lost_may_be_any_part_of_what_was_written_since() {
    let mut content = Content::of(b"aaaa".to_vec());
    content.write(2, b"bbbb");
    content.write(3, b"cc");
    assert_eq!(&content[..], b"aabccb");
    for may_be in ["aaaa", "aabccb", "aabbbb", "aaacc", "aabb"] {
        assert!(content.may_be(may_be.as_bytes()), "{may_be}");
    }
    for never in ["aaa", "aabccbb", "caaa", "aabccc"] {
        assert!(!content.may_be(never.as_bytes()), "{never}");
    }
    let mut cut = content.clone();
    cut.resize(3);
    assert!(cut.may_be(b"aaa") && cut.may_be(b"aab") && !cut.may_be(b"aa") && !cut.may_be(b"aabc"));
    cut.may_resize(1);
    assert!(cut.may_be(b"a") && cut.may_be(b"aab") && !cut.may_be(b""));
    content.settle();
    assert!(content.may_be(b"aabccb") && !content.may_be(b"aabbbb") && !content.may_be(b"aabcc"));
}
