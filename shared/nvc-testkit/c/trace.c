/*
 * Runs a command under ptrace(2), without input and output, until the last of its processes ends. Prints the number of
 * their system calls (`calls N`), and a line for each process as it ends: `KiB NAME PATH`, its peak memory, its name for
 * the kernel, and its program. Returns the command's exit status.
 *
 *     trace COMMAND...
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reports a task that is about to end, while /proc still has its memory, unless it is a thread. */
static void report(pid_t pid)
{
    char path[64], line[256], name[64] = "?", program[256] = "?";
    long value, peak = 0;
    int is_thread = 0;

    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, program, sizeof program - 1);
    if (length >= 0)
        program[length] = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status)) {
        sscanf(line, "Name: %63s", name);
        sscanf(line, "VmHWM: %ld", &peak);
        if (sscanf(line, "Tgid: %ld", &value) == 1)
            is_thread = value != pid;
    }
    if (status)
        fclose(status);
    if (!is_thread)
        printf("%ld %s %s\n", peak, name, program);
}

int main(int argc, char **argv)
{
    int status, result = 127, calls = 0, is_started = 0;
    pid_t command = fork(), pid;

    if (command == 0 && argc > 1) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    while ((pid = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            if (pid == command)
                result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16;
        unsigned long message = 0;
        if (!is_started++) /* the exec's */
            ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT | PTRACE_O_TRACECLONE |
                                                  PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL);
        if (event == PTRACE_EVENT_EXIT)
            report(pid);
        if (signal == (SIGTRAP | 0x80)) {
            ptrace(PTRACE_GETEVENTMSG, pid, 0, &message);
            calls += message == 1; /* PTRACE_EVENTMSG_SYSCALL_ENTRY */
        }
        int is_ours = event || signal == (SIGTRAP | 0x80) || signal == SIGTRAP || signal == SIGSTOP;
        ptrace(PTRACE_SYSCALL, pid, 0, is_ours ? 0 : signal);
    }
    printf("calls %d\n", calls);
    return result;
}
