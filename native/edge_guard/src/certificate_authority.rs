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
pub fn make(folder: &str, names: &[&str]) -> ExitCode {
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
    let issuer = authority(folder)?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone()).map_err(io::Error::other)?;
    let common = names.iter().find(|name| name.parse::<IpAddr>().is_err()).unwrap_or(&names[0]);
    params.distinguished_name.push(DnType::CommonName, common.as_str());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.signed_by(&key, &issuer).map_err(io::Error::other)?;
    write_file(&folder.join("server.key"), &key.serialize_pem(), 0o600)?;
    write_file(&folder.join("server.pem"), &certificate.pem(), 0o644)
}

fn authority(folder: &Path) -> io::Result<Issuer<'static, KeyPair>> {
    let (at_key, at_certificate) = (folder.join("ca.key"), folder.join("ca.pem"));
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "hosting development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    if at_key.exists() && at_certificate.exists() {
        let key = KeyPair::from_pem(&fs::read_to_string(at_key)?).map_err(io::Error::other)?;
        return Ok(Issuer::new(params, key));
    }
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    write_file(&at_key, &key.serialize_pem(), 0o600)?;
    write_file(&at_certificate, &certificate.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
}

fn write_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    if let Err(error) = fs::remove_file(&fresh)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}
