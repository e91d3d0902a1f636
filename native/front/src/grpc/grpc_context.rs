//! Options of the gRPC server, and the state of one of its threads.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::grpc::health::Health;
use crate::grpc::methods::{MethodOptions, Methods};
use crate::grpc::upstream::GrpcUpstream;
use crate::limits::body_budget::BodyBudget;
use crate::limits::connection_budget::ConnectionBudget;
use crate::limits::permits::{GrpcPermits, Permits};
use crate::measurements::measurer::Measurer;
use crate::requests::routes::{ByPlane, Plane};
use crate::responses::decider::Decider;
use crate::thread_context::ThreadContext;

#[derive(Clone, Copy)]
pub struct GrpcLimits {
    pub streams_per_connection: u32,
    pub metadata_bytes: usize,
    /// For a connection without a call.
    pub idle: Duration,
}

pub struct GrpcOptions {
    pub listener: TcpListener,
    pub budget: Arc<ConnectionBudget>,
    pub methods: Vec<MethodOptions>,
    pub data_socket: PathBuf,
    pub control_socket: PathBuf,
    /// Limit on the bytes of messages in memory.
    pub bodies: Arc<BodyBudget>,
    pub limits: GrpcLimits,
    pub health: Arc<Health>,
}

impl GrpcOptions {
    /// Returns the options of another thread, for the same listening socket.
    pub fn try_clone(&self) -> io::Result<GrpcOptions> {
        Ok(GrpcOptions {
            listener: self.listener.try_clone()?,
            budget: self.budget.clone(),
            methods: self.methods.clone(),
            data_socket: self.data_socket.clone(),
            control_socket: self.control_socket.clone(),
            bodies: self.bodies.clone(),
            limits: self.limits,
            health: self.health.clone(),
        })
    }
}

/// State that all gRPC connections of a thread share.
pub struct GrpcContext {
    pub thread: Rc<ThreadContext>,
    pub measurer: Arc<Measurer>,
    pub decider: Decider,
    pub methods: Methods,
    pub limits: GrpcLimits,
    pub bodies: Arc<BodyBudget>,
    pub health: Arc<Health>,
    pub planes: ByPlane<GrpcPlane>,
}

/// A Python process that gets calls.
pub struct GrpcPlane {
    pub upstream: GrpcUpstream,
    pub permits: Arc<Permits>,
    /// Permits of open streams.
    pub streams: Arc<Permits>,
    /// Permits of open streams of event channels.
    pub channel_streams: Arc<Permits>,
    /// Permits of open streams with a token that the front cannot verify.
    pub unverified_streams: Arc<Permits>,
    /// Permits of calls that a change has woken.
    pub woken: Arc<Permits>,
}

impl GrpcPlane {
    pub fn new(permits: &GrpcPermits, plane: Plane, socket: PathBuf) -> GrpcPlane {
        GrpcPlane {
            upstream: GrpcUpstream::new(socket),
            permits: permits.calls.of(plane).clone(),
            streams: permits.streams.of(plane).clone(),
            channel_streams: permits.channel_streams.of(plane).clone(),
            unverified_streams: permits.unverified_streams.of(plane).clone(),
            woken: permits.woken.of(plane).clone(),
        }
    }
}
