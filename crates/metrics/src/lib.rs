//! What Aqueduct counts: one typed table of all metrics, the instruments that record them, and
//! snapshots from which text, JSON and exporters are made.
//!
//! The [`table`] has each metric once: its name, unit, kind, labels and meaning. A [`Counter`],
//! [`Gauge`] or [`Histogram`] records without allocation and without a lock. Whoever owns some of
//! them implements [`Collect`]: it puts what they say into a [`Snapshot`], under names of the
//! table, so that a metric that the table does not have cannot be told.
//!
//! This crate has no clock and does no I/O: times are given to it. The documentation
//! (`docs/metrics.md`) is generated from the table, see [`document`].

#![forbid(unsafe_code)]

pub mod activity;
mod counter;
pub mod document;
mod family;
mod histogram;
mod instrument;
pub mod openmetrics;
mod recorder;
mod shard;
mod snapshot;
pub mod status;
pub mod table;
pub mod trace;

pub use counter::{Counter, CounterSet, Gauge};
pub use family::{Family, Indexed, OTHER, Series};
pub use histogram::{BUCKETS, Histogram, HistogramSnapshot, QUANTILE_ERROR_MAX, VALUE_MAX};
pub use instrument::{Absorb, Instrument, Kind, Value};
pub use recorder::Recorder;
pub use shard::SHARDS_MAX;
pub use snapshot::{Collect, MetricSnapshot, Sample, Snapshot};
pub use table::{Definition, Metric, Unit};
