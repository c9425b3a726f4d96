//! The messages and services of ../proto.
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

pub(crate) mod pods {
    tonic::include_proto!("v1");
}

pub(crate) mod health {
    tonic::include_proto!("grpc.health.v1");
}
