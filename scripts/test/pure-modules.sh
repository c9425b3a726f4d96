# Sourced: the modules of libnvc whose unit tests need nothing but memory, for Miri and emulators.
# shellcheck shell=bash disable=SC2034 # used by the sourcing scripts

modules=(options:: require:: select:: path:: error:: plan:: container::cgroup:: host::arch:: host::catalogue:: host::device::
  elf:: ldcache:: host::nvcaps:: host::procfs:: host::query::client:: host::query::protocol:: apply::mount::attach::
  apply::cgroup::v1:: apply::cgroup::v2:: apply::cgroup::program:: apply::ldconfig::output::
  apply::ldconfig::explain:: apply::ldconfig::filter:: sys::bpf::)
