/*
 * A simulated libnvidia-ml.so.1: answers from a profile file instead of asking a driver.
 *
 * The file is /etc/nvidia-sim/profile in the root the library is loaded in, which is the driver root: libnvc's query
 * process loads NVML after its chroot. One statement a line; `#` starts a comment line:
 *
 *   driver=535.261.03          cuda=12020
 *   init-ms=10                 nvmlInit takes so long     attach-ms=7            so does a GPU's first handle in a process
 *   gpu minor=0 bus=0000:3b:00.0 cc=8.6 brand=14 mig=unsupported|off|on uuid=GPU-... name=TO THE END OF THE LINE
 *                              bus=none and minor=none: a GPU that is no PCI device; excluded=yes: NVML does not list it
 *   mig gpu=1 slot=0 gi=1 ci=0 uuid=MIG-... name=TO THE END OF THE LINE       gpu counts `gpu` lines from 0
 *   fail=SYMBOL:CODE[:GPU]     the entry point returns CODE, for every GPU or for that one
 *   crash-at=SYMBOL[:GPU]      it aborts the process      hang-at=SYMBOL[:GPU]   it never returns
 *   exit-at=SYMBOL:STATUS[:GPU]  it ends the process      slow-at=SYMBOL:MS[:GPU]  it takes so long
 *   garbage=SYMBOL[:GPU]       it succeeds with nonsense: strings without an end, huge numbers, a handle to nothing
 *   null=SYMBOL[:GPU]          it succeeds with a null handle
 *   missing=SYMBOL             for the builder, which leaves the entry point out by -DSYMBOL=absent_SYMBOL
 *   lost=GPU                   it has fallen off the bus; lost-later=GPU: after its handle was taken
 *   nvlink gpu=0 link=3 to=1   a link to that GPU, or to=switch
 *   drm, channel, module, node  for the builder (src/profile/hardware.rs)
 *   lenient=yes                it needs no /dev/nvidiactl; without, as the driver's, it says that no driver is loaded
 *   only, libraries, file, ...  for the builder (src/profile/layout.rs)
 *
 * SYMBOL is one of the entry points below or, for crash-at and hang-at, `load`: while the library is being loaded.
 *
 * The answers are those that the comments of nvml.h 11.8 promise; tests/answers.table lists them, and the sources of what
 * is newer. As the driver does, NVML hides a GPU whose node /dev/nvidiaN may not be opened because of the device cgroup
 * (EPERM), and numbers the others without it. Any other failure hides nothing: behind the nodes there is no driver.
 *
 * This file has the profile and the faults, gpus.c GPUs and handles of MIG devices, instances.c GPU and compute instances,
 * events.c events, links.c what connects GPUs, readings.c what monitoring asks for. They are compiled as one.
 *
 * Each initialisation adds a line with its user and group to /etc/nvidia-sim/users, if that file exists; the first handle
 * of a GPU in a process, which attaches it, its UUID to /etc/nvidia-sim/attached.
 *
 * -DPROFILE="PATH" reads another file, as do -DEVENTS and -DREADINGS; -DNODES="PATH" looks for nodes elsewhere than in
 * /dev. -DEXTENSION="FILE" includes C code with a function `extension(symbol, gpu)`, which
 * runs at each entry point and whose result, if it is not 0, the entry point returns.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef PROFILE
#define PROFILE "/etc/nvidia-sim/profile"
#endif
#define USERS "/etc/nvidia-sim/users"
#define ATTACHED "/etc/nvidia-sim/attached"
#ifndef NODES
#define NODES "/dev"
#endif

enum { MAX_GPUS = 128, MAX_MIGS = 1024, MAX_FAULTS = 64, MAX_LINKS = 18 };
enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
    NOT_LOADED = 9, TIMED_OUT = 10, LOST = 15
};
enum mode { MIG_UNSUPPORTED, MIG_OFF, MIG_ON };

typedef int Result;

/* The target of a handle: a GPU, or one of its MIG devices. */
struct device {
    int gpu;   /* counts the profile's lines */
    int index; /* NVML's, of a GPU; -1 if it is hidden */
    int is_mig;
    int is_lost, will_be_lost, is_excluded;
    int links[MAX_LINKS]; /* of a GPU: 0 none, -1 to a switch, N to the GPU of line N - 1 */
    int has_links;
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
static int visible[MAX_GPUS], visible_count; /* indices of `gpus` in NVML's order */
static int initializations, was_initialized;
static int init_ms, attach_ms;
static int was_attached[MAX_GPUS];

static void find_instances(void);

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
    d->is_excluded = word(line, "excluded", value, sizeof value) && !strcmp(value, "yes");
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

    if (fault_count == MAX_FAULTS || sscanf(line, "%15[^= ]=%63[^:]:%d:%d", f->kind, f->symbol, &first, &second) < 2)
        return;
    fault_count++;
    if (!strcmp(f->kind, "fail") || !strcmp(f->kind, "exit-at") || !strcmp(f->kind, "slow-at")) {
        f->code = first;
        f->gpu = second;
    } else {
        f->gpu = first;
    }
}

