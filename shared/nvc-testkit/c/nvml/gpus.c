/* The library, the system, GPUs, and handles of MIG devices. */

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
    Result wanted;

    record_user();
    if (!read_profile())
        return NOT_LOADED;
    if ((wanted = misbehave(__func__, -1)))
        return wanted;
    usleep((unsigned)init_ms * 1000);
    if (access(NODES "/nvidiactl", F_OK) && !fault("lenient", "yes", -1))
        return NOT_LOADED;
    look_at_nodes();
    find_instances();
    was_initialized = 1;
    initializations++;
    return OK;
}

Result nvmlShutdown(void)
{
    if (!was_initialized)
        return UNINITIALIZED;
    misbehave(__func__, -1);
    initializations -= initializations > 0;
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

/* CUDA's version needs no initialisation. */
Result nvmlSystemGetCudaDriverVersion(int *version)
{
    Result wanted = misbehave(__func__, -1);

    if (wanted)
        return wanted;
    RESULTS(version);
    *version = GARBAGE(-1) ? -1 : cuda_version;
    return OK;
}

/* ---- GPUs ---- */

Result nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(-1);
    RESULTS(count);
    *count = GARBAGE(-1) ? 0xfffffff0u : (unsigned)visible_count;
    return OK;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *d)
{
    int line = initializations && index < (unsigned)visible_count ? visible[index] : (int)index;
    Result attached;

    ENTER(line);
    if (index >= (unsigned)visible_count)
        return INVALID_ARGUMENT;
    RESULTS(d);
    if ((attached = attach(&gpus[line])))
        return attached;
    *d = GARBAGE(line) ? (Device)0x10 : fault("null", __func__, line) ? NULL : &gpus[line];
    return OK;
}

/* Returns true if a text has the form of a UUID, with any prefix. */
static int is_uuid(const char *s)
{
    if (!strncmp(s, "GPU-", 4) || !strncmp(s, "MIG-", 4))
        s += 4;
    return strlen(s) >= 36 && strspn(s, "0123456789abcdefABCDEF-") >= 36;
}

/* Searches GPUs in their order, each with its MIG devices: a lost one ends the search. */
Result nvmlDeviceGetHandleByUUID(const char *uuid, Device *d)
{
    ENTER(-1);
    RESULTS(uuid && d);
    for (int i = 0; i < visible_count; i++) {
        Device gpu = &gpus[visible[i]];
        Result passed = pass(__func__, gpu);

        if (passed)
            return passed;
        if (!strcmp(gpu->uuid, uuid)) {
            *d = gpu;
            return OK;
        }
        for (int j = 0; j < mig_count && gpu->mig == MIG_ON; j++)
            if (migs[j].gpu == gpu->gpu && !strcmp(migs[j].uuid, uuid)) {
                *d = &migs[j];
                return OK;
            }
    }
    return is_uuid(uuid) ? NOT_FOUND : INVALID_ARGUMENT;
}

Result nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device *d)
{
    unsigned domain, bus, slot;
    Result passed;

    ENTER(-1);
    RESULTS(id && d);
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return INVALID_ARGUMENT;
    for (int i = 0; i < visible_count; i++) {
        Device gpu = &gpus[visible[i]];

        if (gpu->no_pci || gpu->domain != domain || gpu->bus != bus || gpu->slot_on_bus != slot)
            continue;
        if ((passed = pass(__func__, gpu)))
            return passed;
        *d = gpu;
        return OK;
    }
    return NOT_FOUND;
}

Result nvmlDeviceGetIndex(Device d, unsigned *index)
{
    ENTER_DEVICE(d);
    RESULTS(index);
    *index = d->is_mig ? d->slot : (unsigned)d->index;
    return OK;
}

