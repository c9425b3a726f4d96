//! Tests of reading config.toml.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::keys::{KEYS, Kind};
use super::ldconfig::{for_library, for_program};
use super::lookup::{self, Place};
use super::*;
use libnvc::options::Ldconfig;

fn config(text: &str) -> Config {
    parse(text).unwrap().config
}

fn failure(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_equals_no_file() {
    assert_eq!(config(""), Config::default());
    assert_eq!(config("\u{feff}# nothing\r\n"), Config::default());
}

#[test]
fn every_key_changes_something() {
    for key in KEYS {
        let value = match key.kind {
            Kind::Bool if key.name.contains("load-kmods") || key.name.contains("envvar") => "false",
            Kind::Bool => "true",
            Kind::Text => "\"@other\"",
            Kind::List => "[\"other\"]",
        };
        let mut changed = config(&format!("{} = {value}", key.name));
        assert_eq!(changed.lines, [(key.name.to_owned(), 1)]);
        changed.lines.clear();
        assert_ne!(changed, Config::default(), "{}", key.name);
    }
}

#[test]
fn all_ways_to_write_a_table_are_read() {
    let texts = [
        "[nvidia-container-runtime.modes.cdi]\nspec-dirs = [\"/a\"]\n",
        "[nvidia-container-runtime]\nmodes.cdi.spec-dirs = ['/a']\n",
        "nvidia-container-runtime = { modes = { cdi = { spec-dirs = [\"/a\"] } } }\n",
        "[nvidia-container-runtime.modes]\r\n\"cdi\" = { spec-dirs = [ \"/a\", ] }\r\n",
    ];
    for text in texts {
        assert_eq!(config(text).runtime.cdi_spec_dirs, ["/a"], "{text}");
    }
}

#[test]
fn wrong_types_are_refused_with_their_place() {
    assert_eq!(
        failure("# first\ndisable-require = \"yes\"\n"),
        "failed to unmarshal config: line 2, column 19: disable-require: expected true or false, found a text"
    );
    assert_eq!(
        failure("[nvidia-container-cli]\nenvironment = [\"A=1\", 2]"),
        "failed to unmarshal config: line 2, column 15: nvidia-container-cli.environment: expected a list of strings, \
         found a list of something else"
    );
    assert!(failure("features = 1").contains("features: expected a table, found a number"));
    assert!(failure("[[features]]").contains("a table, found a list of tables, [[NAME]]"));
    assert!(failure("swarm-resource = [\"A\"]").contains("expected a text"));
}

#[test]
fn bad_toml_is_refused_with_its_place() {
    let text = failure("[nvidia-container-cli\n");
    assert!(
        text.starts_with("failed to load specified config file: line 1, column "),
        "{text}"
    );
    assert!(failure("disable-require = true\ndisable-require = true\n").contains("line 2"));
}

#[test]
fn unknown_keys_are_warned_about() {
    let loaded = parse("frob = 1\n[nvidia-container-cli]\nno-cgroup = true\n[what]\nx.y = 1\n");
    assert_eq!(
        loaded.unwrap().warnings,
        [
            "line 1, column 1: unknown key frob",
            "line 3, column 1: unknown key nvidia-container-cli.no-cgroup; did you mean nvidia-container-cli.no-cgroups?",
            "line 4, column 2: unknown key what",
        ]
    );
    let quoted = parse("\"nvidia-ctk.path\" = \"/x\"").unwrap();
    assert_eq!(quoted.config.ctk.path, "nvidia-ctk");
    assert_eq!(quoted.warnings.len(), 1);
}

#[test]
fn an_ldconfig_of_the_image_must_be_allowed() {
    assert_eq!(
        failure("[nvidia-container-cli]\nldconfig = \"/sbin/ldconfig\""),
        "nvidia-container-cli.ldconfig value \"/sbin/ldconfig\" is not host-relative (does not start with a '@'; auto needs no \
         program): \
         invalid config value"
    );
    assert!(failure("nvidia-container-cli.ldconfig = \"\"").contains("\"\" is not"));
    let allowed = "features.allow-ldconfig-from-container = true\nnvidia-container-cli.ldconfig = ";
    assert_eq!(
        for_program(&config(&format!("{allowed}'/x.real'")), |_| true),
        "/x.real"
    );
}

#[test]
fn the_real_ldconfig_is_found() {
    let table = [
        (None, false, "@/sbin/ldconfig"),
        (None, true, "@/sbin/ldconfig.real"),
        (Some("@/x/ldconfig.real"), false, "@/x/ldconfig"),
        (Some("@/x/ldconfig.real"), true, "@/x/ldconfig.real"),
        (Some("program:@/sbin/ldconfig"), false, "@/sbin/ldconfig"),
        (Some("auto"), true, "@auto"),
        (Some("@auto"), true, "@auto"),
    ];
    for (value, exists, expected) in table {
        let mut config = Config::default();
        config.cli.ldconfig = value.map(str::to_owned);
        assert_eq!(for_program(&config, |_| exists), expected);
    }
}

#[test]
fn package_defaults_mean_auto() {
    let of = |value: &str| {
        let mut config = Config::default();
        config.cli.ldconfig = Some(value.into());
        for_library(&config)
    };
    assert_eq!(for_library(&Config::default()), Ldconfig::Auto);
    assert_eq!(of("@/sbin/ldconfig"), Ldconfig::Auto);
    assert_eq!(of("@/sbin/ldconfig.real"), Ldconfig::Auto);
    assert_eq!(
        of("program:@/sbin/ldconfig"),
        Ldconfig::Host("/sbin/ldconfig".into())
    );
    assert_eq!(of("@/opt/l"), Ldconfig::Host("/opt/l".into()));
    assert_eq!(of("@auto"), Ldconfig::Auto);
    // A word of the file itself, although it has no @.
    let loaded = config("nvidia-container-cli.ldconfig = \"auto\"");
    assert_eq!(for_library(&loaded), Ldconfig::Auto);
}

#[test]
fn the_user_is_suses_only_there() {
    let of = |os_release: &str| Config::default().user(os_release);
    assert_eq!(of("ID=debian\n"), "");
    assert_eq!(of("ID=sles\nID_LIKE=\"suse\"\n"), "root:video");
    assert_eq!(of("ID_LIKE='opensuse suse'"), "root:video");
    assert_eq!(of("ID_LIKE=unsuse"), "");
    assert_eq!(
        config("nvidia-container-cli.user = ''").user("ID_LIKE=suse"),
        ""
    );
}

#[test]
fn the_file_is_looked_up_in_order() {
    let of = |given: Option<&str>, variables: &[(&str, &str)]| {
        let variables = variables.to_vec();
        lookup::place(given.map(std::path::Path::new), move |name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.into())
        })
    };
    let place = |file: &str, named| Place {
        file: file.into(),
        named,
    };
    let etc = place("/etc/nvidia-container-runtime/config.toml", false);
    let xdg = ("XDG_CONFIG_HOME", "/x");
    let variable = ("NVIDIA_CTK_CONFIG_FILE_PATH", "/c");
    assert_eq!(of(None, &[]), etc);
    assert_eq!(of(Some(""), &[("XDG_CONFIG_HOME", "")]), etc);
    assert_eq!(
        of(None, &[xdg]),
        place("/x/nvidia-container-runtime/config.toml", false)
    );
    assert_eq!(of(None, &[xdg, variable]), place("/c", true));
    assert_eq!(of(Some("/g"), &[xdg, variable]), place("/g", true));
}

