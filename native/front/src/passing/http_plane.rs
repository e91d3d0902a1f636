//! A Python process that gets requests over HTTP, with the requests that wait for its changes.

use std::path::Path;

use crate::limits::permits::HttpPermits;
use crate::long_polls::repeats::Repeats;
use crate::long_polls::watches::Watches;
use crate::passing::passing_options::PassingOptions;
use crate::passing::upstream::HttpUpstream;
use crate::requests::routes::{ByPlane, Plane};

pub struct HttpPlane {
    pub upstream: HttpUpstream,
    pub watches: Watches,
    pub repeats: Repeats,
}

impl HttpPlane {
    /// `threads` is the number of threads that pass requests on.
    pub fn of_both(options: &PassingOptions, permits: &HttpPermits, threads: usize) -> ByPlane<HttpPlane> {
        let new_plane = |plane, socket: &Path| {
            let idle_max = (options.requests_max.of(plane) / threads).max(1);
            HttpPlane {
                upstream: HttpUpstream::new(socket.into(), options.answer_timeout, idle_max),
                watches: Watches::new(options.parked.clone()),
                repeats: Repeats::new(options.answers.clone(), permits.woken.of(plane).clone()),
            }
        };
        ByPlane {
            data: new_plane(Plane::Data, &options.data_socket),
            control: new_plane(Plane::Control, &options.control_socket),
        }
    }
}
