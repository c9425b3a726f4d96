/*
 * A simulated libcuda.so.1: the few facts about GPUs that only CUDA tells, from the same profile as the simulated NVML.
 *
 * Its GPUs are those of the profile in the opposite order, so that a program that takes CUDA's numbers for NVML's gets
 * the wrong GPU. In a container, which has no profile, they are those in /proc/driver/nvidia/gpus whose nodes open.
 * Memory of a GPU is memory of the process, and there is nothing to compute with: no function loads or starts a kernel.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROFILE "/etc/nvidia-sim/profile"
#define PROC_GPUS "/proc/driver/nvidia/gpus"

enum { MAX_GPUS = 128, OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static struct gpu {
    unsigned domain, bus, slot;
    int major, minor;
} gpus[MAX_GPUS];
static int gpu_count, version;

/* Returns true if the kernel lets us use a node. There is nothing behind it. */
static int opens(const char *node)
{
    int fd = open(node, O_RDWR | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void read_procfs(void)
{
    struct dirent **entries;
    int count = opens("/dev/nvidiactl") ? scandir(PROC_GPUS, &entries, visible, alphasort) : 0;

    version = 12080;
    /* The opposite order here too: CUDA's first GPU is the last of the array. */
    for (int i = 0; i < count && gpu_count < MAX_GPUS; i++) {
        struct gpu *g = &gpus[gpu_count];
        char path[512], line[256];
        unsigned minor = ~0u;
        FILE *file;

        memset(g, 0, sizeof *g);
        sscanf(entries[i]->d_name, "%x:%x:%x", &g->domain, &g->bus, &g->slot);
        snprintf(path, sizeof path, PROC_GPUS "/%.200s/information", entries[i]->d_name);
        if (!(file = fopen(path, "re")))
            continue;
        while (fgets(line, sizeof line, file))
            sscanf(line, "Device Minor: %u", &minor);
        fclose(file);
        snprintf(path, sizeof path, "/dev/nvidia%u", minor);
        gpu_count += opens(path);
    }
}

static void read_profile(void)
{
    char line[512], *found;
    FILE *file = fopen(PROFILE, "re");

    gpu_count = version = 0;
    if (!file) {
        read_procfs();
        return;
    }
    while (fgets(line, sizeof line, file)) {
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

int cuDeviceGetCount(int *count)
{
    *count = gpu_count;
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

int cuDeviceGetPCIBusId(char *id, int size, int device)
{
    if (device < 0 || device >= gpu_count)
        return INVALID_DEVICE;
    struct gpu *g = &gpus[gpu_count - 1 - device];
    snprintf(id, (size_t)size, "%04x:%02x:%02x.0", g->domain, g->bus, g->slot);
    return OK;
}

int cuDeviceGetName(char *name, int size, int device)
{
    if (device < 0 || device >= gpu_count)
        return INVALID_DEVICE;
    snprintf(name, (size_t)size, "simulated GPU");
    return OK;
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

/* ---- memory ---- */

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = gpus;
    return device < 0 || device >= gpu_count ? INVALID_DEVICE : OK;
}

int cuCtxSetCurrent(void *context) { return context == gpus ? OK : INVALID_VALUE; }

int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    void *block = malloc(bytes);

    *memory = (uintptr_t)block;
    return block ? OK : INVALID_VALUE;
}

int cuMemFree_v2(uint64_t memory)
{
    free((void *)(uintptr_t)memory);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return OK;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return OK;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == OK ? "no error" : code == NO_DEVICE ? "no CUDA-capable device is detected" :
            code == INVALID_DEVICE ? "invalid device ordinal" : "unknown error";
    return OK;
}
