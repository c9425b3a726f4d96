//! Finds a process's container by its cgroup.

use std::fs;

/// Length of a short container id.
const SHORT: usize = 12;

/// Returns the short id of the container that a process of this machine belongs to.
pub(super) fn of_process(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    in_cgroups(&text)
}

/// Returns the first id of 64 hexadecimal digits in a text such as `0::/system.slice/docker-ID.scope`.
fn in_cgroups(text: &str) -> Option<String> {
    let is_id = |part: &&str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let id = text.split(['/', '-', '.', ':', '\n']).find(is_id)?;
    id.get(..SHORT).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::in_cgroups;

    #[test]
    fn ids() {
        let id = "4f1d8a9c0b7e6d5c4b3a29180716253443526170819fa0b1c2d3e4f5a6b7c8d9";
        for text in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("12:devices:/docker/{id}\n0::/\n"),
            format!("1:name=systemd:/kubepods/pod1/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
        ] {
            assert_eq!(in_cgroups(&text).as_deref(), Some("4f1d8a9c0b7e"));
        }
        assert_eq!(in_cgroups("0::/user.slice/session-1.scope\n"), None);
    }
}
