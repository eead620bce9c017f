//! What the two sides of a connection can do.

bitflags::bitflags! {
    /// What one side can do beyond the basics; both use what both have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// Frames have checksums of body and payload.
        const CHECKSUM = 1;
        /// COMPOUND is understood.
        const COMPOUND = 1 << 1;
        /// PENDING and COMPLETION are understood.
        const PENDING = 1 << 2;
        /// A client talks to no server that adds no checksums.
        const CHECKSUM_REQUIRED = 1 << 3;
        /// The client has the administrator's key.
        const ADMINISTRATOR = 1 << 4;
        /// Exclusive leases are granted, and asked for and written under by flags.
        const EXCLUSIVE = 1 << 5;
        /// What is made is said to be bare, where that is asked for by a flag and so.
        const BARE = 1 << 6;
        /// SETATTR may be sent as held back, as WRITE may.
        const HELD_SETATTR = 1 << 7;
        /// A reply says how long its request took, where that is asked for by a flag.
        const TIMES = 1 << 8;
        /// An append may be sent as held back, in a slot.
        const HELD_APPEND = 1 << 9;
    }
}
