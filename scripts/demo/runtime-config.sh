# Sourced by scripts/demo/runtime.sh and scripts/bench/runtime.sh.
# shellcheck shell=sh

# Prints a configuration file for nvidia-container-runtime and its hook.
runtime_config() { # DRIVER PROGRAMS MODE RUNTIME SPEC_DIR
  cat <<END_OF_FILE
[nvidia-container-cli]
root = "$1"
path = "$2/nvidia-container-cli"
[nvidia-container-runtime]
mode = "$3"
modes.cdi.spec-dirs = ["$5"]
runtimes = ["$4"]
[nvidia-container-runtime-hook]
path = "$2/nvidia-container-runtime-hook"
END_OF_FILE
}
