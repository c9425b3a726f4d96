/* use DRIVER-ROOT PID ROOTFS LDCONFIG: ordinary use of every function, twice on one context. */
#include "check.h"

#include <sys/sysmacros.h>

static void look_at_driver(const struct nvc_driver_info *info)
{
    size_t i;

    CHECK(info->nvrm_version[0] && strchr(info->cuda_version, '.'));
    CHECK(info->nbins > 0 && info->nlibs > 0 && info->ndevs > 0 && info->libs32 && info->firmwares);
    for (i = 0; i < info->nlibs; i++)
        CHECK(info->libs[i][0] == '/');
    CHECK(strcmp(info->devs[0].path, "/dev/nvidiactl") == 0);
    CHECK(major(info->devs[0].id) == 195 && minor(info->devs[0].id) == 255);
}

static void look_at_devices(const struct nvc_device_info *info)
{
    const struct nvc_device *first = &info->gpus[0], *second = &info->gpus[1];
    const struct nvc_mig_device *mig = second->mig_devices.devices;

    CHECK(info->ngpus == 2);
    CHECK(strncmp(first->uuid, "GPU-", 4) == 0 && strcmp(first->busid, "00000000:3b:00.0") == 0);
    CHECK(strcmp(first->arch, "8.9") == 0 && first->model[0] && first->brand[0]);
    CHECK(strcmp(first->node.path, "/dev/nvidia0") == 0 && first->node.id == makedev(195, 0));
    CHECK(!first->mig_capable && second->mig_capable && first->mig_devices.ndevices == 0);
    CHECK(strcmp(second->mig_caps_path, "/proc/driver/nvidia/capabilities/gpu1") == 0);
    CHECK(second->mig_devices.ndevices == 2 && mig[0].parent == second && mig[1].gi == 2);
    CHECK(strcmp(mig[1].ci_caps_path, "/proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0") == 0);
}

static void once(struct nvc_context *ctx, char **argv)
{
    const char *capability = "/proc/driver/nvidia/capabilities/mig/config";
    struct nvc_imex_channel channel = {0};
    struct nvc_device_node node;
    struct nvc_container_config *cfg = nvc_container_config_new(atoi(argv[2]), argv[3]);
    struct nvc_container *cnt;
    struct nvc_driver_info *driver = nvc_driver_info_new(ctx, " no-mps  no-mps ");
    struct nvc_device_info *devices = nvc_device_info_new(ctx, "any words");

    CHECK(driver && devices && cfg && cfg->pid == atoi(argv[2]) && cfg->rootfs == argv[3] && !cfg->ldconfig);
    look_at_driver(driver);
    look_at_devices(devices);
    cfg->ldconfig = argv[4];
    cnt = nvc_container_new(ctx, cfg, "supervised no-cgroups utility compute graphics display");
    if (cnt == NULL)
        fprintf(stderr, "%s\n", nvc_error(ctx));
    CHECK(cnt);
    nvc_container_config_free(cfg);
    CHECK(nvc_driver_mount(ctx, cnt, driver) == 0);
    CHECK(nvc_device_mount(ctx, cnt, &devices->gpus[0]) == 0);
    CHECK(nvc_device_mount(ctx, cnt, &devices->gpus[1]) == 0);
    CHECK(nvc_mig_device_access_caps_mount(ctx, cnt, &devices->gpus[1].mig_devices.devices[0]) == 0);
    CHECK(nvc_imex_channel_mount(ctx, cnt, &channel) == 0);
    CHECK(nvc_mig_config_global_caps_mount(ctx, cnt) == 0);
    CHECK(nvc_mig_monitor_global_caps_mount(ctx, cnt) == 0);
    CHECK(nvc_device_mig_caps_mount(ctx, cnt, &devices->gpus[1]) == 0);
    CHECK(nvc_ldcache_update(ctx, cnt) == 0);

    CHECK(nvc_nvcaps_style() == NVC_NVCAPS_STYLE_DEV);
    CHECK(nvc_nvcaps_device_from_proc_path(ctx, capability, &node) == 0);
    CHECK(strcmp(node.path, "/dev/nvidia-caps/nvidia-cap1") == 0 && minor(node.id) == 1);
    free(node.path);

    nvc_container_free(cnt);
    /* The records do not depend on the context. */
    CHECK(nvc_shutdown(ctx) == 0);
    look_at_driver(driver);
    look_at_devices(devices);
    nvc_driver_info_free(driver);
    nvc_device_info_free(devices);
}

int main(int argc, char **argv)
{
    struct nvc_config *cfg = nvc_config_new();
    struct nvc_context *ctx;

    CHECK(argc == 5);
    CHECK(nvc_version()->major == NVC_MAJOR && strcmp(nvc_version()->string, NVC_VERSION) == 0);
    CHECK(!cfg->root && !cfg->ldcache && cfg->uid == (uid_t)-1 && cfg->gid == (gid_t)-1 && cfg->imex.nchans == 0);
    ctx = context_on(argv[1]);
    CHECK(nvc_error(ctx) == NULL);
    once(ctx, argv);
    CHECK(nvc_shutdown(ctx) == 0);
    cfg->root = argv[1];
    CHECK(nvc_init(ctx, cfg, "") == 0);
    once(ctx, argv);
    nvc_config_free(cfg);
    nvc_context_free(ctx);
    return 0;
}
