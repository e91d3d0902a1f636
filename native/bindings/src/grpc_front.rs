//! Description of how the front serves gRPC, as Python gives it.

use std::net::TcpListener;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hosting_front::{BodyBudget, ConnectionBudget, GrpcLimits, GrpcOptions, Health, MethodOptions, Plane};
use pyo3::prelude::*;

use crate::convert::copied;

/// Path, slug, whether the control plane serves it, largest message, whether it needs a token, and whether it has many
/// response messages.
type MethodArgument = (String, String, bool, usize, bool, bool);

/// Attributes of the Python object.
#[derive(FromPyObject)]
pub struct GrpcArgument {
    listener_fd: RawFd,
    connections_max: Option<usize>,
    methods: Vec<MethodArgument>,
    data_socket: PathBuf,
    control_socket: PathBuf,
    streams_per_connection: u32,
    metadata_bytes_max: usize,
    idle_timeout_ms: u64,
}

impl GrpcArgument {
    pub fn into_options(self, bodies: Arc<BodyBudget>) -> PyResult<GrpcOptions> {
        let method = |(path, slug, is_control, message_bytes_max, needs_token, is_stream): MethodArgument| {
            let plane = if is_control { Plane::Control } else { Plane::Data };
            MethodOptions { path, slug, plane, message_bytes_max, needs_token, is_stream }
        };
        let methods: Vec<_> = self.methods.into_iter().map(method).collect();
        Ok(GrpcOptions {
            health: Arc::new(Health::new(methods.iter().map(|method| method.path.as_str()))),
            listener: TcpListener::from(copied(self.listener_fd)?),
            budget: Arc::new(ConnectionBudget::new(self.connections_max.unwrap_or(usize::MAX))),
            methods,
            data_socket: self.data_socket,
            control_socket: self.control_socket,
            bodies,
            limits: GrpcLimits {
                streams_per_connection: self.streams_per_connection,
                metadata_bytes: self.metadata_bytes_max,
                idle: Duration::from_millis(self.idle_timeout_ms),
            },
        })
    }
}
