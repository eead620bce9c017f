//! Choices by name, as configuration files, mount options and command lines write them.

use aqueduct_wire::Checksums;
use serde::Deserialize;

/// Something that is chosen by name.
pub trait Choice: Copy + 'static {
    /// Each choice with its name and what it means.
    const ALL: &'static [(Self, &'static str, &'static str)];

    /// The choice of this name.
    fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(choice, ..)| *choice)
    }
}

/// Whether what travels has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumChoice {
    /// Where the other side is another machine, and where it insists.
    Auto,
    /// Always: who adds none is not talked to.
    On,
    /// Never.
    Off,
}

impl Choice for ChecksumChoice {
    const ALL: &'static [(ChecksumChoice, &'static str, &'static str)] = &[
        (ChecksumChoice::Auto, "auto", "Where the other side is another machine, and where it insists"),
        (ChecksumChoice::On, "on", "Always: who adds none is not talked to"),
        (ChecksumChoice::Off, "off", "Never"),
    ];
}

impl ChecksumChoice {
    /// As the libraries know it.
    pub fn checksums(self) -> Checksums {
        match self {
            ChecksumChoice::Auto => Checksums::Auto,
            ChecksumChoice::On => Checksums::On,
            ChecksumChoice::Off => Checksums::Off,
        }
    }
}

/// How changes from outside come to light.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExternalChoice {
    /// They are recalled at once.
    Watch,
    /// Clients keep nothing for longer than some seconds.
    Poll,
    /// Nobody makes any.
    None,
}

impl Choice for ExternalChoice {
    const ALL: &'static [(ExternalChoice, &'static str, &'static str)] = &[
        (ExternalChoice::Watch, "watch", "They are recalled at once"),
        (ExternalChoice::Poll, "poll", "Clients keep nothing for longer than some seconds"),
        (ExternalChoice::None, "none", "Nobody makes any"),
    ];
}

/// Whose users act as the anonymous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SquashChoice {
    /// Root alone.
    Root,
    /// Everybody.
    All,
    /// Nobody.
    None,
}

impl Choice for SquashChoice {
    const ALL: &'static [(SquashChoice, &'static str, &'static str)] = &[
        (SquashChoice::Root, "root", "Root alone"),
        (SquashChoice::All, "all", "Everybody"),
        (SquashChoice::None, "none", "Nobody"),
    ];
}

/// Whether files are read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAheadChoice {
    /// Where a read has had to wait.
    Auto,
    /// By the kernel alone.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files and command lines know the same names.
    #[test]
    fn choices_have_one_name() {
        fn check<T: Choice + PartialEq + std::fmt::Debug + for<'a> Deserialize<'a>>() {
            for (choice, name, _) in T::ALL {
                assert_eq!(T::by_name(name), Some(*choice));
                let named = serde_json::from_value::<T>(serde_json::Value::String((*name).to_owned()));
                assert_eq!(named.unwrap(), *choice);
            }
            assert_eq!(T::by_name("other"), None);
        }
        check::<ChecksumChoice>();
        check::<ExternalChoice>();
        check::<SquashChoice>();
    }
}
