//! Where a server, mount or router tells its metrics, and to whom.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use aqueduct_metrics::Snapshot;
use aqueduct_observe::{Config, Exporter, StartError};

use crate::failure::{Failure, Kind};

/// The longest token, in bytes: more fits no header.
const TOKEN_LENGTH_MAX: usize = 1024;

/// Where metrics are told, as a person wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSettings {
    /// `ADDRESS:PORT`; `None`: nowhere.
    pub address: Option<String>,
    /// The file with the token that is asked for.
    pub token: Option<PathBuf>,
}

impl MetricsSettings {
    /// What they come to: `None`: nowhere.
    pub(crate) fn resolve(&self) -> Result<Option<Config>, Failure> {
        let Some(text) = &self.address else {
            let Some(token) = &self.token else { return Ok(None) };
            let what = format!("cannot use the token in {}", token.display());
            return Err(Failure::usage(what, "metrics are told nowhere", "say where with metrics=ADDRESS:PORT"));
        };
        let what = format!("cannot tell metrics on '{text}'");
        let hint = "give ADDRESS:PORT, such as 127.0.0.1:9170";
        let address = text.to_socket_addrs().map_err(|error| Failure::usage(&what, error, hint))?.next();
        let address = address.ok_or_else(|| Failure::usage(&what, "it has no address", hint))?;
        let token = self.token.as_deref().map(read_token).transpose()?;
        if token.is_none() && !address.ip().is_loopback() {
            let why = "whoever reaches that address would learn who uses what";
            let hint = "give a file with a token (metrics_token), which who asks sends as 'Authorization: Bearer TOKEN', or a loopback address";
            return Err(Failure::usage(what, why, hint));
        }
        Ok(Some(Config { address, token }))
    }
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let what = format!("cannot use the token in {}", path.display());
    let hint = "write one line of letters and digits into the file, as of 'openssl rand -hex 32'";
    let text = std::fs::read_to_string(path).map_err(|error| Failure::usage(&what, error, hint))?;
    let token = text.trim();
    match () {
        () if token.is_empty() => Err(Failure::usage(what, "it is empty", hint)),
        () if token.len() > TOKEN_LENGTH_MAX => {
            Err(Failure::usage(what, format!("it has more than {TOKEN_LENGTH_MAX} bytes"), hint))
        }
        () if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(Failure::usage(what, "it has blanks, line breaks, or what is not ASCII", hint))
        }
        () => Ok(token.to_owned()),
    }
}

/// Tells metrics as configured, if at all, until it is dropped.
pub(crate) fn start(
    config: Option<&Config>,
    metrics: impl Fn() -> Snapshot + Send + Sync + 'static,
) -> Result<Option<Exporter>, Failure> {
    let Some(config) = config else { return Ok(None) };
    let exporter = Exporter::start(config, metrics).map_err(|error| {
        let kind = if matches!(error, StartError::Listen { .. }) { Kind::Listen } else { Kind::System };
        Failure::from_line(error, "give another address").of(kind)
    })?;
    // As the port may be the kernel's choice.
    tracing::info!("metrics are told on http://{}/metrics", exporter.address());
    Ok(Some(exporter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(address: &str, token: Option<&Path>) -> Result<Option<Config>, String> {
        let settings = MetricsSettings { address: Some(address.to_owned()), token: token.map(Path::to_owned) };
        settings.resolve().map_err(|failure| failure.to_string())
    }

    #[test]
    fn others_than_this_machine_need_a_token() {
        assert_eq!(MetricsSettings::default().resolve(), Ok(None));
        let here = Config { address: "127.0.0.1:9170".parse().unwrap(), token: None };
        assert_eq!(resolved("127.0.0.1:9170", None), Ok(Some(here)));
        assert!(resolved("0.0.0.0:9170", None).unwrap_err().contains("metrics_token"));
        assert!(resolved("nonsense", None).unwrap_err().contains("9170"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, refused) in [(" \n", "empty"), ("a b", "blanks"), (&*"x".repeat(2000), "more than")] {
            std::fs::write(&path, text).unwrap();
            let told = resolved("0.0.0.0:9170", Some(&path)).unwrap_err();
            assert!(told.contains(refused), "{told}");
        }
        std::fs::write(&path, "secret\n").unwrap();
        let open = resolved("0.0.0.0:9170", Some(&path)).unwrap().unwrap();
        assert_eq!(open.token.as_deref(), Some("secret"));
        assert!(MetricsSettings { address: None, token: Some(path) }.resolve().is_err(), "a token for nothing");
    }
}
