/*
 * A simulated libnvidia-ml.so.1: answers from a profile file instead of asking a driver.
 *
 * The file is /etc/nvidia-sim/profile in the root the library is loaded in, which is the driver root: libnvc's query
 * process loads NVML after its chroot. One statement a line; `#` starts a comment line:
 *
 *   driver=535.261.03          cuda=12020
 *   gpu minor=0 bus=0000:3b:00.0 cc=8.6 brand=14 mig=unsupported|off|on uuid=GPU-... name=TO THE END OF THE LINE
 *                              bus=none and minor=none: a GPU that is no PCI device
 *   mig gpu=1 slot=0 gi=1 ci=0 uuid=MIG-... name=TO THE END OF THE LINE       gpu counts `gpu` lines from 0
 *   fail=SYMBOL:CODE[:GPU]     the entry point returns CODE, for every GPU or for that one
 *   crash-at=SYMBOL[:GPU]      it aborts the process      hang-at=SYMBOL[:GPU]   it never returns
 *   exit-at=SYMBOL:STATUS[:GPU]  it ends the process      slow-at=SYMBOL:MS[:GPU]  it takes so long
 *   garbage=SYMBOL[:GPU]       it succeeds with nonsense: strings without an end, huge numbers, a handle to nothing
 *   null=SYMBOL[:GPU]          it succeeds with a null handle
 *   missing=SYMBOL             for the builder, which leaves the entry point out by -DSYMBOL=absent_SYMBOL
 *   drm, channel, module, node  for the builder (src/profile/hardware.rs)
 *
 * SYMBOL is one of the entry points below or, for crash-at and hang-at, `load`: while the library is being loaded.
 * These are exactly the entry points libnvc uses; a program that wants another finds it missing. What monitoring asks for
 * is at the end, with a file of its own.
 *
 * Each initialisation adds a line with its user and group to /etc/nvidia-sim/users, if that file exists.
 *
 * -DPROFILE="PATH" reads another file. -DEXTENSION="FILE" includes C code with a function `extension(symbol, gpu)`, which
 * runs at each entry point and whose result, if it is not 0, the entry point returns.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PROFILE
#define PROFILE "/etc/nvidia-sim/profile"
#endif
#define USERS "/etc/nvidia-sim/users"

enum { MAX_GPUS = 128, MAX_MIGS = 1024, MAX_FAULTS = 64, MAX_SLOTS = 64 };
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9 };
enum mode { MIG_UNSUPPORTED, MIG_OFF, MIG_ON };

typedef int Result;

/* The target of a handle: a GPU, or one of its MIG devices. */
struct device {
    int gpu;
    int is_mig;
    char name[96], uuid[96];
    unsigned minor, domain, bus, slot_on_bus; /* of a GPU */
    int no_minor, no_pci;
    int major_capability, minor_capability;
    unsigned brand;
    enum mode mig;
    unsigned slot, gpu_instance, compute_instance; /* of a MIG device */
};
typedef struct device *Device;

struct fault {
    char kind[16], symbol[64];
    int code, gpu; /* gpu -1: any */
};

static char driver_version[80];
static int cuda_version;
static struct device gpus[MAX_GPUS], migs[MAX_MIGS];
static struct fault faults[MAX_FAULTS];
static int gpu_count, mig_count, fault_count;

/* ---- the profile ---- */

/* Value of KEY=VALUE in a line; `name` runs to the end of the line. */
static int word(const char *line, const char *key, char *value, size_t size)
{
    char wanted[32];
    const char *found;
    size_t length;

    snprintf(wanted, sizeof wanted, " %s=", key);
    if (!(found = strstr(line, wanted)))
        return 0;
    found += strlen(wanted);
    length = strcmp(key, "name") ? strcspn(found, " ") : strlen(found);
    if (length >= size)
        length = size - 1;
    memcpy(value, found, length);
    value[length] = 0;
    return 1;
}

static unsigned number(const char *line, const char *key)
{
    char value[32];
    return word(line, key, value, sizeof value) ? (unsigned)strtoul(value, NULL, 10) : 0;
}

