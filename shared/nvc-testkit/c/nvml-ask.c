/*
 * Calls functions of NVML and prints their answers, for tests/answers.rs.
 *
 *     nvml-ask LIBRARY [NODE...]        NODE: may not be opened, as if by the device cgroup
 *
 * Reads calls, one a line: the function, then its arguments. gpu0 is the handle of a GPU by its index, mig0 that of a MIG
 * device of GPU 0, gi0 and ci0 are the instances of that MIG device, `null` is a null pointer, all else is a number or a
 * text. Prints a line for each: the error, or the results; handles by what they denote.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <fcntl.h>

typedef unsigned (*Function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
enum { MISSING = 13, MAX_RESULTS = 3 };

/*
 * Parameters: d device, i GPU instance, c compute instance, u number, s text, e a new event set; results: U number,
 * L wide number, I int, T text and its size, D device, G GPU instance, C compute instance, P PCI information, A attributes,
 * F profile of GPU instances, V the same with a version, K profile of compute instances, N and M what is known of
 * instances, W an event, H a number after its version.
 */
static const struct function { const char *name, *parameters; } functions[] = {
    {"nvmlInit_v2", ""}, {"nvmlShutdown", ""},
    {"nvmlSystemGetDriverVersion", "T"}, {"nvmlSystemGetCudaDriverVersion", "I"},
    {"nvmlDeviceGetCount_v2", "U"}, {"nvmlDeviceGetHandleByIndex_v2", "uD"}, {"nvmlDeviceGetHandleByUUID", "sD"},
    {"nvmlDeviceGetHandleByPciBusId_v2", "sD"}, {"nvmlDeviceGetName", "dT"}, {"nvmlDeviceGetUUID", "dT"},
    {"nvmlDeviceGetBrand", "dU"}, {"nvmlDeviceGetIndex", "dU"}, {"nvmlDeviceGetMinorNumber", "dU"},
    {"nvmlDeviceGetPciInfo_v3", "dP"}, {"nvmlDeviceGetCudaComputeCapability", "dII"}, {"nvmlDeviceGetMigMode", "dUU"},
    {"nvmlDeviceGetMaxMigDeviceCount", "dU"}, {"nvmlDeviceGetMigDeviceHandleByIndex", "duD"},
    {"nvmlDeviceIsMigDeviceHandle", "dU"}, {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "dD"},
    {"nvmlDeviceGetGpuInstanceId", "dU"}, {"nvmlDeviceGetComputeInstanceId", "dU"},
    {"nvmlDeviceGetAttributes_v2", "dA"}, {"nvmlDeviceGetGpuInstanceById", "duG"}, {"nvmlGpuInstanceGetInfo", "iN"},
    {"nvmlGpuInstanceGetComputeInstanceById", "iuC"}, {"nvmlComputeInstanceGetInfo_v2", "cM"},
    {"nvmlDeviceGetGpuInstanceProfileInfo", "duF"}, {"nvmlDeviceGetGpuInstanceProfileInfoV", "duV"},
    {"nvmlGpuInstanceGetComputeInstanceProfileInfo", "iuuK"}, {"nvmlDeviceGetSupportedEventTypes", "dL"},
    {"nvmlDeviceRegisterEvents", "due"}, {"nvmlEventSetWait_v2", "eWu"}, {"nvmlDeviceGetNvLinkState", "duU"},
    {"nvmlDeviceGetNvLinkRemoteDeviceType", "duU"}, {"nvmlDeviceGetNvLinkRemotePciInfo_v2", "duP"},
    {"nvmlDeviceGetP2PStatus", "dduU"}, {"nvmlDeviceGetPowerUsage", "dU"},
    {"nvmlDeviceGetPersistenceMode", "dU"}, {"nvmlDeviceGetNumGpuCores", "dU"},
    {"nvmlDeviceGetPowerManagementLimit", "dU"}, {"nvmlDeviceGetMaxPcieLinkGeneration", "dU"},
    {"nvmlDeviceGetMaxPcieLinkWidth", "dU"}, {"nvmlDeviceGetAddressingMode", "dH"}, {"nvmlDeviceGetBBXTimeData_v1", "dU"},
    {"nvmlDeviceGetArchitecture", "dU"}, {"nvmlDeviceGetAttributes", "dA"}, {"nvmlDeviceOnSameBoard", "ddI"},
};

