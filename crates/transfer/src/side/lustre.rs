//! What a Lustre client says of a file's layout: how it is striped, and whether its data are in an
//! archive alone. Pure; the numbers are those of Lustre's `lustre_user.h`.

/// The attribute that every user may read.
pub const LAYOUT: &[u8] = b"lustre.lov";

/// LL_SUPER_MAGIC, as statfs(2) calls the file system.
pub const MAGIC: i64 = 0x0bd0_0bd0;

/// LOV_USER_MAGIC_V1, V3 and SPECIFIC: the plain layouts, whose first fields are the same.
const PLAIN: [u32; 3] = [0x0bd1_0bd0, 0x0bd3_0bd0, 0x0bd5_0bd0];

/// LOV_USER_MAGIC_COMP_V1: several plain layouts, each of a part of the file.
const COMPOSITE: u32 = 0x0bd6_0bd0;

/// LOV_PATTERN_F_RELEASED: the archive has the data, and nobody else.
const RELEASED: u32 = 0x8000_0000;

/// Bytes of struct lov_comp_md_v1 before its entries.
const HEAD: usize = 32;

/// Bytes of struct lov_comp_md_entry_v1.
const ENTRY: usize = 48;

/// What is Lustre's own business in the attributes of its files: it makes them anew for a copy.
const INTERNAL: [&[u8]; 9] = [
    b"trusted.lov",
    b"trusted.lma",
    b"trusted.link",
    b"trusted.fid",
    b"trusted.som",
    b"trusted.hsm",
    b"trusted.lmv",
    b"trusted.dmv",
    b"trusted.version",
];

/// How a file lies on the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The most targets that a part of it is striped over.
    pub stripes: u16,
    /// Parts with layouts of their own; 0: it has one layout.
    pub parts: u16,
    /// Data are in an archive alone: who reads them has them recalled.
    pub is_released: bool,
}

/// Whether an attribute is no user's.
pub fn is_internal(name: &[u8]) -> bool {
    name.starts_with(b"lustre.") || INTERNAL.contains(&name)
}

impl Layout {
    /// From the value of [`LAYOUT`]. `None`: it is none that is known here.
    pub fn parse(value: &[u8]) -> Option<Layout> {
        if word(value, 0)? != COMPOSITE {
            return Layout::plain(value);
        }
        let count = half(value, 14)?;
        let mut layout = Layout { parts: count, ..Layout::default() };
        for index in 0..usize::from(count) {
            let at = HEAD + index * ENTRY;
            let (start, length) = (word(value, at + 24)? as usize, word(value, at + 28)? as usize);
            let part = Layout::plain(value.get(start..start.checked_add(length)?)?)?;
            layout.stripes = layout.stripes.max(part.stripes);
            layout.is_released |= part.is_released;
        }
        Some(layout)
    }

    fn plain(value: &[u8]) -> Option<Layout> {
        PLAIN.contains(&word(value, 0)?).then_some(())?;
        let is_released = word(value, 4)? & RELEASED != 0;
        Some(Layout { stripes: half(value, 28)?, parts: 0, is_released })
    }

    /// What a copy elsewhere does not have; `None`: nothing that somebody chose.
    pub fn told(&self) -> Option<String> {
        match self {
            Layout { parts: 2.., .. } => {
                Some(format!("layout of {} parts, up to {} stripes", self.parts, self.stripes))
            }
            Layout { stripes: 2.., .. } => Some(format!("layout of {} stripes", self.stripes)),
            _ => None,
        }
    }
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(value.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn half(value: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(value.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// struct lov_user_md_v1: magic, pattern, object id, stripe size, stripe count, first target.
    fn plain(magic: u32, pattern: u32, stripes: u16) -> Vec<u8> {
        let (id, size, first) = ([7; 16], 1_u32 << 20, 3_u16);
        let fields: [&[u8]; 6] = [
            &magic.to_le_bytes(),
            &pattern.to_le_bytes(),
            &id,
            &size.to_le_bytes(),
            &stripes.to_le_bytes(),
            &first.to_le_bytes(),
        ];
        fields.concat()
    }

    fn composite(parts: &[Vec<u8>]) -> Vec<u8> {
        let (mut head, mut bodies) = (vec![0; HEAD + parts.len() * ENTRY], Vec::new());
        head[..4].copy_from_slice(&COMPOSITE.to_le_bytes());
        head[14..16].copy_from_slice(&(parts.len() as u16).to_le_bytes());
        for (index, part) in parts.iter().enumerate() {
            let (at, start) = (HEAD + index * ENTRY, HEAD + parts.len() * ENTRY + bodies.len());
            head[at + 24..at + 28].copy_from_slice(&(start as u32).to_le_bytes());
            head[at + 28..at + 32].copy_from_slice(&(part.len() as u32).to_le_bytes());
            bodies.extend_from_slice(part);
        }
        [head, bodies].concat()
    }

    #[test]
    fn layouts_are_understood() {
        let raid0 = 1;
        for magic in PLAIN {
            let layout = Layout::parse(&plain(magic, raid0, 4)).unwrap();
            assert_eq!(layout, Layout { stripes: 4, parts: 0, is_released: false });
        }
        let one = Layout::parse(&plain(PLAIN[0], raid0, 1)).unwrap();
        assert_eq!(one.told(), None, "as everything is unless somebody chooses otherwise");
        let several = composite(&[plain(PLAIN[0], raid0, 1), plain(PLAIN[1], raid0, 16)]);
        let layout = Layout::parse(&several).unwrap();
        assert_eq!(layout, Layout { stripes: 16, parts: 2, is_released: false });
        assert_eq!(layout.told().unwrap(), "layout of 2 parts, up to 16 stripes");
        assert!(Layout::parse(&plain(PLAIN[0], raid0 | RELEASED, 0)).unwrap().is_released);
        let archived = composite(&[plain(PLAIN[0], raid0, 1), plain(PLAIN[0], raid0 | RELEASED, 0)]);
        assert!(Layout::parse(&archived).unwrap().is_released);
    }

    #[test]
    fn what_is_no_layout_is_none() {
        let whole = composite(&[plain(PLAIN[0], 1, 1), plain(PLAIN[1], 1, 2)]);
        for length in 0..whole.len() {
            assert_eq!(Layout::parse(&whole[..length]), None, "{length} bytes of {}", whole.len());
        }
        let mut wild = whole;
        wild[HEAD + 24..HEAD + 28].fill(0xff);
        wild[HEAD + 28..HEAD + 32].fill(0xff);
        assert_eq!(Layout::parse(&wild), None);
        assert_eq!(Layout::parse(&0x0bd7_0bd0_u32.to_le_bytes()), None);
    }

    #[test]
    fn what_lustre_makes_itself_is_known() {
        assert!(is_internal(b"lustre.lov") && is_internal(b"trusted.lma"));
        assert!(!is_internal(b"trusted.overlay.opaque") && !is_internal(b"user.lustre.lov"));
    }
}
