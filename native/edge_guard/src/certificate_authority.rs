//! Local certificate authority for development.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Writes `ca.pem`, `ca.key`, `server.pem` and `server.key` into a folder. Reuses the authority if the folder has one.
#[must_use]
pub fn create_certificates(folder: &str, names: &[&str]) -> ExitCode {
    match write(Path::new(folder), names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::operator_log::write_line(&format!("{folder}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, names: &[&str]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let issuer = load_or_create_authority(folder)?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone()).map_err(io::Error::other)?;
    let common_name = names.iter().find(|name| name.parse::<IpAddr>().is_err()).unwrap_or(&names[0]);
    params.distinguished_name.push(DnType::CommonName, common_name.as_str());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.signed_by(&key, &issuer).map_err(io::Error::other)?;
    write_file(&folder.join("server.key"), &key.serialize_pem(), 0o600)?;
    write_file(&folder.join("server.pem"), &certificate.pem(), 0o644)
}

fn load_or_create_authority(folder: &Path) -> io::Result<Issuer<'static, KeyPair>> {
    let (key_path, certificate_path) = (folder.join("ca.key"), folder.join("ca.pem"));
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "hosting development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    if key_path.exists() && certificate_path.exists() {
        let key = KeyPair::from_pem(&fs::read_to_string(key_path)?).map_err(io::Error::other)?;
        return Ok(Issuer::new(params, key));
    }
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    write_file(&key_path, &key.serialize_pem(), 0o600)?;
    write_file(&certificate_path, &certificate.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
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
