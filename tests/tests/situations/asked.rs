//! Rows about the GPUs that NVML is asked about: a container waits for its own alone, and all are asked if the kernel
//! module's list does not agree with NVML's answers.

use std::fs;

use nvc_testkit::driver::Driver;
use nvc_testkit::files;

use super::expectation::Expected;
use super::modes::{Live, Specification};
use super::row::{Row, row};

/// Number of the machine's GPUs.
const GPUS: usize = 16;

/// GPU 5's, as [`gpu`] makes it.
const UUID: &str = "GPU-00000005-0000-4000-8000-000000000005";
const ADDRESS: &str = "0000:7b:00.0";
const NODE: &str = "/dev/nvidia11";

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = names();
    rows.extend(other_gpus());
    rows.extend(surprises());
    rows
}

/// Returns GPU N's statement. Minors and addresses run against the indices.
fn gpu(n: usize) -> String {
    format!(
        "gpu minor={} bus=0000:{:02x}:00.0 cc=9.0 brand=14 mig={} uuid=GPU-{n:08x}-0000-4000-8000-{n:012x} name=NVIDIA H100\n",
        GPUS - n,
        0x80 - n,
        if n == 9 { "on" } else { "off" },
    )
}

/// A container on a machine with 16 GPUs gets the one of this name.
fn named(name: &'static str, device: &'static str) -> Row {
    machine(name, device, |_, statement| statement)
}

/// The same with other statements of some GPUs.
fn machine(
    name: &'static str,
    device: &'static str,
    change: impl Fn(usize, String) -> String,
) -> Row {
    let gpus: String = (1..GPUS).map(|n| change(n, gpu(n))).collect();
    let mig =
        "mig gpu=9 slot=2 gi=5 ci=0 uuid=MIG-00000009-0000-5000-8000-000000000009 name=1g.10gb\n";
    let statements = format!("{gpus}{mig}");
    row(name)
        .profile(&statements)
        .devices(device)
        .expect(|all| all.attached(1).own(NODE, NODE).nothing("/dev/nvidia0"))
}

/// All ways to name a GPU whose index, address or UUID is known without NVML.
fn names() -> Vec<Row> {
    vec![
        named("one_gpu_by_index", "5"),
        named("one_gpu_by_uuid", UUID),
        named("one_gpu_by_the_start_of_its_uuid", "gpu-00000005"),
        named("one_gpu_by_address", ADDRESS),
        named("one_mig_device_by_slot", "9:2")
            .expect(|it| it.without(NODE).own("/dev/nvidia7", "/dev/nvidia7")),
        named(
            "one_mig_device_by_its_gpu_and_instances",
            "MIG-gpu-00000009-0000-4000-8000-000000000009/5/0",
        )
        .expect(|it| it.without(NODE).own("/dev/nvidia7", "/dev/nvidia7")),
        named("two_gpus", "5,GPU-00000009-0000-4000-8000-000000000009").expect(|it| it.attached(2)),
        named("all_gpus", "all").expect(|it| it.attached(GPUS).without("/dev/nvidia0")),
        named(
            "a_mig_device_by_uuid",
            "MIG-00000009-0000-5000-8000-000000000009",
        )
        .expect(|it| it.attached(GPUS).without(NODE)),
    ]
}

/// GPUs that the container has nothing to do with.
fn other_gpus() -> Vec<Row> {
    let hangs = |symbol: &str| format!("hang-at={symbol}:3\n");
    let hung = ["ByIndex_v2", "ByPciBusId_v2", "ByUUID"]
        .map(|how| hangs(&format!("nvmlDeviceGetHandle{how}")))
        .concat();
    vec![
        named("another_gpu_hangs_by_index", "5").profile(&hung),
        named("another_gpu_hangs_by_uuid", UUID).profile(&hung),
        named("a_driver_that_hangs", "5")
            .profile("hang-at=nvmlInit_v2\n")
            .variable("NVC_DRIVER_TIMEOUT", "1")
            .expect(|it| it.fails(&["did not answer within 1 s"])),
        named("another_gpu_is_lost", "5").profile("lost=3\n"),
        named("the_gpu_is_lost", "3")
            .profile("lost=3\n")
            .expect(|it| it.fails(&["3: gpu 3", "gpu is lost"]))
            .but(
                &[Specification, Live],
                "no specification is written",
                |it| it.fails(&[]),
            ),
        // NVML counts without it.
        machine("another_gpu_is_excluded", "5", |n, statement| match n {
            3 => statement.replace(" uuid=", " excluded=yes uuid="),
            _ => statement,
        })
        .expect(|it| it.without(NODE).own("/dev/nvidia10", "/dev/nvidia10")),
    ]
}

/// The kernel module's list is not what NVML says.
fn surprises() -> Vec<Row> {
    let all = |it: Expected| it.attached(GPUS);
    vec![
        named("another_uuid_at_the_address", UUID)
            .host(|host| edit(host, |text| text.replace("GPU-00000005", "GPU-99999999")))
            .expect(all),
        // The other GPU's UUID was known for a moment: what NVML says counts.
        named(
            "an_uuid_of_before",
            "GPU-99999999-0000-4000-8000-000000000005",
        )
        .host(|host| edit(host, |text| text.replace("GPU-00000005", "GPU-99999999")))
        .expect(|it| it.fails(&["unknown device"]))
        .but(
            &[Specification, Live],
            "no specification is written",
            |it| it.fails(&[]),
        ),
        named("an_index_before_gpus_were_attached", "5").host(never_attached),
        named("an_address_before_gpus_were_attached", ADDRESS).host(never_attached),
        named("a_start_before_gpus_were_attached", "GPU-00000005")
            .host(never_attached)
            .expect(all),
        named("a_list_with_fewer_gpus", "5")
            .host(|host| fs::remove_dir_all(host.path(directory("0000:7f:00.0"))).unwrap())
            .expect(all),
        named("no_list_of_gpus", ADDRESS)
            .host(|host| {
                fs::remove_dir_all(host.path("/proc/driver/nvidia/gpus")).unwrap();
            })
            .expect(all),
        named("a_soc_with_other_gpus", "5")
            .host(|host| edit(host, |text| text.replace("NVIDIA H100", "Orin (nvgpu)")))
            .expect(all),
        named("a_slot_that_is_not_there", "9:0")
            .expect(|it| it.fails(&["9:0: unknown device"]))
            .but(
                &[Specification, Live],
                "no specification is written",
                |it| it.fails(&[]),
            ),
    ]
}

fn directory(address: &str) -> String {
    format!("/proc/driver/nvidia/gpus/{address}")
}

/// Changes what the kernel module says about GPU 5.
fn edit(host: &Driver, change: impl Fn(String) -> String) {
    let file = host.path(format!("{}/information", directory(ADDRESS)));
    let text = change(fs::read_to_string(&file).unwrap());
    files::file(&file, text, 0o444).unwrap();
}

/// As the module describes GPUs until something attaches them.
fn never_attached(host: &Driver) {
    for entry in fs::read_dir(host.path("/proc/driver/nvidia/gpus")).unwrap() {
        let file = entry.unwrap().path().join("information");
        let text = fs::read_to_string(&file).unwrap();
        let uuid = |line: &str| match line.strip_prefix("GPU UUID:") {
            Some(_) => "GPU UUID: \t GPU-????????-????-????-????-????????????\n".to_owned(),
            None => format!("{line}\n"),
        };
        let text: String = text.lines().map(uuid).collect();
        files::file(&file, text, 0o444).unwrap();
    }
}
