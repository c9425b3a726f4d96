//! Lists the options of gpu-kubelet-plugin, with the equivalent environment variables: names and defaults are NVIDIA's.

use crate::table::{Command, Opt, command, flag, value};

pub const PROGRAM: &str = "gpu-kubelet-plugin";

/// The hidden ones are NVIDIA's for what this driver does not have; its chart sets some. They have no effect.
#[rustfmt::skip]
pub static OPTIONS: [Opt; 32] = [
    value("node-name", "NAME", "Name of the node; required").env(&["NODE_NAME"]),
    value("cdi-root", "DIR", "Directory of the specifications of claims").env(&["CDI_ROOT"]).default("/etc/cdi"),
    value("nvidia-driver-root", "DIR", "Root of the driver on the host").aliases(&["host_driver-root"])
        .env(&["NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"]).default("/"),
    value("container-driver-root", "DIR", "Root of the driver, as this program sees it")
        .env(&["DRIVER_ROOT_CTR_PATH"]).default("/driver-root"),
    value("nvidia-cdi-hook-path", "FILE", "Hook program on the host; else the one beside this program is copied there")
        .env(&["NVIDIA_CDI_HOOK_PATH"]),
    value("kubelet-registrar-directory-path", "DIR", "Directory in which the kubelet looks for drivers")
        .env(&["KUBELET_REGISTRAR_DIRECTORY_PATH"]).default("/var/lib/kubelet/plugins_registry"),
    value("kubelet-plugins-directory-path", "DIR", "Directory of the drivers' own files")
        .env(&["KUBELET_PLUGINS_DIRECTORY_PATH"]).default("/var/lib/kubelet/plugins"),
    value("healthcheck-port", "PORT", "Port of grpc.health.v1; negative for none").env(&["HEALTHCHECK_PORT"]).default("-1"),
    value("additional-xids-to-ignore", "LIST", "XIDs that say nothing about a GPU").env(&["ADDITIONAL_XIDS_TO_IGNORE"]),
    value("kubeconfig", "FILE", "How to reach the API server; else by the pod's own account").env(&["KUBECONFIG"]),
    value("feature-gates", "LIST", "Gates of NVIDIA's driver; none has an effect").env(&["FEATURE_GATES"]),
    value("v", "LEVEL", "Verbosity; from 5 on, messages for debugging").short('v').default("0"),
    flag("help", "Print help").short('h'),
    flag("version", "Print the version"),
    value("namespace", "NAME", "").env(&["NAMESPACE"]).hidden(),
    value("host-root", "DIR", "").env(&["HOST_ROOT"]).hidden(),
    value("image-name", "NAME", "").env(&["IMAGE_NAME"]).hidden(),
    value("image-pull-secrets", "LIST", "").env(&["IMAGE_PULL_SECRETS"]).hidden(),
    value("image-pull-policy", "WORD", "").env(&["IMAGE_PULL_POLICY"]).hidden(),
    value("service-account-name", "NAME", "").env(&["SERVICE_ACCOUNT_NAME"]).hidden(),
    value("http-endpoint", "ADDRESS", "").env(&["HTTP_ENDPOINT"]).hidden(),
    value("metrics-path", "PATH", "").env(&["METRICS_PATH"]).hidden(),
    value("consumable-shares", "WORD", "").env(&["CONSUMABLE_SHARES"]).hidden(),
    value("kube-api-qps", "NUMBER", "").env(&["KUBE_API_QPS"]).hidden(),
    value("kube-api-burst", "NUMBER", "").env(&["KUBE_API_BURST"]).hidden(),
    value("vmodule", "LIST", "").hidden(),
    value("logging-format", "WORD", "").hidden(),
    value("log-flush-frequency", "TIME", "").hidden(),
    value("log-json-info-buffer-size", "SIZE", "").hidden(),
    value("log-text-info-buffer-size", "SIZE", "").hidden(),
    flag("log-json-split-stream", "").hidden(),
    flag("log-text-split-stream", "").hidden(),
];

pub static ROOT: Command = Command {
    long_about: Some(
        "Give GPUs and MIG devices to pods that claim them, as the driver gpu.nvidia.com of Kubernetes' Dynamic \
         Resource Allocation.",
    ),
    ..command(
        PROGRAM,
        "give GPUs to pods that claim them",
        &OPTIONS,
        "A DaemonSet starts it on each node; see examples/kubernetes/driver.yaml.",
    )
};
