//! The protocols that Kubernetes publishes, and ours beside them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Below the published folder. `grpc.health.v1` is not Kubernetes'.
const PUBLISHED: &[&str] = &[
    "pluginregistration/v1/api.proto",
    "dra/v1/api.proto",
    "dra/v1beta1/api.proto",
    "dra-health/v1alpha1/api.proto",
    "podresources/v1/api.proto",
];
const OTHERS: &str = "grpc.health.v1";

/// Published, and neither written nor read by ours.
const LEFT_OUT: &[&str] = &[
    "k8s.io.kubelet.pkg.apis.dra.v1.Device.share_id",
    "v1.ContainerDevices.topology",
    "v1.ContainerResources.cpu_ids",
    "v1.ContainerResources.dynamic_resources",
    "v1.ContainerResources.memory",
    "v1.PodResourcesLister.Get",
    "v1.PodResourcesLister.GetAllocatableResources",
];

/// Returns the descriptors of the published protocols, encoded.
pub(crate) fn published(folder: &Path) -> Vec<u8> {
    use prost::Message as _;
    compiled(folder, PUBLISHED).encode_to_vec()
}

fn compiled(folder: &Path, files: &[impl AsRef<Path>]) -> prost_types::FileDescriptorSet {
    protox::compile(files, [folder]).unwrap()
}

/// Returns what our protocols say and the published ones do not, or the other way round.
pub(crate) fn differences(ours: &Path, folder: &Path) -> Vec<String> {
    let files = fs::read_dir(ours).unwrap();
    let files: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
    let ours = statements(&compiled(ours, &files));
    let published = statements(&compiled(folder, PUBLISHED));
    let mut differences = Vec::new();
    for (name, said) in &ours {
        if published.get(name) != Some(said) && !name.starts_with(OTHERS) {
            let other = published.get(name).map_or("nothing", String::as_str);
            differences.push(format!("{name}: ours {said}, published {other}"));
        }
    }
    // A message of ours has all fields, except those that are left out.
    for (name, said) in &published {
        let (message, _) = name.rsplit_once('.').unwrap();
        let is_ours = ours.contains_key(&format!("{message}."));
        if is_ours && !ours.contains_key(name) && !LEFT_OUT.contains(&name.as_str()) {
            differences.push(format!("{name}: published {said}, not in ours"));
        }
    }
    differences
}

/// Returns what each field, value and method is, by its full name; messages and services by their name and a dot.
fn statements(set: &prost_types::FileDescriptorSet) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    for file in &set.file {
        for message in &file.message_type {
            message_statements(file.package(), message, &mut said);
        }
        for kind in &file.enum_type {
            let name = format!("{}.{}", file.package(), kind.name());
            for value in &kind.value {
                said.insert(
                    format!("{name}.{}", value.name()),
                    value.number().to_string(),
                );
            }
            said.insert(format!("{name}."), "an enumeration".into());
        }
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            for method in &service.method {
                let streams = (method.client_streaming(), method.server_streaming());
                let is = format!(
                    "{} {} {streams:?}",
                    method.input_type(),
                    method.output_type()
                );
                said.insert(format!("{name}.{}", method.name()), is);
            }
            said.insert(format!("{name}."), "a service".into());
        }
    }
    said
}

fn message_statements(
    within: &str,
    message: &prost_types::DescriptorProto,
    said: &mut BTreeMap<String, String>,
) {
    let name = format!("{within}.{}", message.name());
    for field in &message.field {
        let kind = (field.label(), field.r#type(), field.type_name());
        let is = format!("{} {kind:?}", field.number());
        said.insert(format!("{name}.{}", field.name()), is);
    }
    for inner in &message.nested_type {
        message_statements(&name, inner, said);
    }
    said.insert(format!("{name}."), "a message".into());
}
