//! Certificates of TLS servers: PEM files with a chain and a key, and what clients reject in them.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

mod chain;

use chain::Chain;
pub use chain::Findings;
pub use tokio_rustls::{TlsAcceptor, rustls, server::TlsStream};

/// A certificate with its chain and its key.
#[derive(Debug)]
pub struct Pair {
    pub key: Arc<CertifiedKey>,
    pub content: CertificateContent,
}

impl Pair {
    /// Reads PEM files. The error names the file with the problem.
    pub fn read(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<Pair, String> {
        let of_file = |path: &Path, error: String| format!("{}: {error}", path.display());
        let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|error| of_file(certificate, error.to_string()))?;
        let content = CertificateContent::of_chain(&chain).map_err(|error| of_file(certificate, error))?;
        let of_key = |error: String| of_file(key, error);
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(error.to_string()))?;
        Pair::new(chain, content, secret, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => of_key(format!("is not the key of {}", certificate.display())),
            other => of_key(other.to_string()),
        })
    }

    /// Reads PEM texts.
    pub fn parse(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<Pair, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|error| error.to_string())?;
        let content = CertificateContent::of_chain(&chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
        Pair::new(chain, content, key, provider).map_err(|error| error.to_string())
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        content: CertificateContent,
        key: PrivateKeyDer<'static>,
        provider: &CryptoProvider,
    ) -> Result<Pair, rustls::Error> {
        let key = CertifiedKey::from_der(chain, key, provider)?;
        Ok(Pair { key: Arc::new(key), content })
    }
}

/// Parts of a certificate that clients check.
#[derive(Debug)]
pub struct CertificateContent {
    /// DNS names in lower case, and IP addresses.
    pub names: Vec<String>,
    /// Beginning and end of the validity, in seconds of Unix time.
    pub begin_s: i64,
    pub end_s: i64,
    chain: Chain,
}

impl CertificateContent {
    fn of_chain(chain: &[CertificateDer<'_>]) -> Result<CertificateContent, String> {
        let first = chain.first().ok_or("has no certificate")?;
        let (_, certificate) = X509Certificate::from_der(first).map_err(|error| error.to_string())?;
        let alternative = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        let names = alternative.iter().flat_map(|extension| &extension.value.general_names).filter_map(name_of);
        let validity = certificate.validity();
        Ok(CertificateContent {
            names: names.collect(),
            begin_s: validity.not_before.timestamp(),
            end_s: validity.not_after.timestamp(),
            chain: Chain::read(chain)?,
        })
    }

    /// Returns what clients reject at this time, in seconds of Unix time, or soon. Names are another matter: see `missing`.
    #[must_use]
    pub fn judge(&self, now_s: i64) -> Findings {
        self.chain.judge(now_s)
    }

    /// Returns a sentence for each server name for which clients reject this certificate.
    pub fn missing_names<'a>(&'a self, server_names: &'a [String]) -> impl Iterator<Item = String> + 'a {
        let own = if self.names.is_empty() { "no names".to_owned() } else { self.names.join(", ") };
        self.missing(server_names).map(move |name| format!("has no name {name}; it has {own}"))
    }

    /// Returns the server names for which clients reject this certificate.
    pub fn missing<'a>(&self, server_names: &'a [String]) -> impl Iterator<Item = &'a String> {
        server_names.iter().filter(|name| !self.has(name))
    }

    fn has(&self, name: &str) -> bool {
        let is_covered = |parent: &str| self.names.iter().any(|own| own.strip_prefix("*.") == Some(parent));
        self.names.iter().any(|own| own == name) || name.split_once('.').is_some_and(|(_, parent)| is_covered(parent))
    }
}

/// Reads PEM files as [`Pair::read`], and judges the certificate as a client of one of the server names does now.
///
/// Each finding names its file.
#[must_use]
pub fn judge_files(certificate: &Path, key: &Path, server_names: &[String]) -> Findings {
    let content = match Pair::read(certificate, key, &ring::default_provider()) {
        Ok(pair) => pair.content,
        Err(problem) => return Findings { problems: vec![problem], ..Findings::default() },
    };
    let mut findings = content.judge(unix_time_s());
    findings.problems.extend(content.missing_names(server_names));
    findings.map(|text| format!("{} {text}", certificate.display()))
}

/// Returns the time of the clock in seconds of Unix time.
#[must_use]
pub fn unix_time_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
            _ => <[u8; 16]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
        },
        _ => None,
    }
}

/// Returns an acceptor for TLS 1.2 and 1.3 that agrees on one of the protocols.
pub fn acceptor(
    certificates: Arc<dyn ResolvesServerCert>,
    provider: Arc<CryptoProvider>,
    protocols: &[&[u8]],
) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.ticketer = ring::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
