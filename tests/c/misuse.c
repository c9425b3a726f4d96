/* misuse DRIVER-ROOT PID ROOTFS: every misuse fails with upstream's text, without leaks. */
#include "check.h"

#include <limits.h>

static const char *const invalid = "invalid argument";
static const char *const uninitialized = "context uninitialized";

/* Without a context there is no error text; freeing NULL is allowed. */
static void null_everywhere(void)
{
    struct nvc_device_node node;

    CHECK(nvc_init(NULL, NULL, NULL) == -1);
    CHECK(nvc_shutdown(NULL) == -1);
    CHECK(nvc_error(NULL) == NULL);
    CHECK(nvc_container_new(NULL, NULL, NULL) == NULL);
    CHECK(nvc_driver_info_new(NULL, NULL) == NULL);
    CHECK(nvc_device_info_new(NULL, NULL) == NULL);
    CHECK(nvc_driver_mount(NULL, NULL, NULL) == -1);
    CHECK(nvc_device_mount(NULL, NULL, NULL) == -1);
    CHECK(nvc_mig_device_access_caps_mount(NULL, NULL, NULL) == -1);
    CHECK(nvc_mig_config_global_caps_mount(NULL, NULL) == -1);
    CHECK(nvc_mig_monitor_global_caps_mount(NULL, NULL) == -1);
    CHECK(nvc_device_mig_caps_mount(NULL, NULL, NULL) == -1);
    CHECK(nvc_imex_channel_mount(NULL, NULL, NULL) == -1);
    CHECK(nvc_ldcache_update(NULL, NULL) == -1);
    CHECK(nvc_nvcaps_device_from_proc_path(NULL, "/x", &node) == -1);
    nvc_context_free(NULL);
    nvc_config_free(NULL);
    nvc_container_config_free(NULL);
    nvc_container_free(NULL);
    nvc_driver_info_free(NULL);
    nvc_device_info_free(NULL);
}

/* Calls in the wrong order with invalid arguments: the order is checked first. */
static void wrong_order(struct nvc_context *ctx)
{
    struct nvc_device_node node;

    CHECK(nvc_error(ctx) == NULL);
    CHECK(nvc_shutdown(ctx) == 0 && nvc_shutdown(ctx) == 0);
    FAILS_NULL(ctx, nvc_driver_info_new(ctx, "nonsense"), uninitialized);
    FAILS_NULL(ctx, nvc_device_info_new(ctx, NULL), uninitialized);
    FAILS_NULL(ctx, nvc_container_new(ctx, NULL, "nonsense"), uninitialized);
    FAILS(ctx, nvc_driver_mount(ctx, NULL, NULL), uninitialized);
    FAILS(ctx, nvc_device_mount(ctx, NULL, NULL), uninitialized);
    FAILS(ctx, nvc_mig_device_access_caps_mount(ctx, NULL, NULL), uninitialized);
    FAILS(ctx, nvc_mig_config_global_caps_mount(ctx, NULL), uninitialized);
    FAILS(ctx, nvc_mig_monitor_global_caps_mount(ctx, NULL), uninitialized);
    FAILS(ctx, nvc_device_mig_caps_mount(ctx, NULL, NULL), uninitialized);
    FAILS(ctx, nvc_imex_channel_mount(ctx, NULL, NULL), uninitialized);
    FAILS(ctx, nvc_ldcache_update(ctx, NULL), uninitialized);
    FAILS(ctx, nvc_nvcaps_device_from_proc_path(ctx, NULL, &node), invalid);
    FAILS(ctx, nvc_nvcaps_device_from_proc_path(ctx, "/x", NULL), invalid);
    FAILS(ctx, nvc_nvcaps_device_from_proc_path(ctx, "/no/such", &node),
          "unable to get cap device attributes: /no/such: no such file or directory");
}

