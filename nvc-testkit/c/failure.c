// Replaces the linker cache as ldconfig does, with a useless one, and fails.

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    int fd = open("/etc/ld.so.cache~", O_CREAT | O_WRONLY | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd >= 0 && write(fd, "useless", 7) == 7 && close(fd) == 0)
        rename("/etc/ld.so.cache~", "/etc/ld.so.cache");
    return 3;
}
