// Runs a command and prints its wall time and CPU time in milliseconds, its peak memory in MiB, and the CPU time of its
// first process alone, without the processes that it waited for.
//
// A small static program, since the kernel counts the memory of the process before execve(2) as the command's own.
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
  struct timespec begin, end;
  struct rusage usage;
  int status, null = open("/dev/null", O_RDWR);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(null, 0), dup2(null, 1);
    execv(argv[1], argv + 1);
    _exit(127);
  }
  siginfo_t ended;
  waitid(P_PID, pid, &ended, WEXITED | WNOWAIT);
  clock_gettime(CLOCK_MONOTONIC, &end);
  char path[64];
  unsigned long long alone = 0;
  snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
  FILE *file = fopen(path, "r");
  if (!file || fscanf(file, "%llu", &alone) != 1)
    perror(path);
  wait4(pid, &status, 0, &usage);
  double wall = (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6;
  double cpu = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
  printf("%f %f %f %f\n", wall, cpu, usage.ru_maxrss / 1024., alone / 1e6);
  return status != 0;
}
