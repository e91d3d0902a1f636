//! The stored account.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};

use super::*;

const URL: &str = "https://directory.example/dir";
const DIRECTORY: &str =
    r#"{"newNonce": "https://a/nonce", "newAccount": "https://a/account", "newOrder": "https://a/order"}"#;

/// A directory that registers accounts, and counts them.
#[derive(Clone, Default)]
struct Directory(Arc<AtomicUsize>);

impl HttpClient for Directory {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, AcmeError>> + Send>> {
        let mut response = Response::builder().header("replay-nonce", "nonce");
        if request.method() == Method::POST {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            response = response.status(201).header("location", format!("https://a/account/{number}"));
        }
        let body = if request.uri() == URL { DIRECTORY } else { "{}" };
        let response = response.body(Full::new(Bytes::from(body))).map(BytesResponse::from);
        Box::pin(async { Ok(response?) })
    }
}

struct World {
    renewal: Renewal,
    directory: Directory,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = AcmeOptions {
            domains: vec!["api.example".into()],
            contact: "a@example.com".into(),
            directory: URL.into(),
            root: None,
            folder: folder.path().into(),
        };
        let store = Store::new(&options);
        std::fs::create_dir(&store.folder).unwrap();
        let certificate = Arc::new(ServerCertificate::empty());
        let renewal = Renewal { options, store, certificate, notices: Arc::default() };
        World { renewal, directory: Directory::default(), _folder: folder }
    }

    /// Returns the URL of the account.
    fn account(&self) -> Result<String, String> {
        let builder = Account::builder_with_http(Box::new(self.directory.clone()));
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let account = runtime.block_on(self.renewal.account(builder));
        account.map(|account| account.id().to_owned()).map_err(|error| error.to_string())
    }

    fn notices(&self) -> Vec<String> {
        self.renewal.notices.lock().drain(..).map(|notice| notice.text).collect()
    }
}

#[test]
fn account_is_registered_once() {
    let world = World::new();
    for _ in 0..2 {
        assert_eq!(world.account().unwrap(), "https://a/account/0");
    }
    assert!(world.notices().is_empty());
}

#[test]
fn damaged_account_is_replaced() {
    let world = World::new();
    world.account().unwrap();
    let stored = world.renewal.store.read(ACCOUNT).unwrap().unwrap();
    let mut wrong_key: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    wrong_key["key_pkcs8"] = "AAAA".into();
    let damaged = [b"".to_vec(), stored[..stored.len() - 1].to_vec(), serde_json::to_vec(&wrong_key).unwrap()];
    for (number, content) in (1..).zip(damaged) {
        world.renewal.store.write(ACCOUNT, &content).unwrap();
        for _ in 0..2 {
            assert_eq!(world.account().unwrap(), format!("https://a/account/{number}"));
        }
        let notices = world.notices();
        assert_eq!(notices.len(), 1);
        assert!(notices[0].starts_with("a new account replaces the stored one: "), "{notices:?}");
    }
}

#[test]
fn account_that_cannot_be_stored_is_not_registered() {
    let world = World::new();
    let new = world.renewal.store.folder.join("account.json.new");
    // Writes to this device fail like those to a full disk.
    symlink("/dev/full", &new).unwrap();
    for _ in 0..2 {
        assert!(world.account().unwrap_err().contains("No space left"));
    }
    assert_eq!(world.directory.0.load(Ordering::Relaxed), 0);
    std::fs::remove_file(new).unwrap();
    assert_eq!(world.account().unwrap(), "https://a/account/0");
}
