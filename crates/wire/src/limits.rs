//! How long what travels may be.

/// The longest body in bytes. The longest request is an extended attribute of 64 KiB from a caller
/// of 1024 groups, with its handle and name; the longest reply a directory page of 64 KiB. Twice
/// that leaves room for compounds of small requests.
pub const BODY_LENGTH_MAX: usize = 128 << 10;

/// The most packed bytes that one READ DIRECTORY may ask for. Larger wishes are cut when they are
/// encoded: a page may hold less than was asked for, and a body never more than
/// [`BODY_LENGTH_MAX`].
pub const DIRECTORY_PAGE_MAX: u32 = 64 << 10;

/// The longest payload in bytes.
pub const PAYLOAD_LENGTH_MAX: usize = aqueduct_fs::TRANSFER_SIZE_MAX;
