/* steps DRIVER-ROOT PID ROOTFS [LDCONFIG]: every function in the order of upstream's command line, for all options, with
 * the effective capabilities that it keeps for the step, and no others. No function changes the sets. The driver has
 * IMEX channel 0 and no node for CHANNEL. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(capability) (1u << CAP_##capability)

#define KILL_ALONE BIT(KILL)
#define INIT (BIT(KILL) | BIT(SETUID) | BIT(SETGID) | BIT(SYS_CHROOT))
#define INIT_KMODS (INIT | BIT(CHOWN) | BIT(FOWNER) | BIT(MKNOD) | BIT(SETPCAP))
#define CONTAINER (BIT(KILL) | BIT(DAC_READ_SEARCH) | BIT(SYS_PTRACE))
#define MOUNT                                                                              \
    (INIT | BIT(NET_ADMIN) | BIT(SYS_ADMIN) | BIT(DAC_READ_SEARCH) | BIT(SYS_PTRACE) | BIT(DAC_OVERRIDE))
#define LDCACHE (INIT | BIT(SYS_ADMIN) | BIT(DAC_READ_SEARCH) | BIT(SYS_PTRACE) | BIT(SETPCAP))
#define PERMITTED (INIT_KMODS | MOUNT)

struct sets {
    unsigned effective, permitted, inheritable;
};

static struct sets now(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    struct sets sets;

    CHECK(syscall(SYS_capget, &header, data) == 0);
    CHECK(data[1].effective == 0 && data[1].permitted == 0 && data[1].inheritable == 0);
    sets.effective = data[0].effective;
    sets.permitted = data[0].permitted;
    sets.inheritable = data[0].inheritable;
    return sets;
}

static void keep(unsigned effective)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0, 0, 0}, {0, 0, 0}};

    data[0].effective = effective;
    data[0].permitted = PERMITTED;
    CHECK(syscall(SYS_capset, &header, data) == 0);
}

/* Standalone containers are reached through the /proc in their root. */
static void bind_proc(const char *rootfs)
{
    char place[4096];

    CHECK(snprintf(place, sizeof(place), "%s/proc", rootfs) < (int)sizeof(place));
    CHECK(unshare(CLONE_NEWNS) == 0);
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("/proc", place, NULL, MS_BIND | MS_REC, NULL) == 0);
}