#[test]
fn files_that_cannot_be_read_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let place = Place {
        file: file.clone(),
        named: false,
    };
    assert_eq!(
        lookup::load(&place, false).unwrap().config,
        Config::default()
    );
    let missing = lookup::load(&place, true).unwrap_err();
    assert_eq!(missing.to_string(), "file does not exist");
    std::os::unix::fs::symlink("/nowhere", &file).unwrap();
    assert!(lookup::load(&place, false).is_ok());
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(lookup::load(&place, false).unwrap_err().is_of_the_file());
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, b"\xff").unwrap();
    assert!(lookup::load(&place, false).is_err());
    std::fs::write(&file, "\nnvidia-container-runtime.mode = 'cdi'\n").unwrap();
    let config = lookup::load(&place, false).unwrap().config;
    assert_eq!(
        config.origin("nvidia-container-runtime.mode"),
        format!("{}:2", file.display())
    );
    assert_eq!(config.origin("disable-require"), "default");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn unknown_keys_change_nothing(name in "[a-z]{3,12}z", value in 0..9) {
        let text = format!("{name} = {value}\n");
        prop_assume!(!keys::is_table(&name));
        let loaded = parse(&text).unwrap();
        prop_assert_eq!(loaded.config, Config::default());
        prop_assert_eq!(loaded.warnings.len(), 1);
    }
}

/// The defaults that the manual page shows are those of the programs.
#[test]
fn defaults_are_values_of_their_keys() {
    let of = |key: &keys::Key| format!("{} = {}\n", key.name, key.default);
    let read = parse(&KEYS.iter().map(of).collect::<String>()).unwrap();
    assert_eq!(read.warnings, [""; 0]);
    let mut config = read.config;
    (config.lines, config.cli.user, config.cli.ldconfig) = Default::default();
    assert_eq!(config, Config::default());
}
