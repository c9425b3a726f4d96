//! Tests how the programs that engines start as createContainer hooks are linked, and how nvidia-ctk, which can load no
//! library for that reason, asks NVML.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::process::ExitCode;

use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::files::copy_program;
use nvc_testkit::harness;
use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::capi::repository;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root, Command("readelf")];
        hook_programs_are_static,
        the_query_is_sought_beside_and_in_the_installation,
        the_query_is_as_protected_as_its_caller,
        verify_reports_hooks_without_environment,
        verify_believes_roots_files_alone,
    ])
}

/// The script that scripts/build/all.sh runs on the programs that packages contain.
fn hook_programs_are_static() {
    let check = repository().join("scripts/build/check-static.sh");
    let checked = |name: &str| {
        let run = Run::other(&check).args([cli::beside(name).unwrap()]);
        run.outcome().unwrap()
    };
    for name in ["nvidia-ctk", "nvidia-cdi-hook"] {
        let outcome = checked(name);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    }
    // This one loads NVML.
    let outcome = checked("nvc-query");
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("linked dynamically"),
        "{outcome:#?}"
    );
}

/// Generates a specification in a namespace where no other installation can be found, with a program of the query's
/// name in the working directory and in PATH.
fn generate(scratch: &Scratch, ctk: &Path) -> Outcome {
    let evil = scratch.join("evil");
    fs::create_dir_all(&evil).unwrap();
    let script = format!("#!/bin/sh\n: > {}/ran\n", scratch.path().display());
    nvc_testkit::files::file(&evil.join("nvc-query"), script, 0o755).unwrap();
    let line =
        "mount -t tmpfs tmpfs /usr/local && cd \"$1\" && PATH=$1:.:$PATH && shift && exec \"$@\"";
    let run =
        Run::other("unshare").args(["-m", "--propagation", "private", "sh", "-c", line, "sh"]);
    let run = run.args([&evil, ctk]).args(["--quiet", "cdi", "generate"]);
    let root = machine::driver().root().display();
    let outcome = run
        .args([format!("--driver-root={root}")])
        .outcome()
        .unwrap();
    assert!(!scratch.join("ran").exists(), "a program of PATH ran");
    outcome
}

fn the_query_is_sought_beside_and_in_the_installation() {
    let query = cli::beside("nvc-query").unwrap();
    for place in ["bin", "libexec/libnvidia-container"] {
        let scratch = Scratch::new().unwrap();
        let ctk = scratch.join("bin/nvidia-ctk");
        fs::create_dir(scratch.join("bin")).unwrap();
        copy_program(&cli::beside("nvidia-ctk").unwrap(), &ctk).unwrap();
        let outcome = generate(&scratch, &ctk);
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        let top = scratch.path().display();
        let text = format!(
            "process creation failed: nvc-query: in none of {top}/bin, {top}/libexec/libnvidia-container, \
             /usr/local/libexec/libnvidia-container"
        );
        assert!(outcome.stderr.contains(&text), "{outcome:#?}");

        fs::create_dir_all(scratch.join(place)).unwrap();
        copy_program(&query, &scratch.join(place).join("nvc-query")).unwrap();
        let outcome = generate(&scratch, &ctk);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        assert!(
            outcome.stdout.contains("kind: nvidia.com/gpu"),
            "{outcome:#?}"
        );
    }
}

