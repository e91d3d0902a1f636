//! Requests and responses between clients and Python.

use crate::client::Client;
use crate::python::Reply;
use crate::world::World;

#[test]
fn request_reaches_python_with_its_method_target_and_body() {
    let world = World::new();
    let mut client = world.connect();
    let answer = client.ask("PUT /a%20b?c=d&e HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!((answer.status, &*answer.body), (200, "/a%20b?c=d&e"));
    let request = world.python.request();
    assert_eq!((&*request.method, &*request.target, &*request.body), ("PUT", "/a%20b?c=d&e", &b"abc"[..]));
    assert_eq!((request.header("host"), request.header("content-length")), (Some("h:1"), Some("3")));
    world.control.check_no_request();
}
