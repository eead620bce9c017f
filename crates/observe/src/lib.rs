//! Tells what is counted to whoever watches: an [`Exporter`] serves the metrics of its process
//! over HTTP, as OpenMetrics or as Prometheus' older text; [`activity`] reads what this machine
//! counts for each disk, mount, interface and target, and [`series`] writes that, every second; a
//! [`RequestLog`] writes down the requests of a server, and [`Otlp`] sends slow operations and
//! works of tools to a collector.
//!
//! An exporter has a thread of its own and a bounded number of connections, so that a slow or
//! hostile scraper holds up nothing else. The runtime lives here and nowhere in the data path.

#![forbid(unsafe_code)]

pub mod activity;
mod exporter;
mod otlp;
#[cfg(feature = "reports")]
pub mod parquet;
mod requests;
mod respond;
pub mod series;

pub use exporter::{CONNECTIONS_MAX, Config, Exporter, StartError};
pub use otlp::{Otlp, OtlpConfig, Said, Work};
pub use requests::{RequestLog, RequestLogConfig};