static struct device *gpu_of_line(int line) { return line >= 0 && line < gpu_count ? &gpus[line] : NULL; }

static void add_link(const char *line)
{
    struct device *d = gpu_of_line((int)number(line, "gpu"));
    unsigned link = number(line, "link");
    char to[16] = "";

    if (!d || link >= MAX_LINKS || !word(line, "to", to, sizeof to))
        return;
    d->has_links = 1;
    d->links[link] = strcmp(to, "switch") ? atoi(to) + 1 : -1;
}

static void add_loss(const char *line)
{
    struct device *d = gpu_of_line(atoi(strchr(line, '=') + 1));

    if (d && !strncmp(line, "lost=", 5))
        d->is_lost = 1;
    else if (d)
        d->will_be_lost = 1;
}

/* Returns true if the device cgroup keeps us from opening a GPU's node. */
static int is_forbidden(const struct device *d)
{
    char path[256];
    int fd;

    if (d->no_minor)
        return 0;
    snprintf(path, sizeof path, NODES "/nvidia%u", d->minor);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EPERM;
}

static void look_at_nodes(void)
{
    visible_count = 0;
    for (int i = 0; i < gpu_count; i++) {
        gpus[i].index = gpus[i].is_excluded || is_forbidden(&gpus[i]) ? -1 : visible_count;
        if (gpus[i].index >= 0)
            visible[visible_count++] = i;
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
        else if (!strncmp(line, "init-ms=", 8))
            init_ms = atoi(line + 8);
        else if (!strncmp(line, "attach-ms=", 10))
            attach_ms = atoi(line + 10);
        else if (!strncmp(line, "gpu ", 4))
            add_gpu(line);
        else if (!strncmp(line, "mig ", 4))
            add_mig(line);
        else if (!strncmp(line, "nvlink ", 7))
            add_link(line);
        else if (!strncmp(line, "lost", 4) && strchr(line, '='))
            add_loss(line);
        else if (line[0] != '#')
            add_fault(line);
    }
    fclose(file);
    return 1;
}

/* ---- faults ---- */

/* Set while a GPU is looked at that a call passes: the faults that are not of one GPU have happened. */
static int is_passing;

static struct fault *fault(const char *kind, const char *symbol, int gpu)
{
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, kind) && !strcmp(faults[i].symbol, symbol) &&
            (faults[i].gpu < 0 ? !is_passing : faults[i].gpu == gpu))
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
        Result wanted = initializations ? misbehave(__func__, gpu) : UNINITIALIZED;                                    \
        if (wanted)                                                                                                    \
            return wanted;                                                                                             \
    } while (0)

/* Checks the pointers to results. */
#define RESULTS(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return INVALID_ARGUMENT;                                                                                   \
    } while (0)

#define GARBAGE(gpu) fault("garbage", __func__, gpu)

__attribute__((constructor)) static void load(void)
{
    if (read_profile())
        misbehave("load", -1);
}

static int is_device(Device d)
{
    return (d >= gpus && d < gpus + gpu_count && d->index >= 0) ||
           (d >= migs && d < migs + mig_count && gpus[d->gpu].index >= 0);
}

static int is_lost(Device d) { return gpus[d->gpu].is_lost || gpus[d->gpu].will_be_lost; }

/* The beginning of each function of a device. */
#define ENTER_DEVICE(d)                                                                                                \
    do {                                                                                                               \
        if (initializations && !is_device(d))                                                                          \
            return INVALID_ARGUMENT;                                                                                   \
        ENTER(initializations ? (d)->gpu : -1);                                                                        \
        if (is_lost(d))                                                                                                \
            return LOST;                                                                                               \
    } while (0)

/* What the first handle of a GPU costs, and its loss. */
static Result attach(const struct device *d)
{
    int file;

    if (!was_attached[d->gpu]) {
        was_attached[d->gpu] = 1;
        usleep((unsigned)attach_ms * 1000);
        if ((file = open(ATTACHED, O_WRONLY | O_APPEND | O_CLOEXEC)) >= 0) {
            dprintf(file, "%s\n", d->uuid);
            close(file);
        }
    }
    return d->is_lost ? LOST : OK;
}

/* A GPU on the way of a call that seeks one: its own faults, and attaching it. */
static Result pass(const char *symbol, const struct device *d)
{
    Result wanted;

    is_passing = 1;
    wanted = misbehave(symbol, d->gpu);
    is_passing = 0;
    return wanted ? wanted : attach(d);
}

static Result text(char *buffer, unsigned size, const char *s, int garbage)
{
    RESULTS(buffer);
    if (garbage) {
        memset(buffer, 0xfe, size);
        return OK;
    }
    if (strlen(s) >= size)
        return TOO_SMALL;
    strcpy(buffer, s);
    return OK;
}
