//! TLS of the public listeners: their certificate, and the handshake of a connection.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use hosting_tls::TlsAcceptor;
use hosting_tls::rustls::crypto::{CryptoProvider, ring};
use hosting_tls::rustls::server::{ClientHello, ResolvesServerCert};
use hosting_tls::rustls::sign::CertifiedKey;
use hosting_tls::{Pair, TlsStream};
use parking_lot::RwLock;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client_address::Peer;
use crate::connection_budget::Admission;
use crate::front::ThreadContext;
use crate::hyper_connection;

/// Certificate for clients of all names. New connections get a replaced one, and open ones stay as they are.
#[derive(Debug)]
pub struct ServerCertificate {
    pair: RwLock<Option<Pair>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertificate {
    /// Reads PEM files. The error names the file with the problem.
    pub fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerCertificate>, String> {
        let provider = Arc::new(ring::default_provider());
        let pair = Pair::read(certificate, key, &provider)?;
        Ok(Arc::new(ServerCertificate { pair: RwLock::new(Some(pair)), provider }))
    }

    /// Reads the files again. After an error, the old certificate stays.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), String> {
        let pair = Pair::read(certificate, key, &self.provider)?;
        *self.pair.write() = Some(pair);
        Ok(())
    }

    /// Returns the end of the validity in seconds of Unix time, or None without a certificate.
    pub fn end_s(&self) -> Option<i64> {
        self.pair.read().as_ref().map(|pair| pair.content.end_s)
    }

    fn acceptor(self: &Arc<Self>, protocols: &[&[u8]]) -> Result<TlsAcceptor, String> {
        hosting_tls::acceptor(self.clone(), self.provider.clone(), protocols).map_err(|error| error.to_string())
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
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
        let http = certificate.acceptor(&[b"h2", b"http/1.1"])?;
        Ok(TlsAcceptors { http, grpc: certificate.acceptor(&[b"h2"])? })
    }
}

/// Returns None if the connection must close: the handshake has failed, or takes longer than the head of a request may.
pub(crate) async fn accept(
    acceptor: &TlsAcceptor,
    context: &ThreadContext,
    stream: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    timeout(context.timeouts.receive, acceptor.accept(stream)).await.ok()?.ok()
}

/// Serves an HTTP connection that begins with a handshake.
pub(crate) async fn serve(
    acceptor: TlsAcceptor,
    context: Rc<ThreadContext>,
    stream: TcpStream,
    peer: Peer,
    admission: Admission,
) {
    if let Some(stream) = accept(&acceptor, &context, stream).await {
        hyper_connection::serve(context, stream, Vec::new(), peer, admission).await;
    }
}
