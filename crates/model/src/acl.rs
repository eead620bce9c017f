//! POSIX access control lists, as the extended attributes that they are.

/// An ACL that says no more than mode 0640.
pub fn minimal() -> Vec<u8> {
    acl(&[(0x01, 6, u32::MAX), (0x04, 4, u32::MAX), (0x20, 0, u32::MAX)])
}

/// An ACL in the kernel's form: version 2, then (tag, permissions, id), all little-endian.
pub fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}
