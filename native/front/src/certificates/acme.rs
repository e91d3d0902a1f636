//! Certificates of an ACME directory (RFC 8555), with the challenge TLS-ALPN-01 (RFC 8737).

use std::error::Error;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hosting_tls::CertificateContent;
use hosting_tls::rustls::pki_types::PrivatePkcs8KeyDer;
use instant_acme::{
    Account, AccountBuilder, AccountCredentials, AuthorizationStatus, ChallengeType, Error as AcmeError, Identifier,
    Key, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use sha2::{Digest as _, Sha256};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::certificates::server_certificate::ServerCertificate;

/// Time for one order. A directory that does not answer must not end the renewal.
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);
const POLLING: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// Pause after a failed order, which doubles with each further failure.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(3_600);
/// The clock may change while the thread sleeps.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);
/// Part of the validity that is left at a renewal.
const RENEWAL_PART: i64 = 3;
/// Notices that wait for their reader.
const NOTICES_MAX: usize = 100;

/// The directory has lost the account, for example after a new installation.
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

type Failure = Box<dyn Error + Send + Sync>;

pub struct AcmeOptions {
    pub domains: Vec<String>,
    /// E-mail address for notices of the authority.
    pub contact: String,
    /// URL of the directory.
    pub directory: String,
    /// Certificate of the authority of the directory's own certificate. None: the authorities of the system.
    pub root: Option<PathBuf>,
    /// Folder of accounts and certificates.
    pub folder: PathBuf,
}

/// Outcome of an order, for the log.
pub struct Notice {
    pub is_problem: bool,
    pub text: String,
}

/// Orders a certificate and renews it, in a thread of its own. The thread ends when this is dropped.
pub struct Acme {
    certificate: Arc<ServerCertificate>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Acme {
    /// Takes the stored certificate. Without one, there is none until the first order succeeds.
    pub fn start(options: AcmeOptions) -> io::Result<Acme> {
        let certificate = Arc::new(ServerCertificate::empty());
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let notices = Arc::<Mutex<Vec<Notice>>>::default();
        let (store, of_thread) = (Store::new(&options), certificate.clone());
        let renewal = Renewal { options, store, certificate: of_thread, notices: notices.clone() };
        renewal.take_stored();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = renewal.run() => {}
                }
            });
            // A lookup of a host name cannot be cancelled.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("acme".into()).spawn(run)?;
        Ok(Acme { certificate, stop: Some(stop), thread: Some(thread), notices })
    }

    pub fn certificate(&self) -> Arc<ServerCertificate> {
        self.certificate.clone()
    }

    pub fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.notices.lock())
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Renewal {
    options: AcmeOptions,
    store: Store,
    certificate: Arc<ServerCertificate>,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Renewal {
    async fn run(&self) {
        let mut retry = RETRY_MIN;
        loop {
            while let Some(wait) = self.wait() {
                sleep(wait.min(SLEEP_MAX)).await;
            }
            let ordered = timeout(ORDER_TIMEOUT, self.order()).await;
            self.certificate.end_challenges();
            match ordered.unwrap_or_else(|_| Err("the directory does not answer in time".into())) {
                Ok(()) => {
                    retry = RETRY_MIN;
                    self.notify(false, format!("{} of {}", self.options.domains.join(", "), self.options.directory));
                }
                Err(error) => {
                    let (text, retry_s) = (with_sources(&*error), retry.as_secs());
                    self.notify(true, format!("{}: {text}; next order after {retry_s} s", self.options.directory));
                    sleep(retry).await;
                    retry = (2 * retry).min(RETRY_MAX);
                }
            }
        }
    }

    /// Returns the time until the renewal, or None if a certificate is missing.
    fn wait(&self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let renewal_s = |content: &CertificateContent| {
            let is_complete = content.missing(&self.options.domains).next().is_none();
            is_complete.then(|| content.end_s - (content.end_s - content.begin_s) / RENEWAL_PART)
        };
        let renewal_s = u64::try_from(self.certificate.with_content(renewal_s)??).ok()?;
        Duration::from_secs(renewal_s).checked_sub(now).filter(|wait| !wait.is_zero())
    }

    fn take_stored(&self) {
        match self.store.read(CERTIFICATE).map(|stored| stored.map(|pem| self.certificate.put(&pem, &pem))) {
            Ok(None | Some(Ok(()))) => {}
            Ok(Some(Err(error))) => self.notify(true, format!("the stored certificate: {error}")),
            Err(error) => self.notify(true, format!("the stored certificate: {error}")),
        }
    }

    async fn order(&self) -> Result<(), Failure> {
        let builder = match &self.options.root {
            Some(root) => Account::builder_with_root(root)?,
            None => Account::builder()?,
        };
        let account = self.account(builder).await?;
        let names: Vec<_> = self.options.domains.iter().cloned().map(Identifier::Dns).collect();
        let mut order = match account.new_order(&NewOrder::new(&names)).await {
            Err(AcmeError::Api(problem)) if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT) => {
                self.store.remove(ACCOUNT)?;
                return Err(AcmeError::Api(problem).into());
            }
            order => order?,
        };
        self.begin_challenges(&mut order).await?;
        let ready = order.poll_ready(&POLLING).await;
        if !matches!(ready, Ok(OrderStatus::Ready)) {
            if let Some(reason) = refusal(&mut order).await {
                return Err(reason);
            }
            let status = ready?;
            return Err(format!("the order is {status:?}").into());
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&POLLING).await?;
        self.certificate.put(chain.as_bytes(), key.as_bytes())?;
        self.store.write(CERTIFICATE, format!("{key}\n{chain}").as_bytes())?;
        Ok(())
    }

    async fn account(&self, builder: AccountBuilder) -> Result<Account, Failure> {
        if let Some(stored) = self.store.read(ACCOUNT)? {
            match credentials(&stored) {
                Ok(credentials) => return Ok(builder.from_credentials(credentials).await?),
                Err(error) => self.notify(true, format!("a new account replaces the stored one: {error}")),
            }
        }
        // Each registration is another account at the directory. If it could not be stored, each retry would make one.
        self.store.check_writable(ACCOUNT)?;
        let contact = format!("mailto:{}", self.options.contact);
        let new = NewAccount { contact: &[&contact], terms_of_service_agreed: true, only_return_existing: false };
        let (account, credentials) = builder.create(&new, self.options.directory.clone(), None).await?;
        self.store.write(ACCOUNT, &serde_json::to_vec(&credentials)?)?;
        Ok(account)
    }

    /// Lets the listener answer the challenges, and asks the directory for them.
    async fn begin_challenges(&self, order: &mut Order) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let domain = authorization.identifier().to_string();
            let no_challenge = || format!("the directory offers no challenge tls-alpn-01 for {domain}");
            let mut challenge = authorization.challenge(ChallengeType::TlsAlpn01).ok_or_else(no_challenge)?;
            let mut params = CertificateParams::new([domain.clone()])?;
            let digest = challenge.key_authorization().digest();
            params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
            let key = KeyPair::generate()?;
            let certificate = params.self_signed(&key)?.der().clone();
            self.certificate.begin_challenge(
                domain,
                certificate,
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )?;
            challenge.set_ready().await?;
        }
        Ok(())
    }

    fn notify(&self, is_problem: bool, text: String) {
        let mut notices = self.notices.lock();
        if notices.len() < NOTICES_MAX {
            notices.push(Notice { is_problem, text });
        }
    }
}

