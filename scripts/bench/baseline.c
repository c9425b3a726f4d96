/*
 * Does what the kernel and NVML ask of an `info` or a `configure` at the least, and nothing else: the measure of how much
 * of our time is ours. It checks nothing, parses next to nothing, undoes nothing, and is not safe to use on anything but
 * a test's container.
 *
 *     cc -O2 -Wall -Wextra -o baseline scripts/bench/baseline.c
 *
 *     baseline info DRIVER_ROOT
 *     baseline configure DRIVER_ROOT PID ROOTFS LDCONFIG PLAN
 *
 * `info` executes itself once more; that process changes its root, loads NVML and asks what nvidia-container-cli asks,
 * for every GPU and MIG device; the answers come back over a pipe and are printed.
 *
 * `configure` does the same, then enters PID's mount namespace and carries out PLAN, the text of
 * `nvidia-container-cli configure --dry-run` for the same container: four system calls a mount, files in a tmpfs, links.
 * Last it executes LDCONFIG, unsandboxed, with `-r ROOTFS` and the plan's directories. Exit status 0 if all of it worked.
 */
#define _GNU_SOURCE
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

/* Asks functions that answer with a number or a text, and prints the answers. */
static void print_each(void *device, const char *const *names)
{
    union { unsigned number; char text[96]; } answer;

    for (; *names; names++)
        if (!strncmp(*names, "nvmlDeviceGetName", 17) || !strncmp(*names, "nvmlDeviceGetUUID", 17)) {
            if (!CALL(*names, device, answer.text, 96u))
                printf(" %s", answer.text);
        } else if (!CALL(*names, device, &answer.number)) {
            printf(" %u", answer.number);
        }
}

static void describe(void *device)
{
    static const char *const of_gpu[] = {"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetBrand",
                                         "nvmlDeviceGetMinorNumber", NULL};
    static const char *const of_mig[] = {"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
                                         "nvmlDeviceGetUUID", NULL};
    unsigned pci[64], current, pending, slots = 0;
    int major, minor;
    void *mig;

    print_each(device, of_gpu);
    if (!CALL("nvmlDeviceGetPciInfo_v3", device, pci))
        printf(" %x:%x:%x", pci[4], pci[5], pci[6]);
    if (!CALL("nvmlDeviceGetCudaComputeCapability", device, &major, &minor))
        printf(" %d.%d", major, minor);
    if (!CALL("nvmlDeviceGetMigMode", device, &current, &pending) && current == 1)
        CALL("nvmlDeviceGetMaxMigDeviceCount", device, &slots);
    for (unsigned slot = 0; slot < slots; slot++)
        if (!CALL("nvmlDeviceGetMigDeviceHandleByIndex", device, slot, &mig))
            print_each(mig, of_mig);
    putchar('\n');
}

/* The second process: asks NVML below `root` and prints what it says to standard output. */
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
    char kind; /* R and W: a file, read-only or not; T: a tmpfs; L: a link */
    char from[512], at[512];
    int mount;
    mode_t mode;
} steps[4096];
static char directories[60][512]; /* of ldconfig */
static size_t count, directory_count;
static int container; /* its root directory */

static int make(struct step *step)
{
    if (step->kind == 'L')
        return symlinkat(step->from, container, step->at);
    if (S_ISDIR(step->mode))
        return mkdirat(container, step->at, 0755);
    return mknodat(container, step->at, S_IFREG | 0644, 0);
}

/* A clone of a file of the driver root; those of procfs and of MPS may be directories. */
static void clone_source(struct step *step, int driver)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_NOSUID | (step->kind == 'W' ? 0 : MOUNT_ATTR_RDONLY)};
    struct stat stat = {.st_mode = S_IFREG};

    step->mount = (int)syscall(SYS_open_tree, driver, step->from + 1, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (step->mount < 0 || syscall(SYS_mount_setattr, step->mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        err(1, "%s", step->from);
    if (!strncmp(step->from, "/proc", 5) || !strncmp(step->from, "/tmp", 4))
        fstat(step->mount, &stat);
    step->mode = stat.st_mode;
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
        snprintf(from, sizeof from, "%s/%s", step->from + 1, names[i]);
        int source = openat(driver, from, O_RDONLY | O_CLOEXEC);
        int target = openat(step->mount, names[i], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
        ssize_t length = read(source, text, sizeof text);
        if (length < 0 || write(target, text, (size_t)length) != length)
            err(1, "%s", names[i]);
        close(source);
        close(target);
    }
}

/* Reads a line of the plan: kind, source, and `->` with the place if that is another one; a link's place comes first. */
static int read_step(const char *line, struct step *step)
{
    char other[512] = "";
    const char *gpu = strstr(line, "gpus/");

    if (sscanf(line + 14, "%511s -> %511s", step->from, other) < 1)
        return 0;
    step->kind = !strncmp(line, "device", 6) || !strncmp(line, "socket", 6) ? 'W' : 'R';
    if (!strncmp(line, "driver proc", 11)) {
        step->kind = gpu ? 'R' : 'T';
        if (gpu)
            sscanf(gpu, "%400[^, \n]", step->from + sprintf(step->from, "/proc/driver/nvidia/"));
    } else if (!strncmp(line, "link", 4)) {
        step->kind = 'L';
        strcpy(step->at, step->from + 1);
        strcpy(step->from, other);
        return 1;
    }
    strcpy(step->at, (step->kind != 'T' && *other == '/' ? other : step->from) + 1);
    return 1;
}

/* Reads what `nvidia-container-cli configure --dry-run` prints, and prepares the mounts. */
static void read_plan(const char *file, int driver)
{
    FILE *plan = fopen(file, "re");
    char line[4096];

    if (!plan)
        err(1, "%s", file);
    while (count < 4096 && fgets(line, sizeof line, plan)) {
        struct step *step = &steps[count];

        if (!strncmp(line, "library path", 12)) {
            for (char *at = strtok(line + 14, ", \n"); at && *at == '/'; at = strtok(NULL, ", \n"))
                if (directory_count < 60)
                    snprintf(directories[directory_count++], 512, "%s", at);
        } else if (strlen(line) > 14 && read_step(line, step)) {
            count++;
            if (step->kind == 'T')
                make_tmpfs(step, driver);
            else if (step->kind != 'L')
                clone_source(step, driver);
        }
    }
    fclose(plan);
}

static void carry_out(struct step *step)
{
    if (step->kind != 'T' && make(step) && errno == ENOENT) {
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
    char path[64], *arguments[70] = {"/sbin/ldconfig", "-r", rootfs}, *none[] = {NULL};

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
        carry_out(&steps[i]);
    for (size_t i = 0; i < directory_count; i++)
        arguments[3 + i] = directories[i];
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
