/* Runs in place of ldconfig: is busy for a while, with calls that ldconfig's sandbox allows. To be linked statically. */
#include <time.h>

int main(void)
{
    struct timespec start, now;

    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000LL + now.tv_nsec - start.tv_nsec < 300000000);
    return 0;
}