static void *library;
static char **forbidden;

/* What NVML opens; a forbidden node fails as it does in a device cgroup. */
int open(const char *path, int flags, ...)
{
    va_list rest;
    int mode;

    va_start(rest, flags);
    mode = flags & O_CREAT ? va_arg(rest, int) : 0;
    va_end(rest);
    for (char **name = forbidden; name && *name; name++)
        if (strrchr(path, '/') && !strcmp(strrchr(path, '/') + 1, *name)) {
            errno = EPERM;
            return -1;
        }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static unsigned call(const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e)
{
    Function function;

    *(void **)&function = dlsym(library, name);
    return function ? function(a, b, c, d, e) : MISSING;
}

/* A handle of a word, or the error of getting it. */
static unsigned handle(const char *word, uintptr_t *out)
{
    uintptr_t mig, instance, gpu;
    unsigned id = 0, r;

    *out = 0;
    if (!strcmp(word, "null"))
        return 0;
    if (!strncmp(word, "gpu", 3))
        return call("nvmlDeviceGetHandleByIndex_v2", (uintptr_t)atoi(word + 3), (uintptr_t)out, 0, 0, 0);
    r = call("nvmlDeviceGetHandleByIndex_v2", 0, (uintptr_t)&gpu, 0, 0, 0);
    if (!r)
        r = call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, (uintptr_t)atoi(word + (*word == 'm' ? 3 : 2)),
                 (uintptr_t)(*word == 'm' ? out : &mig), 0, 0);
    if (r || *word == 'm')
        return r;
    call("nvmlDeviceGetGpuInstanceId", mig, (uintptr_t)&id, 0, 0, 0);
    r = call("nvmlDeviceGetGpuInstanceById", gpu, id, (uintptr_t)(*word == 'g' ? out : &instance), 0, 0);
    if (r || *word == 'g')
        return r;
    call("nvmlDeviceGetComputeInstanceId", mig, (uintptr_t)&id, 0, 0, 0);
    return call("nvmlGpuInstanceGetComputeInstanceById", instance, id, (uintptr_t)out, 0, 0);
}

static void print_device(uintptr_t device)
{
    char uuid[96] = "";

    call("nvmlDeviceGetUUID", device, (uintptr_t)uuid, sizeof uuid, 0, 0);
    printf(" %s", uuid);
}

struct result {
    char kind;
    union {
        unsigned u[32];
        unsigned long long l;
        int i;
        char text[256];
        uintptr_t handle;
        struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
        struct { unsigned u[8]; unsigned long long memory; } attributes;
        struct { unsigned u[10]; unsigned long long memory; } profile;
        struct { unsigned u[11]; unsigned long long memory; char name[96]; } versioned;
        struct { uintptr_t device; unsigned id, profile, start, size; } gpu_instance;
        struct { uintptr_t device, instance; unsigned id, profile, start, size; } compute_instance;
        struct { uintptr_t device; unsigned long long type, data; unsigned gi, ci; } event;
    } value;
};

