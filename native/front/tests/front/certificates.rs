//! Certificates of the front, and the clients that trust them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hosting_front::ServerCertificate;
use hosting_tls::rustls::crypto::ring;
use hosting_tls::rustls::pki_types::pem::PemObject;
use hosting_tls::rustls::pki_types::{CertificateDer, ServerName};
use hosting_tls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rcgen::{CertificateParams, KeyPair};

pub const HOST: &str = "api.example";

/// A certificate that has signed itself, in files.
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    _folder: tempfile::TempDir,
}

impl Files {
    pub fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        let files =
            Files { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem"), _folder: folder };
        files.renew();
        files
    }

    /// Writes another certificate.
    pub fn renew(&self) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([HOST.to_owned()]).unwrap().self_signed(&key).unwrap();
        fs::write(&self.certificate, certificate.pem()).unwrap();
        fs::write(&self.key, key.serialize_pem()).unwrap();
    }

    pub fn read(&self) -> Arc<ServerCertificate> {
        ServerCertificate::read(&self.certificate, &self.key).unwrap()
    }

    /// Returns the configuration of a client that trusts the certificate in the file.
    pub fn trusting(&self, protocols: &[&[u8]], versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

pub fn host() -> ServerName<'static> {
    ServerName::try_from(HOST).unwrap()
}
