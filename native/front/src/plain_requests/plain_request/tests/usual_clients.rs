//! Headers of usual clients. The tests of the reader and of the whole front share them.

pub const AUTHORIZATION: &str = "Authorization: Bearer lobby_AQEBAQ";
pub const TYPE: &str = "Content-Type: application/json";
pub const LENGTH: &str = "Content-Length: 30";

/// Header lines in the order in which the clients send them, without those that the game adds.
pub const USUAL_CLIENTS: [(&str, &[&str]); 15] = [
    ("curl", &["Host: localhost:8080", "User-Agent: curl/7.88.1", "Accept: */*", AUTHORIZATION, TYPE, LENGTH]),
    ("curl --json", &["Host: a", "User-Agent: curl/8.5.0", AUTHORIZATION, TYPE, "Accept: application/json", LENGTH]),
    (
        "node fetch",
        &[
            "host: 127.0.0.1:8080",
            "connection: keep-alive",
            "authorization: Bearer lobby_AQEBAQ",
            "content-type: application/json",
            "accept: */*",
            "accept-language: *",
            "sec-fetch-mode: cors",
            "user-agent: node",
            "accept-encoding: gzip, deflate",
            "content-length: 30",
        ],
    ),
    (
        "node http",
        &[
            "authorization: Bearer lobby_AQEBAQ",
            "content-type: application/json",
            "Host: a",
            "Connection: keep-alive",
            LENGTH,
        ],
    ),
    (
        "Python requests",
        &[
            "Host: a",
            "User-Agent: python-requests/2.34.2",
            "Accept-Encoding: gzip, deflate",
            "Accept: */*",
            "Connection: keep-alive",
            AUTHORIZATION,
            LENGTH,
            TYPE,
        ],
    ),
    ("Python http.client", &["Host: a", "Accept-Encoding: identity", LENGTH, AUTHORIZATION, TYPE]),
    ("aiohttp", &["Host: a", AUTHORIZATION, "Accept: */*", "Accept-Encoding: gzip, deflate", LENGTH, TYPE]),
    ("Go", &["Host: a", "User-Agent: Go-http-client/1.1", LENGTH, AUTHORIZATION, TYPE, "Accept-Encoding: gzip"]),
    ("C#", &["Host: a", AUTHORIZATION, "Content-Type: application/json; charset=utf-8", LENGTH]),
    (
        "Godot",
        &[
            "Host: a:80",
            "User-Agent: GodotEngine/4.3.stable.official (Linux)",
            "Accept: */*",
            AUTHORIZATION,
            TYPE,
            "Accept-Encoding: gzip, deflate",
            LENGTH,
        ],
    ),
    (
        "Python httpx",
        &[
            "Host: a",
            "Accept: */*",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Connection: keep-alive",
            "User-Agent: python-httpx/0.28.1",
            AUTHORIZATION,
            LENGTH,
            TYPE,
        ],
    ),
    (
        "Java HttpClient",
        &[
            "Connection: Upgrade, HTTP2-Settings",
            LENGTH,
            "Host: a",
            "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
            "Upgrade: h2c",
            "User-Agent: Java-http-client/21.0.4",
            AUTHORIZATION,
            TYPE,
        ],
    ),
    (
        "fetch in Chrome",
        &[
            "Host: a",
            "Connection: keep-alive",
            LENGTH,
            "sec-ch-ua-platform: \"Linux\"",
            AUTHORIZATION,
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
            "sec-ch-ua: \"Google Chrome\";v=\"131\", \"Chromium\";v=\"131\", \"Not_A Brand\";v=\"24\"",
            TYPE,
            "sec-ch-ua-mobile: ?0",
            "Accept: */*",
            "Origin: https://game.example",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: cors",
            "Sec-Fetch-Dest: empty",
            "Referer: https://game.example/",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Accept-Language: en-US,en;q=0.9",
        ],
    ),
    (
        "traced",
        &[
            "Host: a",
            AUTHORIZATION,
            LENGTH,
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "X-Unknown: a",
            "Cookie: a=b",
        ],
    ),
    ("hyper", &["authorization: Bearer lobby_AQEBAQ", "host: a", "content-length: 30"]),
];
