//! Where spans are sent, and of whom.

use hyper::Uri;

/// The port and path of OTLP over HTTP, where none is said.
pub(super) const PORT: u16 = 4318;
const PATH: &str = "/v1/traces";

/// Where spans are sent, and of whom.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// `http://HOST[:PORT][/PATH]`, or https.
    pub endpoint: Uri,
    /// What sends: `service.name`.
    pub service: String,
    /// This machine: `host.name`.
    pub host: String,
    /// It answers requests, rather than making them.
    pub is_server: bool,
    /// Operations are sent that took so many microseconds or longer.
    pub over_us: u64,
}

impl OtlpConfig {
    /// Reads an endpoint. An error says what is wrong with it.
    pub fn endpoint(text: &str) -> Result<Uri, String> {
        let uri: Uri = text.parse().map_err(|error| format!("it is no address: {error}"))?;
        let scheme = match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => "http",
            (Some("https"), Some(_)) => "https",
            _ => return Err("it is not of the form http://HOST:4318, or https".into()),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("it has a name or password, which is not sent: name a collector that asks for none".into());
        }
        if uri.query().is_some() {
            return Err("what is behind its ? is not sent: leave it out".into());
        }
        let path = if uri.path() == "/" { PATH } else { uri.path() };
        let authority = match uri.port() {
            Some(_) => uri.authority().map_or_else(String::new, ToString::to_string),
            None => format!("{}:{PORT}", uri.host().unwrap_or_default()),
        };
        let whole = Uri::builder().scheme(scheme).authority(authority).path_and_query(path);
        whole.build().map_err(|error| format!("it is no address: {error}"))
    }
}