static void add_gpu(const char *line)
{
    struct device *d = &gpus[gpu_count];
    char value[64];

    if (gpu_count == MAX_GPUS)
        return;
    d->gpu = gpu_count++;
    word(line, "name", d->name, sizeof d->name);
    word(line, "uuid", d->uuid, sizeof d->uuid);
    d->minor = number(line, "minor");
    d->no_minor = word(line, "minor", value, sizeof value) && !strcmp(value, "none");
    d->brand = number(line, "brand");
    if (word(line, "bus", value, sizeof value) && !(d->no_pci = !strcmp(value, "none")))
        sscanf(value, "%x:%x:%x", &d->domain, &d->bus, &d->slot_on_bus);
    if (word(line, "cc", value, sizeof value))
        sscanf(value, "%d.%d", &d->major_capability, &d->minor_capability);
    if (word(line, "mig", value, sizeof value))
        d->mig = !strcmp(value, "on") ? MIG_ON : !strcmp(value, "off") ? MIG_OFF : MIG_UNSUPPORTED;
}

static void add_mig(const char *line)
{
    struct device *d = &migs[mig_count];

    if (mig_count == MAX_MIGS)
        return;
    mig_count++;
    d->is_mig = 1;
    d->gpu = (int)(number(line, "gpu") % MAX_GPUS);
    d->slot = number(line, "slot");
    d->gpu_instance = number(line, "gi");
    d->compute_instance = number(line, "ci");
    word(line, "name", d->name, sizeof d->name);
    word(line, "uuid", d->uuid, sizeof d->uuid);
}

static void add_fault(const char *line)
{
    struct fault *f = &faults[fault_count];
    int first = -1, second = -1;

    if (fault_count == MAX_FAULTS || sscanf(line, "%15[^=]=%63[^:]:%d:%d", f->kind, f->symbol, &first, &second) < 2)
        return;
    fault_count++;
    if (!strcmp(f->kind, "fail") || !strcmp(f->kind, "exit-at") || !strcmp(f->kind, "slow-at")) {
        f->code = first;
        f->gpu = second;
    } else {
        f->gpu = first;
    }
}

static int read_profile(void)
{
    char line[512];
    FILE *file = fopen(PROFILE, "re");

    if (!file)
        return 0;
    gpu_count = mig_count = fault_count = 0;
    memset(gpus, 0, sizeof gpus);
    memset(migs, 0, sizeof migs);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "driver=", 7))
            snprintf(driver_version, sizeof driver_version, "%.79s", line + 7);
        else if (!strncmp(line, "cuda=", 5))
            cuda_version = atoi(line + 5);
        else if (!strncmp(line, "gpu ", 4))
            add_gpu(line);
        else if (!strncmp(line, "mig ", 4))
            add_mig(line);
        else if (line[0] != '#')
            add_fault(line);
    }
    fclose(file);
    return 1;
}

/* ---- faults ---- */

static struct fault *fault(const char *kind, const char *symbol, int gpu)
{
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, kind) && !strcmp(faults[i].symbol, symbol) &&
            (faults[i].gpu < 0 || faults[i].gpu == gpu))
            return &faults[i];
    return NULL;
}

#ifdef EXTENSION
#include EXTENSION
#else
static Result extension(const char *symbol, int gpu)
{
    (void)symbol;
    (void)gpu;
    return OK;
}
#endif

static Result misbehave(const char *symbol, int gpu)
{
    struct fault *f;
    Result wanted = extension(symbol, gpu);

    if (wanted)
        return wanted;
    if (fault("crash-at", symbol, gpu))
        abort();
    if ((f = fault("exit-at", symbol, gpu)))
        exit(f->code);
    if ((f = fault("slow-at", symbol, gpu)))
        usleep((unsigned)f->code * 1000);
    if (fault("hang-at", symbol, gpu))
        for (;;)
            pause();
    return (f = fault("fail", symbol, gpu)) ? f->code : OK;
}

#define ENTER(gpu)                                                                                                     \
    do {                                                                                                               \
        Result wanted = misbehave(__func__, gpu);                                                                      \
        if (wanted)                                                                                                    \
            return wanted;                                                                                             \
    } while (0)

#define GARBAGE(gpu) fault("garbage", __func__, gpu)

__attribute__((constructor)) static void load(void)
{
    if (read_profile())
        misbehave("load", -1);
}

static int is_device(Device d)
{
    return (d >= gpus && d < gpus + gpu_count) || (d >= migs && d < migs + mig_count);
}

