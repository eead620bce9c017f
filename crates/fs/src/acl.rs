//! POSIX access control lists as they stand in extended attributes (`linux/posix_acl_xattr.h`): a version (u32, 2), then entries of tag u16,
//! permissions u16 and id u32, all little-endian. Only the entries of named users and groups have an id.

use crate::Errno;

const VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const ENTRY_SIZE: usize = 8;
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;

/// Whether this attribute's value is such a list.
pub fn is_acl(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

/// Changes the ids in a list. EINVAL, as the kernel says, when the value is none; then nothing is changed.
pub fn change_ids(value: &mut [u8], user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) -> Result<(), Errno> {
    let (version, entries) = value.split_first_chunk_mut::<HEADER_SIZE>().ok_or(Errno::EINVAL)?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY_SIZE != 0 {
        return Err(Errno::EINVAL);
    }
    for entry in entries.chunks_exact_mut(ENTRY_SIZE) {
        let (head, id) = entry.split_at_mut(4);
        let change: &dyn Fn(u32) -> u32 = match u16::from_le_bytes([head[0], head[1]]) {
            TAG_USER => &user,
            TAG_GROUP => &group,
            _ => continue,
        };
        let before = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
        id.copy_from_slice(&change(before).to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn named_users_and_groups_are_changed_and_nobody_else() {
        let none = u32::MAX;
        let before = [(1, 7, none), (2, 6, 1000), (4, 5, none), (8, 4, 1000), (16, 7, none), (32, 0, none)];
        let mut value = list(&before);
        change_ids(&mut value, |id| id + 1, |id| id + 2).unwrap();
        let after = [(1, 7, none), (2, 6, 1001), (4, 5, none), (8, 4, 1002), (16, 7, none), (32, 0, none)];
        assert_eq!(value, list(&after));
        assert!(is_acl(b"system.posix_acl_default") && !is_acl(b"user.posix_acl_access"));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = list(&[(2, 7, 5)]);
        let other_version = [&[3, 0, 0, 0], &good[4..]].concat();
        for bad in [&good[..3], &good[..11], &good[..5], &[], &other_version] {
            let mut value = bad.to_vec();
            assert_eq!(change_ids(&mut value, |_| 0, |_| 0), Err(Errno::EINVAL));
            assert_eq!(value, bad);
        }
        assert_eq!(change_ids(&mut list(&[]), |_| 0, |_| 0), Ok(()), "an empty list takes the attribute away");
    }

    proptest! {
        #[test]
        fn any_bytes_keep_their_length_and_what_is_no_id(value in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut changed = value.clone();
            if change_ids(&mut changed, |id| !id, |id| !id).is_err() {
                prop_assert_eq!(&changed, &value);
            }
            prop_assert_eq!(changed.len(), value.len());
            let _ = change_ids(&mut changed, |id| !id, |id| !id);
            prop_assert_eq!(changed, value);
        }

        #[test]
        fn a_change_and_its_opposite_leave_a_list_as_it_was(entries in prop::collection::vec((0u16..40, any::<u16>(), any::<u32>()), 0..30), by: u32) {
            let mut value = list(&entries);
            change_ids(&mut value, |id| id.wrapping_add(by), |id| id ^ by).unwrap();
            let expected: Vec<_> = entries.iter().map(|&(tag, permissions, id)| match tag {
                TAG_USER => (tag, permissions, id.wrapping_add(by)),
                TAG_GROUP => (tag, permissions, id ^ by),
                _ => (tag, permissions, id),
            }).collect();
            prop_assert_eq!(&value, &list(&expected));
            change_ids(&mut value, |id| id.wrapping_sub(by), |id| id ^ by).unwrap();
            prop_assert_eq!(value, list(&entries));
        }
    }
}
