use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use super::*;

/// 2030-01-01 and 2030-12-31.
const BEGIN: (i32, u8, u8) = (2030, 1, 1);
const END: (i32, u8, u8) = (2030, 12, 31);
/// 2030-07-01.
const NOW_S: i64 = 1_909_094_400;

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn params(name: &str, end: (i32, u8, u8)) -> CertificateParams {
    let mut params = CertificateParams::new([format!("{name}.example")]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(BEGIN.0, BEGIN.1, BEGIN.2);
    params.not_after = date_time_ymd(end.0, end.1, end.2);
    params
}

fn authority(name: &str, end: (i32, u8, u8), above: Option<&Authority>) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = params(name, end);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.issuer),
        None => params.self_signed(&key),
    };
    Authority { certificate: der(&certificate.unwrap()), issuer: Issuer::new(params, key) }
}

fn der(certificate: &Certificate) -> CertificateDer<'static> {
    certificate.der().clone()
}

fn leaf(end: (i32, u8, u8), above: &Authority) -> CertificateDer<'static> {
    der(&params("leaf", end).signed_by(&KeyPair::generate().unwrap(), &above.issuer).unwrap())
}

fn findings(chain: &[&CertificateDer<'static>], now_s: i64) -> Findings {
    let chain: Vec<_> = chain.iter().map(|one| (*one).clone()).collect();
    Chain::read(&chain).unwrap().judge(now_s)
}

/// Returns the problems and the warnings of a certificate that is valid now.
fn judged(chain: &[&CertificateDer<'static>], now_s: i64) -> (Vec<String>, Vec<String>) {
    let Findings { problems, invalid_now, warnings } = findings(chain, now_s);
    assert_eq!(invalid_now, Vec::<String>::new());
    (problems, warnings)
}

fn only(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

#[test]
fn complete_chain_has_no_findings_with_and_without_its_root() {
    let root = authority("root", END, None);
    let middle = authority("middle", END, Some(&root));
    let leaf = leaf(END, &middle);
    assert_eq!(judged(&[&leaf, &middle.certificate], NOW_S), (vec![], vec![]));
    assert_eq!(judged(&[&leaf, &middle.certificate, &root.certificate], NOW_S), (vec![], vec![]));
}

#[test]
fn certificate_is_invalid_now_outside_of_its_validity_and_warns_near_its_end() {
    let root = authority("root", (2040, 1, 1), None);
    let (year, short) = (leaf(END, &root), leaf((2030, 1, 10), &root));
    let at = |leaf: &CertificateDer<'static>, now_s: i64| {
        let Findings { problems, invalid_now, warnings } = findings(&[leaf, &root.certificate], now_s);
        assert_eq!(problems, Vec::<String>::new());
        (invalid_now, warnings)
    };
    let end_s = date_time_ymd(END.0, END.1, END.2).unix_timestamp();
    let begin_s = date_time_ymd(BEGIN.0, BEGIN.1, BEGIN.2).unix_timestamp();
    assert_eq!(at(&year, begin_s).0, Vec::<String>::new());
    assert_eq!(at(&year, begin_s - 1).0, only("is not valid before 2030-01-01: use a current one"));
    assert_eq!(at(&year, end_s - SOON_S), (vec![], vec![]));
    assert_eq!(at(&year, end_s - SOON_S + 1), (vec![], only("expires on 2030-12-31: renew it")));
    assert_eq!(at(&year, end_s + 1), (only("expired on 2030-12-31: renew it"), vec![]));
    // A certificate of nine days warns in its last three.
    assert_eq!(at(&short, begin_s + 6 * DAY_S).1, Vec::<String>::new());
    assert_eq!(at(&short, begin_s + 6 * DAY_S + 1).1, only("expires on 2030-01-10: renew it"));
}

#[test]
fn expired_certificate_above_the_leaf_is_a_warning() {
    let root = authority("root", END, None);
    let middle = authority("middle", (2030, 3, 1), Some(&root));
    let (problems, warnings) = judged(&[&leaf(END, &middle), &middle.certificate], NOW_S);
    assert_eq!(problems, Vec::<String>::new());
    let warning = "has a certificate of CN=middle that is valid from 2030-01-01 to 2030-03-01: replace the chain";
    assert_eq!(warnings, only(warning));
}

#[test]
fn chain_out_of_order_is_a_problem() {
    let root = authority("root", END, None);
    let middle = authority("middle", END, Some(&root));
    let leaf = leaf(END, &middle);
    let problem = "has a wrong chain: the certificate of CN=leaf must be followed by that of its issuer CN=middle, and \
                   not by that of CN=root";
    assert_eq!(judged(&[&leaf, &root.certificate, &middle.certificate], NOW_S).0, only(problem));
    assert_eq!(judged(&[&leaf, &root.certificate], NOW_S).0, only(problem));
    // Another authority with the name of the issuer.
    let other = authority("middle", END, Some(&root));
    let (problems, _) = judged(&[&leaf, &other.certificate], NOW_S);
    assert!(problems[0].ends_with("its issuer CN=middle, and not by that of CN=middle"), "{problems:?}");
    // The chain of another leaf, and the leaf at the end.
    assert_eq!(judged(&[&middle.certificate, &leaf], NOW_S).0.len(), 1);
}

#[test]
fn lone_certificate_is_a_warning() {
    let root = authority("root", END, None);
    assert_eq!(
        judged(&[&leaf(END, &root)], NOW_S),
        (vec![], only("has no chain: clients that do not have the certificate of CN=root reject it"))
    );
    assert_eq!(
        judged(&[&root.certificate], NOW_S),
        (vec![], only("is self-signed: only clients that trust this very certificate accept it"))
    );
}
