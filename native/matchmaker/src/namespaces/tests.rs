//! Namespaces that the configuration replaces.

use super::*;

const NAMESPACE: Id = Id([0x11; 16]);
const OTHER: Id = Id([0x12; 16]);

fn namespace(id: Id, hosts: &[&str], revoked: Vec<Id>) -> Arc<Namespace> {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut namespace = Namespace { hosts, revoked, ..Namespace::example(id) };
    namespace.sort_revoked();
    Arc::new(namespace)
}

fn with(all: &[Arc<Namespace>]) -> Namespaces {
    let namespaces = Namespaces::default();
    all.iter().for_each(|namespace| namespaces.put(namespace.clone()));
    namespaces
}

#[test]
fn revoked_ids_may_come_in_any_order() {
    let id = |number: u8| {
        let mut id = Id([0; 16]);
        // The order of ids is not that of these numbers.
        (id.0[0], id.0[15]) = (number.wrapping_mul(77), number);
        id
    };
    let revoked: Vec<_> = (0..=255).filter(|number| number % 3 == 0).map(id).collect();
    let repeated = [&revoked[..], &revoked[..10]].concat();
    let namespace = namespace(NAMESPACE, &[], repeated);
    for number in 0..=255 {
        assert_eq!(namespace.is_token_revoked(id(number)), number % 3 == 0, "{number}");
    }
}

#[test]
fn host_belongs_to_the_latest_namespace() {
    let namespaces =
        with(&[namespace(NAMESPACE, &["a.example", "b.example"], vec![]), namespace(OTHER, &["b.example"], vec![])]);
    let of_host = |host: &str| namespaces.of_host(host).map(|namespace| namespace.id);
    assert_eq!(
        (of_host("a.example"), of_host("b.example"), of_host("c.example")),
        (Some(NAMESPACE), Some(OTHER), None)
    );
    namespaces.put(namespace(NAMESPACE, &["c.example"], vec![]));
    assert_eq!(
        (of_host("a.example"), of_host("b.example"), of_host("c.example")),
        (None, Some(OTHER), Some(NAMESPACE))
    );
    namespaces.remove(OTHER);
    assert_eq!((of_host("b.example"), of_host("c.example")), (None, Some(NAMESPACE)));
}
