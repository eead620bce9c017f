//! Where slow operations are sent as spans.

use std::sync::Arc;

use aqueduct_metrics::trace::Record;
use aqueduct_observe::{Otlp, OtlpConfig};

use crate::failure::Failure;
use crate::host;

/// What a server and a mount are called in what they send.
pub(crate) const SERVER: &str = "aqueduct-server";
pub(crate) const MOUNT: &str = "aqueduct-mount";

/// A collector, as a person wrote it. `service`: who sends.
pub(crate) fn collector(text: &str, service: &str, over_us: u64) -> Result<OtlpConfig, Failure> {
    let endpoint = OtlpConfig::endpoint(text).map_err(|why| {
        let what = format!("cannot send slow operations to '{text}'");
        Failure::usage(
            what,
            why,
            "give http://HOST:PORT of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318",
        )
    })?;
    let is_server = service == SERVER;
    Ok(OtlpConfig { endpoint, service: service.to_owned(), host: host::name(), is_server, over_us })
}

/// What sends them.
pub(crate) fn sends(config: OtlpConfig) -> Result<Arc<dyn Record>, Failure> {
    let what = format!("cannot send slow operations to {}", config.endpoint);
    let sender =
        Otlp::start(config).map_err(|error| Failure::new(what, error, "see the limits on threads and descriptors"))?;
    Ok(Arc::new(sender))
}
