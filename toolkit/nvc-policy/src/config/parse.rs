//! Parses config.toml into a [`Config`]: every value is checked, with line and column in errors.

use toml_edit::{Document, Item, TableLike, Value};

use super::schema::{self, Kind};
use super::{Config, Error, LoadedConfig, nearest};

/// Parses a configuration.
///
/// # Errors
/// Text that is not TOML, a value of the wrong type, an ldconfig that the file itself does not allow.
pub fn parse(text: &str) -> Result<LoadedConfig, Error> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document = Document::parse(text).map_err(|error| {
        let place = place(text, error.span());
        let message = error.message().trim_end().replace('\n', ", ");
        Error::Syntax(format!("{place}{message}"))
    })?;

    let mut parser = ConfigParser {
        text,
        loaded: LoadedConfig {
            config: Config::default(),
            warnings: Vec::new(),
        },
    };
    parser.table("", document.as_table())?;
    let loaded = parser.loaded;
    super::ldconfig::check(&loaded.config)?;
    Ok(loaded)
}

struct ConfigParser<'a> {
    text: &'a str,
    loaded: LoadedConfig,
}

impl ConfigParser<'_> {
    /// Parses a table and its subtables.
    fn table(&mut self, prefix: &str, table: &dyn TableLike) -> Result<(), Error> {
        for (name, item) in table.iter() {
            let full = match prefix {
                "" => name.to_owned(),
                _ => format!("{prefix}.{name}"),
            };
            let span = table
                .get_key_value(name)
                .and_then(|(key, _)| key.span())
                .or_else(|| item.span());
            // A quoted name with a dot is not a path.
            let plain = !name.contains('.');
            if let (Some(key), true) = (schema::find(&full), plain) {
                let line = self.line_of(span);
                self.loaded.config.lines.push((full.clone(), line));
                self.value(key, item)?;
            } else if schema::is_table(&full) && plain {
                let Some(inner) = item.as_table_like() else {
                    return Err(self.wrong_type(&full, "a table", item));
                };
                self.table(&full, inner)?;
            } else {
                let place = place(self.text, span);
                let near = nearest::nearest(&full)
                    .map(|near| format!("; did you mean {near}?"))
                    .unwrap_or_default();
                let warning = format!("{place}unknown key {full}{near}");
                self.loaded.warnings.push(warning);
            }
        }
        Ok(())
    }

    /// Parses one value and stores it.
    fn value(&mut self, key: schema::Key, item: &Item) -> Result<(), Error> {
        let found = match key.kind {
            Kind::Bool => item.as_bool().map(TypedValue::Bool),
            Kind::Text => item.as_str().map(|text| TypedValue::Text(text.to_owned())),
            Kind::List => item.as_array().and_then(|array| {
                let texts = array.iter().map(|value| value.as_str().map(str::to_owned));
                texts.collect::<Option<Vec<_>>>().map(TypedValue::List)
            }),
        };
        let found = found.ok_or_else(|| self.wrong_type(key.name, key.kind.name(), item))?;
        store(&mut self.loaded.config, key.name, found);
        Ok(())
    }

    fn wrong_type(&self, name: &str, expected: &str, item: &Item) -> Error {
        let found = match item {
            Item::Value(Value::Boolean(_)) => "true or false",
            Item::Value(Value::String(_)) => "a text",
            Item::Value(Value::Array(_)) => "a list of something else",
            Item::Value(Value::Integer(_) | Value::Float(_)) => "a number",
            Item::Value(Value::Datetime(_)) => "a date",
            _ => "a table",
        };
        let place = place(self.text, item.span());
        Error::Type(format!("{place}{name}: expected {expected}, found {found}"))
    }

    fn line_of(&self, span: Option<std::ops::Range<usize>>) -> usize {
        span.map_or(1, |span| position(self.text, span.start).0)
    }
}

/// A value of its key's type.
enum TypedValue {
    Bool(bool),
    Text(String),
    List(Vec<String>),
}

/// Stores a value in the configuration; the schema has checked its type.
fn store(config: &mut Config, name: &str, found: TypedValue) {
    match found {
        TypedValue::Bool(value) => {
            if let Some(place) = bool_place(config, name) {
                *place = value;
            }
        }
        TypedValue::Text(value) => match name {
            "nvidia-container-cli.user" => config.cli.user = Some(value),
            "nvidia-container-cli.ldconfig" => config.cli.ldconfig = Some(value),
            _ => {
                if let Some(place) = text_place(config, name) {
                    *place = value;
                }
            }
        },
        TypedValue::List(value) => {
            if let Some(place) = list_place(config, name) {
                *place = value;
            }
        }
    }
}

