//! Serves the kubelet: it finds this driver by the registration's socket, and calls the services at the other one.

mod http2;
pub(crate) mod pods;
pub(crate) mod probes;
pub(crate) mod registration;
pub(crate) mod services;
pub(crate) mod sockets;

pub use http2::{Broken, Call, Connection};
