//! Creates the command lines of createContainer hooks.
//!
//! nvidia-ctk runs such hooks with its command `hook`. Every other program is treated as nvidia-cdi-hook under any
//! name, as upstream does. Operators' installers put a script in a program's place and append `.real` to its name.

use nvc_cdi::Hook;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookProgram {
    pub path: String,
}

impl HookProgram {
    /// Returns the hook of a name.
    pub fn hook(&self, name: &str, arguments: impl IntoIterator<Item = String>) -> Hook {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        let words: &[&str] = match file.strip_suffix(".real").unwrap_or(file) {
            "nvidia-ctk" => &["nvidia-ctk", "hook"],
            _ => &["nvidia-cdi-hook"],
        };
        let words = words.iter().copied().chain([name]).map(String::from);
        Hook {
            hook_name: "createContainer".into(),
            path: self.path.clone(),
            args: words.chain(arguments).collect(),
            env: vec!["NVIDIA_CTK_DEBUG=false".into()],
            timeout: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_depend_on_the_program_and_not_on_the_installers_name() {
        for (path, expected) in [
            ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook chmod"),
            ("/opt/x/nvidia-cdi-hook.real", "nvidia-cdi-hook chmod"),
            ("/usr/bin/nvidia-ctk", "nvidia-ctk hook chmod"),
            ("/opt/x/nvidia-ctk.real", "nvidia-ctk hook chmod"),
            ("nvidia-ctk", "nvidia-ctk hook chmod"),
            ("/opt/x/ctk", "nvidia-cdi-hook chmod"),
        ] {
            let path = path.to_owned();
            let hook = HookProgram { path }.hook("chmod", []);
            assert_eq!(hook.args.join(" "), expected, "{}", hook.path);
        }
    }
}
