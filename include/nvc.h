/*
 * libnvidia-container: puts the NVIDIA driver and chosen GPUs into Linux containers.
 *
 * The way of a program:
 *
 *     nvc_context_new, nvc_init                        open the driver
 *     nvc_driver_info_new, nvc_device_info_new         find its files and the GPUs
 *     nvc_container_config_new, nvc_container_new      find the container
 *     nvc_driver_mount, nvc_device_mount, ...          give it things
 *     nvc_ldcache_update                               last
 *     ..._free, nvc_shutdown, nvc_context_free
 *
 * Results. A function that returns int returns 0, or -1 after a failure; one that returns a pointer returns NULL after a
 * failure. nvc_error says why; errno says nothing. Without a context (NULL) there is no text. A context that was not
 * initialised fails with "context uninitialized", an argument that cannot be with "invalid argument". Arguments are
 * checked before anything is done; each ..._mount does everything or nothing.
 *
 * Ownership. What a ..._new function returns is released with the ..._free function of the same name, once, and NULL is
 * allowed there. All else belongs to the library or the caller, as each function says; the one pointer that is released
 * with free() is node->path of nvc_nvcaps_device_from_proc_path. Using what was released is undefined, as with free().
 * Strings that are handed in are read during the call alone, unless said otherwise. They need not be UTF-8. Strings that
 * are handed out are not to be changed.
 *
 * Threads. Different contexts are independent of each other: any number may be used at once, by any threads. Calls on
 * one context wait for each other; since the text of nvc_error changes with the next failure, a context is best used by
 * one thread at a time. Containers and information records may be read by several threads at once. A thread may end
 * between calls. After fork(), the child may use contexts that no other thread was using, and has to release its copies
 * like the parent its own.
 *
 * Side effects. The calling process keeps its signal handlers, umask, directory, namespaces, user and environment; helper
 * processes have ended and are reaped when a call returns. They are children like others: SIGCHLD is raised, and a program
 * that ignores it or waits for all children must not do so during nvc_ldcache_update. The environment is read: PATH, CUDA_MPS_PIPE_DIRECTORY,
 * NVC_DEBUG_FILE, NVC_DRIVER_TIMEOUT (seconds that NVML may take), and what has NVML in its name or begins with CUDA_ or
 * NVIDIA_, for NVML.
 *
 * Privileges. nvc_init needs CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID for a driver root or user that is not the
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
#define NVC_PATCH 0
/* Empty for a release. */
#define NVC_TAG
#define NVC_VERSION "1.20.0"

#ifdef __cplusplus
extern "C" {
#endif


/**
 * Size of the longest option string with its terminating zero; longer ones are refused.
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
 * A container. Made by nvc_container_new.
 */
struct nvc_container;

/**
 * A user of the library: one driver root, one configuration, one error. Made by nvc_context_new.
 */
struct nvc_context;

/**
 * The version of the library.
 */
struct nvc_version {
    /**
     * Major version; that of the ABI.
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
 * An IMEX channel. Callers fill it in themselves.
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
     * How many.
     */
    size_t nchans;
};

/**
 * How the driver is reached. Made by nvc_config_new; the fields are for the caller to set.
 */
struct nvc_config {
    /**
     * The driver root: where the driver is installed. NULL: "/".
     */
    char *root;
    /**
     * The ld.so.cache below the driver root. NULL: "/etc/ld.so.cache".
     */
    char *ldcache;
    /**
     * The user that the driver's library runs as. (uid_t)-1: the overflow user, who owns nothing.
     */
    uid_t uid;
    /**
     * Its group. (gid_t)-1: the overflow group.
     */
    gid_t gid;
    /**
     * The IMEX channels whose device nodes the option "load-kmods" creates.
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
     * Its number, as major(3), minor(3) and makedev(3) have it.
     */
    dev_t id;
};

/**
 * What the driver consists of. Paths are below the driver root; none of the arrays has a terminating NULL.
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
     * How many.
     */
    size_t nbins;
    /**
     * Libraries.
     */
    char **libs;
    /**
     * How many.
     */
    size_t nlibs;
    /**
     * 32-bit libraries.
     */
    char **libs32;
    /**
     * How many.
     */
    size_t nlibs32;
    /**
     * Sockets and directories of the driver's daemons.
     */
    char **ipcs;
    /**
     * How many.
     */
    size_t nipcs;
    /**
     * Devices that all GPUs share. Their paths are constant texts of the library.
     */
    struct nvc_device_node *devs;
    /**
     * How many.
     */
    size_t ndevs;
    /**
     * Firmware.
     */
    char **firmwares;
    /**
     * How many.
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
     * How many.
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
     * Its device; the path is NULL under WSL.
     */
    struct nvc_device_node node;
    /**
     * Whether it can be in MIG mode.
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
     * The GPU that it is part of, in the same record.
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
     * How many.
     */
    size_t ngpus;
};

