# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_nvidia_ctk_global_optspecs
    string join \n v/version d/debug quiet config= h/help
end

function __fish_nvidia_ctk_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_nvidia_ctk_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_nvidia_ctk_using_subcommand
    set -l cmd (__fish_nvidia_ctk_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -s v -l version -d 'Print the version'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "cdi" -d 'Generate, list, check and change CDI specifications'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "config" -d 'Print or change the toolkit\'s config.toml'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "runtime" -d 'Configure container engines'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "info" -d 'Print what a bug report needs: driver, system, engines, programs and GPUs'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "doctor" -d 'Find problems, and say how to repair them'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "system" -d 'Create device nodes and links to them'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_needs_command" -f -a "hook" -d 'Run a hook of a CDI specification, as nvidia-cdi-hook does'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -f -a "generate" -d 'Write a specification of this machine\'s GPUs'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -f -a "verify" -d 'Compare specifications with this machine'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -f -a "list" -d 'Print the names of all devices that specifications define'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and not __fish_seen_subcommand_from generate verify list transform" -f -a "transform" -d 'Change a specification'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l output -d 'Write to this file instead of standard output [$NVIDIA_CTK_CDI_OUTPUT_FILE_PATH]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l format -d 'json or yaml; by default that of the file\'s name, or yaml [$NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT]' -r -f -a "json\t''
yaml\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l mode -d 'auto, csv, gdrcopy, gds, imex, management, mig-caps, mofed, nvml, nvswitch or wsl [default: auto] [$NVIDIA_CTK_CDI_GENERATE_MODE]' -r -f -a "auto\t''
csv\t''
gdrcopy\t''
gds\t''
imex\t''
management\t''
mig-caps\t''
mofed\t''
nvml\t''
nvswitch\t''
wsl\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l driver-root -d 'Where the driver\'s files are [$NVIDIA_CTK_DRIVER_ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l dev-root -d 'Where /dev is; the driver root by default [$NVIDIA_CTK_DEV_ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l device-name-strategy -d 'index, uuid or type-index; index and uuid by default [$NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES]' -r -f -a "index\t''
uuid\t''
type-index\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l device-id -d 'Only these devices: indices, GPU:MIG, UUIDs or their starts, all or none [$NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS]' -r -f -a "all\t''
none\t''
$(grep -rhosE "GPU-[0-9a-f-]+" /proc/driver/nvidia/gpus)"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l vendor -d 'Vendor of the devices [default: nvidia.com] [$NVIDIA_CTK_CDI_GENERATE_VENDOR]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l class -d 'Class of the devices [default: gpu] [$NVIDIA_CTK_CDI_GENERATE_CLASS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l nvidia-cdi-hook-path -d 'The hook program; nvidia-cdi-hook in PATH by default [$NVIDIA_CTK_CDI_HOOK_PATH]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l ldconfig-path -d 'The host\'s ldconfig for the hook update-ldcache [$NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l config-search-path -d 'Look for configuration files here first [$NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l library-search-path -d 'Look for libraries here first [$NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l csv.file -d 'Mode csv: files to be read [$NVIDIA_CTK_CDI_GENERATE_CSV_FILES]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l csv.ignore-pattern -d 'Mode csv: links to be left out [$NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l csv.compat-container-root -d 'Mode csv: directory of images\' CUDA compatibility libraries for Orin [default: /usr/local/cuda/compat_orin] [$NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l disable-hook -d 'Leave out this hook, or all [$NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l enable-hook -d 'Add this hook even if it is disabled by default [$NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l feature-flag -d 'Switch a feature on or off [$NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l hooks -d 'separate, or merged: one process instead of six [default: separate]' -r -f -a "separate\t''
merged\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l style -d 'files, or live: a hook finds the driver\'s files when a container starts [default: files]' -r -f -a "files\t''
live\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l cdi-version -d 'Fail if the specification needs a later version of the format' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l no-all-device -d 'No device all [$NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l no-compat32 -d 'Leave out 32-bit libraries'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l gids -d 'Record the groups of device nodes; needs engines that know CDI 0.7.0'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from generate" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l spec-dir -d 'Where specifications are [$NVIDIA_CTK_CDI_SPEC_DIRS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l format -d 'text or json [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l details -d 'Print each difference of a file'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l quick -d 'Compare only MIG devices and, if there are any, the driver\'s version; ask no GPU'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -l spec-dir -d 'Where specifications are; /etc/cdi and /var/run/cdi by default [$NVIDIA_CTK_CDI_SPEC_DIRS]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -l format -d 'text or json [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from transform" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from transform" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from transform" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from transform" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand cdi; and __fish_seen_subcommand_from transform" -f -a "root" -d 'Move paths from one root to another'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -s c -l config-file -d 'The file to be read' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -l set-list-separator -d 'Separator of list items [default: :]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -s o -l output -d 'Write to this file' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -l set -d 'Set a key; lists are separated by colons' -r -f -a "accept-annotations\t''
accept-cdi-kinds\t''
accept-nvidia-features-when-unprivileged\t''
accept-nvidia-visible-devices-as-volume-mounts\t''
accept-nvidia-visible-devices-envvar-when-unprivileged\t''
disable-require\t''
supported-driver-capabilities\t''
swarm-resource\t''
features.allow-cuda-compat-libs-from-container\t''
features.allow-ldconfig-from-container\t''
features.allow-unknown-oci-spec-fields\t''
features.disable-cuda-compat-lib-hook\t''
features.disable-imex-channel-creation\t''
features.ignore-imex-channel-requests\t''
features.no-additional-gids-for-device-nodes\t''
nvidia-container-cli.debug\t''
nvidia-container-cli.environment\t''
nvidia-container-cli.ldcache\t''
nvidia-container-cli.ldconfig\t''
nvidia-container-cli.load-kmods\t''
nvidia-container-cli.no-cgroups\t''
nvidia-container-cli.no-pivot\t''
nvidia-container-cli.path\t''
nvidia-container-cli.root\t''
nvidia-container-cli.user\t''
nvidia-container-runtime.debug\t''
nvidia-container-runtime.log-level\t''
nvidia-container-runtime.mode\t''
nvidia-container-runtime.runtimes\t''
nvidia-container-runtime.modes.cdi.annotation-prefixes\t''
nvidia-container-runtime.modes.cdi.default-kind\t''
nvidia-container-runtime.modes.cdi.spec-dirs\t''
nvidia-container-runtime.modes.csv.compat-container-root\t''
nvidia-container-runtime.modes.csv.mount-spec-path\t''
nvidia-container-runtime.modes.jit-cdi.driver-capabilities\t''
nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks\t''
nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags\t''
nvidia-container-runtime.modes.jit-cdi.requirements\t''
nvidia-container-runtime.modes.legacy.cuda-compat-mode\t''
nvidia-container-runtime-hook.path\t''
nvidia-container-runtime-hook.skip-mode-detection\t''
nvidia-ctk.path\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -s i -l in-place -d 'Change the file'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and not __fish_seen_subcommand_from default" -f -a "default" -d 'Print the default configuration'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and __fish_seen_subcommand_from default" -s o -l output -d 'Write to this file' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and __fish_seen_subcommand_from default" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and __fish_seen_subcommand_from default" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and __fish_seen_subcommand_from default" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand config; and __fish_seen_subcommand_from default" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -f -a "configure" -d 'Register the NVIDIA runtime with an engine'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and not __fish_seen_subcommand_from configure unregister" -f -a "unregister" -d 'Undo all registrations, before the toolkit is removed'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l runtime -d 'docker, containerd or crio [default: docker]' -r -f -a "docker\t''
containerd\t''
crio\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l config -d 'The engine\'s configuration file' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l drop-in-config -d 'The file to be imported by it; empty for none' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l config-source -d 'file or command: where the present configuration is read from [default: file]' -r -f -a "file\t''
command\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l executable-path -d 'The program to be asked with --config-source=command' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l config-mode -d 'config-file, or oci-hook: a file for a hooks directory [default: config-file]' -r -f -a "config-file\t''
oci-hook\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l oci-hook-path -d 'Write the hook file here instead of to standard output' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l nvidia-runtime-name -d 'The runtime\'s name [default: nvidia]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l nvidia-runtime-path -d 'The runtime program; the one beside nvidia-ctk, or in /usr/bin, by default' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l nvidia-runtime-hook-path -d 'The hook program; the one beside nvidia-ctk, or in /usr/bin, by default' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l nvidia-set-as-default -d 'Make it the engine\'s default runtime'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l cdi.enabled -d 'Let the engine resolve CDI names'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l remove -d 'Remove the runtime from all files that the engine reads'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l restart -d 'Restart the engine if its files were changed'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l dry-run -d 'Print the result instead of writing it'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from configure" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -l program -d 'Only what names these programs; all of the toolkit by default' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -l dry-run -d 'Say what would be done, and change nothing'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand runtime; and __fish_seen_subcommand_from unregister" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -l format -d 'text or json [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -l no-gpus -d 'Do not ask for the GPUs, which wakes those that sleep'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand info" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -l format -d 'text or json [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -l details -d 'Print each difference of a specification'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -f -a "create-dev-char-symlinks" -d 'Create the links /dev/char/MAJOR:MINOR'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and not __fish_seen_subcommand_from create-dev-char-symlinks create-device-nodes" -f -a "create-device-nodes" -d 'Create the driver\'s control nodes'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l dev-char-path -d 'Where the links go [default: /dev/char] [$DEV_CHAR_PATH]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l driver-root -d 'Where modprobe runs [default: /] [$NVIDIA_DRIVER_ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l create-all -d 'Links for all possible nodes instead of the existing ones [$CREATE_ALL]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l load-kernel-modules -d 'Load the modules first; needs --create-all [$LOAD_KERNEL_MODULES]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l create-device-nodes -d 'Create the control nodes too; needs --create-all [$CREATE_DEVICE_NODES]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l dry-run -d 'Log what would be done [$DRY_RUN]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-dev-char-symlinks" -s h -l help -d 'Print help'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l root -d 'Where the driver is [default: /] [$ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l dev-root -d 'Where /dev is; the driver root by default [$NVIDIA_DEV_ROOT]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l config -d 'The toolkit\'s config.toml [$NVIDIA_CTK_CONFIG]' -r
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l control-devices -d 'nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l load-kernel-modules -d 'Load the modules first'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l dry-run -d 'Log what would be done [$DRY_RUN]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -s d -l debug -d 'Log every step [$NVIDIA_CTK_DEBUG]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -l quiet -d 'Log errors only; takes precedence over --debug [$NVIDIA_CTK_QUIET]'
complete -c nvidia-ctk -n "__fish_nvidia_ctk_using_subcommand system; and __fish_seen_subcommand_from create-device-nodes" -s h -l help -d 'Print help'