static void bad_init(struct nvc_context *ctx, char *root, const char *long_text)
{
    struct nvc_config *cfg = nvc_config_new();
    struct nvc_imex_channel channel = {-1};
    char empty[] = "", missing[] = "/no/such/root", bytes[] = "/no/such/\xff\xfe";

    cfg->root = empty;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), invalid);
    cfg->root = root;
    cfg->ldcache = empty;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), invalid);
    cfg->ldcache = NULL;
    FAILS(ctx, nvc_init(ctx, cfg, "load-kmods frob"), "invalid option: frob");
    FAILS(ctx, nvc_init(ctx, cfg, long_text), "too many options");
    CHECK(nvc_init(ctx, cfg, "\xff\xfe") == -1);
    cfg->root = missing;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), "change root failed: /no/such/root: no such file or directory");
    cfg->root = bytes;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), "change root failed: /no/such/\\xef\\xbf\\xbd\\xef\\xbf\\xbd: no such file or directory");
    cfg->root = (char *)long_text;
    CHECK(nvc_init(ctx, cfg, NULL) == -1);
    cfg->root = root;
    cfg->imex.nchans = 1;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), invalid);
    cfg->imex.chans = &channel;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), invalid);
    cfg->imex.nchans = (size_t)-1;
    FAILS(ctx, nvc_init(ctx, cfg, NULL), invalid);
    /* The failures had no effects. */
    cfg->imex.nchans = 0;
    cfg->imex.chans = NULL;
    CHECK(nvc_shutdown(ctx) == 0);
    CHECK(nvc_init(ctx, cfg, NULL) == 0);
    /* A second call does nothing, whatever the arguments; the last error stays. */
    cfg->root = empty;
    CHECK(nvc_init(ctx, cfg, "frob") == 0);
    CHECK(strcmp(nvc_error(ctx), invalid) == 0);
    nvc_config_free(cfg);
}

static void bad_container(struct nvc_context *ctx, int pid, char *rootfs, const char *long_text)
{
    struct nvc_container_config *cfg = nvc_container_config_new(pid, rootfs);
    char empty[] = "", relative[] = "relative", at[] = "@", bytes[] = "/no/such/\xff";
    char **fields[5];
    size_t i;

    FAILS_NULL(ctx, nvc_container_new(ctx, NULL, NULL), invalid);
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, ""), "invalid mode of operation");
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised standalone"), "invalid mode of operation");
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised x"), "invalid option: x");
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, long_text), "too many options");
    FAILS_NULL(ctx,
               nvc_container_new(ctx, cfg, "supervised cuda-compat-mode=mount cuda-compat-mode=ldconfig"),
               "only one cuda-compat-mode can be specified at a time");
    for (i = 0; i < 4; i++) {
        static const int pids[] = {0, -1, INT_MIN, -4711};
        cfg->pid = pids[i];
        FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised"), invalid);
    }
    cfg->pid = INT_MAX;
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised"),
               "open failed: /proc/2147483647/root/: no such file or directory");
    cfg->pid = pid;
    cfg->rootfs = NULL;
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, NULL), invalid);
    cfg->rootfs = empty;
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, NULL), invalid);
    cfg->rootfs = relative;
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, NULL), invalid);
    cfg->rootfs = bytes;
    CHECK(nvc_container_new(ctx, cfg, NULL) == NULL);
    cfg->rootfs = rootfs;
    fields[0] = &cfg->bins_dir;
    fields[1] = &cfg->libs_dir;
    fields[2] = &cfg->libs32_dir;
    fields[3] = &cfg->cudart_dir;
    fields[4] = &cfg->ldconfig;
    for (i = 0; i < 5; i++) {
        *fields[i] = empty;
        FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised"), invalid);
        *fields[i] = NULL;
    }
    cfg->ldconfig = at;
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, "supervised"), invalid);
    nvc_container_config_free(cfg);
    cfg = nvc_container_config_new(-1, NULL);
    FAILS_NULL(ctx, nvc_container_new(ctx, cfg, NULL), invalid);
    nvc_container_config_free(cfg);
}