/**
 * Which container is meant. Made by nvc_container_config_new; the fields are for the caller to set.
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
     * Where programs go in it. NULL: "/usr/bin".
     */
    char *bins_dir;
    /**
     * Where libraries go in it. NULL: as its distribution has it.
     */
    char *libs_dir;
    /**
     * Where 32-bit libraries go in it. NULL: as its distribution has it.
     */
    char *libs32_dir;
    /**
     * Where the image keeps CUDA. NULL: "/usr/local/cuda".
     */
    char *cudart_dir;
    /**
     * The program that updates its linker cache: "@/path" of the host, "/path" of the image, or "auto": none where the
     * image's cache is sound, else "@/sbin/ldconfig". NULL: "auto".
     */
    char *ldconfig;
};

/**
 * Returns the version of the library that is loaded, which may be newer than this header (NVC_VERSION).
 *
 * Never NULL. The record is constant and belongs to the library. May be called by any thread at any time.
 */
const struct nvc_version *nvc_version(void);

/**
 * Gives a container an IMEX channel: its device node and the right to open it.
 *
 * Returns 0, or -1 with an error, for instance "stat failed: ..." for a channel that has no node.
 */
int nvc_imex_channel_mount(struct nvc_context *ctx,
                           const struct nvc_container *cnt,
                           const struct nvc_imex_channel *chan);

/**
 * Makes a context. It does nothing until nvc_init.
 *
 * Returns a context, to be released with nvc_context_free.
 */
struct nvc_context *nvc_context_new(void);

/**
 * Releases a context, what nvc_init opened and its error text. NULL is allowed.
 *
 * Containers, driver and device information of this context stay valid; they are released on their own.
 */
void nvc_context_free(struct nvc_context *ctx);

/**
 * Makes a configuration with every field at its default: NULL, (uid_t)-1, (gid_t)-1, no IMEX channels.
 *
 * Returns a configuration, to be released with nvc_config_free.
 */
struct nvc_config *nvc_config_new(void);

/**
 * Releases a configuration. What its fields point to stays the caller's. NULL is allowed.
 */
void nvc_config_free(struct nvc_config *cfg);

/**
 * Opens the driver: loads kernel modules if asked to, starts a process that loads NVML, and waits until that has
 * answered. The process has ended when the function returns.
 *
 * cfg may be NULL: all defaults. It is copied; the caller may change or release it afterwards.
 * opts may be NULL: no options. It has words separated by spaces:
 *   load-kmods               load the kernel modules and create the device nodes
 *   no-create-imex-channels  with load-kmods: do not create the nodes of IMEX channels
 *
 * A context that is initialised already is left as it is. After a failure the context is as before, and the call may
 * be repeated. While a context is initialised, a log for debugging is appended to the file that the environment
 * variable NVC_DEBUG_FILE names.
 *
 * The program nvc-query is looked up relative to the shared object: in ../libexec/libnvidia-container, in
 * libnvidia-container, in ../../libexec/libnvidia-container, beside it, and in the directory that it was built for;
 * by the static library in the last one alone. Where it is missing, or the bounding set of the process would leave it
 * without CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID though it needs them, a process with one thread is copied instead,
 * with all its memory. With more threads that is an error: initialise the library before.
 *
 * Returns 0, or -1 with an error: "invalid argument" for an empty path, "invalid option: ...", "too many options",
 * "change root failed: ...", "load library failed: ...", "nvml error: ...", "driver rpc error: ...", "process creation
 * failed: ...".
 */
int nvc_init(struct nvc_context *ctx,
             const struct nvc_config *cfg,
             const char *opts);

/**
 * Closes what nvc_init opened. The context may be initialised again; one that is not initialised is left as it is.
 *
 * Returns 0, or -1 for NULL.
 */
int nvc_shutdown(struct nvc_context *ctx);

/**
 * Returns the text of the context's last error; NULL if there was none yet, and for NULL.
 *
 * A call that succeeds leaves the text of an earlier failure in place: ask only after a failure. The text belongs to the
 * context. It is valid until the next call on the context that fails, and until nvc_context_free.
 */
const char *nvc_error(struct nvc_context *ctx);

/**
 * Finds what the driver consists of.
 *
 * opts may be NULL: no options. It has words separated by spaces:
 *   no-glvnd          the legacy OpenGL libraries in place of those for GLVND
 *   no-uvm            without /dev/nvidia-uvm and /dev/nvidia-uvm-tools
 *   no-modeset        without /dev/nvidia-modeset
 *   no-mps            without the programs and the directory of MPS
 *   no-persistenced   without the socket of nvidia-persistenced
 *   no-fabricmanager  without the socket of nv-fabricmanager
 *   no-gsp-firmware   without firmware
 *
 * The first call on an initialised context tells what the driver said then; each later one asks it anew.
 * Programs are looked up in the directories that the environment variable PATH has.
 *
 * Returns a record, to be released with nvc_driver_info_free; it does not depend on the context. Or NULL with an error.
 */
