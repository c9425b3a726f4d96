// Runs a program as a process with a chosen id, which must be free: with-pid PID PROGRAM [ARGUMENT...]

#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    pid_t wanted = atoi(argv[1]);
    struct clone_args arguments = {
        .exit_signal = SIGCHLD,
        .set_tid = (uint64_t)(uintptr_t)&wanted,
        .set_tid_size = 1,
    };
    long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid < 0) {
        perror("clone3");
        return 1;
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    waitpid((pid_t)pid, NULL, 0);
    return 0;
}
