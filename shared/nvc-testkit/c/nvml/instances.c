/*
 * GPU instances and compute instances, with their profiles and attributes.
 *
 * The profile follows from the name of a MIG device: `1c.3g.40gb` is one compute slice of a GPU instance with three;
 * `1g.24gb+gfx` can render. A GPU of compute capability 12 or more has four slices and the profiles with graphics, as an
 * RTX PRO has; any other has seven slices, as an H100 has.
 */

/*
 * Profiles by NVML's number, with the id that the driver gives them. Sources: the numbers above 9 are those of nvml.h 13.0
 * (also in the Python and Rust bindings of NVML); ids, names and counts of a GPU with graphics are those that
 * `nvidia-smi mig -lgip` prints on an RTX PRO 6000 Blackwell, as the MIG user guide has them, those of the others an H100's.
 */
static const struct gpu_profile {
    unsigned number, id, slices, memory_slices, count;
    const char *attribute; /* what its name ends with */
    int graphics;          /* of a GPU with graphics: 1, of one without: -1 */
} gpu_profiles[] = {
    {0, 19, 1, 1, 7, "", -1},        {1, 14, 2, 2, 3, "", -1},     {2, 9, 3, 4, 2, "", -1},
    {3, 5, 4, 4, 1, "", -1},         {4, 0, 7, 8, 1, "", -1},      {7, 20, 1, 1, 1, "+me", -1},
    {0, 14, 1, 1, 4, "", 1},         {1, 5, 2, 2, 2, "", 1},       {3, 0, 4, 4, 1, "", 1},
    {7, 21, 1, 1, 1, "+me", 1},      {10, 47, 1, 1, 4, "+gfx", 1}, {11, 35, 2, 2, 2, "+gfx", 1},
    {12, 32, 4, 4, 1, "+gfx", 1},    {13, 67, 1, 1, 4, "-me", 1},  {14, 66, 2, 2, 2, "-me", 1},
    {15, 65, 1, 1, 1, "+me.all", 1}, {16, 64, 2, 2, 1, "+me.all", 1},
};
enum { GPU_PROFILES = sizeof gpu_profiles / sizeof *gpu_profiles, END_OF_GPU_PROFILES = 17 };

/* Compute instances: number, which is the id, and slices. */
static const unsigned compute_slices[] = {1, 2, 3, 4, 7};
enum { COMPUTE_PROFILES = 5, END_OF_COMPUTE_PROFILES = 7 };

struct placement { unsigned start, size; };

static struct instance {
    int gpu;
    unsigned id, start;
    struct device *mig; /* one of its compute instances */
} instances[MAX_MIGS];
static int instance_count;
typedef struct instance *Instance;
typedef struct device *Compute;

/* The parts of a MIG device's name. */
static void parse_name(const char *name, unsigned *compute, unsigned *slices, unsigned *gigabytes, char attribute[16])
{
    int length = 0;

    *slices = 1;
    *gigabytes = 0;
    if (sscanf(name, "%uc.%n", compute, &length) != 1 || !length)
        *compute = length = 0;
    sscanf(name + length, "%ug.%ugb", slices, gigabytes);
    name = strpbrk(name, "+-");
    snprintf(attribute, 16, "%s", name ? name : "");
    if (!*compute)
        *compute = *slices;
}

static int has_profile(const struct device *d, const struct gpu_profile *profile)
{
    int graphics = d->major_capability >= 12 ? 1 : -1;

    return profile->graphics == graphics;
}

static const struct gpu_profile *profile_of(const struct device *mig)
{
    unsigned compute, slices, gigabytes;
    char attribute[16];

    parse_name(mig->name, &compute, &slices, &gigabytes, attribute);
    for (int i = 0; i < GPU_PROFILES; i++)
        if (gpu_profiles[i].slices == slices && !strcmp(gpu_profiles[i].attribute, attribute) &&
            has_profile(&gpus[mig->gpu], &gpu_profiles[i]))
            return &gpu_profiles[i];
    return &gpu_profiles[0];
}

/* Megabytes of an instance: those of a device's name if there is one, otherwise a share of 80 GB, or of 96. */
static unsigned long long megabytes(int gpu, const struct gpu_profile *profile)
{
    unsigned compute, slices, gigabytes;
    char attribute[16];

    for (int i = 0; i < mig_count; i++)
        if (migs[i].gpu == gpu && profile_of(&migs[i]) == profile) {
            parse_name(migs[i].name, &compute, &slices, &gigabytes, attribute);
            if (gigabytes)
                return 1024ull * gigabytes;
        }
    return (profile->graphics == 1 ? 24576ull : 10240ull) * profile->memory_slices;
}