struct nvc_driver_info *nvc_driver_info_new(struct nvc_context *ctx,
                                            const char *opts);

/**
 * Releases what nvc_driver_info_new returned, with all its strings. NULL is allowed.
 */
void nvc_driver_info_free(struct nvc_driver_info *info);

/**
 * Gives a container the driver: programs, libraries, firmware, sockets, the devices that all GPUs share, and the driver's
 * files in /proc, as far as the container's options ask for them.
 *
 * Either everything is done or nothing. info may be changed before, or made by the caller.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_driver_mount(struct nvc_context *ctx,
                     const struct nvc_container *cnt,
                     const struct nvc_driver_info *info);

/**
 * Gives a container a MIG device: the capabilities of its GPU instance and its compute instance.
 *
 * The GPU is not given with it: call nvc_device_mount for dev->parent as well.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_device_access_caps_mount(struct nvc_context *ctx,
                                     const struct nvc_container *cnt,
                                     const struct nvc_mig_device *dev);

/**
 * Gives a container the right to create and destroy MIG instances.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_config_global_caps_mount(struct nvc_context *ctx, const struct nvc_container *cnt);

/**
 * Gives a container the right to see all MIG instances of the machine.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_mig_monitor_global_caps_mount(struct nvc_context *ctx, const struct nvc_container *cnt);

/**
 * Finds the GPUs. Those that NVML fails on are left out, unless it fails on all.
 *
 * opts is ignored. The first call on an initialised context tells what the driver said then; each later one asks it anew.
 *
 * Returns a record, to be released with nvc_device_info_free; it does not depend on the context. Or NULL with an error.
 */
struct nvc_device_info *nvc_device_info_new(struct nvc_context *ctx,
                                            const char *opts);

/**
 * Releases what nvc_device_info_new returned, with all GPUs and MIG devices. NULL is allowed.
 */
void nvc_device_info_free(struct nvc_device_info *info);

/**
 * Gives a container a GPU: its device node, the right to open it, and its entry in /proc/driver/nvidia/gpus.
 *
 * Call nvc_driver_mount before. Either everything is done or nothing. dev may be made by the caller; busid and node are
 * what counts.
 *
 * Returns 0, or -1 with an error.
 */
int nvc_device_mount(struct nvc_context *ctx,
                     const struct nvc_container *cnt,
                     const struct nvc_device *dev);

/**
 * Lets a container open the capability devices of all of a GPU's MIG instances, those to come included.
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
 * The context need not be initialised: the driver root is "/" then. On success node->path is the caller's, who releases
 * it with free(); on failure node is not touched.
 *
 * Returns 0, or -1 with an error: "invalid argument" for NULL, "unable to get cap device attributes: ...".
 */
int nvc_nvcaps_device_from_proc_path(struct nvc_context *ctx,
                                     const char *cap_path,
                                     struct nvc_device_node *node);

/**
 * Makes the configuration of a container. rootfs is not copied; all other fields are NULL.
 *
 * Returns a configuration, to be released with nvc_container_config_free.
 */
struct nvc_container_config *nvc_container_config_new(pid_t pid, const char *rootfs);

/**
 * Releases a configuration. What its fields point to stays the caller's. NULL is allowed.
 */
void nvc_container_config_free(struct nvc_container_config *cfg);

/**
 * Finds a container. Nothing in it is changed.
 *
 * cfg is copied; the caller may change or release it afterwards.
 * opts may be NULL: "standalone no-cgroups no-devbind utility". It has words separated by spaces:
 *   supervised     reach the container through the caller's /proc; or
 *   standalone     through the /proc in the container's root: exactly one of the two
 *   no-cgroups     do not touch the device cgroup
 *   no-devbind     do not mount device nodes
 *   utility compute video graphics display ngx compat32
 *                  what the container gets of the driver
 *   cuda-compat-mode=mount, =ldconfig or =disabled
 *                  what becomes of the image's CUDA compatibility libraries; no-cntlibs is another word for the last
 *
 * Returns a container, to be released with nvc_container_free; it does not depend on the context. Or NULL with an error:
 * "invalid argument" for a pid below 1, a rootfs that is not absolute, an empty path; "invalid mode of operation",
 * "invalid option: ...", "too many options", "stat failed: ...".
 */
struct nvc_container *nvc_container_new(struct nvc_context *ctx,
                                        const struct nvc_container_config *cfg,
                                        const char *opts);

/**
 * Releases a container. What was mounted in it stays. NULL is allowed.
 */
void nvc_container_free(struct nvc_container *cnt);

/**
 * Updates a container's linker cache: runs ldconfig, confined, for the directories that libraries were mounted in.
 * With "builtin" it writes the cache itself, with the libraries that calls for this container have mounted.
 *
 * Call it last.
 *
 * Returns 0, or -1 with an error, for instance "process /sbin/ldconfig failed with error code: 1".
 */
int nvc_ldcache_update(struct nvc_context *ctx,
                       const struct nvc_container *cnt);


#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NVC_H */
