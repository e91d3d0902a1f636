//! Messages of the `Routes` service, generated from `proto/hosting/internal/v1/routes.proto`.

#![allow(missing_docs, clippy::all, clippy::unwrap_used)]

tonic::include_proto!("hosting.internal.v1");
