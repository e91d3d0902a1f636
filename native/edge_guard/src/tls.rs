//! TLS termination. The server name that a client sends selects the certificate. SIGHUP reloads all certificates.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use hosting_tls::{Findings, Pair, unix_time_s};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::config::Config;
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

    /// Returns what clients reject in each certificate, also because of the names in the settings.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.resolver.names.read().unwrap_or_else(PoisonError::into_inner).findings.clone()
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
        hosting_tls::acceptor(self.clone(), self.provider.clone(), protocols)
            .map_err(|error| vec![format!("certificates: {error}")])
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
    findings: Findings,
    ends: BTreeMap<String, i64>,
}

impl CertificateNames {
    fn read(config: &Config, provider: &CryptoProvider) -> Result<Self, Vec<String>> {
        let mut names = Self::default();
        let mut problems = Vec::new();
        for (index, certificate) in config.certificates.iter().enumerate() {
            let path = format!("certificates.{index}");
            match Pair::read(&certificate.cert, &certificate.key, provider) {
                Ok(Pair { key, content }) => {
                    names.unnamed.get_or_insert_with(|| key.clone());
                    if certificate.server_names.contains(&config.advertised.to_ascii_lowercase()) {
                        names.unnamed = Some(key.clone());
                    }
                    for name in &certificate.server_names {
                        names.named.insert(name.clone(), key.clone());
                    }
                    let file = certificate.cert.display();
                    names.findings.extend(content.judge(unix_time_s()).map(|text| format!("{path}: {file} {text}")));
                    let missing = content.missing_names(&certificate.server_names);
                    names.findings.problems.extend(missing.map(|text| format!("{path}.server_names: {file} {text}")));
                    names.ends.insert(certificate.server_names[0].clone(), content.end_s);
                }
                Err(problem) => problems.push(format!("{path}: {problem}")),
            }
        }
        if problems.is_empty() { Ok(names) } else { Err(problems) }
    }
}
