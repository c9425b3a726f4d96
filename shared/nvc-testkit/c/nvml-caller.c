/*
 * Uses NVML as a device plugin does: finds GPUs and MIG devices in every way, and waits for an error of a GPU.
 *
 *     nvml-caller LIBRARY EVENTS
 *
 * Written from the comments of nvml.h 11.8 alone, with its own declarations, because that header is not free. It knows
 * nothing of the simulated library but its path, and that a line `xid gpu=UUID code=79` in EVENTS is an event. Prints
 * what it found; the first contradiction ends it with exit code 1. As a user who is not root it is refused what the
 * comments call privileged.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *Device, *Set, *GpuInstance, *ComputeInstance;

enum {
    SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25
};
enum { XID_CRITICAL_ERROR = 8, EVERY_EVENT = 0xff9f, MAX_LINKS = 18, COUNT_OF_PROFILES = 32 };

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct event {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
struct placement { unsigned start, size; };
struct gpu_instance_info {
    Device device;
    unsigned id, profile;
    struct placement placement;
};
struct compute_instance_info {
    Device device;
    GpuInstance gpu_instance;
    unsigned id, profile;
    struct placement placement;
};
struct gpu_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    unsigned long long memory;
};
struct gpu_profile_2 {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    unsigned long long memory;
    char name[96];
};
struct compute_profile { unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas; };
struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory;
};
struct memory { unsigned long long total, free, used; };

/* Each function is declared as its comment describes it. */
#define FUNCTIONS(F)                                                                                                   \
    F(nvmlInit_v2, (void))                                                                                             \
    F(nvmlShutdown, (void))                                                                                            \
    F(nvmlSystemGetDriverVersion, (char *, unsigned))                                                                  \
    F(nvmlDeviceGetCount_v2, (unsigned *))                                                                             \
    F(nvmlDeviceGetHandleByIndex_v2, (unsigned, Device *))                                                             \
    F(nvmlDeviceGetHandleByUUID, (const char *, Device *))                                                             \
    F(nvmlDeviceGetHandleByPciBusId_v2, (const char *, Device *))                                                      \
    F(nvmlDeviceGetName, (Device, char *, unsigned))                                                                   \
    F(nvmlDeviceGetIndex, (Device, unsigned *))                                                                        \
    F(nvmlDeviceGetUUID, (Device, char *, unsigned))                                                                   \
    F(nvmlDeviceGetPciInfo_v3, (Device, struct pci *))                                                                 \
    F(nvmlDeviceGetMemoryInfo, (Device, struct memory *))                                                              \
    F(nvmlDeviceGetMigMode, (Device, unsigned *, unsigned *))                                                          \
    F(nvmlDeviceGetMaxMigDeviceCount, (Device, unsigned *))                                                            \
    F(nvmlDeviceGetMigDeviceHandleByIndex, (Device, unsigned, Device *))                                               \
    F(nvmlDeviceIsMigDeviceHandle, (Device, unsigned *))                                                               \
    F(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (Device, Device *))                                                \
    F(nvmlDeviceGetGpuInstanceId, (Device, unsigned *))                                                                \
    F(nvmlDeviceGetComputeInstanceId, (Device, unsigned *))                                                            \
    F(nvmlDeviceGetAttributes_v2, (Device, struct attributes *))                                                       \
    F(nvmlDeviceGetGpuInstanceById, (Device, unsigned, GpuInstance *))                                                 \
    F(nvmlDeviceGetGpuInstances, (Device, unsigned, GpuInstance *, unsigned *))                                        \
    F(nvmlGpuInstanceGetInfo, (GpuInstance, struct gpu_instance_info *))                                               \
    F(nvmlGpuInstanceGetComputeInstances, (GpuInstance, unsigned, ComputeInstance *, unsigned *))                      \
    F(nvmlGpuInstanceGetComputeInstanceById, (GpuInstance, unsigned, ComputeInstance *))                               \
    F(nvmlComputeInstanceGetInfo_v2, (ComputeInstance, struct compute_instance_info *))                                \
    F(nvmlDeviceGetGpuInstanceProfileInfo, (Device, unsigned, struct gpu_profile *))                                   \
    F(nvmlDeviceGetGpuInstanceProfileInfoV, (Device, unsigned, struct gpu_profile_2 *))                                \
    F(nvmlGpuInstanceGetComputeInstanceProfileInfo, (GpuInstance, unsigned, unsigned, struct compute_profile *))       \
    F(nvmlEventSetCreate, (Set *))                                                                                     \
    F(nvmlEventSetFree, (Set))                                                                                         \
    F(nvmlEventSetWait_v2, (Set, struct event *, unsigned))                                                            \
    F(nvmlDeviceGetSupportedEventTypes, (Device, unsigned long long *))                                                \
    F(nvmlDeviceRegisterEvents, (Device, unsigned long long, Set))                                                     \
    F(nvmlDeviceGetNvLinkState, (Device, unsigned, unsigned *))                                                        \
    F(nvmlDeviceGetNvLinkRemotePciInfo_v2, (Device, unsigned, struct pci *))                                           \
    F(nvmlDeviceGetP2PStatus, (Device, Device, unsigned, unsigned *))                                                  \
    F(nvmlDeviceGetTopologyNearestGpus, (Device, unsigned, unsigned *, Device *))                                      \
    F(nvmlDeviceGetTopologyCommonAncestor, (Device, Device, unsigned *))

