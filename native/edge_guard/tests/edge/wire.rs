//! Both sides of the protocol, generated as the crate's own are.

#![allow(missing_docs, clippy::all, clippy::unwrap_used, dead_code)]

tonic::include_proto!("hosting.internal.v1");
