//! Messages of requests and responses, generated from the proto files.

include!(concat!(env!("OUT_DIR"), "/hosting.v1.rs"));
