// Mounts a directory with shifted owners: idmap SOURCE TARGET FIRST COUNT. Owner 0 of SOURCE is FIRST in TARGET.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int map(pid_t pid, const char *name, const char *text, int length)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)length) != length)
        return -1;
    return close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    // A user namespace holds the map; it needs a process until it is held open.
    int ready[2];
    if (pipe2(ready, O_CLOEXEC))
        return fail("pipe2");
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER))
            _exit(fail("unshare"));
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    char text[64], path[64], byte;
    close(ready[1]);
    if (pid < 0 || read(ready[0], &byte, 1) != 1)
        return fail("fork");
    int length = snprintf(text, sizeof text, "0 %s %s\n", argv[3], argv[4]);
    if (map(pid, "uid_map", text, length) || map(pid, "gid_map", text, length))
        return fail("map");
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int users = open(path, O_RDONLY | O_CLOEXEC);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, argv[1], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    struct mount_attr attributes = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)users };
    if (users < 0 || tree < 0)
        return fail(argv[1]);
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        return fail("mount_setattr");
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, argv[2], MOVE_MOUNT_F_EMPTY_PATH))
        return fail(argv[2]);
    return 0;
}