static void bad_mounts(struct nvc_context *ctx, struct nvc_container *cnt)
{
    static struct nvc_driver_info no_driver;
    static struct nvc_device no_device;
    static struct nvc_mig_device no_mig;
    struct nvc_driver_info *info = nvc_driver_info_new(ctx, NULL);
    struct nvc_device_info *devices = nvc_device_info_new(ctx, NULL);
    struct nvc_driver_info odd = *info;
    struct nvc_device device = devices->gpus[0];
    struct nvc_imex_channel channel = {-1};
    char gone[] = "/no/such/\xff", up[] = "../..", version[] = "1";

    FAILS(ctx, nvc_driver_mount(ctx, NULL, info), invalid);
    FAILS(ctx, nvc_driver_mount(ctx, cnt, NULL), invalid);
    FAILS(ctx, nvc_driver_mount(ctx, cnt, &no_driver), invalid);
    odd.nlibs = (size_t)-1;
    FAILS(ctx, nvc_driver_mount(ctx, cnt, &odd), invalid);
    odd = *info;
    odd.bins = NULL;
    FAILS(ctx, nvc_driver_mount(ctx, cnt, &odd), invalid);
    FAILS(ctx, nvc_device_mount(ctx, NULL, &device), invalid);
    FAILS(ctx, nvc_device_mount(ctx, cnt, NULL), invalid);
    FAILS(ctx, nvc_device_mount(ctx, cnt, &no_device), invalid);
    device.node.path = gone;
    CHECK(nvc_device_mount(ctx, cnt, &device) == -1);
    device = devices->gpus[0];
    device.busid = up;
    FAILS(ctx, nvc_device_mount(ctx, cnt, &device), invalid);
    device = devices->gpus[0];
    device.node.id++;
    CHECK(nvc_device_mount(ctx, cnt, &device) == -1);
    CHECK(strstr(nvc_error(ctx), device.busid));
    CHECK(strstr(nvc_error(ctx), ": invalid device node: "));
    FAILS(ctx, nvc_mig_device_access_caps_mount(ctx, cnt, NULL), invalid);
    FAILS(ctx, nvc_mig_device_access_caps_mount(ctx, cnt, &no_mig), invalid);
    FAILS(ctx, nvc_mig_config_global_caps_mount(ctx, NULL), invalid);
    FAILS(ctx, nvc_mig_monitor_global_caps_mount(ctx, NULL), invalid);
    FAILS(ctx, nvc_device_mig_caps_mount(ctx, NULL, &device), invalid);
    FAILS(ctx, nvc_device_mig_caps_mount(ctx, cnt, NULL), invalid);
    FAILS(ctx, nvc_imex_channel_mount(ctx, cnt, NULL), invalid);
    FAILS(ctx, nvc_imex_channel_mount(ctx, cnt, &channel), invalid);
    channel.id = 999;
    CHECK(nvc_imex_channel_mount(ctx, cnt, &channel) == -1);
    CHECK(strstr(nvc_error(ctx), "channel999: no such file or directory"));
    channel.id = 99999;
    FAILS(ctx, nvc_imex_channel_mount(ctx, cnt, &channel), "unsupported IMEX channel value: 99999");
    FAILS(ctx, nvc_ldcache_update(ctx, NULL), invalid);
    FAILS_NULL(ctx, nvc_driver_info_new(ctx, "no-such"), "invalid option: no-such");
    /* A driver constructed by the caller, almost empty, with a missing file. */
    no_driver.nvrm_version = no_driver.cuda_version = version;
    odd = no_driver;
    odd.nlibs = 1;
    odd.libs = info->libs;
    odd.libs[0] = (free(info->libs[0]), strdup("/nowhere/libdxcore.so"));
    CHECK(nvc_driver_mount(ctx, cnt, &odd) == -1);
    CHECK(nvc_driver_mount(ctx, cnt, &no_driver) == 0);
    nvc_driver_info_free(info);
    nvc_device_info_free(devices);
}

int main(int argc, char **argv)
{
    static char long_text[10241];
    struct nvc_container_config *cfg;
    struct nvc_container *cnt;
    struct nvc_context *ctx;

    CHECK(argc == 4);
    memset(long_text, 'a', sizeof(long_text) - 1);
    null_everywhere();
    ctx = nvc_context_new();
    wrong_order(ctx);
    bad_init(ctx, argv[1], long_text);
    bad_container(ctx, atoi(argv[2]), argv[3], long_text);

    cfg = nvc_container_config_new(atoi(argv[2]), argv[3]);
    cnt = nvc_container_new(ctx, cfg, "supervised no-cgroups compute");
    CHECK(cnt);
    bad_mounts(ctx, cnt);
    /* A container outlives the context's shutdown, but cannot be used until the next init. */
    CHECK(nvc_shutdown(ctx) == 0);
    FAILS(ctx, nvc_ldcache_update(ctx, cnt), uninitialized);
    nvc_container_config_free(cfg);
    nvc_container_free(cnt);
    CHECK(nvc_shutdown(ctx) == 0);
    nvc_context_free(ctx);
    return 0;
}
