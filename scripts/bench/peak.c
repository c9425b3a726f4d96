// Runs a command and prints the peak memory of each program that it executes: `PROGRAM KiB`, one line a process.
//
// ptrace(2) stops each process at its end (PTRACE_EVENT_EXIT), while /proc/PID/status still has VmHWM.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void report(pid_t pid) {
  char path[64], line[256], program[256] = "?";
  snprintf(path, sizeof path, "/proc/%d/exe", pid);
  ssize_t length = readlink(path, program, sizeof program - 1);
  if (length >= 0)
    program[length] = 0;
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *status = fopen(path, "r");
  int thread = 0;
  while (status && fgets(line, sizeof line, status)) {
    int id;
    if (sscanf(line, "Tgid: %d", &id) == 1)
      thread = id != pid;
    if (!thread && !strncmp(line, "VmHWM:", 6))
      printf("%s %ld\n", program, atol(line + 6));
  }
  if (status)
    fclose(status);
}

int main(int argc, char **argv) {
  (void)argc;
  pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execvp(argv[1], argv + 1);
    _exit(127);
  }
  int status, first = 1;
  for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
    if (!WIFSTOPPED(status)) {
      // What the command leaves behind, such as a container's first process, is not waited for.
      if (pid == child)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      continue;
    }
    int signal = WSTOPSIG(status), event = status >> 16;
    if (first)
      ptrace(PTRACE_SETOPTIONS, pid, 0,
             PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE);
    first = 0;
    if (event == PTRACE_EVENT_EXIT)
      report(pid);
    ptrace(PTRACE_CONT, pid, 0, event || signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
  }
  return 1;
}
