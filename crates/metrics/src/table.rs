//! The table of all metrics. What is recorded anywhere in the product has a row here.
//!
//! Names are those of OpenMetrics: lower case, the base unit as a suffix, `_total` behind a
//! counter. Times are recorded in nanoseconds, and told in seconds by whoever exports them.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::instrument::{Instrument, Kind};
use crate::{Counter, Gauge, Histogram};

/// What is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Things are counted.
    #[default]
    #[serde(rename = "none")]
    None,
    /// Time: nanoseconds as it is recorded, seconds by name.
    #[serde(rename = "nanoseconds")]
    Seconds,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
}

impl Unit {
    pub(crate) fn is_none(&self) -> bool {
        *self == Unit::None
    }

    /// How the names of its metrics end, before `_total`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Valid in OpenMetrics, with the prefix `aqueduct_`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it measures.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in a sentence or two.
    pub meaning: &'static str,
}

/// A row of the table, with the instrument that records it.
#[derive(Debug)]
pub struct Metric<I> {
    /// What stands in the row.
    pub definition: Definition,
    instrument: PhantomData<fn() -> I>,
}

impl<I: Instrument> Metric<I> {
    pub(crate) const fn new(
        name: &'static str,
        unit: Unit,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> Metric<I> {
        let definition = Definition { name, kind: I::KIND, unit, labels, meaning };
        Metric { definition, instrument: PhantomData }
    }
}

/// The label for an operation of the wire protocol, as PROTOCOL.md names it.
pub const OPERATION: &str = "operation";
/// The label for an export, by its name. More than [`EXPORTS_MAX`] are told as `other`.
pub const EXPORT: &str = "export";

/// Exports that have series of their own.
pub const EXPORTS_MAX: usize = 64;

/// The label for a client, by the name that it gave. More than [`CLIENTS_MAX`] at a time are told
/// as `other`.
pub const CLIENT: &str = "client";

/// Clients that have series of their own at a time.
pub const CLIENTS_MAX: usize = 64;

/// The label for a job of a batch system, as clients say it. More than [`JOBS_MAX`] at a time are
/// told as `other`.
pub const JOB: &str = "job_id";

/// Jobs that have series of their own at a time.
pub const JOBS_MAX: usize = 64;

/// The label for the side of a connection: `server` or `client`.
pub const SIDE: &str = "side";

/// The label for the kind of a connection: `control`, `bulk`, or `unjoined`.
pub const CONNECTION: &str = "connection";

/// The label for one of the ways to a server that are used at once, as `from/to`. There are as
/// many as the mount was given or found.
pub const RAIL: &str = "rail";

/// The label for a request of the kernel, by its name in the kernel's protocol.
pub const OPCODE: &str = "opcode";

/// The label for the way by which the kernel's requests come.
pub const TRANSPORT: &str = "transport";

/// The label for what the kernel is told.
pub const NOTIFICATION: &str = "notification";

/// The label for what a router's flows are counted by: `route`, `client` or `network`.
pub const SCOPE: &str = "scope";
/// The label for which route, client (an address) or network it is. More than [`ROUTES_MAX`] are
/// told as `other`.
pub const NAME: &str = "name";
/// Routes and networks of a router that have series of their own at a time.
pub const ROUTES_MAX: usize = 64;
/// The label for a direction through a router: `out` from who made the flow, `back` to it.
pub const WAY: &str = "way";

/// Rows under a heading: a constant, what records it, its name, unit and labels. Its documentation
/// is the meaning that is told.
macro_rules! table {
    ($($heading:literal: {
        $($(#[doc = $meaning:literal])+ $constant:ident: $instrument:ident = $name:literal, $unit:ident, [$($label:ident),*];)*
    })*) => {
        $($($(#[doc = $meaning])+
        pub static $constant: Metric<$instrument> =
            Metric::new($name, Unit::$unit, &[$($label),*], concat!($($meaning),+));)*)*

        /// All rows, in the order of the table, under their headings.
        pub fn headings() -> Vec<(&'static str, Vec<&'static Definition>)> {
            vec![$(($heading, vec![$(&$constant.definition),*])),*]
        }
    };
}

/// All rows, in the order of the table.
pub fn all() -> Vec<&'static Definition> {
    headings().into_iter().flat_map(|(_, rows)| rows).collect()
}

include!("rows.rs");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What OpenMetrics allows, and our own rules, which are stricter.
    fn fault(row: &Definition) -> Option<&'static str> {
        let letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let base = row.name.strip_suffix("_total");
        let unit = base.unwrap_or(row.name).ends_with(row.unit.suffix());
        let unit_said = ["_seconds", "_bytes"].iter().any(|unit| base.unwrap_or(row.name).ends_with(unit));
        let reserved = ["_count", "_sum", "_bucket", "_created", "_info", "_gcount", "_gsum"];
        match () {
            () if !row.name.starts_with("aqueduct_") => Some("the prefix is aqueduct_"),
            () if !row.name.chars().all(letter) || row.name.contains("__") => Some("letters"),
            () if base.is_some() != (row.kind == Kind::Counter) => Some("_total is for counters"),
            () if !unit || unit_said != (row.unit != Unit::None) => Some("it ends with its unit"),
            () if reserved.iter().any(|suffix| row.name.ends_with(suffix)) => Some("reserved"),
            () if row.labels.iter().any(|label| !label.chars().all(letter) || ["le", "quantile"].contains(label)) => {
                Some("labels")
            }
            () if row.meaning.trim().is_empty() || !row.meaning.ends_with('.') => Some("meaning"),
            () => None,
        }
    }

    #[test]
    fn names_are_valid() {
        let faults: Vec<_> = all().into_iter().filter_map(|row| Some((row.name, fault(row)?))).collect();
        assert_eq!(faults, []);
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = all().iter().map(|row| row.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(!names.is_empty());
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let row = |name, unit, labels| Metric::<Counter>::new(name, unit, labels, "It counts.").definition;
        assert_eq!(fault(&row("aqueduct_a_bytes_total", Unit::Bytes, &["export"])), None);
        assert_eq!(fault(&row("aqueduct_a_bytes", Unit::Bytes, &[])), Some("_total is for counters"));
        assert_eq!(fault(&row("aqueduct_a_total", Unit::Bytes, &[])), Some("it ends with its unit"));
        assert_eq!(fault(&row("aqueduct_a_bytes_total", Unit::None, &[])), Some("it ends with its unit"));
        assert_eq!(fault(&row("aqueduct_A_total", Unit::None, &[])), Some("letters"));
        assert_eq!(fault(&row("a_total", Unit::None, &[])), Some("the prefix is aqueduct_"));
        assert_eq!(fault(&row("aqueduct_a_total", Unit::None, &["le"])), Some("labels"));
        let gauge = Metric::<Gauge>::new("aqueduct_sum", Unit::None, &[], "It is.").definition;
        assert_eq!(fault(&gauge), Some("reserved"));
        let silent = Metric::<Histogram>::new("aqueduct_x", Unit::None, &[], " ").definition;
        assert_eq!(fault(&silent), Some("meaning"));
    }
}
