/*
 * Does the minimum that the kernel and NVML require of an `info` or a `configure`: any time above it is ours. Checks
 * nothing, undoes nothing, and is safe for a test's container only.
 *
 *     baseline info DRIVER_ROOT
 *     baseline configure DRIVER_ROOT PID ROOTFS LDCONFIG PLAN
 *
 * `info` executes itself once more; that process changes its root, loads NVML, asks what nvidia-container-cli asks about
 * each GPU and MIG device, and sends the answers over a pipe.
 *
 * `configure` does the same, then enters PID's mount namespace and executes PLAN, with four system calls for each mount.
 * At the end it runs LDCONFIG without a sandbox. Each line of PLAN is a letter, a source and a place, relative to the
 * roots: R and W mount a file, read-only or not, r and w a directory, t a tmpfs with the files of /proc/driver/nvidia; L
 * makes a link to the source; D names a directory for ldconfig.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- the query ------------------------------------------------------------------------------------------------- */

static void *nvml;

/* Calls an NVML function whose arguments are words; lacking ones count as failed. */
#define CALL(name, ...) (dlsym(nvml, name) ? ((unsigned (*)())dlsym(nvml, name))(__VA_ARGS__) : 13u)

/* Prints the answers of functions that fill one buffer; those that need no length ignore it. */
static void print_each(void *device, const char *const *names)
{
    char answer[96] = "";

    for (; *names; names++)
        if (!CALL(*names, device, answer, 96u))
            fwrite(answer, sizeof answer, 1, stdout);
}

static void describe(void *device)
{
    static const char *const of_gpu[] = {"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetBrand",
                                         "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3", NULL};
    static const char *const of_mig[] = {"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
                                         "nvmlDeviceGetUUID", NULL};
    unsigned current, pending, slots = 0;
    int major, minor;
    void *mig;

    print_each(device, of_gpu);
    if (!CALL("nvmlDeviceGetCudaComputeCapability", device, &major, &minor))
        printf(" %d.%d", major, minor);
    if (!CALL("nvmlDeviceGetMigMode", device, &current, &pending) && current == 1)
        CALL("nvmlDeviceGetMaxMigDeviceCount", device, &slots);
    for (unsigned slot = 0; slot < slots; slot++)
        if (!CALL("nvmlDeviceGetMigDeviceHandleByIndex", device, slot, &mig))
            print_each(mig, of_mig);
}

/* The second process: asks NVML below `root` and prints the answers. */
static int query(const char *root)
{
    char version[96];
    int cuda;
    unsigned count;
    void *device;

    if (chroot(root) || chdir("/"))
        err(1, "chroot");
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml || CALL("nvmlInit_v2"))
        errx(1, "no NVML");
    if (CALL("nvmlSystemGetDriverVersion", version, 96u) || CALL("nvmlSystemGetCudaDriverVersion", &cuda) ||
        CALL("nvmlDeviceGetCount_v2", &count))
        errx(1, "NVML fails");
    printf("%s %d\n", version, cuda);
    for (unsigned i = 0; i < count; i++)
        if (!CALL("nvmlDeviceGetHandleByIndex_v2", i, &device))
            describe(device);
    fflush(stdout);
    _exit(0);
}

static void reap(pid_t pid, const char *what)
{
    int status;

    if (waitpid(pid, &status, 0) != pid || status != 0)
        errx(1, "%s failed", what);
}

/* Executes this program once more, with a pipe as standard output, and prints its answer. */
static void ask(char *root)
{
    char answer[65536], *arguments[] = {"baseline", "query", root, NULL};
    volatile ssize_t length = 0; /* across vfork */
    ssize_t more;
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC))
        err(1, "pipe2");
    pid = vfork();
    if (pid == 0) {
        dup2(ends[1], 1);
        execve("/proc/self/exe", arguments, environ);
        _exit(127);
    }
    close(ends[1]);
    while ((more = read(ends[0], answer + length, sizeof answer - (size_t)length)) > 0)
        length += more;
    close(ends[0]);
    reap(pid, "the query");
    if (write(1, answer, (size_t)length) != length)
        err(1, "write");
}