#define DECLARE(name, parameters) static unsigned(*name) parameters;
FUNCTIONS(DECLARE)

static const char *what = "nothing yet";
static const char *(*nvmlErrorString)(unsigned);

/* Checks the result of a call. */
static void is(unsigned wanted, unsigned result, const char *call)
{
    if (result == wanted)
        return;
    printf("%s: %s returns %u (%s), not %u\n", what, call, result, nvmlErrorString(result), wanted);
    exit(1);
}
#define IS(wanted, call) is(wanted, call, #call)
#define DO(call) IS(SUCCESS, call)

#define TRUE(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s: not so: %s\n", what, #condition);                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);

    if (!library) {
        puts(dlerror());
        exit(1);
    }
#define FIND(name, parameters)                                                                                         \
    if (!(*(void **)&name = dlsym(library, #name))) {                                                                  \
        puts("missing: " #name);                                                                                       \
        exit(1);                                                                                                       \
    }
    FUNCTIONS(FIND)
    *(void **)&nvmlErrorString = dlsym(library, "nvmlErrorString");
}

/* Finds the profile with this id, among the numbers that the header has and later headers may have. */
static int find_profile(Device gpu, unsigned id, struct gpu_profile *found)
{
    for (unsigned number = 0; number < COUNT_OF_PROFILES; number++) {
        struct gpu_profile_2 named = {.version = (unsigned)sizeof named | 2u << 24};
        unsigned result = nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, found);

        if (result == SUCCESS && found->id == id) {
            DO(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, number, &named));
            TRUE(named.id == id && named.slices == found->slices && named.memory == found->memory && named.name[0]);
            printf("    profile %u: %s\n", number, named.name);
            return 1;
        }
        TRUE(result == SUCCESS || result == NOT_SUPPORTED || result == INVALID_ARGUMENT);
    }
    return 0;
}

static void check_mig(Device gpu, unsigned index, Device mig)
{
    struct gpu_instance_info info;
    struct compute_instance_info compute_info;
    struct gpu_profile profile;
    struct attributes attributes;
    struct compute_profile compute_profile;
    struct memory whole, part;
    Device other;
    GpuInstance instance, listed[64];
    ComputeInstance compute;
    unsigned is_mig, again, gi, ci, count = 64;
    char uuid[96], name[96];

    DO(nvmlDeviceIsMigDeviceHandle(mig, &is_mig));
    TRUE(is_mig);
    DO(nvmlDeviceGetUUID(mig, uuid, sizeof uuid));
    DO(nvmlDeviceGetName(mig, name, sizeof name));
    printf("  MIG device %u: %s %s\n", index, uuid, name);
    what = "a MIG device";
    DO(nvmlDeviceGetIndex(mig, &again));
    TRUE(again == index);
    DO(nvmlDeviceGetHandleByUUID(uuid, &other));
    TRUE(other == mig);
    DO(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &other));
    TRUE(other == gpu);
    DO(nvmlDeviceGetGpuInstanceId(mig, &gi));
    DO(nvmlDeviceGetComputeInstanceId(mig, &ci));
    DO(nvmlDeviceGetAttributes_v2(mig, &attributes));
    TRUE(attributes.compute_slices >= 1 && attributes.compute_slices <= attributes.gpu_slices);
    DO(nvmlDeviceGetMemoryInfo(gpu, &whole));
    DO(nvmlDeviceGetMemoryInfo(mig, &part));
    TRUE(part.total <= whole.total);
    if (geteuid() != 0) {
        IS(NO_PERMISSION, nvmlDeviceGetGpuInstanceById(gpu, gi, &instance));
        return;
    }
    DO(nvmlDeviceGetGpuInstanceById(gpu, gi, &instance));
    DO(nvmlGpuInstanceGetInfo(instance, &info));
    TRUE(info.device == gpu && info.id == gi && info.placement.size > 0);
    DO(nvmlGpuInstanceGetComputeInstanceById(instance, ci, &compute));
    DO(nvmlComputeInstanceGetInfo_v2(compute, &compute_info));
    TRUE(compute_info.device == gpu && compute_info.gpu_instance == instance && compute_info.id == ci);
    TRUE(find_profile(gpu, info.profile, &profile));
    DO(nvmlDeviceGetGpuInstances(gpu, info.profile, listed, &count));
    TRUE(count >= 1 && count <= profile.instances);
    again = 0;
    while (again < count && listed[again] != instance)
        again++;
    TRUE(again < count);
    TRUE(attributes.gpu_slices == profile.slices && attributes.memory == profile.memory);
    TRUE(compute_info.placement.size == attributes.compute_slices);
    again = 0;
    while (nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, again, 0, &compute_profile) != SUCCESS ||
           compute_profile.id != compute_info.profile)
        TRUE(++again < COUNT_OF_PROFILES);
    TRUE(compute_profile.slices == attributes.compute_slices);
    count = 64;
    DO(nvmlGpuInstanceGetComputeInstances(instance, compute_info.profile, listed, &count));
    TRUE(count >= 1 && count <= compute_profile.instances);
    IS(NOT_FOUND, nvmlDeviceGetGpuInstanceById(gpu, 99, &instance));
    IS(NOT_FOUND, nvmlGpuInstanceGetComputeInstanceById(instance, 99, &compute));
}