static void print_result(const struct result *r)
{
    switch (r->kind) {
    case 'U': printf(" %u", r->value.u[0]); break;
    case 'H': printf(" %u", r->value.u[1]); break;
    case 'L': printf(" %#llx", r->value.l); break;
    case 'I': printf(" %d", r->value.i); break;
    case 'T': printf(" %s", r->value.text); break;
    case 'D': print_device(r->value.handle); break;
    case 'P': printf(" %s", r->value.pci.bus_id); break;
    case 'A':
        printf(" %u of %u slices, %llu MiB", r->value.attributes.u[7], r->value.attributes.u[6],
               r->value.attributes.memory);
        break;
    case 'F':
        printf(" id %u, %u slices, %u at most, %llu MiB", r->value.profile.u[0], r->value.profile.u[2],
               r->value.profile.u[3], r->value.profile.memory);
        break;
    case 'V': printf(" id %u, %s", r->value.versioned.u[1], r->value.versioned.name); break;
    case 'K': printf(" id %u, %u slices, %u at most", r->value.u[0], r->value.u[1], r->value.u[2]); break;
    case 'N':
        print_device(r->value.gpu_instance.device);
        printf(" id %u, profile %u, at %u+%u", r->value.gpu_instance.id, r->value.gpu_instance.profile,
               r->value.gpu_instance.start, r->value.gpu_instance.size);
        break;
    case 'M':
        print_device(r->value.compute_instance.device);
        printf(" id %u, profile %u, at %u+%u", r->value.compute_instance.id, r->value.compute_instance.profile,
               r->value.compute_instance.start, r->value.compute_instance.size);
        break;
    case 'W': printf(" %#llx %llu", r->value.event.type, r->value.event.data); break;
    }
}

static const char *error_name(unsigned code)
{
    static const char *const names[] = {
        "SUCCESS", "UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "ALREADY_INITIALIZED",
        "NOT_FOUND", "INSUFFICIENT_SIZE", "INSUFFICIENT_POWER", "DRIVER_NOT_LOADED", "TIMEOUT", "IRQ_ISSUE",
        "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "GPU_IS_LOST"};

    return code < sizeof names / sizeof *names ? names[code] : "UNKNOWN";
}

/* Calls a function with the words of a line as its parameters; a word `null` stands for a result, too. */
static void ask(const char *parameters, const char *name, char **words)
{
    static struct result results[MAX_RESULTS];
    uintptr_t arguments[5] = {0};
    int n = 0, count = 0;
    unsigned r;

    memset(results, 0, sizeof results);
    for (const char *p = parameters; *p; p++) {
        struct result *result = &results[count];

        if (strchr("dicuse", *p) && *p != 'e' && !*words) {
            puts("too few arguments");
            return;
        }
        if (*p == 's') {
            arguments[n++] = strcmp(*words, "null") ? (uintptr_t)*words : 0;
            words++;
        } else if (*p == 'u') {
            arguments[n++] = strtoull(*words++, NULL, 0);
        } else if (*p == 'e') {
            call("nvmlEventSetCreate", (uintptr_t)&arguments[n++], 0, 0, 0, 0);
        } else if (strchr("dic", *p)) {
            if ((r = handle(*words++, &arguments[n++]))) {
                printf("no handle: %s\n", error_name(r));
                return;
            }
        } else {
            result->kind = *p;
            if (*p == 'V')
                result->value.versioned.u[0] = (unsigned)sizeof result->value.versioned | 2u << 24;
            if (*p == 'H')
                result->value.u[0] = 8 | 1u << 24;
            arguments[n++] = *words && !strcmp(*words, "null") ? 0 : (uintptr_t)&result->value;
            if (*p == 'T')
                arguments[n++] = *words && strcmp(*words, "null") ? strtoul(*words, NULL, 0) : 256;
            count++;
        }
    }
    r = call(name, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
    printf("%s", error_name(r));
    for (int i = 0; i < count && !r; i++)
        print_result(&results[i]);
    puts("");
}

int main(int argc, char **argv)
{
    char line[512], *words[8];

    if (argc < 2 || !(library = dlopen(argv[1], RTLD_NOW))) {
        fprintf(stderr, "nvml-ask: %s\n", argc < 2 ? "no library" : dlerror());
        return 2;
    }
    forbidden = argv + 2;
    while (fgets(line, sizeof line, stdin)) {
        const char *parameters = NULL;
        int count = 0;

        for (char *word = strtok(line, " \n"); word && count < 7; word = strtok(NULL, " \n"))
            words[count++] = word;
        words[count] = NULL;
        for (size_t i = 0; count && i < sizeof functions / sizeof *functions; i++)
            if (!strcmp(functions[i].name, words[0]))
                parameters = functions[i].parameters;
        if (parameters)
            ask(parameters, words[0], words + 1);
        else
            puts("not a function of the table");
        fflush(stdout);
    }
    return 0;
}
