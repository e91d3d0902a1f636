//! Client and server messages of the `Routes` service.

#![allow(missing_docs, clippy::all, clippy::unwrap_used, dead_code)]

tonic::include_proto!("hosting.internal.v1");