static Result text(char *buffer, unsigned size, const char *s, int garbage)
{
    if (garbage) {
        memset(buffer, 0xfe, size);
        return OK;
    }
    if (strlen(s) >= size)
        return TOO_SMALL;
    strcpy(buffer, s);
    return OK;
}

/* ---- library and system ---- */

static void record_user(void)
{
    int file = open(USERS, O_WRONLY | O_APPEND | O_CLOEXEC);

    if (file >= 0) {
        dprintf(file, "%u:%u\n", (unsigned)geteuid(), (unsigned)getegid());
        close(file);
    }
}

Result nvmlInit_v2(void)
{
    record_user();
    if (!read_profile())
        return NOT_LOADED;
    ENTER(-1);
    return OK;
}

Result nvmlShutdown(void)
{
    ENTER(-1);
    return OK;
}

const char *nvmlErrorString(Result r)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch"};

    misbehave(__func__, -1);
    return r >= 0 && r < (Result)(sizeof texts / sizeof *texts) ? texts[r] : "Unknown Error";
}

Result nvmlSystemGetDriverVersion(char *buffer, unsigned size)
{
    ENTER(-1);
    return text(buffer, size, driver_version, !!GARBAGE(-1));
}

Result nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(-1);
    *version = GARBAGE(-1) ? -1 : cuda_version;
    return OK;
}

/* ---- GPUs ---- */

Result nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(-1);
    *count = GARBAGE(-1) ? 0xfffffff0u : (unsigned)gpu_count;
    return OK;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *d)
{
    ENTER((int)index);
    if (index >= (unsigned)gpu_count)
        return INVALID_ARGUMENT;
    *d = GARBAGE((int)index) ? (Device)0x10 : fault("null", __func__, (int)index) ? NULL : &gpus[index];
    return OK;
}

#define ENTER_DEVICE(d)                                                                                                \
    if (!is_device(d))                                                                                                 \
        return INVALID_ARGUMENT;                                                                                       \
    ENTER((d)->gpu)

Result nvmlDeviceGetMinorNumber(Device d, unsigned *minor)
{
    ENTER_DEVICE(d);
    if (d->is_mig || d->no_minor)
        return NOT_SUPPORTED;
    *minor = GARBAGE(d->gpu) ? 0xffffffffu : d->minor;
    return OK;
}

/* The unversioned entry point fills the oldest form of the structure. */
struct pci {
    char bus_id[16];
    unsigned domain, bus, device, pci_device_id, reserved[4];
};

Result nvmlDeviceGetPciInfo(Device d, struct pci *p)
{
    ENTER_DEVICE(d);
    if (d->is_mig || d->no_pci)
        return NOT_SUPPORTED;
    memset(p, GARBAGE(d->gpu) ? 0xfe : 0, sizeof *p);
    if (GARBAGE(d->gpu))
        return OK;
    snprintf(p->bus_id, sizeof p->bus_id, "%04X:%02X:%02X.0", d->domain & 0xffff, d->bus & 0xff,
             d->slot_on_bus & 0xff);
    p->domain = d->domain;
    p->bus = d->bus;
    p->device = d->slot_on_bus;
    p->pci_device_id = 0x223610de;
    return OK;
}

Result nvmlDeviceGetUUID(Device d, char *buffer, unsigned size)
{
    ENTER_DEVICE(d);
    return text(buffer, size, d->uuid, !!GARBAGE(d->gpu));
}

Result nvmlDeviceGetName(Device d, char *buffer, unsigned size)
{
    ENTER_DEVICE(d);
    return text(buffer, size, d->name, !!GARBAGE(d->gpu));
}

Result nvmlDeviceGetBrand(Device d, unsigned *brand)
{
    ENTER_DEVICE(d);
    *brand = GARBAGE(d->gpu) ? 0xffffffffu : gpus[d->gpu].brand;
    return OK;
}

Result nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor)
{
    ENTER_DEVICE(d);
    *major = GARBAGE(d->gpu) ? -1 : gpus[d->gpu].major_capability;
    *minor = GARBAGE(d->gpu) ? -1 : gpus[d->gpu].minor_capability;
    return OK;
}

/* ---- MIG ---- */

