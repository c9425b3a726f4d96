/*
 * A libcuda.so.1 for tests of the query process: it answers only if the process is confined, and undoes some of that.
 * -DCRASH aborts it and -DHANG blocks it during the initialisation, -DFAIL makes the library forget its GPU.
 */
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { OK, INVALID_VALUE, NO_DEVICE = 100 };

int cuDriverGetVersion(int *version)
{
    int confined = !access("/only-in-this-root", F_OK) && getuid() == 65534 && getgid() == 65533 &&
                   !prctl(PR_GET_DUMPABLE) && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;

    *version = 12060;
    return confined ? OK : INVALID_VALUE;
}

int cuInit(unsigned flags)
{
    prctl(PR_SET_DUMPABLE, 1);
#ifdef CRASH
    abort();
#elif defined(HANG)
    for (;;)
        pause();
#elif defined(FAIL)
    return NO_DEVICE;
#endif
    return flags;
}

int cuDeviceGet(int *device, int number)
{
    *device = number + 7;
#ifdef FAIL
    return NO_DEVICE;
#endif
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (device != 7 || prctl(PR_GET_DUMPABLE))
        return INVALID_VALUE;
    *value = attribute == 75 ? 8 : 7;
    return OK;
}
