//! Local certificate authority: for development, and for the connections between the service and its nodes.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

const DAY: Duration = Duration::from_secs(86_400);

/// Time before now from which a certificate is valid, for machines with a clock that is behind.
const BEFORE: Duration = DAY;

/// Names of the files of an authority, or of a certificate with its key.
#[derive(Clone, Copy)]
struct FileNames {
    certificate: &'static str,
    key: &'static str,
}

const DEVELOPMENT_AUTHORITY: FileNames = FileNames { certificate: "ca.pem", key: "ca.key" };
const DEVELOPMENT_CERTIFICATE: FileNames = FileNames { certificate: "server.pem", key: "server.key" };

/// As Kubernetes and cert-manager name them.
const NODE_AUTHORITY: FileNames = FileNames { certificate: "ca.crt", key: "ca.key" };
const NODE_CERTIFICATE: FileNames = FileNames { certificate: "tls.crt", key: "tls.key" };

/// Writes `ca.pem`, `ca.key`, `server.pem` and `server.key` into a folder. Reuses the authority if the folder has one.
#[must_use]
pub fn create_certificates(folder: &str, names: &[&str]) -> ExitCode {
    report(folder, write_development(Path::new(folder), names))
}

/// Writes certificates for both ends of a TLS connection. Each of `targets` is a subfolder and its name, as
/// `nodes/n1=n1.node.hosting`.
///
/// A subfolder gets `ca.crt`, `tls.crt` and `tls.key`, valid for a number of days. The folder itself has the authority,
/// `ca.crt` and `ca.key`, and reuses it.
#[must_use]
pub fn create_node_certificates(folder: &str, days: &str, targets: &[&str]) -> ExitCode {
    report(folder, write_for_nodes(Path::new(folder), days, targets))
}

fn report(folder: &str, result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::operator_log::write_line(&format!("{folder}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn write_development(folder: &Path, names: &[&str]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let issuer = load_or_create_authority(folder, DEVELOPMENT_AUTHORITY, "hosting development authority")?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone()).map_err(io::Error::other)?;
    let common_name = names.iter().find(|name| name.parse::<IpAddr>().is_err()).unwrap_or(&names[0]);
    params.distinguished_name.push(DnType::CommonName, common_name.as_str());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    write_signed(folder, DEVELOPMENT_CERTIFICATE, params, &issuer)
}

fn write_for_nodes(folder: &Path, days: &str, targets: &[&str]) -> io::Result<()> {
    let days: u32 = days.parse().map_err(|_| io::Error::other(format!("{days} is not a number of days")))?;
    fs::create_dir_all(folder)?;
    let issuer = load_or_create_authority(folder, NODE_AUTHORITY, "hosting authority of nodes")?;
    let authority = fs::read_to_string(folder.join(NODE_AUTHORITY.certificate))?;
    for target in targets {
        let (subfolder, name) =
            target.split_once('=').ok_or_else(|| io::Error::other(format!("{target} is not a folder and a name")))?;
        let subfolder = folder.join(subfolder);
        fs::create_dir_all(&subfolder)?;
        let mut params = CertificateParams::new([name.to_owned()]).map_err(io::Error::other)?;
        // The alternative name is the one that both ends check. A common name has at most 64 characters.
        params.distinguished_name.push(DnType::CommonName, "hosting");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, days);
        write_signed(&subfolder, NODE_CERTIFICATE, params, &issuer)?;
        write_file(&subfolder.join(NODE_AUTHORITY.certificate), &authority, 0o644)?;
    }
    Ok(())
}

fn set_validity(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_secs());
    params.not_before = now - BEFORE;
    params.not_after = now + DAY * days;
}

fn write_signed(
    folder: &Path,
    names: FileNames,
    mut params: CertificateParams,
    issuer: &Issuer<'static, KeyPair>,
) -> io::Result<()> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.signed_by(&key, issuer).map_err(io::Error::other)?;
    write_file(&folder.join(names.key), &key.serialize_pem(), 0o600)?;
    write_file(&folder.join(names.certificate), &certificate.pem(), 0o644)
}

fn load_or_create_authority(
    folder: &Path,
    names: FileNames,
    common_name: &str,
) -> io::Result<Issuer<'static, KeyPair>> {
    let (key_path, certificate_path) = (folder.join(names.key), folder.join(names.certificate));
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    if key_path.exists() && certificate_path.exists() {
        let key = KeyPair::from_pem(&read_text(&key_path)?).map_err(io::Error::other)?;
        return Ok(Issuer::new(params, key));
    }
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    write_file(&key_path, &key.serialize_pem(), 0o600)?;
    write_file(&certificate_path, &certificate.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
}

fn read_text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn write_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut temporary_path = path.as_os_str().to_owned();
    temporary_path.push(".new");
    if let Err(error) = fs::remove_file(&temporary_path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary_path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary_path, path)
}