Result nvmlDeviceGetMigMode(Device d, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(d);
    if (d->is_mig || d->mig == MIG_UNSUPPORTED)
        return NOT_SUPPORTED;
    *current = *pending = GARBAGE(d->gpu) ? 0xffffffffu : d->mig == MIG_ON;
    return OK;
}

/* As many slots as there are on an A100, or more if the profile fills more. */
Result nvmlDeviceGetMaxMigDeviceCount(Device d, unsigned *count)
{
    unsigned slots = 7;

    ENTER_DEVICE(d);
    if (d->is_mig || d->mig == MIG_UNSUPPORTED)
        slots = 0;
    else
        for (int i = 0; i < mig_count; i++)
            if (migs[i].gpu == d->gpu && migs[i].slot >= slots)
                slots = migs[i].slot + 1;
    *count = GARBAGE(d->gpu) ? 0xfffffff0u : slots;
    return OK;
}

Result nvmlDeviceGetMigDeviceHandleByIndex(Device d, unsigned slot, Device *mig)
{
    ENTER_DEVICE(d);
    if (d->is_mig || d->mig != MIG_ON)
        return NOT_SUPPORTED;
    for (int i = 0; i < mig_count; i++)
        if (migs[i].gpu == d->gpu && migs[i].slot == slot) {
            *mig = GARBAGE(d->gpu) ? (Device)0x10 : &migs[i];
            return OK;
        }
    return NOT_FOUND;
}

Result nvmlDeviceGetGpuInstanceId(Device d, unsigned *id)
{
    ENTER_DEVICE(d);
    if (!d->is_mig)
        return NOT_SUPPORTED;
    *id = GARBAGE(d->gpu) ? 0xffffffffu : d->gpu_instance;
    return OK;
}

Result nvmlDeviceGetComputeInstanceId(Device d, unsigned *id)
{
    ENTER_DEVICE(d);
    if (!d->is_mig)
        return NOT_SUPPORTED;
    *id = GARBAGE(d->gpu) ? 0xffffffffu : d->compute_instance;
    return OK;
}

/* ---- what GPUs do: from /etc/nvidia-sim/readings, read at each call ----
 *
 * Lines KEY=VALUE or KEY.N=VALUE for GPU N; a value `!E` makes the call fail with code E, `hang` makes it wait forever,
 * `crash` aborts the process. Keys that are missing have the values below. PIDs of processes: `processes=PID:BYTES+…`,
 * their names `process.PID=NAME`.
 */
#define READINGS "/etc/nvidia-sim/readings"

/* Value of a key for a GPU; `otherwise` if there is none. */
static const char *reading(const char *key, int gpu, const char *otherwise, char *value, size_t size)
{
    char line[512], own[64], any[64];
    FILE *file = fopen(READINGS, "re");

    snprintf(value, size, "%s", otherwise);
    if (!file)
        return value;
    snprintf(own, sizeof own, "%s.%d=", key, gpu);
    snprintf(any, sizeof any, "%s=", key);
    for (int special = 0; fgets(line, sizeof line, file);) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, own, strlen(own))) {
            snprintf(value, size, "%s", line + strlen(own));
            special = 1;
        } else if (!special && !strncmp(line, any, strlen(any))) {
            snprintf(value, size, "%s", line + strlen(any));
        }
    }
    fclose(file);
    if (!strcmp(value, "crash"))
        abort();
    while (!strcmp(value, "hang"))
        pause();
    return value;
}

static Result wide(Device d, const char *key, const char *otherwise, unsigned long long *out)
{
    char value[512];

    if (!is_device(d))
        return INVALID_ARGUMENT;
    reading(key, d->gpu, otherwise, value, sizeof value);
    if (*value == '!')
        return atoi(value + 1);
    *out = strtoull(value, NULL, 10);
    return OK;
}

static Result narrow(Device d, const char *key, const char *otherwise, unsigned *out)
{
    unsigned long long value = 0;
    Result r = wide(d, key, otherwise, &value);

    if (r == OK)
        *out = (unsigned)value;
    return r;
}

#define ONE(function, key, otherwise)                                                                                  \
    Result function(Device d, unsigned *n) { return narrow(d, key, otherwise, n); }