/// Returns the reason why the directory has refused a domain.
async fn refusal(order: &mut Order) -> Option<Failure> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        let refused = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(problem) = refused {
            return Some(format!("{}: {problem}", authorization.identifier()).into());
        }
    }
    None
}

/// Reads a stored account. Fails if it is damaged.
fn credentials(stored: &[u8]) -> Result<AccountCredentials, Failure> {
    let credentials: AccountCredentials = serde_json::from_slice(stored)?;
    Key::from_pkcs8_der(credentials.private_key().clone_key())?;
    Ok(credentials)
}

fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

const ACCOUNT: &str = "account.json";
/// Key and chain.
const CERTIFICATE: &str = "certificate.pem";
/// More than an account has.
const PROBE_BYTES: usize = 4_096;

/// Account and certificate of one directory and contact.
struct Store {
    folder: PathBuf,
}

impl Store {
    fn new(options: &AcmeOptions) -> Store {
        let owner = Sha256::digest(format!("{}\n{}", options.directory, options.contact));
        let name: String = owner[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Store { folder: options.folder.join(name) }
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let new = self.write_new(name, content)?;
        std::fs::rename(new, self.folder.join(name))?;
        File::open(&self.folder)?.sync_all()
    }

    /// Fails if the disk is read-only or full.
    fn check_writable(&self, name: &str) -> io::Result<()> {
        self.write_new(name, &[0; PROBE_BYTES]).map(drop)
    }

    /// Writes the file that a later step renames, and returns its path.
    fn write_new(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let new = self.folder.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(new)
    }
}

#[cfg(test)]
mod tests;
