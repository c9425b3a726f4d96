/* For a machine without CAP_SYS_RESOURCE: raising the limit of locked memory has no effect, instead of failing. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
  return resource == RLIMIT_MEMLOCK ? 0 : (int)syscall(SYS_prlimit64, 0, resource, limit, NULL);
}
int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit) {
  return setrlimit(resource, (const struct rlimit *)limit);
}