fn bool_place<'a>(config: &'a mut Config, name: &str) -> Option<&'a mut bool> {
    let (cli, features) = (&mut config.cli, &mut config.features);
    Some(match name {
        "disable-require" => &mut config.disable_require,
        "accept-nvidia-visible-devices-envvar-when-unprivileged" => {
            &mut config.accept_envvar_unprivileged
        }
        "accept-nvidia-visible-devices-as-volume-mounts" => &mut config.accept_volume_mounts,
        "accept-nvidia-features-when-unprivileged" => &mut config.accept_features_unprivileged,
        "accept-annotations" => &mut config.accept_annotations,
        "nvidia-container-cli.load-kmods" => &mut cli.load_kmods,
        "nvidia-container-cli.no-pivot" => &mut cli.no_pivot,
        "nvidia-container-cli.no-cgroups" => &mut cli.no_cgroups,
        "nvidia-container-runtime-hook.skip-mode-detection" => &mut config.hook.skip_mode_detection,
        "features.allow-cuda-compat-libs-from-container" => {
            &mut features.allow_cuda_compat_libs_from_container
        }
        "features.allow-ldconfig-from-container" => &mut features.allow_ldconfig_from_container,
        "features.allow-unknown-oci-spec-fields" => &mut features.allow_unknown_oci_spec_fields,
        "features.disable-cuda-compat-lib-hook" => &mut features.disable_cuda_compat_lib_hook,
        "features.disable-imex-channel-creation" => &mut features.disable_imex_channel_creation,
        "features.ignore-imex-channel-requests" => &mut features.ignore_imex_channel_requests,
        "features.no-additional-gids-for-device-nodes" => {
            &mut features.no_additional_gids_for_device_nodes
        }
        _ => return None,
    })
}

fn text_place<'a>(config: &'a mut Config, name: &str) -> Option<&'a mut String> {
    let (cli, runtime) = (&mut config.cli, &mut config.runtime);
    Some(match name {
        "swarm-resource" => &mut config.swarm_resource,
        "supported-driver-capabilities" => &mut config.supported_driver_capabilities,
        "nvidia-container-cli.root" => &mut cli.root,
        "nvidia-container-cli.path" => &mut cli.path,
        "nvidia-container-cli.debug" => &mut cli.debug,
        "nvidia-container-cli.ldcache" => &mut cli.ldcache,
        "nvidia-ctk.path" => &mut config.ctk_path,
        "nvidia-container-runtime.debug" => &mut runtime.debug,
        "nvidia-container-runtime.log-level" => &mut runtime.log_level,
        "nvidia-container-runtime.mode" => &mut runtime.mode,
        "nvidia-container-runtime.modes.csv.mount-spec-path" => &mut runtime.csv_mount_spec_path,
        "nvidia-container-runtime.modes.csv.compat-container-root" => {
            &mut runtime.csv_compat_container_root
        }
        "nvidia-container-runtime.modes.cdi.default-kind" => &mut runtime.cdi_default_kind,
        "nvidia-container-runtime.modes.jit-cdi.driver-capabilities" => {
            &mut runtime.jit_driver_capabilities
        }
        "nvidia-container-runtime.modes.jit-cdi.requirements" => &mut runtime.jit_requirements,
        "nvidia-container-runtime.modes.legacy.cuda-compat-mode" => {
            &mut runtime.legacy_cuda_compat_mode
        }
        "nvidia-container-runtime-hook.path" => &mut config.hook.path,
        _ => return None,
    })
}

fn list_place<'a>(config: &'a mut Config, name: &str) -> Option<&'a mut Vec<String>> {
    let runtime = &mut config.runtime;
    Some(match name {
        "accept-cdi-kinds" => &mut config.accept_cdi_kinds,
        "nvidia-container-cli.environment" => &mut config.cli.environment,
        "nvidia-container-runtime.runtimes" => &mut runtime.runtimes,
        "nvidia-container-runtime.modes.cdi.annotation-prefixes" => {
            &mut runtime.cdi_annotation_prefixes
        }
        "nvidia-container-runtime.modes.cdi.spec-dirs" => &mut runtime.cdi_spec_dirs,
        "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags" => {
            &mut runtime.jit_feature_flags
        }
        "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks" => {
            &mut runtime.jit_disable_hooks
        }
        _ => return None,
    })
}

/// Formats `(LINE, COLUMN): `, or nothing.
fn place(text: &str, span: Option<std::ops::Range<usize>>) -> String {
    span.map(|span| {
        let (line, column) = position(text, span.start);
        format!("line {line}, column {column}: ")
    })
    .unwrap_or_default()
}

/// Returns line and column of a byte, counted from 1.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}

/// Returns true if a key of the schema has a field, for the tests.
#[cfg(test)]
pub(super) fn has_place(config: &mut Config, key: schema::Key) -> bool {
    match key.kind {
        Kind::Bool => bool_place(config, key.name).is_some(),
        Kind::Text => {
            matches!(
                key.name,
                "nvidia-container-cli.user" | "nvidia-container-cli.ldconfig"
            ) || text_place(config, key.name).is_some()
        }
        Kind::List => list_place(config, key.name).is_some(),
    }
}
