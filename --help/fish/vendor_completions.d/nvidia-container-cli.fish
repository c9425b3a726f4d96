# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_nvidia_container_cli_global_optspecs
    string join \n d/debug= k/load-kmods n/no-pivot u/user= r/root= l/ldcache= no-create-imex-channels help usage V/version
end

function __fish_nvidia_container_cli_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_nvidia_container_cli_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_nvidia_container_cli_using_subcommand
    set -l cmd (__fish_nvidia_container_cli_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s d -l debug -d 'Append a debug log to FILE' -r -F
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s u -l user -d 'Run the driver\'s library as this user; without a value as the caller [default: the overflow user]' -r -f -a "(__fish_complete_users)"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s r -l root -d 'Directory that holds the driver, e.g. /run/nvidia/driver [default: /]' -r -f -a "(__fish_complete_directories)"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s l -l ldcache -d 'The driver root\'s cache of shared libraries [default: /etc/ld.so.cache]' -r -F
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s k -l load-kmods -d 'Load the kernel modules and create the device nodes first'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s n -l no-pivot -d 'Confine ldconfig by moving a mount and chroot, for a root on initramfs'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -l no-create-imex-channels -d 'With --load-kmods, create no IMEX channel nodes'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -l help -d 'Print this help'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -l usage -d 'Print the options in short'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -s V -l version -d 'Print the versions of program and library'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -f -a "info" -d 'Report the driver\'s version and the GPUs'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -f -a "list" -d 'List what a container needs of the driver'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_needs_command" -f -a "configure" -d 'Put the driver and chosen GPUs into a container'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand info" -l format -d 'Print text or JSON [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand info" -l csv -d 'Print comma-separated values'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand info" -l help -d 'Print this help'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand info" -l usage -d 'Print the options in short'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand info" -s V -l version -d 'Print the versions of program and library'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s d -l device -d 'List the nodes of these devices: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all' -r -f -a "all\t''
$(grep -rhosE "GPU-[0-9a-f-]+" /proc/driver/nvidia/gpus)"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l mig-config -d 'List what is needed to configure MIG on these devices; only `all\'' -r -f -a "all\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l mig-monitor -d 'List what is needed to monitor MIG on these devices; only `all\'' -r -f -a "all\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l imex-channel -d 'List the nodes of these IMEX channels' -r -f
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l format -d 'Print text or JSON [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s l -l libraries -d 'List the driver\'s libraries'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s b -l binaries -d 'List the driver\'s programs'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s i -l ipcs -d 'List the driver\'s sockets'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s f -l firmwares -d 'List the driver\'s firmware files'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l compat32 -d 'With --libraries, list the 32-bit ones too'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l no-persistenced -d 'Leave out nvidia-persistenced\'s socket'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l no-fabricmanager -d 'Leave out nvidia-fabricmanager\'s socket'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l no-gsp-firmware -d 'Leave out the GSP firmware'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l no-cntlibs -d 'Ignored, for compatibility'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l help -d 'Print this help'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -l usage -d 'Print the options in short'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand list" -s V -l version -d 'Print the versions of program and library'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s p -l pid -d 'A process in the container' -r -f
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s d -l device -d 'Devices to put in: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all' -r -f -a "all\t''
$(grep -rhosE "GPU-[0-9a-f-]+" /proc/driver/nvidia/gpus)"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s r -l require -d 'Stop unless this holds, e.g. `cuda>=12.4 brand=tesla,driver>=535\'; repeatable' -r -f
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s l -l ldconfig -d 'Program that updates the container\'s library cache: @PATH is the host\'s, PATH the container\'s; `auto\' is none if the image\'s cache is sound, else the host\'s [default: auto]' -r -F
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l mig-config -d 'Let the container configure MIG on these devices; only `all\'' -r -f -a "all\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l mig-monitor -d 'Let the container monitor MIG on these devices; only `all\'' -r -f -a "all\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l imex-channel -d 'IMEX channels to put in' -r -f
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l cuda-compat-mode -d 'How the image\'s CUDA compatibility libraries are used: mount, ldconfig or disabled [default: mount]' -r -f -a "mount\t''
ldconfig\t''
disabled\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l format -d 'With --dry-run, print text or JSON [default: text]' -r -f -a "text\t''
json\t''"
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s c -l compute -d 'Put in what CUDA and OpenCL need'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s u -l utility -d 'Put in what monitoring needs, e.g. nvidia-smi'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s v -l video -d 'Put in the video codecs'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s g -l graphics -d 'Put in what OpenGL and Vulkan need'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s D -l display -d 'Put in what X11 displays need'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s n -l ngx -d 'Put in NGX (DLSS and the like)'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l compat32 -d 'Put in 32-bit libraries too'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-cgroups -d 'Leave the container\'s device cgroup alone'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-devbind -d 'Put in no device nodes'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-persistenced -d 'Leave out nvidia-persistenced\'s socket'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-fabricmanager -d 'Leave out nvidia-fabricmanager\'s socket'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-gsp-firmware -d 'Leave out the GSP firmware'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l no-cntlibs -d 'Same as --cuda-compat-mode=disabled, and wins over it'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l dry-run -d 'Print what would be done, and do nothing'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l help -d 'Print this help'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -l usage -d 'Print the options in short'
complete -c nvidia-container-cli -n "__fish_nvidia_container_cli_using_subcommand configure" -s V -l version -d 'Print the versions of program and library'
