//! Minimal tonic server for `connected`: a handler on one thread reads the message and returns an empty one.
//!
//! `bench-bare-grpc READY_FILE` listens on a free port and writes its address to the file.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::process::ExitCode;
use std::task::{Context, Poll};

use hosting_matchmaker::proto::PlayerConnectedRequest;
use http_body::Body as HttpBody;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Clone)]
struct Matchmaker;

impl NamedService for Matchmaker {
    const NAME: &'static str = "hosting.v1.Matchmaker";
}

struct Connected;

impl UnaryService<PlayerConnectedRequest> for Connected {
    type Response = ();
    type Future = Ready<Result<Response<()>, Status>>;

    fn call(&mut self, request: Request<PlayerConnectedRequest>) -> Self::Future {
        let is_empty = request.get_ref().player_token.is_empty();
        ready(if is_empty { Err(Status::invalid_argument("no token")) } else { Ok(Response::new(())) })
    }
}

impl<B> Service<http::Request<B>> for Matchmaker
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let codec = ProstCodec::<(), PlayerConnectedRequest>::default();
        Box::pin(async { Ok(Grpc::new(codec).unary(Connected, request).await) })
    }
}

async fn serve(ready_file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    std::fs::write(ready_file, listener.local_addr()?.to_string())?;
    Server::builder().add_service(Matchmaker).serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}

fn main() -> ExitCode {
    let Some(ready_file) = std::env::args().nth(1) else {
        eprintln!("bench-bare-grpc READY_FILE");
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(&ready_file)));
    if let Err(error) = outcome {
        eprintln!("bench-bare-grpc: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
