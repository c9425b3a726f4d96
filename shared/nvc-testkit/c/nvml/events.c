/*
 * Events: lines that somebody appends to /etc/nvidia-sim/events.
 *
 *   xid gpu=UUID code=79 [gi=1] [ci=0]     a critical error; without a code it is one that NVML does not know
 *   single gpu=UUID      double gpu=UUID   an ECC error
 *   mig gpu=UUID                           the MIG configuration has changed
 *   recovery gpu=UUID                      what it needs to recover has changed
 *   lost gpu=UUID                          it has fallen off the bus
 */
#ifndef EVENTS
#define EVENTS "/etc/nvidia-sim/events"
#endif

enum { MAX_REGISTRATIONS = 256, POLL_MILLISECONDS = 5 };
enum { SINGLE = 1, DOUBLE = 2, XID = 8, MIG_CHANGE = 0x100, RECOVERY = 0x8000 };
/* What NVML knows, and an H100 with driver 580 answers. */
enum { EVERY_TYPE = 0xff9f };

struct set {
    long position; /* of the next line to read */
    int count;
    struct {
        Device device;
        unsigned long long types;
        long since; /* what happened before is not recorded */
    } registered[MAX_REGISTRATIONS];
};

struct event {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static long end_of_events(void)
{
    FILE *file = fopen(EVENTS, "re");
    long end = 0;

    if (file && !fseek(file, 0, SEEK_END))
        end = ftell(file);
    if (file)
        fclose(file);
    return end;
}

static unsigned long long supported_types(Device d)
{
    if (d->is_mig || d->no_pci)
        return 0;
    return d->mig == MIG_UNSUPPORTED ? EVERY_TYPE & ~MIG_CHANGE : EVERY_TYPE;
}

Result nvmlEventSetCreate(struct set **set)
{
    ENTER(-1);
    RESULTS(set);
    *set = calloc(1, sizeof **set);
    if (!*set)
        return 999;
    (*set)->position = end_of_events();
    return OK;
}

Result nvmlEventSetFree(struct set *set)
{
    ENTER(-1);
    free(set);
    return OK;
}

Result nvmlDeviceGetSupportedEventTypes(Device d, unsigned long long *types)
{
    ENTER_DEVICE(d);
    RESULTS(types);
    *types = supported_types(d);
    return OK;
}

Result nvmlDeviceRegisterEvents(Device d, unsigned long long types, struct set *set)
{
    ENTER_DEVICE(d);
    RESULTS(set && !(types & ~(unsigned long long)EVERY_TYPE));
    if (types & ~supported_types(d))
        return NOT_SUPPORTED;
    if (set->count == MAX_REGISTRATIONS)
        return 999;
    set->registered[set->count].device = d;
    set->registered[set->count].types = types;
    set->registered[set->count].since = end_of_events();
    set->count++;
    return OK;
}

/* Reads a line; OK if it is an event of the set, NOT_FOUND if not. */
static Result understand(const struct set *set, const char *line, long position, struct event *event)
{
    unsigned long long type = !strncmp(line, "xid ", 4)      ? XID
                              : !strncmp(line, "single ", 7) ? SINGLE
                              : !strncmp(line, "double ", 7) ? DOUBLE
                              : !strncmp(line, "mig ", 4)    ? MIG_CHANGE
                              : !strncmp(line, "recovery ", 9) ? RECOVERY
                                                             : 0;
    int lost = !strncmp(line, "lost ", 5);
    char value[96];

    for (int i = 0; i < set->count && word(line, "gpu", value, sizeof value); i++) {
        Device d = set->registered[i].device;

        if (strcmp(d->uuid, value) || position < set->registered[i].since)
            continue;
        if (lost) {
            d->will_be_lost = 1;
            return LOST;
        }
        if (!(set->registered[i].types & type))
            continue;
        *event = (struct event){d, type, 0, ~0u, ~0u};
        if (type == XID)
            event->data = word(line, "code", value, sizeof value) ? strtoull(value, NULL, 10) : 999;
        if (d->mig == MIG_ON && word(line, "gi", value, sizeof value))
            event->gpu_instance = (unsigned)atoi(value);
        if (d->mig == MIG_ON && word(line, "ci", value, sizeof value))
            event->compute_instance = (unsigned)atoi(value);
        return OK;
    }
    return NOT_FOUND;
}

/* Returns the next event that is there; TIMED_OUT if there is none. A line without its end is not there yet. */
static Result next(struct set *set, struct event *event)
{
    FILE *file = fopen(EVENTS, "re");
    char line[512];
    Result r = NOT_FOUND;

    if (!file || fseek(file, set->position, SEEK_SET)) {
        if (file)
            fclose(file);
        return TIMED_OUT;
    }
    while (r == NOT_FOUND && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        long position = set->position;

        line[strcspn(line, "\n")] = 0;
        set->position = ftell(file);
        r = understand(set, line, position, event);
    }
    fclose(file);
    return r == NOT_FOUND ? TIMED_OUT : r;
}

static unsigned long long milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

Result nvmlEventSetWait_v2(struct set *set, struct event *event, unsigned timeout)
{
    unsigned long long end = milliseconds() + timeout;
    Result r;

    ENTER(-1);
    RESULTS(set && event);
    while ((r = next(set, event)) == TIMED_OUT && milliseconds() < end)
        usleep(POLL_MILLISECONDS * 1000);
    return r;
}
