/* effects DRIVER-ROOT PID ROOTFS [LDCONFIG]: nothing about the process changes, no child and no descriptor (but see kept) stays;
 * a fork after nvc_init leaves both with a context that works. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct look {
    char directory[4096], namespaces[8][64];
    struct sigaction actions[32];
    struct rlimit limits[16];
    sigset_t mask;
    mode_t umask;
    uid_t ids[6];
    int descriptors, dumpable, no_new_privs, environment, threads;
};

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;

    CHECK(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void take(struct look *look)
{
    static const char *const names[] = {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"};
    char path[64];
    int i;

    memset(look, 0, sizeof(*look));
    CHECK(getcwd(look->directory, sizeof(look->directory)));
    for (i = 0; i < 8; i++) {
        snprintf(path, sizeof(path), "/proc/thread-self/ns/%s", names[i]);
        CHECK(readlink(path, look->namespaces[i], 63) > 0);
    }
    for (i = 1; i < 32; i++)
        sigaction(i, NULL, &look->actions[i]);
    for (i = 0; i < 16; i++)
        CHECK(getrlimit(i, &look->limits[i]) == 0);
    sigprocmask(SIG_BLOCK, NULL, &look->mask);
    look->umask = umask(0);
    umask(look->umask);
    getresuid(&look->ids[0], &look->ids[1], &look->ids[2]);
    getresgid(&look->ids[3], &look->ids[4], &look->ids[5]);
    look->descriptors = entries("/proc/self/fd");
    look->threads = entries("/proc/self/task");
    look->dumpable = prctl(PR_GET_DUMPABLE);
    look->no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    for (i = 0; environ[i]; i++)
        look->environment++;
}

/* Without openat2 the library keeps one descriptor, of a private procfs that cannot be covered. */
static int kept(void)
{
    /* Of size 0, which the kernel rejects; valgrind checks all of it nevertheless. */
    static const unsigned long long how[3];
    return syscall(437, -1, "", how, (size_t)0) == -1 && errno != EINVAL;
}

static void same(const struct look *before)
{
    struct look now;
    int i;

    take(&now);
    CHECK(strcmp(now.directory, before->directory) == 0);
    CHECK(memcmp(now.namespaces, before->namespaces, sizeof(now.namespaces)) == 0);
    /* The records have unset padding between their fields. */
    for (i = 1; i < 32; i++)
        CHECK(now.actions[i].sa_handler == before->actions[i].sa_handler &&
              now.actions[i].sa_flags == before->actions[i].sa_flags);
    CHECK(memcmp(now.limits, before->limits, sizeof(now.limits)) == 0);
    CHECK(memcmp(&now.mask, &before->mask, sizeof(now.mask)) == 0);
    CHECK(memcmp(now.ids, before->ids, sizeof(now.ids)) == 0);
    CHECK(now.umask == before->umask && now.dumpable == before->dumpable);
    CHECK(now.no_new_privs == before->no_new_privs && now.environment == before->environment);
    CHECK(now.descriptors >= before->descriptors && now.descriptors <= before->descriptors + kept());
    CHECK(now.threads == before->threads);
}

static void no_children(void)
{
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void configure(struct nvc_context *ctx, char **argv)
{
    struct nvc_container_config *cfg = nvc_container_config_new(atoi(argv[2]), argv[3]);
    struct nvc_container *cnt;
    struct nvc_driver_info *driver = nvc_driver_info_new(ctx, NULL);
    struct nvc_device_info *devices = nvc_device_info_new(ctx, NULL);

    cfg->ldconfig = argv[4];
    cnt = nvc_container_new(ctx, cfg, "supervised no-cgroups utility");
    CHECK(cnt && driver && devices);
    no_children();
    CHECK(nvc_driver_mount(ctx, cnt, driver) == 0 && nvc_device_mount(ctx, cnt, devices->gpus) == 0);
    CHECK(argv[4] == NULL || nvc_ldcache_update(ctx, cnt) == 0);
    no_children();
    nvc_driver_info_free(driver);
    nvc_device_info_free(devices);
    nvc_container_free(cnt);
    nvc_container_config_free(cfg);
}

static void ignore(int signal)
{
    (void)signal;
}

int main(int argc, char **argv)
{
    struct nvc_context *ctx;
    struct look before;
    int status;
    pid_t child;

    CHECK(argc == 4 || argc == 5);
    umask(027);
    signal(SIGUSR1, ignore);
    signal(SIGCHLD, ignore);
    take(&before);
    ctx = context_on(argv[1]);
    no_children();
    configure(ctx, argv);
    CHECK(nvc_shutdown(ctx) == 0);
    same(&before);

    /* Fork after nvc_init: both have a context that works, and neither ends the other's. */
    nvc_context_free(ctx);
    ctx = context_on(argv[1]);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        configure(ctx, argv);
        CHECK(nvc_shutdown(ctx) == 0);
        nvc_context_free(ctx);
        return 0;
    }
    while (waitpid(child, &status, 0) < 0)
        CHECK(errno == EINTR);
    CHECK(status == 0);
    configure(ctx, argv);
    nvc_context_free(ctx);
    same(&before);

    /* A program that ignores its children has none to reap, which is no error; but how ldconfig ended cannot be known. */
    signal(SIGCHLD, SIG_IGN);
    ctx = context_on(argv[1]);
    argv[4] = NULL;
    configure(ctx, argv);
    nvc_context_free(ctx);
    return 0;
}