ONE(nvmlDeviceGetPowerManagementLimit, "limit", "300000")
ONE(nvmlDeviceGetPowerUsage, "power", "61500")
ONE(nvmlDeviceGetMaxPcieLinkGeneration, "gen", "4")
ONE(nvmlDeviceGetMaxPcieLinkWidth, "width", "16")

Result nvmlDeviceGetMaxClockInfo(Device d, unsigned clock, unsigned *n)
{
    return clock == 2 ? narrow(d, "maxmem", "7251", n) : narrow(d, "maxsm", "1740", n);
}

Result nvmlDeviceGetClockInfo(Device d, unsigned clock, unsigned *n)
{
    return clock == 2 ? narrow(d, "mem", "6251", n) : narrow(d, "sm", "885", n);
}

Result nvmlDeviceGetTemperature(Device d, unsigned sensor, unsigned *n)
{
    return sensor ? INVALID_ARGUMENT : narrow(d, "temperature", "41", n);
}

Result nvmlDeviceGetUtilizationRates(Device d, unsigned *rates)
{
    Result r = narrow(d, "busy", "12", &rates[0]);
    return r ? r : narrow(d, "busymem", "5", &rates[1]);
}

Result nvmlDeviceGetEncoderUtilization(Device d, unsigned *n, unsigned *period)
{
    *period = 167000;
    return narrow(d, "encoder", "0", n);
}

Result nvmlDeviceGetDecoderUtilization(Device d, unsigned *n, unsigned *period)
{
    *period = 167000;
    return narrow(d, "decoder", "0", n);
}

/* total, free, used; a MIG device has a seventh of its GPU */
static Result memory(Device d, const char *total, const char *if_no_total, const char *used, const char *if_not_used,
                     unsigned long long *out)
{
    Result r = wide(d, total, if_no_total, &out[0]);

    if (r || (r = wide(d, used, if_not_used, &out[2])))
        return r;
    if (d->is_mig) {
        out[0] /= 7;
        out[2] /= 7;
    }
    out[1] = out[0] - out[2];
    return OK;
}

Result nvmlDeviceGetMemoryInfo(Device d, unsigned long long *out)
{
    return memory(d, "total", "25769803776", "used", "1073741824", out);
}

Result nvmlDeviceGetBAR1MemoryInfo(Device d, unsigned long long *out)
{
    return memory(d, "bar1", "34359738368", "bar1used", "2097152", out);
}

Result nvmlDeviceGetMemoryErrorCounter(Device d, unsigned type, unsigned counter, unsigned location,
                                       unsigned long long *n)
{
    static const char *const keys[] = {"eccl1", "eccl2", "eccmem"};

    if (type != 1 || counter || location > 2)
        return INVALID_ARGUMENT;
    return wide(d, keys[location], "0", n);
}

/* 0 is what the GPU sends; the real one measures for 20 ms. */
Result nvmlDeviceGetPcieThroughput(Device d, unsigned which, unsigned *n)
{
    return which ? narrow(d, "rx", "1500", n) : narrow(d, "tx", "20", n);
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, void *out)
{
    struct process {
        unsigned pid;
        unsigned long long memory;
        unsigned gpu_instance, compute_instance;
    } *processes = out;
    char value[4096], *rest = value;
    unsigned room = *count, n = 0;

    if (!is_device(d))
        return INVALID_ARGUMENT;
    reading("processes", d->gpu, "", value, sizeof value);
    if (*value == '!')
        return atoi(value + 1);
    for (; *rest; n++) {
        unsigned pid = (unsigned)strtoul(rest, &rest, 10);
        unsigned long long used = *rest == ':' ? strtoull(rest + 1, &rest, 10) : 0;

        if (n < room)
            processes[n] = (struct process){pid, used, ~0u, ~0u};
        rest += *rest == '+';
    }
    *count = n;
    return n > room ? TOO_SMALL : OK;
}

Result nvmlSystemGetProcessName(unsigned pid, char *buffer, unsigned size)
{
    char value[512];

    reading("process", (int)pid, "!6", value, sizeof value);
    if (*value == '!')
        return atoi(value + 1);
    snprintf(buffer, size, "%s", value);
    return OK;
}

Result nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int *level)
{
    unsigned value = 0;
    Result r = is_device(b) ? narrow(a, "level", "30", &value) : INVALID_ARGUMENT;

    *level = (int)value;
    return r;
}
