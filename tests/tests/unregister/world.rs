//! A machine of its own: a root with the host's /usr, and the programs in a directory of their own.

use std::fs;
use std::path::PathBuf;

use nvc_testkit::cli::{Outcome, Run, beside};
use nvc_testkit::files;
use nvc_testkit::machine::Scratch;

/// Where the programs are installed, which is neither /usr/bin nor in anybody's PATH.
pub(crate) const BIN: &str = "/opt/nv/bin";

/// A root, with the programs in [`BIN`].
pub(crate) struct World {
    scratch: Scratch,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self {
            scratch: Scratch::new().unwrap(),
        };
        for name in ["nvidia-container-runtime", "nvidia-container-runtime-hook"] {
            world.put(&format!("{BIN}/{name}"), "#!/bin/sh\n", 0o755);
        }
        files::directory(&world.at("run/systemd/system")).unwrap();
        world.put("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
        world.put("etc/cdi/x", "", 0o644);
        let systemctl = "#!/bin/sh\necho \"$*\" >> /systemctl\n";
        world.put("programs/systemctl", systemctl, 0o755);
        world
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.scratch.join(path.trim_start_matches('/'))
    }

    pub(crate) fn put(&self, path: &str, text: &str, mode: u32) {
        files::directory(self.at(path).parent().unwrap()).unwrap();
        files::file(&self.at(path), text, mode).unwrap();
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    /// Runs a shell script in the root; nvidia-ctk is the program in [`BIN`].
    pub(crate) fn run(&self, script: &str) -> Outcome {
        let whole = format!(
            "set -e; cd {root}; mkdir -p usr proc .{BIN}\n\
             for d in bin sbin lib lib64; do [ ! -e /$d ] || ln -sfn usr/$d $d; done\n\
             mount --rbind /usr usr; mount -t tmpfs none usr/local; mkdir usr/local/bin; cp programs/* usr/local/bin\n\
             mount -t proc none proc; mkdir -p dev; : > dev/null; mount --bind /dev/null dev/null; ln -sfn ../run var/run\n\
             [ -e .{BIN}/nvidia-ctk ] || cp {ctk} .{BIN}/nvidia-ctk; exec chroot . env PATH={BIN}:/usr/bin:/bin sh -c '{script}'",
            root = self.scratch.path().display(),
            ctk = beside("nvidia-ctk").unwrap().display(),
        );
        files::directory(&self.at("var")).unwrap();
        let run = Run::other("unshare");
        let run = run.args(["-m", "--propagation", "private", "sh", "-c", &whole]);
        run.outcome().unwrap()
    }

    pub(crate) fn succeeds(&self, script: &str) -> Outcome {
        let outcome = self.run(script);
        assert_eq!(outcome.status, Some(0), "{script}\n{outcome:#?}");
        outcome
    }
}

/// Commands for [`World::run`].
pub(crate) const CONFIGURE: &str = "nvidia-ctk runtime configure";
pub(crate) const UNREGISTER: &str = "nvidia-ctk runtime unregister";

/// Files of engines, and of our hook.
pub(crate) const DAEMON: &str = "etc/docker/daemon.json";
pub(crate) const CONTAINERD: &str = "etc/containerd/config.toml";
pub(crate) const DROP_IN: &str = "etc/containerd/conf.d/99-nvidia.toml";
pub(crate) const CRIO: &str = "etc/crio/crio.conf.d/99-nvidia.toml";
pub(crate) const HOOK: &str = "etc/containers/oci/hooks.d/nvidia.json";