static void find_instances(void)
{
    instance_count = 0;
    for (int i = 0; i < mig_count; i++) {
        struct instance *new = &instances[instance_count];
        unsigned start = 0;
        int known = 0;

        for (int j = 0; j < instance_count; j++) {
            if (instances[j].gpu != migs[i].gpu)
                continue;
            known |= instances[j].id == migs[i].gpu_instance;
            start = instances[j].start + profile_of(instances[j].mig)->memory_slices;
        }
        if (known)
            continue;
        *new = (struct instance){migs[i].gpu, migs[i].gpu_instance, start, &migs[i]};
        instance_count++;
    }
}

/* The functions that change or list instances are for root. */
#define ENTER_MIG(d)                                                                                                   \
    do {                                                                                                               \
        ENTER_DEVICE(d);                                                                                               \
        if ((d)->is_mig || (d)->mig != MIG_ON)                                                                         \
            return NOT_SUPPORTED;                                                                                      \
    } while (0)

static int is_instance(Instance i) { return i >= instances && i < instances + instance_count; }

#define ENTER_INSTANCE(i)                                                                                              \
    do {                                                                                                               \
        if (initializations && !is_instance(i))                                                                        \
            return INVALID_ARGUMENT;                                                                                   \
        ENTER_DEVICE((i)->mig);                                                                                        \
    } while (0)

Result nvmlDeviceGetGpuInstanceById(Device d, unsigned id, Instance *found)
{
    ENTER_MIG(d);
    RESULTS(found);
    if (geteuid())
        return NO_PERMISSION;
    for (int i = 0; i < instance_count; i++)
        if (instances[i].gpu == d->gpu && instances[i].id == id) {
            *found = &instances[i];
            return OK;
        }
    return NOT_FOUND;
}

Result nvmlDeviceGetGpuInstances(Device d, unsigned profile, Instance *found, unsigned *count)
{
    unsigned n = 0, known = 0;

    ENTER_MIG(d);
    RESULTS(found && count);
    for (int i = 0; i < GPU_PROFILES; i++)
        known |= gpu_profiles[i].id == profile && has_profile(d, &gpu_profiles[i]);
    if (!known)
        return INVALID_ARGUMENT;
    if (geteuid())
        return NO_PERMISSION;
    for (int i = 0; i < instance_count; i++)
        if (instances[i].gpu == d->gpu && profile_of(instances[i].mig)->id == profile)
            found[n++] = &instances[i];
    *count = n;
    return OK;
}

Result nvmlGpuInstanceGetInfo(Instance i, void *out)
{
    struct {
        Device device;
        unsigned id, profile;
        struct placement placement;
    } *info = out;

    ENTER_INSTANCE(i);
    RESULTS(info);
    info->device = &gpus[i->gpu];
    info->id = i->id;
    info->profile = profile_of(i->mig)->id;
    info->placement = (struct placement){i->start, profile_of(i->mig)->memory_slices};
    return OK;
}

static unsigned compute_profile_of(Compute c)
{
    unsigned compute, slices, gigabytes, number = 0;
    char attribute[16];

    parse_name(c->name, &compute, &slices, &gigabytes, attribute);
    while (number + 1 < COMPUTE_PROFILES && compute_slices[number] != compute)
        number++;
    return number;
}

Result nvmlGpuInstanceGetComputeInstances(Instance i, unsigned profile, Compute *found, unsigned *count)
{
    unsigned n = 0;

    ENTER_INSTANCE(i);
    RESULTS(found && count);
    if (profile >= COMPUTE_PROFILES)
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    for (int j = 0; j < mig_count; j++)
        if (migs[j].gpu == i->gpu && migs[j].gpu_instance == i->id && compute_profile_of(&migs[j]) == profile)
            found[n++] = &migs[j];
    *count = n;
    return OK;
}

Result nvmlGpuInstanceGetComputeInstanceById(Instance i, unsigned id, Compute *found)
{
    ENTER_INSTANCE(i);
    RESULTS(found);
    if (geteuid())
        return NO_PERMISSION;
    for (int j = 0; j < mig_count; j++)
        if (migs[j].gpu == i->gpu && migs[j].gpu_instance == i->id && migs[j].compute_instance == id) {
            *found = &migs[j];
            return OK;
        }
    return NOT_FOUND;
}

