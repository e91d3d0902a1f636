//! The gRPC methods of both planes.

use std::collections::HashMap;

use hosting_matchmaker::Operation;

use crate::requests::routes::{Plane, Routes};

/// One method with a single request message, as Python describes it.
#[derive(Clone)]
pub struct MethodOptions {
    /// `/<service>/<method>`.
    pub path: String,
    /// Name of the operation in metrics.
    pub slug: String,
    pub plane: Plane,
    pub message_bytes_max: usize,
    /// Whether the method needs a token. Its form is checked before a message is read.
    pub needs_token: bool,
    /// Whether the method has many response messages.
    pub is_stream: bool,
}

pub struct Method {
    /// Number of the operation in [`Routes::slugs`].
    pub number: usize,
    pub plane: Plane,
    pub message_bytes_max: usize,
    pub needs_token: bool,
    pub is_stream: bool,
    /// Whether the method changes nothing.
    pub is_safe: bool,
    /// Operation that the front can execute itself.
    pub operation: Option<Operation>,
}

pub struct Methods(HashMap<String, Method>);

impl Methods {
    pub fn new(methods: impl IntoIterator<Item = MethodOptions>, routes: &Routes) -> Methods {
        let number_of = |slug: &str| routes.slugs().iter().position(|known| known == slug);
        let entry = |method: MethodOptions| {
            let MethodOptions { path, slug, plane, message_bytes_max, needs_token, is_stream } = method;
            let operation = Operation::ALL.into_iter().find(|operation| !is_stream && operation.slug() == slug);
            let number = number_of(&slug).unwrap_or_else(|| routes.unrouted());
            let is_safe = routes.is_safe(number);
            (path, Method { number, plane, message_bytes_max, needs_token, is_stream, is_safe, operation })
        };
        Methods(methods.into_iter().map(entry).collect())
    }

    pub fn get(&self, path: &str) -> Option<&Method> {
        self.0.get(path)
    }
}
