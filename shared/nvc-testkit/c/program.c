/* A program of the driver that only says its name. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    printf("this %s is simulated\n", slash ? slash + 1 : argc > 0 ? argv[0] : "program");
    return 0;
}
