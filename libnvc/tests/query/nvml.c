/*
 * A stub NVML with the faults that its macros select, one library for each test.
 *
 * Without any macro: three GPUs with minor numbers 4, 5 and 6; GPU 1 is in MIG mode with devices in slots 0 and 2 of 7.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define LOST_CODE 15

static int gpus[3], migs[7];
#define GPU(d) ((int)((int *)(d) - gpus))
#define IS_MIG(d) ((int *)(d) >= migs && (int *)(d) < migs + 7)

/* Writes the pid to a file for the test, and hangs. */
static void hang(void)
{
    FILE *file = fopen("/pid.new", "w");
#ifdef NO_DEATH_SIGNAL
    prctl(PR_SET_PDEATHSIG, 0);
#endif
#ifdef NO_SOCKET_SIGNAL
    fcntl(3, F_SETFL, 0);
#endif
    if (file) {
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
        rename("/pid.new", "/pid");
    }
    for (;;)
        pause();
}

#ifdef HELPER
/* Executes a program as NVML does to make device nodes, and returns its status. */
static int helper(void)
{
    char *arguments[] = {"helper", NULL};
    int status = 0;
    pid_t child = fork();

    if (!child) {
        execve("/helper", arguments, environ);
        _exit(127);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}
#endif

/* Checks the process before foreign code runs in it; returns the number of the first failed check, or 0. */
static int inspect(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    struct stat status;
    struct sigaction action;
    sigset_t mask;
    int death = 0;
    gid_t groups[4];

    for (int fd = 0; fd < 3; fd++)
        if (fstat(fd, &status) || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 3))
            return 100 + fd;
    if (fstat(3, &status) || !S_ISSOCK(status.st_mode) || !(fcntl(3, F_GETFD) & FD_CLOEXEC))
        return 103;
    for (int fd = 4; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) != -1)
            return 104;
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "CUDA_", 5) && strncmp(*variable, "NVIDIA_", 7) && !strstr(*variable, "NVML"))
            return 105;
#ifdef AS_ROOT
    (void)groups;
    if (getuid() || geteuid() || getgid() || getegid())
        return 106;
#else
    if (getuid() != 65534 || geteuid() != 65534 || getgid() != 65533 || getegid() != 65533)
        return 106;
    if (getgroups(4, groups) != 1 || groups[0] != 65533)
        return 107;
    if (setuid(0) != -1)
        return 108;
#endif
    if (chroot(".") != -1)
        return 117;
    if (syscall(SYS_capget, &header, sets))
        return 109;
    for (int i = 0; i < 2; i++) {
        unsigned shield = i ? 1u << (35 - 32) : 0; /* CAP_WAKE_ALARM, against tracers */
        if (sets[i].effective || sets[i].permitted & ~shield || sets[i].inheritable & ~shield)
            return 110;
    }
    if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
        return 118;
#ifdef HELPER
    return helper();
#endif
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        return 111;
    if (prctl(PR_GET_PDEATHSIG, &death) || death != SIGKILL)
        return 112;
    if (sigprocmask(SIG_BLOCK, NULL, &mask))
        return 113;
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal))
            return 114;
    if (sigaction(SIGCHLD, NULL, &action) || action.sa_handler != SIG_DFL)
        return 115;
    if (access("/only-in-this-root", F_OK) || !access("/proc/self", F_OK))
        return 116;
    return 0;
}

#ifdef DUMPABLE
/* Makes the process dumpable, like a library that wants to be debugged. */
__attribute__((constructor)) static void become_dumpable(void)
{
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}
#endif

#ifdef FLOOD
/* Writes into the socket for the answers forever, fast or one byte at a time. */
static void flood(void)
{
    static const char asking[] = "\14\0\0\0{\"Asking\":1}", long_message[] = "\0\0\200\0{", nonsense[] = "\377\377\377\377";

    if (FLOOD == 1) {
        /* Many per write, so that the reader never catches up. */
        static char many[4096 * (sizeof asking - 1)];
        for (unsigned i = 0; i < sizeof many; i++)
            many[i] = asking[i % (sizeof asking - 1)];
        for (;;)
            if (write(3, many, sizeof many) < 0)
                _exit(1);
    }
    if (FLOOD == 2 && write(3, long_message, sizeof long_message - 1) > 0)
        for (;;) {
            usleep(10000);
            if (write(3, " ", 1) < 0)
                _exit(1);
        }
    if (FLOOD == 3)
        for (;;)
            if (write(3, nonsense, sizeof nonsense - 1) < 0)
                _exit(1);
}
#endif

static int put(char *buffer, unsigned size, const char *text)
{
    snprintf(buffer, size, "%s", text);
    return 0;
}