static void drop_bounding_set(void)
{
    int capability;

    for (capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (capability != CAP_DAC_OVERRIDE && capability != CAP_SYS_MODULE)
            CHECK(prctl(PR_CAPBSET_DROP, capability) == 0);
}

/* Evaluates a call with these effective capabilities; they must be the same afterwards. */
#define WITH(set, call)                                                                    \
    do {                                                                                   \
        struct sets after;                                                                 \
        keep(set);                                                                         \
        call;                                                                              \
        after = now();                                                                     \
        CHECK(after.effective == (set) && after.permitted == PERMITTED && after.inheritable == 0); \
    } while (0)

/* Prints why a call has failed. */
#define SUCCEEDS(set, call)                                                                \
    do {                                                                                   \
        int done = 0;                                                                      \
        WITH(set, done = (call) == 0);                                                     \
        if (!done)                                                                         \
            fprintf(stderr, "%s\n", nvc_error(ctx));                                       \
        CHECK(done && #call);                                                              \
    } while (0)

#define CHANNEL 7

/* Words for nvc_init, nvc_driver_info_new and nvc_container_new. Each word of each is in one of them. */
struct options {
    const char *library, *driver, *container;
};

static const struct options all[] = {
    {NULL, NULL, "supervised utility compute graphics display"},
    {"load-kmods no-create-imex-channels",
     "no-glvnd no-uvm no-modeset no-mps no-persistenced no-fabricmanager no-gsp-firmware",
     "supervised no-cgroups no-devbind utility compute video ngx compat32 cuda-compat-mode=ldconfig"},
    {"load-kmods", "no-mps", "supervised video display no-cntlibs cuda-compat-mode=disabled"},
    {"load-kmods", "no-gsp-firmware", "standalone no-cgroups utility compute cuda-compat-mode=mount"},
};

static void once(struct nvc_context *ctx, const struct options *options, char **argv)
{
    struct nvc_imex_channel channel = {0}, other = {CHANNEL};
    struct nvc_container_config *cfg = NULL;
    struct nvc_container *cnt = NULL;
    struct nvc_driver_info *driver = NULL;
    struct nvc_device_info *devices = NULL;
    struct nvc_device_node node;

    WITH(KILL_ALONE, cfg = nvc_container_config_new(atoi(argv[2]), argv[3]));
    CHECK(cfg);
    cfg->ldconfig = argv[4];
    WITH(CONTAINER, cnt = nvc_container_new(ctx, cfg, options->container));
    if (cnt == NULL)
        fprintf(stderr, "%s\n", nvc_error(ctx));
    CHECK(cnt);
    WITH(KILL_ALONE, nvc_container_config_free(cfg));
    WITH(KILL_ALONE, driver = nvc_driver_info_new(ctx, options->driver));
    if (driver == NULL)
        fprintf(stderr, "%s\n", nvc_error(ctx));
    CHECK(driver && driver->nlibs > 0);
    WITH(KILL_ALONE, devices = nvc_device_info_new(ctx, NULL));
    if (devices == NULL)
        fprintf(stderr, "%s\n", nvc_error(ctx));
    CHECK(devices && devices->ngpus == 2);
    WITH(KILL_ALONE, CHECK(nvc_nvcaps_style() == NVC_NVCAPS_STYLE_DEV));
    WITH(KILL_ALONE,
         CHECK(nvc_nvcaps_device_from_proc_path(ctx, "/proc/driver/nvidia/capabilities/mig/config", &node) == 0));
    free(node.path);

    SUCCEEDS(MOUNT, nvc_driver_mount(ctx, cnt, driver));
    SUCCEEDS(MOUNT, nvc_device_mount(ctx, cnt, &devices->gpus[0]));
    SUCCEEDS(MOUNT, nvc_device_mount(ctx, cnt, &devices->gpus[1]));
    SUCCEEDS(MOUNT, nvc_mig_device_access_caps_mount(ctx, cnt, &devices->gpus[1].mig_devices.devices[0]));
    SUCCEEDS(MOUNT, nvc_mig_config_global_caps_mount(ctx, cnt));
    SUCCEEDS(MOUNT, nvc_device_mig_caps_mount(ctx, cnt, &devices->gpus[1]));
    SUCCEEDS(MOUNT, nvc_mig_monitor_global_caps_mount(ctx, cnt));
    SUCCEEDS(MOUNT, nvc_imex_channel_mount(ctx, cnt, &channel));
    if (options->library && strcmp(options->library, "load-kmods") == 0)
        SUCCEEDS(MOUNT, nvc_imex_channel_mount(ctx, cnt, &other));
    else
        WITH(MOUNT, CHECK(nvc_imex_channel_mount(ctx, cnt, &other) == -1));
    SUCCEEDS(LDCACHE, nvc_ldcache_update(ctx, cnt));

    WITH(KILL_ALONE, nvc_container_free(cnt));
    WITH(KILL_ALONE, nvc_driver_info_free(driver));
    WITH(KILL_ALONE, nvc_device_info_free(devices));
    SUCCEEDS(KILL_ALONE, nvc_shutdown(ctx));
}

int main(int argc, char **argv)
{
    struct nvc_imex_channel channels[] = {{0}, {CHANNEL}};
    struct nvc_config *cfg = NULL;
    struct nvc_context *ctx = NULL;
    size_t i;

    CHECK(argc == 4 || argc == 5);
    bind_proc(argv[3]);
    drop_bounding_set();
    WITH(KILL_ALONE, cfg = nvc_config_new());
    WITH(KILL_ALONE, ctx = nvc_context_new());
    CHECK(cfg && ctx);
    WITH(KILL_ALONE, CHECK(nvc_version()->major == NVC_MAJOR));
    cfg->root = argv[1];
    cfg->imex.chans = channels;
    cfg->imex.nchans = 2;
    for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
        SUCCEEDS(all[i].library ? INIT_KMODS : INIT, nvc_init(ctx, cfg, all[i].library));
        once(ctx, &all[i], argv);
    }
    WITH(KILL_ALONE, nvc_config_free(cfg));
    WITH(KILL_ALONE, nvc_context_free(ctx));
    return 0;
}
