//! How the connection to the store is encrypted, and what the database has to prove: as libpq's
//! `sslmode`, `sslrootcert`, `sslcert` and `sslkey` have it, in the address of the store.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Failure;

/// What an address asks of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    mode: Mode,
    roots: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// As in libpq. A Unix socket is never encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Not encrypted.
    Disable,
    /// Encrypted where the database can; nobody proves anything.
    #[default]
    Prefer,
    /// Encrypted; nobody proves anything, unless roots are named: then as `VerifyCa`.
    Require,
    /// The database has a certificate of a root that is believed.
    VerifyCa,
    /// And it is for the host that is asked for.
    VerifyFull,
}

const MODES: [(&str, Mode); 5] = [
    ("disable", Mode::Disable),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

impl Wanted {
    /// Takes what is said of encryption out of an address. The rest is for the database's library,
    /// which knows fewer modes.
    pub fn taken_from(url: &str) -> Result<(String, Wanted), Failure> {
        let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), Wanted::default())) };
        let (mut wanted, mut rest) = (Wanted::default(), Vec::new());
        for pair in query.split('&') {
            let path = |value: &str| Some(PathBuf::from(unescaped(value)));
            match pair.split_once('=') {
                Some(("sslmode", mode)) => {
                    let known = MODES.iter().find(|(name, _)| *name == mode);
                    let (_, mode) = known.ok_or_else(|| unknown(mode))?;
                    wanted.mode = *mode;
                }
                Some(("sslrootcert", value)) => wanted.roots = path(value),
                Some(("sslcert", value)) => wanted.certificate = path(value),
                Some(("sslkey", value)) => wanted.key = path(value),
                _ => rest.push(pair),
            }
        }
        let mode = match wanted.mode {
            Mode::Disable => "sslmode=disable",
            Mode::Prefer => "sslmode=prefer",
            _ => "sslmode=require",
        };
        rest.push(mode);
        Ok((format!("{address}?{}", rest.join("&")), wanted))
    }

    /// What makes encrypted connections.
    pub fn connector(&self) -> Result<MakeRustlsConnect, Failure> {
        let provider = Arc::new(ring::default_provider());
        let any_host = |chain| Arc::new(AnyHost { provider: provider.clone(), chain });
        let believed: Arc<dyn ServerCertVerifier> = match (self.mode, &self.roots) {
            (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) => any_host(None),
            (Mode::VerifyFull, _) => self.verifier(&provider)?,
            (Mode::VerifyCa | Mode::Require, _) => any_host(Some(self.verifier(&provider)?)),
        };
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            let hint = "name PEM files by sslcert= and sslkey= in the address of the store";
            Failure::new(format!("cannot {what} for the store"), error.to_string(), hint)
        };
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("set up encryption", &error))?
            .dangerous()
            .with_custom_certificate_verifier(believed);
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let what = format!("read the certificate {}", certificate.display());
                let chain = chain.map_err(|error| failed(&what, &error))?;
                let what = format!("read the key {}", key.display());
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(&what, &error))?;
                config.with_client_auth_cert(chain, key).map_err(|error| failed("use the certificate", &error))?
            }
            (None, None) => config.with_no_client_auth(),
            _ => return Err(failed("use one of certificate and key", &"each needs the other")),
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Failure> {
        let failed = |what: String, error: &dyn std::fmt::Display| {
            let hint = "name a PEM file of who vouches for the database by sslrootcert= in the address of the store";
            Failure::new(what, error.to_string(), hint)
        };
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Some(path) => {
                let what = || format!("cannot read the certificates {}", path.display());
                for root in CertificateDer::pem_file_iter(path).map_err(|error| failed(what(), &error))? {
                    let root = root.map_err(|error| failed(what(), &error))?;
                    roots.add(root).map_err(|error| failed(what(), &error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| failed("cannot tell whether the store is who it should be".to_owned(), &error))
    }
}

fn unknown(mode: &str) -> Failure {
    let names: Vec<&str> = MODES.iter().map(|(name, _)| *name).collect();
    Failure::usage("cannot read --store", format!("sslmode={mode} is not known"), format!("use {}", names.join(", ")))
}

/// A value of an address: %20 is a space.
fn unescaped(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), value.as_bytes());
    while let [first, tail @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Believes whoever has a certificate of a chain that is believed, whatever its name; or
/// everybody, as libpq does for who asks for encryption alone: who listens hears nothing, and who
/// stands between is not noticed.
#[derive(Debug)]
struct AnyHost {
    provider: Arc<CryptoProvider>,
    /// `None`: everybody is believed.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(believed) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match believed.verify_server_cert(certificate, chain, name, ocsp, now) {
            // The name is looked at last, when the chain has been found good.
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_encryption_is_taken_out_of_an_address() {
        let (rest, wanted) = Wanted::taken_from("postgres://u@h/d?sslmode=verify-full&sslrootcert=/a%20b&x=y").unwrap();
        assert_eq!(rest, "postgres://u@h/d?x=y&sslmode=require");
        assert_eq!((wanted.mode, wanted.roots), (Mode::VerifyFull, Some("/a b".into())));
        let (rest, wanted) = Wanted::taken_from("postgres://h/d").unwrap();
        assert_eq!((&*rest, wanted), ("postgres://h/d", Wanted::default()));
        let refused = Wanted::taken_from("postgres://h/d?sslmode=verifyfull").unwrap_err();
        assert!(refused.to_string().contains("verify-full"), "{refused}");
    }

    #[test]
    fn percent_signs_that_escape_nothing_stay() {
        assert_eq!(unescaped("100%/%4"), "100%/%4");
        assert_eq!(unescaped("%41%2f"), "A/");
    }
}
