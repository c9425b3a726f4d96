/*
 * A simulated libcuda.so.1: the few facts about GPUs that only CUDA tells, from the same profile as the simulated NVML.
 *
 * Its GPUs are those of the profile in the opposite order, so that a program that takes CUDA's numbers for NVML's gets
 * the wrong GPU. There is nothing to compute with.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROFILE "/etc/nvidia-sim/profile"

enum { MAX_GPUS = 128, OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static struct gpu {
    unsigned domain, bus, slot;
    int major, minor;
} gpus[MAX_GPUS];
static int gpu_count, version;

static void read_profile(void)
{
    char line[512], *found;
    FILE *file = fopen(PROFILE, "re");

    gpu_count = version = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "cuda=", 5))
            version = atoi(line + 5);
        if (strncmp(line, "gpu ", 4) || gpu_count == MAX_GPUS)
            continue;
        struct gpu *g = &gpus[gpu_count++];
        if ((found = strstr(line, " bus=")))
            sscanf(found, " bus=%x:%x:%x", &g->domain, &g->bus, &g->slot);
        if ((found = strstr(line, " cc=")))
            sscanf(found, " cc=%d.%d", &g->major, &g->minor);
    }
    if (file)
        fclose(file);
}

int cuInit(unsigned flags)
{
    (void)flags;
    read_profile();
    return gpu_count && !getenv("CUDA_VISIBLE_DEVICES") ? OK : NO_DEVICE;
}

int cuDriverGetVersion(int *out)
{
    read_profile();
    *out = version;
    return OK;
}

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < 0 || number >= gpu_count ? INVALID_DEVICE : OK;
}

int cuDeviceGetByPCIBusId(int *device, const char *id)
{
    unsigned domain, bus, slot;

    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return INVALID_VALUE;
    for (int i = 0; i < gpu_count; i++)
        if (gpus[i].domain == domain && gpus[i].bus == bus && gpus[i].slot == slot) {
            *device = gpu_count - 1 - i;
            return OK;
        }
    return INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int facts[][2] = {{9, 65536},    {16, 58},      {32, 1},      {36, 6251000},
                                   {37, 192},     {38, 50331648}, {81, 102400}};

    if (device < 0 || device >= gpu_count)
        return INVALID_DEVICE;
    *value = 0;
    if (attribute == 75 || attribute == 76) {
        struct gpu *g = &gpus[gpu_count - 1 - device];
        *value = attribute == 75 ? g->major : g->minor;
    }
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i][0] == attribute)
            *value = facts[i][1];
    return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = 25769803776u;
    return device < 0 || device >= gpu_count ? INVALID_DEVICE : OK;
}

int cuDeviceCanAccessPeer(int *yes, int one, int other)
{
    *yes = one != other;
    return OK;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == OK ? "no error" : code == NO_DEVICE ? "no CUDA-capable device is detected" :
            code == INVALID_DEVICE ? "invalid device ordinal" : "unknown error";
    return OK;
}
