//! The encryption of what is sent: TLS, and who is believed to be the collector.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Names a PEM file of who vouches for the collector, as OpenTelemetry's exporters have it; else
/// those are believed whom this machine believes.
pub(super) const ROOTS: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// Makes connections to one collector encrypted.
pub(super) struct Encryption {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl Encryption {
    /// For the collector at an address.
    pub(super) fn new(endpoint: &Uri, file: Option<&Path>) -> io::Result<Encryption> {
        let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let host = ServerName::try_from(host).map_err(io::Error::other)?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots(file)?)
            .with_no_client_auth();
        Ok(Encryption { connector: TlsConnector::from(Arc::new(config)), host })
    }

    /// Encrypts a connection, once the collector has proved who it is.
    pub(super) async fn over(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.host.clone(), stream).await
    }
}

fn roots(file: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return match roots.is_empty() {
            true => Err(io::Error::other(format!(
                "this machine believes nobody's certificates: install ca-certificates, or name a file by {ROOTS}"
            ))),
            false => Ok(roots),
        };
    };
    let failed = |error: &dyn std::fmt::Display| {
        io::Error::other(format!("cannot read the certificates {} ({ROOTS}): {error}", path.display()))
    };
    for root in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
        roots.add(root.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(failed(&"there is none in it"));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::time::{Duration, SystemTime};

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::super::{Otlp, OtlpConfig, Work};
    use super::*;

    /// Two who vouch, `one` and `other`; and the collector's certificate of `one`, for localhost.
    const MADE: &str = r#"
        for name in one other; do
          openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$name -keyout $name.key -out $name.pem \
            -addext basicConstraints=critical,CA:TRUE
        done
        openssl req -newkey rsa:2048 -nodes -subj /CN=collector -keyout key.pem -out collector.csr
        echo subjectAltName=DNS:localhost > extension
        openssl x509 -req -in collector.csr -CA one.pem -CAkey one.key -CAcreateserial -days 2 -extfile extension -out collector.pem
    "#;

    /// A collector over TLS, which answers one request and gives what came, or says why none did.
    fn collector(folder: &Path, listener: TcpListener) -> Result<String, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let chain = CertificateDer::pem_file_iter(folder.join("collector.pem")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let stream: TcpStream = listener.accept().map_err(|error| said(&error))?.0;
        let session = ServerConnection::new(Arc::new(config)).unwrap();
        let (mut stream, mut text, mut part) = (StreamOwned::new(session, stream), Vec::new(), [0; 4096]);
        while !text.ends_with(b"]}]}]}") {
            match stream.read(&mut part).map_err(|error| said(&error))? {
                0 => return Err("it closed".into()),
                count => text.extend_from_slice(&part[..count]),
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").map_err(|error| said(&error))?;
        String::from_utf8(text).map_err(|error| said(&error))
    }

    /// What comes of a work that is sent to a host of the collector's machine, believing a file.
    fn sent(folder: &Path, host: &str, roots: &str) -> (Result<String, String>, u64) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = OtlpConfig::endpoint(&format!("https://{host}:{port}")).unwrap();
        let config =
            OtlpConfig { endpoint, service: "test".into(), host: "h".into(), is_server: false, over_us: u64::MAX };
        let otlp = Otlp::believing(config, Some(&folder.join(roots))).unwrap();
        let dropped = otlp.dropped.clone();
        otlp.send(Work {
            name: "copy".into(),
            trace: "t".into(),
            is_root: true,
            began: SystemTime::now(),
            took: Duration::from_secs(1),
            failed: None,
            attributes: Vec::new(),
            parts: Vec::new(),
        });
        let came = std::thread::scope(|scope| {
            let came = scope.spawn(|| collector(folder, listener));
            drop(otlp); // with a last try
            came.join().unwrap()
        });
        (came, dropped.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[test]
    fn a_collector_is_believed_that_has_proved_who_it_is_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("sh").args(["-ec", MADE]).current_dir(folder.path()).output().unwrap();
        if !made.status.success() {
            return eprintln!("skipped: it needs openssl: {}", String::from_utf8_lossy(&made.stderr));
        }
        let (came, dropped) = sent(folder.path(), "localhost", "one.pem");
        let came = came.unwrap();
        assert!(came.starts_with("POST /v1/traces HTTP/1.1") && came.contains("\"name\":\"copy\""), "{came}");
        assert_eq!(dropped, 0);
        let (came, dropped) = sent(folder.path(), "localhost", "other.pem");
        assert!(came.is_err() && dropped == 1, "nobody vouches for it: {came:?}");
        let (came, dropped) = sent(folder.path(), "127.0.0.1", "one.pem");
        assert!(came.is_err() && dropped == 1, "it is another's name: {came:?}");
        let endpoint: Uri = "https://localhost".parse().unwrap();
        std::fs::write(folder.path().join("none.pem"), "").unwrap();
        for wrong in ["none.pem", "missing.pem", "key.pem"] {
            assert!(Encryption::new(&endpoint, Some(&folder.path().join(wrong))).is_err(), "{wrong}");
        }
    }
}
