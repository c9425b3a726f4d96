//! Serves the kubelet: it finds this driver by the registration's socket, and calls the services at the other one.

mod http2;
pub(crate) mod registration;
pub(crate) mod services;
pub(crate) mod sockets;

pub use http2::{Broken, Call, Connection};

/// The messages and services of ../proto.
pub(crate) mod proto {
    #![allow(
        missing_debug_implementations,
        unreachable_pub,
        clippy::all,
        clippy::pedantic
    )]

    pub(crate) mod registration {
        tonic::include_proto!("pluginregistration");
    }
    pub(crate) mod dra {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    pub(crate) mod device_health {
        tonic::include_proto!("v1alpha1");
    }
    pub(crate) mod health {
        tonic::include_proto!("grpc.health.v1");
    }
}