#ifdef ONLY_OLD_NAMES
#define INIT nvmlInit
#define COUNT nvmlDeviceGetCount
#define HANDLE nvmlDeviceGetHandleByIndex
#define PCI nvmlDeviceGetPciInfo_v3
#else
#define INIT nvmlInit_v2
#define COUNT nvmlDeviceGetCount_v2
#define HANDLE nvmlDeviceGetHandleByIndex_v2
#define PCI nvmlDeviceGetPciInfo
#endif

int INIT(void)
{
#ifdef NEEDS
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    volatile double two = 2;
    if (pow(two, 3) != 8 || pthread_once(&once, (void (*)(void))getpid))
        return 99;
#endif
#ifdef NOISE
    for (int fd = 0; fd < 3; fd++)
        if (write(fd, "noise\n", 6) != 6)
            return 98;
    puts("more noise");
    fflush(stdout);
#endif
#ifdef CRASH_INIT
    abort();
#endif
#ifdef HANG_INIT
    hang();
#endif
#ifdef INSPECT
    return inspect();
#endif
#ifdef INIT_CODE
    return INIT_CODE;
#endif
    return 0;
}

#ifndef NO_ERROR_STRING
const char *nvmlErrorString(int code)
{
    static char other[32];
    snprintf(other, sizeof other, "Code %d Of NVML", code);
    return code == LOST_CODE ? "GPU is lost" : code == 13 ? "Function Not Found" : other;
}
#endif

int nvmlSystemGetDriverVersion(char *buffer, unsigned size)
{
#ifdef VERSION
    return put(buffer, size, VERSION);
#else
    return put(buffer, size, "535.261.03");
#endif
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 12020;
    return 0;
}

int COUNT(unsigned *count)
{
#ifdef GPU_COUNT
    *count = GPU_COUNT;
#else
    *count = 3;
#endif
    return 0;
}

int HANDLE(unsigned index, void **device)
{
#ifdef NO_HANDLE
    *device = NULL;
    return 0;
#endif
#ifdef LOST_HANDLE
    if (index == LOST_HANDLE)
        return LOST_CODE;
#endif
    *device = &gpus[index % 3];
    return 0;
}

int nvmlDeviceGetName(void *device, char *buffer, unsigned size)
{
#ifdef HANG_NAME
    if (GPU(device) == 1)
        hang();
#endif
#ifdef SLOW_NAME
    usleep(SLOW_NAME);
#endif
#ifdef FLOOD
    flood();
#endif
#ifdef UNTERMINATED
    if (GPU(device) == 0) {
        memset(buffer, 'x', size);
        return 0;
    }
#endif
    (void)device;
    return put(buffer, size, "NVIDIA A100");
}

#ifndef NO_UUID
int nvmlDeviceGetUUID(void *device, char *buffer, unsigned size)
{
    char text[64];
#ifdef LOST_UUID
    if (!IS_MIG(device) && (LOST_UUID < 0 || GPU(device) == LOST_UUID))
        return LOST_CODE;
#endif
#ifdef BAD_UUID
    if (GPU(device) == 0)
        return put(buffer, size, "GPU-\033[31m\377\n");
#endif
    if (IS_MIG(device))
        snprintf(text, sizeof text, "MIG-%d", (int)((int *)device - migs));
    else
        snprintf(text, sizeof text, "GPU-%d", GPU(device));
    return put(buffer, size, text);
}
#endif

int PCI(void *device, unsigned *info)
{
    info[4] = 0x10000;
    info[5] = 0x3bu + (unsigned)GPU(device);
    info[6] = 0;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return 0;
}

int nvmlDeviceGetBrand(void *device, unsigned *brand)
{
#ifdef CRASH_BRAND
    if (GPU(device) == 1)
        *(volatile int *)8 = 1;
#endif
#ifdef EXIT_BRAND
    exit(EXIT_BRAND);
#endif
    (void)device;
    *brand = 14;
    return 0;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    *minor = 4 + (unsigned)GPU(device);
    return 0;
}

#ifndef NO_MIG
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
#ifdef MIG_MODE_CODE
    if (GPU(device) == 1)
        return MIG_MODE_CODE;
#endif
    *current = *pending = GPU(device) == 1;
    return GPU(device) == 0 ? 3 : 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    (void)device;
#ifdef MIG_COUNT
    *count = MIG_COUNT;
#else
    *count = 7;
#endif
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned slot, void **mig)
{
    (void)device;
    *mig = &migs[slot % 7];
    return slot == 0 || slot == 2 ? 0 : 6;
}

int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *id)
{
    *id = 7 + (unsigned)((int *)mig - migs);
    return 0;
}

int nvmlDeviceGetComputeInstanceId(void *mig, unsigned *id)
{
    (void)mig;
    *id = 0;
    return 0;
}
#endif
