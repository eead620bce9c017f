//! What leases add to frames: grants at the start of a reply's body, and the ids that recalls and returns name.

use aqueduct_fs::{Aspects, Attr};

use crate::field::*;
use crate::{BODY_LENGTH_MAX, DIRECTORY_PAGE_MAX};

/// Names a lease of a client. The server makes it up: the lower half says which lease of the client it is, and the upper half grows with each new name of
/// that lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// The lease, by whatever name.
    pub fn place(self) -> u32 {
        self.0 as u32
    }

    /// Whether who gives back this one gives back the other: it is the same lease by the same or an earlier name.
    pub fn covers(self, other: LeaseId) -> bool {
        self.place() == other.place() && self >= other
    }
}

/// The inode that a grant is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// That which the reply, or else the request, names; of a listing the directory.
    Inode,
    /// The same, and it is bare: it has no access control lists and no capabilities.
    Bare,
    /// The directory in which a name was looked up.
    Parent,
    /// The directory in which the request has changed a name; its attributes as they are now come with the grant.
    Changed,
    /// That of an entry of a listing, counted from 0.
    Entry(u16),
}

const SUBJECT_INODE: u16 = u16::MAX;
const SUBJECT_PARENT: u16 = u16::MAX - 1;
const SUBJECT_CHANGED: u16 = u16::MAX - 2;
const SUBJECT_BARE: u16 = u16::MAX - 3;

/// A lease that a reply grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// On what inode.
    pub subject: Subject,
    /// What the lease covers now.
    pub aspects: Aspects,
    /// Its name from now on. A lease that covered less before has had another.
    pub lease: LeaseId,
}

/// The size of one grant in bytes.
const GRANT_SIZE: usize = 2 + 1 + 8;

/// The least that an entry of a listing takes that can have a grant: 20 bytes, a name and a handle of one byte each, and attributes.
const ENTRY_SIZE_MIN: usize = 20 + 1 + 2 + 1 + aqueduct_fs::dirpage::ATTR_SIZE;

/// The most grants in one reply: one for each entry of the longest page, and one for the directory.
pub const GRANTS_MAX: usize = DIRECTORY_PAGE_MAX as usize / ENTRY_SIZE_MIN + 1;

/// The most leases that one CALLBACK or its reply names.
pub const LEASES_TOLD_MAX: usize = 4096;

const _: () = assert!(grants_length(GRANTS_MAX) + 1 + DIRECTORY_PAGE_MAX as usize <= BODY_LENGTH_MAX);
const _: () = assert!(2 + LEASES_TOLD_MAX * 8 <= BODY_LENGTH_MAX);

/// The bytes that so many grants take.
pub(crate) const fn grants_length(grants: usize) -> usize {
    2 + grants * GRANT_SIZE
}

/// What a reply grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The leases.
    pub grants: Vec<Grant>,
    /// With one on [`Subject::Changed`]: that directory's attributes.
    pub changed: Option<Attr>,
}

/// Appends grants, at most [`GRANTS_MAX`], which then stand before the reply: their number u16, each with its subject u16, aspects u8 and lease u64, and attributes where its subject has some.
pub fn encode_grants(Granted { grants, changed }: &Granted, out: &mut Vec<u8>) {
    U16::put(&(grants.len().min(GRANTS_MAX) as u16), out);
    for grant in &grants[..grants.len().min(GRANTS_MAX)] {
        let subject = match grant.subject {
            Subject::Inode => SUBJECT_INODE,
            Subject::Bare => SUBJECT_BARE,
            Subject::Parent => SUBJECT_PARENT,
            Subject::Changed => SUBJECT_CHANGED,
            Subject::Entry(at) => at,
        };
        U16::put(&subject, out);
        out.push(grant.aspects.bits());
        U64::put(&grant.lease.0, out);
        if grant.subject == Subject::Changed {
            PackedAttr::put(&changed.unwrap_or_default(), out);
        }
    }
}

/// The grants at the start of a body, and the reply behind them.
pub fn take_grants(body: &[u8]) -> Result<(Granted, &[u8]), BodyError> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.get::<U16>()?);
    if count > GRANTS_MAX {
        return Err(BodyError::Value("the number of grants"));
    }
    let (mut grants, mut changed) = (Vec::with_capacity(count), None);
    for _ in 0..count {
        let subject = match reader.get::<U16>()? {
            SUBJECT_INODE => Subject::Inode,
            SUBJECT_BARE => Subject::Bare,
            SUBJECT_PARENT => Subject::Parent,
            SUBJECT_CHANGED => Subject::Changed,
            at if usize::from(at) < GRANTS_MAX => Subject::Entry(at),
            _ => return Err(BodyError::Value("the subject of a grant")),
        };
        let aspects = Aspects::from_bits(reader.get::<U8>()?).filter(|aspects| !aspects.is_empty());
        let aspects = aspects.ok_or(BodyError::Value("the aspects of a grant"))?;
        grants.push(Grant { subject, aspects, lease: LeaseId(reader.get::<U64>()?) });
        if subject == Subject::Changed {
            changed = Some(reader.get::<PackedAttr>()?);
        }
    }
    Ok((Granted { grants, changed }, reader.rest()))
}

/// Appends the body of CALLBACK or its reply: the leases, at most [`LEASES_TOLD_MAX`], their number u16 and u64 each.
pub fn encode_leases(leases: &[LeaseId], out: &mut Vec<u8>) {
    let leases = &leases[..leases.len().min(LEASES_TOLD_MAX)];
    U16::put(&(leases.len() as u16), out);
    leases.iter().for_each(|lease| U64::put(&lease.0, out));
}

/// The leases that a CALLBACK or its reply names.
pub fn decode_leases(body: &[u8]) -> Result<Vec<LeaseId>, BodyError> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.get::<U16>()?);
    if count > LEASES_TOLD_MAX {
        return Err(BodyError::Value("the number of leases"));
    }
    let leases = (0..count).map(|_| Ok(LeaseId(reader.get::<U64>()?))).collect::<Result<_, BodyError>>()?;
    reader.end().map(|()| leases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_name_covers_the_earlier_ones_of_its_lease() {
        let name = |generation: u64, place: u64| LeaseId(generation << 32 | place);
        assert!(name(2, 7).covers(name(2, 7)) && name(2, 7).covers(name(1, 7)));
        assert!(!name(1, 7).covers(name(2, 7)) && !name(2, 7).covers(name(1, 8)));
    }
}
