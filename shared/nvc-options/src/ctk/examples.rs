//! Lists the examples at the end of each command's help.

use super::PROGRAM;

/// Command lines for the end of a command's help, by its name, each with what it does. Names are unique.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        PROGRAM,
        &[
            ("nvidia-ctk doctor", "what is wrong, and how to repair it"),
            (
                "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
                "let engines know the GPUs by CDI names",
            ),
            (
                "nvidia-ctk runtime configure --runtime=docker",
                "let docker know the runtime nvidia",
            ),
            ("nvidia-ctk cdi generate --help", "the options of a command"),
        ],
    ),
    (
        "generate",
        &[
            (
                "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
                "the file that the systemd units keep up to date",
            ),
            (
                "nvidia-ctk cdi generate --device-id=0 --device-id=GPU-8a4d1f3c",
                "show the devices of two GPUs",
            ),
            (
                "nvidia-ctk cdi generate --style=live --output=/var/run/cdi/nvidia.yaml",
                "a file that survives a new driver",
            ),
        ],
    ),
    (
        "verify",
        &[
            (
                "nvidia-ctk cdi verify",
                "a line for each file that is out of date, and its repair",
            ),
            ("nvidia-ctk cdi verify --details", "each difference"),
        ],
    ),
    (
        "list",
        &[
            (
                "nvidia-ctk cdi list",
                "the names for podman run --device NAME",
            ),
            (
                "nvidia-ctk cdi list --spec-dir=/opt/cdi",
                "those of another directory",
            ),
        ],
    ),
    (
        "root",
        &[(
            "nvidia-ctk cdi transform root --from=/run/nvidia/driver --to=/ --input=in.yaml --output=out.yaml",
            "make a driver container's file one of the host",
        )],
    ),
    (
        "config",
        &[
            ("nvidia-ctk config", "print the configuration"),
            (
                "nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place",
                "change a setting",
            ),
        ],
    ),
    (
        "default",
        &[(
            "nvidia-ctk config default --output=config.toml",
            "write a file with the defaults",
        )],
    ),
    (
        "configure",
        &[
            (
                "nvidia-ctk runtime configure --runtime=docker",
                "then: systemctl restart docker",
            ),
            (
                "nvidia-ctk runtime configure --runtime=docker --cdi.enabled",
                "docker 25 to 28.2 resolve CDI names only with this",
            ),
            (
                "nvidia-ctk runtime configure --runtime=containerd --dry-run",
                "show what would be written",
            ),
            (
                "nvidia-ctk runtime configure --runtime=docker --remove",
                "undo it",
            ),
        ],
    ),
    (
        "unregister",
        &[(
            "nvidia-ctk runtime unregister --dry-run",
            "show what removing the package would undo",
        )],
    ),
    ("info", &[("nvidia-ctk info", "for a bug report")]),
    (
        "doctor",
        &[
            (
                "nvidia-ctk doctor",
                "findings with symptom and repair, the worst first; 1 if something is wrong",
            ),
            (
                "nvidia-ctk --config=/etc/other.toml doctor --details",
                "with another config.toml, and all differences",
            ),
        ],
    ),
    (
        "create-dev-char-symlinks",
        &[(
            "nvidia-ctk system create-dev-char-symlinks",
            "for the nodes that there are, so that systemd and runc 1.1 keep them",
        )],
    ),
    (
        "create-device-nodes",
        &[(
            "nvidia-ctk system create-device-nodes --control-devices",
            "after rm of a node with an old number",
        )],
    ),
];

/// Returns the examples of a command: lines, each with what it does.
pub fn examples(command: &str) -> &'static [(&'static str, &'static str)] {
    let found = EXAMPLES.iter().find(|(name, _)| *name == command);
    found.map_or(&[], |(_, lines)| lines)
}

/// Returns the end of a command's help.
pub(super) fn after_help(command: &str) -> String {
    let lines = examples(command).iter();
    let lines: String = lines
        .map(|(line, what)| format!("\n  {line}\n      {what}"))
        .collect();
    if lines.is_empty() {
        return lines;
    }
    format!("Examples:{lines}")
}
