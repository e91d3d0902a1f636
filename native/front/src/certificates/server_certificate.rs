//! TLS of the public listeners: their certificate, and the handshake of a connection.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use hosting_tls::TlsAcceptor;
use hosting_tls::rustls;
use hosting_tls::rustls::crypto::{CryptoProvider, ring};
use hosting_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use hosting_tls::rustls::server::{ClientHello, ResolvesServerCert};
use hosting_tls::rustls::sign::CertifiedKey;
use hosting_tls::{CertificateContent, Pair, TlsStream};
use parking_lot::RwLock;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Protocol of the validations of an ACME directory. They end with the handshake.
const CHALLENGE: &[u8] = b"acme-tls/1";

/// Certificate for clients of all names. New connections get a replaced one, and open ones stay as they are.
#[derive(Debug)]
pub struct ServerCertificate {
    pair: RwLock<Option<Pair>>,
    /// Certificates for validations of an ACME directory, by domain.
    challenges: RwLock<HashMap<String, Arc<CertifiedKey>>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertificate {
    /// Handshakes fail until there is a certificate.
    pub(crate) fn empty() -> ServerCertificate {
        let provider = Arc::new(ring::default_provider());
        ServerCertificate { pair: RwLock::default(), challenges: RwLock::default(), provider }
    }

    /// Reads PEM files. The error names the file with the problem.
    pub fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerCertificate>, String> {
        let empty = ServerCertificate::empty();
        empty.reload(certificate, key)?;
        Ok(Arc::new(empty))
    }

    /// Reads the files again. After an error, the old certificate stays.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), String> {
        let pair = Pair::read(certificate, key, &self.provider)?;
        *self.pair.write() = Some(pair);
        Ok(())
    }

    pub(crate) fn put(&self, certificate: &[u8], key: &[u8]) -> Result<(), String> {
        let pair = Pair::parse(certificate, key, &self.provider)?;
        *self.pair.write() = Some(pair);
        Ok(())
    }

    pub(crate) fn begin_challenge(
        &self,
        domain: String,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let key = self.provider.key_provider.load_private_key(key)?;
        self.challenges.write().insert(domain, Arc::new(CertifiedKey::new(vec![certificate], key)));
        Ok(())
    }

    pub(crate) fn end_challenges(&self) {
        self.challenges.write().clear();
    }

    /// Returns None without a certificate.
    pub(crate) fn with_content<T>(&self, read: impl FnOnce(&CertificateContent) -> T) -> Option<T> {
        self.pair.read().as_ref().map(|pair| read(&pair.content))
    }

    /// Returns the end of the validity in seconds of Unix time, or None without a certificate.
    pub fn end_s(&self) -> Option<i64> {
        self.with_content(|content| content.end_s)
    }

    fn acceptor(self: &Arc<Self>, protocols: &[&[u8]]) -> Result<TlsAcceptor, String> {
        hosting_tls::acceptor(self.clone(), self.provider.clone(), protocols).map_err(|error| error.to_string())
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if hello.alpn().is_some_and(|mut protocols| protocols.next() == Some(CHALLENGE)) {
            return self.challenges.read().get(hello.server_name()?).cloned();
        }
        self.pair.read().as_ref().map(|pair| pair.key.clone())
    }
}

/// Acceptors of the two public listeners.
#[derive(Clone)]
pub(crate) struct TlsAcceptors {
    pub http: TlsAcceptor,
    pub grpc: TlsAcceptor,
}

impl TlsAcceptors {
    pub fn new(certificate: &Arc<ServerCertificate>) -> Result<TlsAcceptors, String> {
        let http = certificate.acceptor(&[b"h2", b"http/1.1", CHALLENGE])?;
        Ok(TlsAcceptors { http, grpc: certificate.acceptor(&[b"h2"])? })
    }
}

/// Returns None if the connection must close: the handshake has failed, takes too long, or was for a validation.
pub(crate) async fn accept(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    longest: Duration,
) -> Option<TlsStream<TcpStream>> {
    let stream = timeout(longest, acceptor.accept(stream)).await.ok()?.ok()?;
    (stream.get_ref().1.alpn_protocol() != Some(CHALLENGE)).then_some(stream)
}
