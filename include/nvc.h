/*
 * libnvidia-container: injects the NVIDIA driver and chosen GPUs into Linux containers.
 *
 * Typical sequence of calls:
 *
 *     nvc_context_new, nvc_init                        open the driver
 *     nvc_driver_info_new, nvc_device_info_new         find its files and the GPUs
 *     nvc_container_config_new, nvc_container_new      find the container
 *     nvc_driver_mount, nvc_device_mount, ...          add files and devices to it
 *     nvc_ldcache_update                               last
 *     ..._free, nvc_shutdown, nvc_context_free
 *
 * Results. A function that returns int returns 0 on success and -1 on failure; one that returns a pointer returns NULL
 * on failure. nvc_error gives the reason; errno is not set. Without a context (NULL) there is no text. A context that
 * was not initialised fails with "context uninitialized", an invalid argument with "invalid argument". Arguments are
 * checked before anything is done; each ..._mount function does everything or nothing.
 *
 * Ownership. The result of a ..._new function is released once, with the ..._free function of the same name, which
 * accepts NULL. Everything else belongs to the library or the caller, as each function documents. The only pointer to
 * release with free() is node->path of nvc_nvcaps_device_from_proc_path. Using a released pointer is undefined
 * behaviour, as with free(). Strings passed in are read only during the call, unless documented otherwise, and need not
 * be UTF-8. Strings passed out must not be changed.
 *
 * Threads. Different contexts are independent: any number may be used at once, by any threads. Calls on one context are
 * serialised; because the text of nvc_error changes with the next failure, use a context from one thread at a time.
 * Several threads may read containers and information records at once. A thread may end between calls. After fork(),
 * the child may use contexts that no other thread was using, and must release its copies, as the parent must its own.
 *
 * Side effects. The calling process keeps its signal handlers, umask, directory, namespaces, user and environment.
 * Helper processes have ended and are reaped when a call returns. They are ordinary children: they raise SIGCHLD, and a
 * program that ignores SIGCHLD or waits for any child must not do so during nvc_ldcache_update. The library reads these
 * environment variables: PATH, CUDA_MPS_PIPE_DIRECTORY, NVC_DEBUG_FILE, NVC_DRIVER_TIMEOUT (time limit of NVML in
 * seconds), and passes on to NVML those that contain NVML or begin with CUDA_ or NVIDIA_.
 *
 * Privileges. nvc_init needs CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID for a driver root or user other than the
 * caller's; the ..._mount functions need CAP_SYS_ADMIN and more. In short: root.
 */

#ifndef NVC_H
#define NVC_H


#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NVC_MAJOR 1
#define NVC_MINOR 20
#define NVC_PATCH 2
/* Empty for a release. */
#define NVC_TAG
#define NVC_VERSION "1.20.2"

