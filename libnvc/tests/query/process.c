/*
 * Extends the simulated NVML by what tests do inside the query process: they look at it, take its guards away, write
 * where nothing should be written. Included by shared/nvc-testkit/c/nvml.c, which calls `extension` at each entry point; macros
 * choose what happens.
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

extern char **environ;

/* Writes the pid to a file for the test, before the process hangs. */
static void leave_pid(void)
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

#ifdef NEEDS
static int use_needed_libraries(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    volatile double two = 2;

    return pow(two, 3) != 8 || pthread_once(&once, (void (*)(void))getpid) ? 99 : 0;
}
#endif

#ifdef NOISE
static int make_noise(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (write(fd, "noise\n", 6) != 6)
            return 98;
    puts("more noise");
    fflush(stdout);
    return 0;
}
#endif

static Result extension(const char *symbol, int gpu)
{
    if (fault("hang-at", symbol, gpu))
        leave_pid();
#ifdef FLOOD
    if (!strcmp(symbol, "nvmlDeviceGetName"))
        flood();
#endif
    if (strcmp(symbol, "nvmlInit_v2"))
        return OK;
#ifdef NEEDS
    return use_needed_libraries();
#elif defined NOISE
    return make_noise();
#elif defined INSPECT
    return inspect();
#elif defined HELPER
    return helper();
#else
    return OK;
#endif
}
