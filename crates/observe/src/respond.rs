//! What is answered to a request.

use std::sync::Arc;

use aqueduct_metrics::Snapshot;
use aqueduct_metrics::openmetrics::{self, Format};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

/// Where the metrics are.
const PATH: &str = "/metrics";

/// What tells the metrics of now.
pub(crate) type Metrics = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// Answers one request. Its body is not read.
pub(crate) fn respond<B>(request: &Request<B>, token: Option<&str>, metrics: &Metrics) -> Response<Full<Bytes>> {
    if !is_known(request.headers(), token) {
        let mut refused = plain(StatusCode::UNAUTHORIZED, "a token is missing or wrong: Authorization: Bearer TOKEN\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut response = plain(StatusCode::OK, openmetrics::encode(&metrics(), format));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    response
}

/// Whether it has the token. Hashes are compared, which takes as long wherever they differ.
fn is_known(headers: &HeaderMap, token: Option<&str>) -> bool {
    let Some(token) = token else { return true };
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    given.is_some_and(|given| blake3::hash(given.trim().as_bytes()) == blake3::hash(token.as_bytes()))
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