Result nvmlDeviceGetMinorNumber(Device d, unsigned *minor)
{
    ENTER_DEVICE(d);
    RESULTS(minor);
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

/* The newest form. */
struct pci_3 {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, subsystem;
    char bus_id[32];
};

Result nvmlDeviceGetPciInfo(Device d, struct pci *p)
{
    ENTER_DEVICE(d);
    RESULTS(p);
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

static void describe_pci(const struct device *d, struct pci_3 *p)
{
    memset(p, 0, sizeof *p);
    snprintf(p->legacy_bus_id, sizeof p->legacy_bus_id, "%04X:%02X:%02X.0", d->domain & 0xffff, d->bus & 0xff,
             d->slot_on_bus & 0xff);
    snprintf(p->bus_id, sizeof p->bus_id, "%08X:%02X:%02X.0", d->domain, d->bus & 0xff, d->slot_on_bus & 0xff);
    p->domain = d->domain;
    p->bus = d->bus;
    p->device = d->slot_on_bus;
    p->pci_device_id = 0x223610de;
}

Result nvmlDeviceGetPciInfo_v3(Device d, struct pci_3 *p)
{
    ENTER_DEVICE(d);
    RESULTS(p);
    if (d->is_mig || d->no_pci)
        return NOT_SUPPORTED;
    if (GARBAGE(d->gpu))
        memset(p, 0xfe, sizeof *p);
    else
        describe_pci(d, p);
    return OK;
}

Result nvmlDeviceGetUUID(Device d, char *buffer, unsigned size)
{
    ENTER_DEVICE(d);
    return text(buffer, size, d->uuid, !!GARBAGE(d->gpu));
}

/* The name of a MIG device is that of its GPU and of its profile. */
Result nvmlDeviceGetName(Device d, char *buffer, unsigned size)
{
    char name[256];

    ENTER_DEVICE(d);
    snprintf(name, sizeof name, d->is_mig ? "%s MIG %s" : "%s", gpus[d->gpu].name, d->name);
    return text(buffer, size, name, !!GARBAGE(d->gpu));
}

Result nvmlDeviceGetBrand(Device d, unsigned *brand)
{
    ENTER_DEVICE(d);
    RESULTS(brand);
    *brand = GARBAGE(d->gpu) ? 0xffffffffu : gpus[d->gpu].brand;
    return OK;
}

Result nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor)
{
    ENTER_DEVICE(d);
    RESULTS(major && minor);
    *major = GARBAGE(d->gpu) ? -1 : gpus[d->gpu].major_capability;
    *minor = GARBAGE(d->gpu) ? -1 : gpus[d->gpu].minor_capability;
    return OK;
}

Result nvmlDeviceGetArchitecture(Device d, unsigned *architecture)
{
    int major, minor;

    ENTER_DEVICE(d);
    RESULTS(architecture);
    major = gpus[d->gpu].major_capability;
    minor = gpus[d->gpu].minor_capability;
    *architecture = major == 9                  ? 9
                    : major == 8 && minor == 9  ? 8
                    : major == 8                ? 7
                    : major == 7 && minor >= 5  ? 6
                    : major >= 5 && major <= 7  ? (unsigned)major - 2
                                                : 0xffffffffu;
    return OK;
}

/* ---- MIG ---- */

Result nvmlDeviceGetMigMode(Device d, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(d);
    RESULTS(current && pending);
    if (d->is_mig || d->mig == MIG_UNSUPPORTED)
        return NOT_SUPPORTED;
    *current = *pending = GARBAGE(d->gpu) ? 0xffffffffu : d->mig == MIG_ON;
    return OK;
}

/* As many slots as there are on an A100, or more if the profile fills more; none unless MIG is on. */
static unsigned slots_of(Device d)
{
    unsigned slots = 7;

    if (d->is_mig || d->mig != MIG_ON)
        return 0;
    for (int i = 0; i < mig_count; i++)
        if (migs[i].gpu == d->gpu && migs[i].slot >= slots)
            slots = migs[i].slot + 1;
    return slots;
}

Result nvmlDeviceGetMaxMigDeviceCount(Device d, unsigned *count)
{
    ENTER_DEVICE(d);
    RESULTS(count);
    *count = GARBAGE(d->gpu) ? 0xfffffff0u : slots_of(d);
    return OK;
}

Result nvmlDeviceGetMigDeviceHandleByIndex(Device d, unsigned slot, Device *mig)
{
    ENTER_DEVICE(d);
    RESULTS(mig);
    if (d->is_mig || d->mig == MIG_UNSUPPORTED)
        return NOT_SUPPORTED;
    for (int i = 0; i < mig_count && d->mig == MIG_ON; i++)
        if (migs[i].gpu == d->gpu && migs[i].slot == slot) {
            *mig = GARBAGE(d->gpu) ? (Device)0x10 : &migs[i];
            return OK;
        }
    return d->mig == MIG_ON && slot >= slots_of(d) ? INVALID_ARGUMENT : NOT_FOUND;
}

Result nvmlDeviceIsMigDeviceHandle(Device d, unsigned *is_mig)
{
    ENTER_DEVICE(d);
    RESULTS(is_mig);
    *is_mig = d->is_mig;
    return OK;
}

Result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device d, Device *gpu)
{
    ENTER_DEVICE(d);
    RESULTS(gpu);
    if (!d->is_mig)
        return INVALID_ARGUMENT;
    *gpu = &gpus[d->gpu];
    return OK;
}

Result nvmlDeviceGetGpuInstanceId(Device d, unsigned *id)
{
    ENTER_DEVICE(d);
    RESULTS(id);
    if (!d->is_mig)
        return NOT_SUPPORTED;
    *id = GARBAGE(d->gpu) ? 0xffffffffu : d->gpu_instance;
    return OK;
}

Result nvmlDeviceGetComputeInstanceId(Device d, unsigned *id)
{
    ENTER_DEVICE(d);
    RESULTS(id);
    if (!d->is_mig)
        return NOT_SUPPORTED;
    *id = GARBAGE(d->gpu) ? 0xffffffffu : d->compute_instance;
    return OK;
}
