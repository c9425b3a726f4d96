use libnvc::{apply::*, container::*, host::*, options::*, plan::*, *};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let root = DriverRoot::open(a[1].as_ref()).unwrap();
    let cfg = ContainerConfig {
        pid: a[2].parse().unwrap(),
        rootfs: a[3].clone().into(),
        ..Default::default()
    };
    let c = Container::discover(
        &cfg,
        ContainerOptions::parse("supervised no-cgroups utility compute graphics").unwrap(),
    )
    .unwrap();
    println!("{:?}", c.facts);
    let lib = |n: &str| Step::Bind {
        source: Source::Host(HostPath::new(format!("/usr/lib/x86_64-linux-gnu/{n}"))),
        at: c.facts.layout.libs_dir.join(n),
        kind: BindKind::File,
    };
    let mut p = Plan {
        steps: vec![
            Step::MountTmpfs {
                at: ContainerPath::new("/proc/driver/nvidia"),
                mode: 0o555,
                create: false,
                files: vec![TmpfsFile {
                    name: "params".into(),
                    mode: 0o444,
                    content: "x: 1\n".into(),
                }],
            },
            Step::MountTmpfs {
                at: ContainerPath::new("/etc/nvidia/nvidia-application-profiles-rc.d"),
                mode: 0o555,
                create: true,
                files: vec![],
            },
            lib("libcuda.so.535.261.03"),
            lib("libnvidia-ml.so.535.261.03"),
            Step::Bind {
                source: Source::Host(HostPath::new("/tmp/nvidia-mps")),
                at: ContainerPath::new("/tmp/nvidia-mps"),
                kind: BindKind::Ipc,
            },
            Step::Bind {
                source: Source::Host(HostPath::new("/var/run/nvidia-persistenced/socket")),
                at: ContainerPath::new("/var/run/nvidia-persistenced/socket"),
                kind: BindKind::Ipc,
            },
            Step::BindDevice {
                source: HostPath::new("/dev/nvidia0"),
                number: DeviceNumber {
                    major: 195,
                    minor: 0,
                },
                at: ContainerPath::new("/dev/nvidia0"),
            },
            Step::Symlink {
                at: c.facts.layout.libs_dir.join("libcuda.so"),
                target: "libcuda.so.1".into(),
            },
            Step::Bind {
                source: Source::Host(HostPath::new("/proc/driver/nvidia/gpus/0000:3b:00.0")),
                at: ContainerPath::new("/proc/driver/nvidia/gpus/0000:3b:00.0"),
                kind: BindKind::Proc,
            },
            Step::ShowInProfile {
                directory: ContainerPath::new("/etc/nvidia/nvidia-application-profiles-rc.d"),
                minor: 0,
            },
            Step::ShowInProfile {
                directory: ContainerPath::new("/etc/nvidia/nvidia-application-profiles-rc.d"),
                minor: 5,
            },
        ],
    };
    if a.len() > 4 {
        p.steps.push(Step::Symlink {
            at: ContainerPath::new(&a[4]),
            target: "x".into(),
        });
        p.steps.push(lib("libnvidia-cfg.so.535.261.03"));
    }
    print!("{p}");
    match apply(&p, &root, &c, ApplyOptions::default()) {
        Ok(()) => println!("ok"),
        Err(e) => {
            println!(
                "ERR {} hint {:?} cleanup {:?}",
                e.message(),
                e.advice(),
                e.cleanup()
            );
        }
    }
}
