/* repeat DRIVER-ROOT OPTIONS: one process that configures many containers, as a daemon would: for each line `PID ROOTFS GPU`
 * of standard input one, with these options of the container. Answers with a line each: how many descriptors and threads it
 * has, and how many bytes of memory; or says what went wrong. */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Threads, `.` and `..`. A joined thread is still listed for a moment, because it reports its end before it exits. */
static int threads(void)
{
    int patience = 1000;

    while (entries("/proc/self/task") != 3 && patience-- > 0)
        usleep(1000);
    return entries("/proc/self/task");
}

static int configure(struct nvc_context *ctx, int pid, const char *rootfs, size_t gpu, const char *options)
{
    struct nvc_container_config *cfg = nvc_container_config_new(pid, rootfs);
    struct nvc_driver_info *driver = nvc_driver_info_new(ctx, NULL);
    struct nvc_device_info *devices = driver ? nvc_device_info_new(ctx, NULL) : NULL;
    struct nvc_container *cnt = devices ? nvc_container_new(ctx, cfg, options) : NULL;
    int failed = cnt == NULL || nvc_driver_mount(ctx, cnt, driver) != 0 || gpu >= devices->ngpus ||
                 nvc_device_mount(ctx, cnt, &devices->gpus[gpu]) != 0 || nvc_ldcache_update(ctx, cnt) != 0;

    if (failed)
        printf("%s\n", nvc_error(ctx));
    nvc_container_free(cnt);
    nvc_device_info_free(devices);
    nvc_driver_info_free(driver);
    nvc_container_config_free(cfg);
    return failed;
}

int main(int argc, char **argv)
{
    static char rootfs[4096];
    struct nvc_context *ctx;
    size_t gpu;
    int pid;

    CHECK(argc == 3);
    ctx = context_on(argv[1]);
    while (scanf("%d %4095s %zu", &pid, rootfs, &gpu) == 3) {
        /* Create and free another context while one stays. */
        struct nvc_context *other = context_on(argv[1]);

        CHECK(nvc_shutdown(other) == 0);
        nvc_context_free(other);
        if (configure(ctx, pid, rootfs, gpu, argv[2]) == 0) {
            /* No child is left to reap. */
            CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
            printf("%d %d %zu\n", entries("/proc/self/fd"), threads(), mallinfo2().uordblks);
        }
        fflush(stdout);
    }
    CHECK(nvc_shutdown(ctx) == 0);
    nvc_context_free(ctx);
    return 0;
}
