//! Tells what is counted to whoever watches: an [`Exporter`] serves the metrics of its process
//! over HTTP, as OpenMetrics or as Prometheus' older text.
//!
//! It has a thread of its own and a bounded number of connections, so that a slow or hostile
//! scraper holds up nothing else. The runtime lives here and nowhere in the data path.

#![forbid(unsafe_code)]

mod exporter;
mod respond;

pub use exporter::{CONNECTIONS_MAX, Config, Exporter, StartError};
