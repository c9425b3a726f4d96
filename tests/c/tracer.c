/*
 * Runs a command and tries to trace each of its processes, as a container in the host's pid namespace could.
 *
 *     tracer UID COMMAND [ARG...]
 *
 * The command runs with the caller's rights. The tracer becomes UID with the capabilities that docker gives a container
 * (as root; another user has none). It prints, each line once, `saw NAME PROGRAM` for each process that it tried,
 * `may ATTEMPT NAME PROGRAM` for each attempt that succeeded, and last the command's status.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAP(number) (1u << (number))

/* The default capabilities of a container: all of them are below 32. */
static const unsigned dockers =
    CAP(CAP_CHOWN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_FSETID) | CAP(CAP_FOWNER) | CAP(CAP_MKNOD) | CAP(CAP_NET_RAW) |
    CAP(CAP_SETGID) | CAP(CAP_SETUID) | CAP(CAP_SETFCAP) | CAP(CAP_SETPCAP) | CAP(CAP_NET_BIND_SERVICE) |
    CAP(CAP_SYS_CHROOT) | CAP(CAP_KILL) | CAP(CAP_AUDIT_WRITE);

static char lines[256][256];
static int count;

static char line[256];

static int was_said(const char *what, const char *who)
{
    snprintf(line, sizeof line, "%s %s", what, who);
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i], line))
            return 1;
    return 0;
}

static void say(const char *what, const char *who)
{
    if (!was_said(what, who) && count < 256) {
        strcpy(lines[count++], line);
        puts(line);
    }
}

static char *path(int pid, const char *file)
{
    static char buffer[64];

    snprintf(buffer, sizeof buffer, "/proc/%d/%s", pid, file);
    return buffer;
}

static int opens(int pid, const char *file, int flags)
{
    int fd = open(path(pid, file), flags);

    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

/* The process's name and its first argument, as text. */
static void describe(int pid, char *buffer, size_t size)
{
    char name[32] = "?", program[128] = "?";
    FILE *file = fopen(path(pid, "comm"), "r");

    if (file) {
        if (fgets(name, sizeof name, file))
            name[strcspn(name, "\n")] = 0;
        fclose(file);
    }
    file = fopen(path(pid, "cmdline"), "r");
    if (file) {
        size_t length = fread(program, 1, sizeof program - 1, file);
        program[length] = 0;
        fclose(file);
    }
    snprintf(buffer, size, "%s %s", name, program);
}

/* Each way of accessing a process. */
static void look(int pid)
{
    char who[200], byte, buffer[8];
    struct iovec here = {&byte, 1}, there = {(void *)0x1000, 1};
    int pidfd, file, status;

    describe(pid, who, sizeof who);
    say("saw", who);
    if (opens(pid, "root/", O_RDONLY | O_DIRECTORY))
        say("may root", who);
    if (opens(pid, "cwd/", O_RDONLY | O_DIRECTORY))
        say("may cwd", who);
    if (opens(pid, "mem", O_RDWR))
        say("may mem", who);
    if (opens(pid, "exe", O_RDONLY))
        say("may exe", who);
    if (opens(pid, "fd/0", O_RDONLY | O_NONBLOCK))
        say("may fd", who);
    file = open(path(pid, "maps"), O_RDONLY);
    if (file >= 0) {
        if (read(file, buffer, sizeof buffer) > 0)
            say("may maps", who);
        close(file);
    }
    errno = 0;
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) > 0 || errno == EFAULT)
        say("may process_vm_readv", who);
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) {
        int stolen = (int)syscall(438 /* pidfd_getfd */, pidfd, 0, 0);
        if (stolen >= 0) {
            say("may pidfd_getfd", who);
            close(stolen);
        }
        close(pidfd);
    }
    if (!was_said("may ptrace", who) && !ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
        say("may ptrace", who);
        /* Only a stopped process can be detached. */
        ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
        waitpid(pid, &status, __WALL);
        ptrace(PTRACE_DETACH, pid, NULL, NULL);
    }
}

/* Tries a process and its descendants. */
static void look_below(int pid)
{
    char name[64];
    struct dirent *entry;
    DIR *tasks = opendir(path(pid, "task"));

    look(pid);
    while (tasks && (entry = readdir(tasks))) {
        FILE *file;
        int child;

        if (entry->d_name[0] == '.')
            continue;
        /* Capabilities are per thread. */
        if (atoi(entry->d_name) != pid)
            look(atoi(entry->d_name));
        snprintf(name, sizeof name, "task/%.20s/children", entry->d_name);
        file = fopen(path(pid, name), "r");
        while (file && fscanf(file, "%d", &child) == 1)
            look_below(child);
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
}

static int become(uid_t user)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{dockers, dockers, 0}, {0, 0, 0}};

    if (user)
        return setresgid(user, user, user) || setresuid(user, user, user);
    return (int)syscall(SYS_capset, &header, sets);
}

int main(int argc, char **argv)
{
    pid_t child;
    int status = 0, ready[2];
    char byte = 0;

    if (argc < 3 || pipe2(ready, O_CLOEXEC))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    child = fork();
    if (child < 0)
        return 2;
    if (!child) {
        /* Not before it is traced. */
        if (read(ready[0], &byte, 1) != 1)
            _exit(126);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    if (become((uid_t)atoi(argv[1])) || write(ready[1], &byte, 1) != 1)
        return 2;
    while (waitpid(child, &status, WNOHANG) == 0)
        look_below(child);
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}