/* Checks the MIG devices of a GPU; returns their number. */
static unsigned check_migs(Device gpu)
{
    unsigned current, pending, slots, found = 0;
    unsigned result = nvmlDeviceGetMigMode(gpu, &current, &pending);
    struct gpu_profile profile;
    struct attributes attributes;
    GpuInstance instance;
    Device mig;

    TRUE(result == SUCCESS || result == NOT_SUPPORTED);
    DO(nvmlDeviceGetMaxMigDeviceCount(gpu, &slots));
    if (result == NOT_SUPPORTED || !current) {
        TRUE(slots == 0);
        TRUE(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mig) == (result ? NOT_SUPPORTED : NOT_FOUND));
        IS(NOT_SUPPORTED, nvmlDeviceGetGpuInstanceById(gpu, 0, &instance));
        IS(NOT_SUPPORTED, nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0, &profile));
    }
    IS(NOT_SUPPORTED, nvmlDeviceGetAttributes_v2(gpu, &attributes));
    for (unsigned slot = 0; slot < slots; slot++) {
        result = nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot, &mig);
        TRUE(result == SUCCESS || result == NOT_FOUND);
        if (result == SUCCESS) {
            check_mig(gpu, slot, mig);
            found++;
        }
    }
    return found;
}

static void check_links(Device gpu)
{
    unsigned active, result;
    struct pci remote;
    Device other;

    for (unsigned link = 0; link < MAX_LINKS; link++) {
        result = nvmlDeviceGetNvLinkState(gpu, link, &active);
        TRUE(result == SUCCESS || result == NOT_SUPPORTED || result == INVALID_ARGUMENT);
        if (result != SUCCESS || !active)
            continue;
        DO(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, link, &remote));
        DO(nvmlDeviceGetHandleByPciBusId_v2(remote.bus_id, &other));
        TRUE(other != gpu);
        printf("  link %u to %s\n", link, remote.bus_id);
    }
    IS(INVALID_ARGUMENT, nvmlDeviceGetNvLinkState(gpu, 1000, &active));
}

static void check_gpu(unsigned index, Device gpu)
{
    char uuid[96], name[96];
    unsigned again, is_mig, result;
    struct pci pci;
    Device other;

    DO(nvmlDeviceGetUUID(gpu, uuid, sizeof uuid));
    DO(nvmlDeviceGetName(gpu, name, sizeof name));
    IS(INSUFFICIENT_SIZE, nvmlDeviceGetName(gpu, name, 1));
    printf("GPU %u: %s %s\n", index, uuid, name);
    what = "a GPU";
    DO(nvmlDeviceGetIndex(gpu, &again));
    TRUE(again == index);
    DO(nvmlDeviceGetHandleByUUID(uuid, &other));
    TRUE(other == gpu);
    DO(nvmlDeviceIsMigDeviceHandle(gpu, &is_mig));
    TRUE(!is_mig);
    result = nvmlDeviceGetPciInfo_v3(gpu, &pci);
    if (result == SUCCESS) {
        DO(nvmlDeviceGetHandleByPciBusId_v2(pci.bus_id, &other));
        TRUE(other == gpu);
    }
    check_migs(gpu);
    check_links(gpu);
}