/// One that others could have put there does not count: root may start a copy of nvidia-ctk anywhere.
fn the_query_is_as_protected_as_its_caller() {
    let query = cli::beside("nvc-query").unwrap();
    let start = |change: &dyn Fn(&Path)| {
        let scratch = Scratch::new().unwrap();
        let bin = scratch.join("bin");
        fs::create_dir(&bin).unwrap();
        let ctk = bin.join("nvidia-ctk");
        copy_program(&cli::beside("nvidia-ctk").unwrap(), &ctk).unwrap();
        copy_program(&query, &bin.join("nvc-query")).unwrap();
        fs::set_permissions(&bin, Permissions::from_mode(0o1777)).unwrap();
        change(&bin);
        let outcome = generate(&scratch, &ctk);
        let top = scratch.path().display().to_string();
        (outcome.status, outcome.stderr.replace(&top, "TOP"))
    };
    // A sticky directory, such as /tmp, protects root's files.
    let (status, said) = start(&|_| ());
    assert_eq!(status, Some(0), "{said}");

    let other = |bin: &Path| chown(bin.join("nvc-query"), Some(4242), Some(4242)).unwrap();
    let written = |bin: &Path| fs::set_permissions(bin, Permissions::from_mode(0o777)).unwrap();
    let link = |bin: &Path| {
        // In a sticky directory, fs.protected_symlinks would hide it.
        fs::set_permissions(bin, Permissions::from_mode(0o755)).unwrap();
        fs::rename(bin.join("nvc-query"), bin.join("other")).unwrap();
        symlink("other", bin.join("nvc-query")).unwrap();
        lchown(bin.join("nvc-query"), Some(4242), Some(4242)).unwrap();
    };
    let owned = "TOP/bin/nvc-query belongs to the user 4242";
    for (change, why) in [
        (&other as &dyn Fn(&Path), owned),
        (&written, "every user may write to TOP/bin"),
        (&link, owned),
    ] {
        let (status, said) = start(change);
        assert_eq!(status, Some(1), "{said}");
        let text = format!(
            "nvc-query: in none of TOP/bin, TOP/libexec/libnvidia-container, \
             /usr/local/libexec/libnvidia-container; TOP/bin/nvc-query does not count: {why}"
        );
        assert!(said.contains(&text), "{said}");
    }

    // A user's own build, which root starts: who can change one of them can change both.
    let (status, said) = start(&|bin| {
        for part in ["", "nvc-query", "nvidia-ctk"] {
            chown(bin.join(part), Some(4242), Some(4242)).unwrap();
        }
    });
    assert_eq!(status, Some(0), "{said}");
}

/// Engines can start them with the environment of a container.
fn verify_reports_hooks_without_environment() {
    let verify = |stage: &str, env: &str| {
        let scratch = Scratch::new().unwrap();
        let spec = format!(
            r#"{{"cdiVersion": "0.5.0", "kind": "v.com/c", "devices": [{{"name": "x", "containerEdits": {{"hooks":
               [{{"hookName": "{stage}", "path": "/bin/true"{env}}}]}}}}]}}"#
        );
        fs::write(scratch.join("x.json"), spec).unwrap();
        let run = Run::other(cli::beside("nvidia-ctk").unwrap()).args(["cdi", "verify"]);
        let run = run.args([format!("--spec-dir={}", scratch.path().display())]);
        run.outcome().unwrap()
    };
    for stage in ["createContainer", "startContainer"] {
        for env in ["", r#", "env": []"#] {
            let outcome = verify(stage, env);
            assert_eq!(outcome.status, Some(1), "{outcome:#?}");
            let text = format!("the {stage} hook /bin/true has no env: runc 1.1 starts it as root");
            assert!(outcome.stdout.contains(&text), "{outcome:#?}");
            assert!(outcome.stdout.contains("repair: "), "{outcome:#?}");
        }
        let outcome = verify(stage, r#", "env": ["A=b"]"#);
        assert_eq!(
            (outcome.status, outcome.stdout.as_str()),
            (Some(0), ""),
            "{outcome:#?}"
        );
    }
    let outcome = verify("createRuntime", "");
    assert_eq!(
        (outcome.status, outcome.stdout.as_str()),
        (Some(0), ""),
        "{outcome:#?}"
    );
}

/// The comment of a file names a driver root, whose library would be loaded. Names of a file do not reach a terminal raw.
fn verify_believes_roots_files_alone() {
    let verify = |owner: u32, mode: u32| {
        let scratch = Scratch::new().unwrap();
        let path = scratch.join("x.yaml");
        let spec = "# generated by nvidia-ctk 1\n# command: nvidia-ctk nothing\n{\"cdiVersion\": \"0.5.0\", \"kind\": \"v.com/c\", \
                    \"devices\": [{\"name\": \"x\", \"containerEdits\": {\"mounts\": \
                    [{\"hostPath\": \"/no\\u001b[31m\", \"containerPath\": \"/a\"}]}}]}\n";
        fs::write(&path, spec).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), None).unwrap();
        let run = Run::other(cli::beside("nvidia-ctk").unwrap()).args(["cdi", "verify"]);
        let run = run.args([format!("--spec-dir={}", scratch.path().display())]);
        run.outcome().unwrap()
    };
    let is_believed =
        |outcome: &Outcome| outcome.stdout.contains("the command line in its comment");
    let outcome = verify(0, 0o644);
    assert!(is_believed(&outcome), "{outcome:#?}");
    for (owner, mode) in [(4242, 0o644), (0, 0o666)] {
        let outcome = verify(owner, mode);
        assert!(!is_believed(&outcome), "{outcome:#?}");
        assert!(outcome.stdout.contains("/no\\x1b[31m"), "{outcome:#?}");
    }
}
