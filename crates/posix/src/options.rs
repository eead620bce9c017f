//! How a directory is served.

use crate::domain::Domain;

/// The most opens of all clients unless said otherwise: 65,536 descriptors fit the hard limit of
/// most systems (524,288), at about 1 KiB of kernel and 400 bytes of our memory each. The
/// process's limit of descriptors should be higher by some thousands.
pub const OPENS_MAX: usize = 65_536;

/// Where handles come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleSource {
    /// The kernel, and the table of this process where the kernel gives none or will not take them
    /// back.
    #[default]
    Kernel,
    /// The table, always: handles end with the process.
    Table,
}

/// How a directory is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The key under which handles and tokens are made and checked. With the same key they outlive
    /// this process.
    pub key: [u8; 32],
    /// The number of the export, so that one export's handles are none in another.
    pub export: u32,
    /// Another one after each boot of the machine: from it comes what every
    /// [`Written`](aqueduct_fs::Written) carries. 0: nobody keeps what is not stable.
    pub boot: u64,
    /// Whether what changes names or attributes is stable before it is answered. On file systems
    /// in memory it has no meaning.
    pub sync: bool,
    /// Whether file systems mounted below the root belong to the export. Their inode numbers may
    /// collide with each other's.
    pub cross_mounts: bool,
    /// The most opens of all clients; beyond, ENFILE.
    pub opens_max: usize,
    /// Where handles come from.
    pub handles: HandleSource,
    /// Whether files that are removed while a client has them open outlive this process, in a
    /// hidden folder at the root. It takes the kernel's handles, a key that the next process has
    /// as well, and a call of [`Posix::sweep_unlinked`](crate::Posix::sweep_unlinked).
    pub keep_unlinked: bool,
    /// Whether files that are read in some order are read ahead of that, beyond what the kernel
    /// does.
    pub read_ahead: bool,
    /// The extended attribute as which whoever reaches this reads and sets the project of an inode,
    /// in decimal. Empty: there is none.
    pub projects: &'static [u8],
    /// What this export shares with others of its server. A clone of these options shares it.
    pub domain: Domain,
}

impl Default for Options {
    /// A key that nobody else has, so that handles and tokens end with these options; export 0,
    /// boot 0, one file system, [`OPENS_MAX`]; nothing is made stable unasked, and removed files
    /// end with the process.
    fn default() -> Options {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the kernel gives random bytes once it has booted");
        Options {
            key,
            export: 0,
            boot: 0,
            sync: false,
            cross_mounts: false,
            opens_max: OPENS_MAX,
            handles: HandleSource::default(),
            keep_unlinked: false,
            read_ahead: true,
            projects: b"",
            domain: Domain::default(),
        }
    }
}