static void check_pair(Device one, Device other)
{
    unsigned status, again, level, count = 0, known = 0;
    Device near[128];

    for (unsigned index = 0; index < 5; index++) {
        DO(nvmlDeviceGetP2PStatus(one, other, index, &status));
        DO(nvmlDeviceGetP2PStatus(other, one, index, &again));
        TRUE(status == again);
    }
    IS(INVALID_ARGUMENT, nvmlDeviceGetP2PStatus(one, other, 99, &status));
    DO(nvmlDeviceGetTopologyCommonAncestor(one, other, &level));
    TRUE(level <= 50 && level % 10 == 0);
    DO(nvmlDeviceGetTopologyNearestGpus(one, level, &count, NULL));
    TRUE(count >= 1 && count <= 128);
    DO(nvmlDeviceGetTopologyNearestGpus(one, level, &count, near));
    for (unsigned i = 0; i < count; i++)
        known |= near[i] == other;
    TRUE(known);
}

/* Registers a GPU's critical errors and waits for one that this program causes. */
static void check_events(Device gpu, const char *path)
{
    unsigned long long types = 0;
    struct event event;
    char uuid[96];
    FILE *file;
    Set set;

    what = "events";
    DO(nvmlDeviceGetUUID(gpu, uuid, sizeof uuid));
    DO(nvmlDeviceGetSupportedEventTypes(gpu, &types));
    DO(nvmlEventSetCreate(&set));
    if (!(types & XID_CRITICAL_ERROR)) {
        IS(NOT_SUPPORTED, nvmlDeviceRegisterEvents(gpu, XID_CRITICAL_ERROR, set));
        DO(nvmlEventSetFree(set));
        return;
    }
    IS(INVALID_ARGUMENT, nvmlDeviceRegisterEvents(gpu, 1ull << 60, set));
    if (types != EVERY_EVENT)
        IS(NOT_SUPPORTED, nvmlDeviceRegisterEvents(gpu, EVERY_EVENT, set));
    DO(nvmlDeviceRegisterEvents(gpu, XID_CRITICAL_ERROR, set));
    IS(TIMEOUT, nvmlEventSetWait_v2(set, &event, 0));
    file = fopen(path, "a");
    TRUE(file);
    fprintf(file, "xid gpu=%s code=79\n", uuid);
    fclose(file);
    DO(nvmlEventSetWait_v2(set, &event, 60000));
    TRUE(event.device == gpu && event.type == XID_CRITICAL_ERROR && event.data == 79);
    TRUE(event.gpu_instance == 0xffffffff && event.compute_instance == 0xffffffff);
    IS(TIMEOUT, nvmlEventSetWait_v2(set, &event, 0));
    DO(nvmlEventSetFree(set));
    puts("an event arrived");
}

int main(int argc, char **argv)
{
    Device gpus[128], nothing;
    unsigned count, again;
    char version[80];

    if (argc != 3)
        return 2;
    load(argv[1]);
    IS(UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
    IS(UNINITIALIZED, nvmlShutdown());
    DO(nvmlInit_v2());
    DO(nvmlInit_v2());
    DO(nvmlShutdown());
    DO(nvmlSystemGetDriverVersion(version, sizeof version));
    IS(INSUFFICIENT_SIZE, nvmlSystemGetDriverVersion(version, 2));
    IS(INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL));
    DO(nvmlDeviceGetCount_v2(&count));
    TRUE(count <= 128);
    IS(INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(count, &nothing));
    IS(INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(NULL, &nothing));
    IS(NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000", &nothing));
    IS(NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("0000FFFF:FF:1F.0", &nothing));
    IS(INVALID_ARGUMENT, nvmlDeviceGetName(NULL, version, sizeof version));
    for (unsigned index = 0; index < count; index++) {
        what = "a GPU";
        DO(nvmlDeviceGetHandleByIndex_v2(index, &gpus[index]));
        check_gpu(index, gpus[index]);
    }
    for (unsigned one = 0; one < count; one++)
        for (unsigned other = one + 1; other < count; other++)
            check_pair(gpus[one], gpus[other]);
    for (unsigned index = 0; index < count; index++)
        check_events(gpus[index], argv[2]);
    DO(nvmlShutdown());
    IS(UNINITIALIZED, nvmlDeviceGetCount_v2(&again));
    return 0;
}
