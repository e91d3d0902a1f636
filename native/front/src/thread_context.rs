//! State of one thread, which all its connections share.

use std::rc::Rc;
use std::sync::Arc;

use hosting_matchmaker::Matchmaker;
use tokio::sync::Semaphore;

use crate::certificates::server_certificate::TlsAcceptors;
use crate::connections::client_address::ClientAddresses;
use crate::connections::timeouts::Timeouts;
use crate::limits::permits::HttpPermits;
use crate::measurements::measurer::Measurer;
use crate::passing::http_plane::HttpPlane;
use crate::passing::passing_options::PassingOptions;
use crate::requests::ray_id::RayIds;
use crate::requests::routes::ByPlane;
use crate::responses::decider::Decider;
use crate::responses::durable_waiters::DurableWaiters;
use crate::shutdown::Shutdown;

pub struct ThreadContext {
    pub matchmaker: Arc<Matchmaker>,
    pub addresses: Arc<ClientAddresses>,
    pub timeouts: Timeouts,
    pub tls: Option<TlsAcceptors>,
    pub options: Arc<PassingOptions>,
    pub permits: Arc<HttpPermits>,
    pub planes: ByPlane<HttpPlane>,
    /// Length of the longest plain request.
    pub request_bytes_max: usize,
    pub measurer: Arc<Measurer>,
    pub decider: Decider,
    pub ray_ids: RayIds,
    pub waiters: Rc<DurableWaiters>,
    /// Permits of pages of the lobby list, each of which may take a megabyte.
    pub pages: Semaphore,
    pub shutdown: Rc<Shutdown>,
}