#ifdef __cplusplus
extern "C" {
#endif


/**
 * Size of the longest option string including its terminating zero; longer ones are rejected.
 */
#define NVC_ARG_MAX 256

/**
 * nvc_nvcaps_style: the driver has no capabilities.
 */
#define NVC_NVCAPS_STYLE_NONE 0

/**
 * nvc_nvcaps_style: capabilities are granted by files below /proc/driver/nvidia/capabilities.
 */
#define NVC_NVCAPS_STYLE_PROC 1

/**
 * nvc_nvcaps_style: capabilities are granted by devices below /dev/nvidia-caps.
 */
#define NVC_NVCAPS_STYLE_DEV 2

/**
 * A container. Created by nvc_container_new.
 */
struct nvc_container;

/**
 * A user of the library: one driver root, one configuration, one error. Created by nvc_context_new.
 */
struct nvc_context;

/**
 * The version of the library.
 */
struct nvc_version {
    /**
     * Major version, which is the ABI's.
     */
    unsigned int major;
    /**
     * Minor version.
     */
    unsigned int minor;
    /**
     * Patch level.
     */
    unsigned int patch;
    /**
     * The whole version as text.
     */
    const char *string;
};

/**
 * An IMEX channel. Filled in by the caller.
 */
struct nvc_imex_channel {
    /**
     * Its number, from 0.
     */
    int id;
};

/**
 * IMEX channels.
 */
struct nvc_imex_info {
    /**
     * An array; NULL if there are none.
     */
    struct nvc_imex_channel *chans;
    /**
     * Number of channels.
     */
    size_t nchans;
};

/**
 * How to reach the driver. Created by nvc_config_new; the caller sets the fields.
 */
struct nvc_config {
    /**
     * The driver root. NULL: "/".
     */
    char *root;
    /**
     * The ld.so.cache below the driver root. NULL: "/etc/ld.so.cache".
     */
    char *ldcache;
    /**
     * The user that the driver's library runs as. (uid_t)-1: the overflow user, which owns nothing.
     */
    uid_t uid;
    /**
     * Its group. (gid_t)-1: the overflow group.
     */
    gid_t gid;
    /**
     * The IMEX channels whose device nodes nvc_init creates, with the option "load-kmods", if the driver has them.
     */
    struct nvc_imex_info imex;
};

/**
 * A device.
 */
struct nvc_device_node {
    /**
     * Path of its node.
     */
    char *path;
    /**
     * Its number, in the format of major(3), minor(3) and makedev(3).
     */
    dev_t id;
};

/**
 * The parts of the driver. Paths are below the driver root; none of the arrays has a terminating NULL.
 */
struct nvc_driver_info {
    /**
     * Version of the driver, for instance "535.261.03".
     */
    char *nvrm_version;
    /**
     * Newest CUDA version that it supports, for instance "12.2".
     */
    char *cuda_version;
    /**
     * Programs.
     */
    char **bins;
    /**
     * Number of programs.
     */
    size_t nbins;
    /**
     * Libraries.
     */
    char **libs;
    /**
     * Number of libraries.
     */
    size_t nlibs;
    /**
     * 32-bit libraries.
     */
    char **libs32;
    /**
     * Number of 32-bit libraries.
     */
    size_t nlibs32;
    /**
     * Sockets and directories of the driver's daemons.
     */
    char **ipcs;
    /**
     * Number of sockets and directories.
     */
    size_t nipcs;
    /**
     * Devices that all GPUs share. Their paths are constant strings of the library.
     */
    struct nvc_device_node *devs;
    /**
     * Number of devices.
     */
    size_t ndevs;
    /**
     * Firmware.
     */
    char **firmwares;
    /**
     * Number of firmware files.
     */
    size_t nfirmwares;
};

/**
 * The MIG devices of a GPU.
 */
struct nvc_mig_device_info {
    /**
     * An array; NULL if there are none.
     */
    struct nvc_mig_device *devices;
    /**
     * Number of devices.
     */
    size_t ndevices;
};

/**
 * A GPU.
 */
struct nvc_device {
    /**
     * Product name.
     */
    char *model;
    /**
     * "GPU-...".
     */
    char *uuid;
    /**
     * PCI address, domain:bus:device.function with 8, 2, 2 and 1 hexadecimal digits.
     */
    char *busid;
    /**
     * Compute capability, for instance "9.0".
     */
    char *arch;
    /**
     * Brand, for instance "Tesla".
     */
    char *brand;
    /**
     * Its device node; the path is NULL under WSL.
     */
    struct nvc_device_node node;
    /**
     * True if it supports MIG mode.
     */
    bool mig_capable;
    /**
     * Directory of its MIG capabilities; NULL under WSL.
     */
    char *mig_caps_path;
    /**
     * Its MIG devices; none unless it is in MIG mode.
     */
    struct nvc_mig_device_info mig_devices;
};

/**
 * A MIG device: a compute instance of a GPU instance.
 */
struct nvc_mig_device {
    /**
     * Its GPU, in the same record.
     */
    struct nvc_device *parent;
    /**
     * "MIG-...".
     */
    char *uuid;
    /**
     * Number of the GPU instance.
     */
    unsigned int gi;
    /**
     * Number of the compute instance.
     */
    unsigned int ci;
    /**
     * Directory of the GPU instance's capability.
     */
    char *gi_caps_path;
    /**
     * Directory of the compute instance's capability.
     */
    char *ci_caps_path;
};

/**
 * The GPUs of the machine.
 */
struct nvc_device_info {
    /**
     * An array in NVML's order.
     */
    struct nvc_device *gpus;
    /**
     * Number of GPUs.
     */
    size_t ngpus;
};

/**
 * Identifies a container. Created by nvc_container_config_new; the caller sets the fields.
 */
struct nvc_container_config {
    /**
     * A process of the container.
     */
    pid_t pid;
    /**
     * Its root directory, absolute.
     */
    char *rootfs;
    /**
     * Directory of programs in it. NULL: "/usr/bin".
     */
    char *bins_dir;
    /**
     * Directory of libraries in it. NULL: the default of its distribution.
     */
    char *libs_dir;
    /**
     * Directory of 32-bit libraries in it. NULL: the default of its distribution.
     */
    char *libs32_dir;
    /**
     * The image's CUDA directory. NULL: "/usr/local/cuda".
     */
    char *cudart_dir;
    /**
     * The program that updates its linker cache: "@/path" on the host, "/path" in the image, or "auto": none if the
     * image's cache is valid, else "@/sbin/ldconfig". NULL: "auto".
     */
    char *ldconfig;
};

/**
 * Returns the version of the loaded library, which may be newer than this header (NVC_VERSION).
 *
 * Never NULL. The record is constant and belongs to the library. May be called by any thread at any time.
 */
const struct nvc_version *nvc_version(void);

/**
 * Adds an IMEX channel to a container: its device node and the right to open it.
 *
 * Returns 0, or -1 with an error, for instance "stat failed: ..." for a channel without a node.
 */
int nvc_imex_channel_mount(struct nvc_context *ctx,
                           const struct nvc_container *cnt,
                           const struct nvc_imex_channel *chan);

/**
 * Creates a context. It does nothing until nvc_init.
 *
 * Returns a context, to be released with nvc_context_free.
 */
struct nvc_context *nvc_context_new(void);

/**
 * Releases a context, the driver opened by nvc_init and the error text. NULL is allowed.
 *
 * Containers and driver and device information of this context stay valid; they are released separately.
 */
void nvc_context_free(struct nvc_context *ctx);

/**
 * Creates a configuration with every field at its default: NULL, (uid_t)-1, (gid_t)-1, no IMEX channels.
 *
 * Returns a configuration, to be released with nvc_config_free.
 */
struct nvc_config *nvc_config_new(void);

/**
 * Releases a configuration. The strings of its fields still belong to the caller. NULL is allowed.
 */
void nvc_config_free(struct nvc_config *cfg);

/**
 * Opens the driver: loads kernel modules if asked to, starts a process that loads NVML, and waits until that has
 * answered. The process has ended when the function returns.
 *
 * cfg may be NULL: all defaults. It is copied; the caller may change or release it afterwards.
 * opts may be NULL: no options. Words are separated by spaces:
 *   load-kmods               load the kernel modules and create the device nodes
 *   no-create-imex-channels  with load-kmods: do not create the nodes of IMEX channels
 *
 * A context that is already initialised stays unchanged. After a failure the context is as before, and the call may be
 * repeated. While a context is initialised, a debug log is appended to the file named by the environment variable
 * NVC_DEBUG_FILE.
 *
 * The shared object looks for the program nvc-query in ../libexec/libnvidia-container, in libnvidia-container, in
 * ../../libexec/libnvidia-container, in its own directory (all relative to its own file), and in the directory set at
 * build time; the static library only in the last one. If the program is missing, or the bounding set of the process
 * would leave it without CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID although it needs them, a process with one thread
 * forks instead, with a copy of all its memory. With more threads this is an error: initialise the library earlier.
 *
 * Returns 0, or -1 with an error: "invalid argument" for an empty path, "invalid option: ...", "too many options",
 * "change root failed: ...", "load library failed: ...", "nvml error: ...", "driver rpc error: ...", "process creation
 * failed: ...".
 */
int nvc_init(struct nvc_context *ctx,
             const struct nvc_config *cfg,
             const char *opts);

/**
 * Closes the driver opened by nvc_init. The context may be initialised again; a context that is not initialised stays
 * unchanged.
 *
 * Returns 0, or -1 for NULL.
 */
int nvc_shutdown(struct nvc_context *ctx);

/**
 * Returns the text of the context's last error; NULL if there was none yet, and for a NULL context.
 *
 * A call that succeeds keeps the text of an earlier failure: call this only after a failure. The text belongs to the
 * context. It is valid until the next call on the context that fails, and until nvc_context_free.
 */
const char *nvc_error(struct nvc_context *ctx);

/**
 * Finds the parts of the driver.
 *
 * opts may be NULL: no options. Words are separated by spaces:
 *   no-glvnd          the legacy OpenGL libraries in place of those for GLVND
 *   no-uvm            without /dev/nvidia-uvm and /dev/nvidia-uvm-tools
 *   no-modeset        without /dev/nvidia-modeset
 *   no-mps            without the programs and the directory of MPS
 *   no-persistenced   without the socket of nvidia-persistenced
 *   no-fabricmanager  without the socket of nv-fabricmanager
 *   no-gsp-firmware   without firmware
 *
 * The first call on an initialised context returns the driver's answers from that time; each later one queries it
 * again. Programs are looked up in the directories of the environment variable PATH.
 *
 * Returns a record, to be released with nvc_driver_info_free; it does not depend on the context. Returns NULL with an
 * error.
 */
struct nvc_driver_info *nvc_driver_info_new(struct nvc_context *ctx,
                                            const char *opts);

/**
 * Releases a record of nvc_driver_info_new, with all its strings. NULL is allowed.
 */
void nvc_driver_info_free(struct nvc_driver_info *info);

/**
 * Adds the driver to a container: programs, libraries, firmware, sockets, the devices that all GPUs share, and the
 * driver's files in /proc, as far as the container's options request them.
 *
 * Everything is done or nothing. The caller may change info before the call, or construct it.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_driver_mount(struct nvc_context *ctx,
                     const struct nvc_container *cnt,
                     const struct nvc_driver_info *info);

/**
 * Adds a MIG device to a container: the capabilities of its GPU instance and its compute instance.
 *
 * This does not add the GPU: call nvc_device_mount for dev->parent as well.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_device_access_caps_mount(struct nvc_context *ctx,
                                     const struct nvc_container *cnt,
                                     const struct nvc_mig_device *dev);

/**
 * Allows a container to create and destroy MIG instances.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_config_global_caps_mount(struct nvc_context *ctx, const struct nvc_container *cnt);

/**
 * Allows a container to monitor all MIG instances of the machine.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_monitor_global_caps_mount(struct nvc_context *ctx, const struct nvc_container *cnt);

/**
 * Finds the GPUs. GPUs that NVML fails on are omitted, unless it fails on all of them.
 *
 * opts is ignored. The first call on an initialised context returns the driver's answers from that time; each later
 * one queries it again.
 *
 * Returns a record, to be released with nvc_device_info_free; it does not depend on the context. Returns NULL with an
 * error.
 */
struct nvc_device_info *nvc_device_info_new(struct nvc_context *ctx,
                                            const char *opts);

/**
 * Releases a record of nvc_device_info_new, with all GPUs and MIG devices. NULL is allowed.
 */
void nvc_device_info_free(struct nvc_device_info *info);

/**
 * Adds a GPU to a container: its device node, the right to open it, and its entry in /proc/driver/nvidia/gpus.
 *
 * Call nvc_driver_mount first. Everything is done or nothing. The caller may construct dev; only busid and node are
 * used.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_device_mount(struct nvc_context *ctx,
                     const struct nvc_container *cnt,
                     const struct nvc_device *dev);

/**
 * Allows a container to open the capability devices of all of a GPU's MIG instances, including future ones.
 *
 * For containers that configure or monitor MIG. Mounts nothing: nvc_mig_config_global_caps_mount and
 * nvc_mig_monitor_global_caps_mount do.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_device_mig_caps_mount(struct nvc_context *ctx,
                              const struct nvc_container *cnt,
                              const struct nvc_device *dev);

/**
 * Returns how the driver grants capabilities: one of NVC_NVCAPS_STYLE_NONE, _PROC and _DEV.
 *
 * Needs no context. May be called by any thread at any time.
 */
int nvc_nvcaps_style(void);

/**
 * Finds the device of a capability, given the path of the capability's file, for instance
 * "/proc/driver/nvidia/capabilities/mig/config".
 *
 * The context need not be initialised; the driver root is then "/". On success node->path belongs to the caller, who
 * releases it with free(); on failure node is not changed.
 *
 * Returns 0, or -1 with an error: "invalid argument" for NULL, "unable to get cap device attributes: ...".
 */
int nvc_nvcaps_device_from_proc_path(struct nvc_context *ctx,
                                     const char *cap_path,
                                     struct nvc_device_node *node);

/**
 * Creates the configuration of a container. rootfs is not copied; all other fields are NULL.
 *
 * Returns a configuration, to be released with nvc_container_config_free.
 */
struct nvc_container_config *nvc_container_config_new(pid_t pid, const char *rootfs);

/**
 * Releases a configuration. The strings of its fields still belong to the caller. NULL is allowed.
 */
void nvc_container_config_free(struct nvc_container_config *cfg);

/**
 * Finds a container, without changing it.
 *
 * cfg is copied; the caller may change or release it afterwards.
 * opts may be NULL: "standalone no-cgroups no-devbind utility". Words are separated by spaces:
 *   supervised     reach the container through the caller's /proc; or
 *   standalone     through the /proc in the container's root: exactly one of the two
 *   no-cgroups     do not change the device cgroup
 *   no-devbind     do not mount device nodes
 *   utility compute video graphics display ngx compat32
 *                  the parts of the driver for the container
 *   cuda-compat-mode=mount, =ldconfig or =disabled
 *                  use of the image's CUDA compatibility libraries; no-cntlibs is a synonym of the last
 *
 * Returns a container, to be released with nvc_container_free; it does not depend on the context. Returns NULL with an
 * error: "invalid argument" for a pid below 1, a rootfs that is not absolute, or an empty path; "invalid mode of
 * operation", "invalid option: ...", "too many options", "stat failed: ...".
 */
struct nvc_container *nvc_container_new(struct nvc_context *ctx,
                                        const struct nvc_container_config *cfg,
                                        const char *opts);

/**
 * Releases a container. Its mounts stay. NULL is allowed.
 */
void nvc_container_free(struct nvc_container *cnt);

/**
 * Updates a container's linker cache: runs ldconfig in a sandbox for the directories with mounted libraries. With
 * "builtin" the library writes the cache itself, with the libraries that calls for this container have mounted.
 *
 * Must be the last call for a container.
 *
 * Returns 0, or -1 with an error, for instance "process /sbin/ldconfig failed with error code: 1".
 */
int nvc_ldcache_update(struct nvc_context *ctx,
                       const struct nvc_container *cnt);


#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NVC_H */
