//! Validity and order of a certificate chain.

use rustls::pki_types::CertificateDer;
use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

const DAY_S: i64 = 24 * 3_600;
/// A certificate ends soon from this time before its end on, or from a third of its validity, if that is shorter.
const SOON_S: i64 = 14 * DAY_S;
const SOON_PART: i64 = 3;

/// Sentences about a certificate, each without its subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Clients reject the certificate at any time.
    pub problems: Vec<String>,
    /// Clients reject the certificate at this time: it has expired, or is not valid yet.
    pub invalid_now: Vec<String>,
    /// Some clients reject the certificate, or all will soon.
    pub warnings: Vec<String>,
}

impl Findings {
    /// Changes each sentence.
    #[must_use]
    pub fn map(self, change: impl Fn(String) -> String) -> Findings {
        let changed = |texts: Vec<String>| texts.into_iter().map(&change).collect();
        Findings {
            problems: changed(self.problems),
            invalid_now: changed(self.invalid_now),
            warnings: changed(self.warnings),
        }
    }

    pub fn extend(&mut self, more: Findings) {
        self.problems.extend(more.problems);
        self.invalid_now.extend(more.invalid_now);
        self.warnings.extend(more.warnings);
    }
}

/// The certificates of a file, in their order.
#[derive(Debug)]
pub(crate) struct Chain(Vec<Link>);

#[derive(Debug)]
struct Link {
    subject: String,
    issuer: String,
    begin: ASN1Time,
    end: ASN1Time,
    /// Whether the next certificate of the file is that of the issuer.
    is_followed_by_issuer: bool,
}

impl Chain {
    pub(crate) fn read(chain: &[CertificateDer<'_>]) -> Result<Chain, String> {
        let parsed: Result<Vec<_>, _> = chain.iter().map(|one| X509Certificate::from_der(one)).collect();
        let parsed = parsed.map_err(|error| error.to_string())?;
        let link = |(index, (_, certificate)): (usize, &(&[u8], X509Certificate<'_>))| Link {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            begin: certificate.validity().not_before,
            end: certificate.validity().not_after,
            is_followed_by_issuer: parsed.get(index + 1).is_some_and(|(_, next)| is_issued_by(certificate, next)),
        };
        Ok(Chain(parsed.iter().enumerate().map(link).collect()))
    }

    pub(crate) fn judge(&self, now_s: i64) -> Findings {
        let mut findings = Findings::default();
        let Some((leaf, above)) = self.0.split_first() else { return findings };
        leaf.judge_validity(now_s, &mut findings);
        for link in above.iter().filter(|link| !link.is_valid(now_s)) {
            findings.warnings.push(format!(
                "has a certificate of {} that is valid from {} to {}: replace the chain",
                link.subject,
                date(link.begin),
                date(link.end)
            ));
        }
        self.judge_order(&mut findings);
        findings
    }

    fn judge_order(&self, findings: &mut Findings) {
        let [leaf, above @ ..] = self.0.as_slice() else { return };
        if leaf.is_self_signed() {
            findings.warnings.push("is self-signed: only clients that trust this very certificate accept it".into());
            return;
        }
        if above.is_empty() {
            findings
                .warnings
                .push(format!("has no chain: clients that do not have the certificate of {} reject it", leaf.issuer));
        }
        for pair in self.0.windows(2) {
            let [link, next] = pair else { continue };
            if link.is_self_signed() {
                return;
            }
            if !link.is_followed_by_issuer {
                findings.problems.push(format!(
                    "has a wrong chain: the certificate of {} must be followed by that of its issuer {}, and not by \
                     that of {}",
                    link.subject, link.issuer, next.subject
                ));
            }
        }
    }
}

impl Link {
    fn is_valid(&self, now_s: i64) -> bool {
        (self.begin.timestamp()..=self.end.timestamp()).contains(&now_s)
    }

    fn is_self_signed(&self) -> bool {
        self.subject == self.issuer
    }

    fn judge_validity(&self, now_s: i64, findings: &mut Findings) {
        let (begin_s, end_s) = (self.begin.timestamp(), self.end.timestamp());
        if now_s < begin_s {
            findings.invalid_now.push(format!("is not valid before {}: use a current one", date(self.begin)));
        } else if now_s > end_s {
            findings.invalid_now.push(format!("expired on {}: renew it", date(self.end)));
        } else if end_s - now_s < SOON_S.min((end_s - begin_s) / SOON_PART) {
            findings.warnings.push(format!("expires on {}: renew it", date(self.end)));
        }
    }
}

fn is_issued_by(certificate: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    // The check of a signature by a rare algorithm is left to the clients.
    certificate.issuer().to_string() == issuer.subject().to_string()
        && !matches!(
            certificate.verify_signature(Some(issuer.public_key())),
            Err(X509Error::SignatureVerificationError)
        )
}

fn date(time: ASN1Time) -> String {
    time.to_datetime().date().to_string()
}

#[cfg(test)]
mod tests;