Result nvmlComputeInstanceGetInfo_v2(Compute c, void *out)
{
    struct {
        Device device;
        Instance instance;
        unsigned id, profile;
        struct placement placement;
    } *info = out;
    unsigned start = 0;

    ENTER_DEVICE(c);
    RESULTS(info && c->is_mig);
    for (int i = 0; i < instance_count; i++)
        if (instances[i].gpu == c->gpu && instances[i].id == c->gpu_instance)
            info->instance = &instances[i];
    for (Compute other = migs; other < c; other++)
        if (other->gpu == c->gpu && other->gpu_instance == c->gpu_instance)
            start += compute_slices[compute_profile_of(other)];
    info->device = &gpus[c->gpu];
    info->id = c->compute_instance;
    info->profile = compute_profile_of(c);
    info->placement = (struct placement){start, compute_slices[info->profile]};
    return OK;
}

/* Returns a profile by NVML's number, if the GPU has it. */
static Result find_profile(Device d, unsigned number, const struct gpu_profile **found)
{
    if (number >= END_OF_GPU_PROFILES)
        return INVALID_ARGUMENT;
    for (int i = 0; i < GPU_PROFILES; i++)
        if (gpu_profiles[i].number == number && has_profile(d, &gpu_profiles[i])) {
            *found = &gpu_profiles[i];
            return OK;
        }
    return NOT_SUPPORTED;
}

Result nvmlDeviceGetGpuInstanceProfileInfo(Device d, unsigned number, void *out)
{
    struct {
        unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas;
        unsigned long long memory;
    } *info = out;
    const struct gpu_profile *p = NULL;
    Result r;

    ENTER_MIG(d);
    RESULTS(info);
    if ((r = find_profile(d, number, &p)))
        return r;
    memset(info, 0, sizeof *info);
    info->id = p->id;
    info->slices = info->copy = p->slices;
    info->instances = p->count;
    info->multiprocessors = 16 * p->slices;
    info->decoders = p->slices;
    info->memory = megabytes(d->gpu, p);
    return OK;
}

Result nvmlDeviceGetGpuInstanceProfileInfoV(Device d, unsigned number, void *out)
{
    struct {
        unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas;
        unsigned long long memory;
        char name[96];
    } *info = out;
    const struct gpu_profile *p = NULL;
    Result r;

    ENTER_MIG(d);
    RESULTS(info && info->version == ((unsigned)sizeof *info | 2u << 24));
    if ((r = find_profile(d, number, &p)))
        return r;
    info->id = p->id;
    info->p2p = info->encoders = info->jpegs = info->ofas = 0;
    info->slices = info->copy = p->slices;
    info->instances = p->count;
    info->multiprocessors = 16 * p->slices;
    info->decoders = p->slices;
    info->memory = megabytes(d->gpu, p);
    snprintf(info->name, sizeof info->name, "MIG %ug.%llugb%s", p->slices, info->memory / 1024, p->attribute);
    return OK;
}

Result nvmlGpuInstanceGetComputeInstanceProfileInfo(Instance i, unsigned number, unsigned engines, void *out)
{
    struct {
        unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    } *info = out;
    unsigned slices;

    ENTER_INSTANCE(i);
    RESULTS(info && !engines && number < END_OF_COMPUTE_PROFILES);
    slices = profile_of(i->mig)->slices;
    if (number >= COMPUTE_PROFILES || compute_slices[number] > slices)
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = number;
    info->slices = compute_slices[number];
    info->instances = slices / info->slices;
    info->multiprocessors = 16 * info->slices;
    info->copy = info->decoders = slices;
    return OK;
}

Result nvmlDeviceGetAttributes_v2(Device d, void *out)
{
    struct {
        unsigned multiprocessors, copy, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
        unsigned long long memory;
    } *attributes = out;

    ENTER_DEVICE(d);
    RESULTS(attributes);
    if (!d->is_mig)
        return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->copy = attributes->decoders = profile_of(d)->slices;
    attributes->compute_slices = compute_slices[compute_profile_of(d)];
    attributes->multiprocessors = 16 * attributes->compute_slices;
    attributes->memory = megabytes(d->gpu, profile_of(d));
    return OK;
}

/* The first versions of these functions have structures without the last member. */
Result nvmlDeviceGetAttributes(Device d, void *out)
{
    struct { unsigned numbers[8]; unsigned long long memory; } all;
    Result r;

    ENTER_DEVICE(d);
    RESULTS(out);
    if (!(r = nvmlDeviceGetAttributes_v2(d, &all)))
        memcpy(out, all.numbers, sizeof all.numbers);
    return r;
}

Result nvmlComputeInstanceGetInfo(Compute c, void *out)
{
    struct {
        struct { Device device; Instance instance; unsigned id, profile; } first;
        struct placement placement;
    } all;
    Result r;

    ENTER_DEVICE(c);
    RESULTS(out);
    if (!(r = nvmlComputeInstanceGetInfo_v2(c, &all)))
        memcpy(out, &all.first, sizeof all.first);
    return r;
}