/* ---- the container --------------------------------------------------------------------------------------------- */

static struct step {
    char kind; /* a letter of the plan */
    char from[512], at[512];
    int mount;
} steps[4096];
static size_t count;
static int container; /* its root directory */

static int make(struct step *step)
{
    if (step->kind == 'L')
        return symlinkat(step->from, container, step->at);
    if (islower(step->kind))
        return mkdirat(container, step->at, 0755);
    return mknodat(container, step->at, S_IFREG | 0644, 0);
}

/* Clones a file or directory of the driver root. */
static void clone_source(struct step *step, int driver)
{
    int is_writable = toupper(step->kind) == 'W';
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_NOSUID | (is_writable ? 0 : MOUNT_ATTR_RDONLY)};

    step->mount = (int)syscall(SYS_open_tree, driver, step->from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (step->mount < 0 || syscall(SYS_mount_setattr, step->mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        err(1, "%s", step->from);
}

/* A tmpfs with the files of /proc/driver/nvidia that every container sees. */
static void make_tmpfs(struct step *step, int driver)
{
    static const char *const names[] = {"params", "version", "registry"};
    int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);

    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0555", 0);
    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
    step->mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (step->mount < 0)
        err(1, "fsmount");
    close(fs);
    for (int i = 0; i < 3; i++) {
        char from[600], text[65536];
        snprintf(from, sizeof from, "%s/%s", step->from, names[i]);
        int source = openat(driver, from, O_RDONLY | O_CLOEXEC);
        int target = openat(step->mount, names[i], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
        ssize_t length = read(source, text, sizeof text);
        if (length < 0 || write(target, text, (size_t)length) != length)
            err(1, "%s", names[i]);
        close(source);
        close(target);
    }
}

/* Reads the plan and prepares the mounts. */
static void read_plan(const char *file, int driver)
{
    FILE *plan = fopen(file, "re");

    if (!plan)
        err(1, "%s", file);
    for (struct step *step = steps; count < 4096; count++, step++) {
        if (fscanf(plan, " %c %511s %511s", &step->kind, step->from, step->at) != 3)
            break;
        if (step->kind == 't')
            make_tmpfs(step, driver);
        else if (strchr("RrWw", step->kind))
            clone_source(step, driver);
    }
    fclose(plan);
}

static void execute(struct step *step)
{
    if (step->kind != 't' && make(step) && errno == ENOENT) {
        for (char *slash = strchr(step->at, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = 0;
            mkdirat(container, step->at, 0755);
            *slash = '/';
        }
        if (make(step))
            err(1, "%s", step->at);
    }
    if (step->kind != 'L' && syscall(SYS_move_mount, step->mount, "", container, step->at, MOVE_MOUNT_F_EMPTY_PATH))
        err(1, "mounting at %s", step->at);
}

static void configure(char *root, const char *pid, char *rootfs, const char *program, const char *plan)
{
    static char *arguments[4100] = {"/sbin/ldconfig", "-r"};
    char path[64], **next = arguments + 3, *none[] = {NULL};

    arguments[2] = rootfs;
    snprintf(path, sizeof path, "/proc/%s/ns/mnt", pid);
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    int ldconfig = open(program, O_PATH | O_CLOEXEC);
    int driver = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    ask(root);
    read_plan(plan, driver);
    if (setns(namespace, CLONE_NEWNS))
        err(1, "setns");
    container = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < count; i++)
        if (steps[i].kind == 'D')
            *next++ = steps[i].at;
        else
            execute(&steps[i]);
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_execveat, ldconfig, "", arguments, none, AT_EMPTY_PATH);
        _exit(127);
    }
    reap(child, "ldconfig");
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "query"))
        return query(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "info"))
        ask(argv[2]);
    else if (argc == 7 && !strcmp(argv[1], "configure"))
        configure(argv[2], argv[3], argv[4], argv[5], argv[6]);
    else
        errx(2, "usage: baseline info ROOT | baseline configure ROOT PID ROOTFS LDCONFIG PLAN");
    return 0;
}
