// Replaces the linker cache as ldconfig does, with a useless one, and fails; with BUSY after so many seconds' work, with
// UNTIL as soon as the image has that file.

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
    int fd = open("/etc/ld.so.cache~", O_CREAT | O_WRONLY | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd >= 0 && write(fd, "useless", 7) == 7 && close(fd) == 0)
        rename("/etc/ld.so.cache~", "/etc/ld.so.cache");
#ifdef BUSY
    while (clock() < (clock_t)(BUSY) * CLOCKS_PER_SEC)
        ;
#endif
#ifdef UNTIL
    while (open(UNTIL, O_RDONLY | O_NOFOLLOW) < 0)
        ;
#endif
    return 3;
}
