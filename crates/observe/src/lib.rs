//! Tells what is counted to whoever watches: an [`Exporter`] serves the metrics of its process
//! over HTTP, as OpenMetrics or as Prometheus' older text; [`activity`] reads what this machine
//! counts for each disk, mount, interface and target, and [`series`] writes that, every second.
//!
//! An exporter has a thread of its own and a bounded number of connections, so that a slow or
//! hostile scraper holds up nothing else. The runtime lives here and nowhere in the data path.

#![forbid(unsafe_code)]

pub mod activity;
mod exporter;
#[cfg(feature = "reports")]
pub mod parquet;
mod respond;
pub mod series;

pub use exporter::{CONNECTIONS_MAX, Config, Exporter, StartError};
