//! One gRPC call, until it has an answer.

use std::rc::Rc;

use hosting_matchmaker::{ClientKey, ServiceError};
use http::Response;
use tokio::time::Instant;

use crate::grpc::grpc_context::GrpcContext;
use crate::grpc::reply::{self, ReplyBody};
use crate::measurements::code_number;
use crate::measurements::request_measurement::RequestMeasurement;
use crate::requests::internal_headers::RequestSource;
use crate::responses::error_response;
use crate::responses::problems::Problem;

/// A call that has no answer yet.
pub struct Call {
    pub context: Rc<GrpcContext>,
    pub source: RequestSource,
    /// Time at which the client no longer waits.
    pub deadline: Option<Instant>,
    pub measurement: RequestMeasurement,
}

impl Call {
    pub fn client_key(&self) -> ClientKey {
        ClientKey::of(self.source.client)
    }

    pub fn refuse(&mut self, problem: Problem) -> Response<ReplyBody> {
        self.refuse_as(problem, &problem.error())
    }

    pub fn refuse_with(&mut self, problem: Problem, sentence: String) -> Response<ReplyBody> {
        self.refuse_as(problem, &problem.error().with_detail(sentence))
    }

    fn refuse_as(&mut self, problem: Problem, error: &ServiceError) -> Response<ReplyBody> {
        self.measurement.end_here(code_number::of(problem.code()));
        reply::trailers_only(error_response::trailers(error, self.source.ray_id))
    }
}
