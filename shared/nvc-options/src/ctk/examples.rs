//! Lists the examples at the end of each command's help: command lines, each with what it does.

pub(super) const ROOT: &str = "\
Examples:
  nvidia-ctk doctor
      what is wrong, and how to repair it
  nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml
      let engines know the GPUs by CDI names
  nvidia-ctk runtime configure --runtime=docker
      let docker know the runtime nvidia
  nvidia-ctk cdi generate --help
      the options of a command";

pub(super) const GENERATE: &str = "\
Examples:
  nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml
      the file that the systemd units keep up to date
  nvidia-ctk cdi generate --device-id=0 --device-id=GPU-8a4d1f3c
      show the devices of two GPUs
  nvidia-ctk cdi generate --style=live --output=/var/run/cdi/nvidia.yaml
      a file that survives a new driver";

pub(super) const VERIFY: &str = "\
Examples:
  nvidia-ctk cdi verify
      a line for each file that is out of date, and its repair
  nvidia-ctk cdi verify --details
      each difference";

pub(super) const LIST: &str = "\
Examples:
  nvidia-ctk cdi list
      the names for podman run --device NAME
  nvidia-ctk cdi list --spec-dir=/opt/cdi
      those of another directory";

pub(super) const TRANSFORM: &str = "\
Examples:
  nvidia-ctk cdi transform root --from=/run/nvidia/driver --to=/ --input=in.yaml --output=out.yaml
      make a driver container's file one of the host";

pub(super) const CONFIG: &str = "\
Examples:
  nvidia-ctk config
      print the configuration
  nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place
      change a setting";

pub(super) const DEFAULT: &str = "\
Examples:
  nvidia-ctk config default --output=config.toml
      write a file with the defaults";

pub(super) const CONFIGURE: &str = "\
Examples:
  nvidia-ctk runtime configure --runtime=docker
      then: systemctl restart docker
  nvidia-ctk runtime configure --runtime=docker --cdi.enabled
      docker 25 to 28.2 resolve CDI names only with this
  nvidia-ctk runtime configure --runtime=containerd --dry-run
      show what would be written
  nvidia-ctk runtime configure --runtime=docker --remove
      undo it";

pub(super) const UNREGISTER: &str = "\
Examples:
  nvidia-ctk runtime unregister --dry-run
      show what removing the package would undo";

pub(super) const INFO: &str = "\
Examples:
  nvidia-ctk info
      for a bug report; it wakes GPUs that sleep
  nvidia-ctk info --no-gpus --format=json
      without the GPUs, for a program";

pub(super) const DOCTOR: &str = "\
Examples:
  nvidia-ctk doctor
      findings with symptom and repair, the worst first; 1 if something is wrong
  nvidia-ctk --config=/etc/other.toml doctor --details
      with another config.toml, and all differences";

pub(super) const LINKS: &str = "\
Examples:
  nvidia-ctk system create-dev-char-symlinks
      for the nodes that there are, so that systemd and runc 1.1 keep them";

pub(super) const NODES: &str = "\
Examples:
  nvidia-ctk system create-device-nodes --control-devices
      after rm of a node with an old number";
