//! Where slow operations are sent as spans.

use std::sync::Arc;

use aqueduct_metrics::trace::Record;
use aqueduct_observe::{Otlp, OtlpConfig};

use crate::failure::Failure;
use crate::host;

/// What a server and a mount are called in what they send.
pub(crate) const SERVER: &str = "aqueduct-server";
pub(crate) const MOUNT: &str = "aqueduct-mount";

/// And what a tool and an agent are.
const TOOL: &str = "aqueduct";

/// A collector, as a person wrote it. `service`: who sends.
pub(crate) fn collector(text: &str, service: &str, over_us: u64) -> Result<OtlpConfig, Failure> {
    let endpoint = OtlpConfig::endpoint(text).map_err(|why| {
        let what = format!("cannot send spans to '{text}'");
        Failure::usage(
            what,
            why,
            "give http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318",
        )
    })?;
    let is_server = service == SERVER;
    Ok(OtlpConfig { endpoint, service: service.to_owned(), host: host::name(), is_server, over_us })
}

/// What sends them.
pub(crate) fn sends(config: OtlpConfig) -> Result<Arc<dyn Record>, Failure> {
    Ok(Arc::new(start(config)?))
}

fn start(config: OtlpConfig) -> Result<Otlp, Failure> {
    let what = format!("cannot send spans to {}", config.endpoint);
    let hint = "see whether the certificates can be read, and the limits on threads and descriptors";
    Otlp::start(config).map_err(|error| Failure::new(what, error, hint))
}

/// What sends the works of a tool to a collector.
pub fn tool_spans(collector_address: &str) -> Result<Otlp, Failure> {
    start(collector(collector_address, TOOL, u64::MAX)?)
}
