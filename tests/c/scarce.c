/* scarce DRIVER-ROOT PID ROOTFS LDCONFIG: with fewer descriptors than it takes, and one more each time, every call works or says
 * why not; none is lost on the way. */
#include "check.h"

#include <dirent.h>
#include <sys/resource.h>

static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    CHECK(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void limit(rlim_t soft)
{
    struct rlimit now;

    CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0);
    now.rlim_cur = soft ? soft : now.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
}

/* The failed call, if any; the context has the reason. */
static const char *configure(struct nvc_context *ctx, char **argv)
{
    struct nvc_config *cfg = nvc_config_new();
    struct nvc_container_config *wanted = nvc_container_config_new(atoi(argv[2]), argv[3]);
    struct nvc_container *cnt = NULL;
    struct nvc_driver_info *driver = NULL;
    struct nvc_device_info *devices = NULL;
    const char *failed = NULL;

    CHECK(cfg && wanted);
    cfg->root = argv[1];
    wanted->ldconfig = argv[4];
    if (nvc_init(ctx, cfg, NULL) != 0)
        failed = "init";
    else if ((driver = nvc_driver_info_new(ctx, NULL)) == NULL)
        failed = "driver";
    else if ((devices = nvc_device_info_new(ctx, NULL)) == NULL)
        failed = "devices";
    else if ((cnt = nvc_container_new(ctx, wanted, "supervised no-cgroups utility compute")) == NULL)
        failed = "container";
    else if (nvc_driver_mount(ctx, cnt, driver) != 0)
        failed = "driver mount";
    else if (nvc_device_mount(ctx, cnt, &devices->gpus[0]) != 0)
        failed = "device mount";
    else if (nvc_ldcache_update(ctx, cnt) != 0)
        failed = "ldcache";
    nvc_driver_info_free(driver);
    nvc_device_info_free(devices);
    nvc_container_free(cnt);
    nvc_container_config_free(wanted);
    nvc_config_free(cfg);
    return failed;
}

int main(int argc, char **argv)
{
    int before, soft, failures = 0;
    const char *failed = "";

    CHECK(argc == 5);
    before = descriptors();
    for (soft = before; failed && soft < 1000; soft++) {
        struct nvc_context *ctx = nvc_context_new();
        CHECK(ctx);
        limit((rlim_t)soft);
        failed = configure(ctx, argv);
        limit(0);
        if (failed) {
            CHECK(nvc_error(ctx) && nvc_error(ctx)[0]);
            failures++;
        }
        nvc_shutdown(ctx);
        nvc_context_free(ctx);
        CHECK(descriptors() == before);
    }
    CHECK(!failed && failures > 5);
    return 0;
}
