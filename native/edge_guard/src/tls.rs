//! TLS termination. The server name that a client sends selects the certificate. SIGHUP reloads all certificates.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::{Certificate, Config};
use crate::host_routes::find_name;

pub struct Certificates {
    resolver: Arc<CertificateResolver>,
    http: TlsAcceptor,
    tcp: TlsAcceptor,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Certificates")
    }
}

impl Certificates {
    pub fn read(config: &Config) -> Result<Self, Vec<String>> {
        let provider = Arc::new(ring::default_provider());
        let names = CertificateNames::read(config, &provider)?;
        let resolver = Arc::new(CertificateResolver { names: RwLock::new(names), provider });
        let http = resolver.acceptor(&[b"h2", b"http/1.1"])?;
        let tcp = resolver.acceptor(&[])?;
        Ok(Self { resolver, http, tcp })
    }

    /// Returns a problem for each name of the settings that is not in its certificate. Clients reject such a certificate.
    #[must_use]
    pub fn missing_names(&self) -> Vec<String> {
        self.resolver.names.read().unwrap_or_else(PoisonError::into_inner).missing.clone()
    }

    /// Returns the first server name of each certificate, and the end of its validity in seconds of Unix time.
    #[must_use]
    pub fn ends(&self) -> BTreeMap<String, i64> {
        self.resolver.names.read().unwrap_or_else(PoisonError::into_inner).ends.clone()
    }

    /// Reports whether there is a certificate for clients of this host. Clients of an IP address send no server name.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        let names = self.resolver.names.read().unwrap_or_else(PoisonError::into_inner);
        names.unnamed.is_some() && (host.parse::<IpAddr>().is_ok() || find_name(&names.named, host).is_some())
    }

    /// Reloads the certificates. After an error, the old certificates stay.
    pub fn reload(&self, config: &Config) -> Result<(), Vec<String>> {
        let names = CertificateNames::read(config, &self.resolver.provider)?;
        *self.resolver.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        Ok(())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resolver.names.read().unwrap_or_else(PoisonError::into_inner).unnamed.is_none()
    }

    #[must_use]
    pub fn http(&self) -> &TlsAcceptor {
        &self.http
    }

    #[must_use]
    pub fn tcp(&self) -> &TlsAcceptor {
        &self.tcp
    }
}

#[derive(Debug)]
struct CertificateResolver {
    names: RwLock<CertificateNames>,
    provider: Arc<CryptoProvider>,
}

impl CertificateResolver {
    fn acceptor(self: &Arc<Self>, protocols: &[&[u8]]) -> Result<TlsAcceptor, Vec<String>> {
        let problem = |error: rustls::Error| vec![format!("certificates: {error}")];
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(problem)?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.ticketer = ring::Ticketer::new().map_err(problem)?;
        config.send_tls13_tickets = 1;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        match hello.server_name() {
            Some(name) => find_name(&names.named, &name.to_ascii_lowercase()).cloned(),
            // Clients that connect to an address send no server name.
            None => names.unnamed.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct CertificateNames {
    named: HashMap<String, Arc<CertifiedKey>>,
    unnamed: Option<Arc<CertifiedKey>>,
    missing: Vec<String>,
    ends: BTreeMap<String, i64>,
}

impl CertificateNames {
    fn read(config: &Config, provider: &CryptoProvider) -> Result<Self, Vec<String>> {
        let mut names = Self::default();
        let mut problems = Vec::new();
        for (index, certificate) in config.certificates.iter().enumerate() {
            let path = format!("certificates.{index}");
            match read_pair(certificate, provider) {
                Ok((pair, content)) => {
                    let pair = Arc::new(pair);
                    names.unnamed.get_or_insert_with(|| pair.clone());
                    if certificate.server_names.contains(&config.advertised.to_ascii_lowercase()) {
                        names.unnamed = Some(pair.clone());
                    }
                    for name in &certificate.server_names {
                        names.named.insert(name.clone(), pair.clone());
                    }
                    names.missing.extend(content.missing(&certificate.server_names).map(|name| {
                        format!(
                            "{path}.server_names: {} has no name {name}; it has {}",
                            certificate.cert.display(),
                            if content.names.is_empty() { "no names".to_owned() } else { content.names.join(", ") }
                        )
                    }));
                    names.ends.insert(certificate.server_names[0].clone(), content.end_s);
                }
                Err(problem) => problems.push(format!("{path}: {problem}")),
            }
        }
        if problems.is_empty() { Ok(names) } else { Err(problems) }
    }
}

/// Parts of a certificate that clients check.
struct CertificateContent {
    /// DNS names in lower case, and IP addresses.
    names: Vec<String>,
    end_s: i64,
}

impl CertificateContent {
    fn read(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let alternative = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        let names = alternative.iter().flat_map(|extension| &extension.value.general_names).filter_map(name_of);
        Ok(Self { names: names.collect(), end_s: certificate.validity().not_after.timestamp() })
    }

    fn missing<'a>(&self, server_names: &'a [String]) -> impl Iterator<Item = &'a String> {
        server_names.iter().filter(|name| !self.has(name))
    }

    fn has(&self, name: &str) -> bool {
        let is_covered = |parent: &str| self.names.iter().any(|own| own.strip_prefix("*.") == Some(parent));
        self.names.iter().any(|own| own == name) || name.split_once('.').is_some_and(|(_, parent)| is_covered(parent))
    }
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

fn read_pair(
    certificate: &Certificate,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, CertificateContent), String> {
    let of_file = |error: String| format!("{}: {error}", certificate.cert.display());
    let chain = chain(&certificate.cert).map_err(of_file)?;
    let content = CertificateContent::read(&chain[0]).map_err(of_file)?;
    let key = PrivateKeyDer::from_pem_file(&certificate.key)
        .map_err(|error| format!("{}: {error}", certificate.key.display()))?;
    let pair = CertifiedKey::from_der(chain, key, provider).map_err(|error| error.to_string())?;
    Ok((pair, content))
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?.collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err("has no certificate".to_owned()),
        Ok(chain) => Ok(chain),
        Err(error) => Err(error.to_string()),
    }
}
