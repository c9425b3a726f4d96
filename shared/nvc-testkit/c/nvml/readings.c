/*
 * What GPUs do: from /etc/nvidia-sim/readings, read at each call.
 *
 * Lines KEY=VALUE or KEY.N=VALUE for GPU N; a value `!E` makes the call fail with code E, `hang` makes it wait forever,
 * `crash` aborts the process. Keys that are missing have the values below. PIDs of processes: `processes=PID:BYTES+…`,
 * their names `process.PID=NAME`.
 */
#ifndef READINGS
#define READINGS "/etc/nvidia-sim/readings"
#endif

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

    if (!initializations)
        return UNINITIALIZED;
    if (!is_device(d) || !out)
        return INVALID_ARGUMENT;
    if (is_lost(d))
        return LOST;
    reading(key, d->gpu, otherwise, value, sizeof value);
    if (*value == '!')
        return atoi(value + 1);
    *out = strtoull(value, NULL, 10);
    return OK;
}

static Result narrow(Device d, const char *key, const char *otherwise, unsigned *out)
{
    unsigned long long value = 0;
    Result r = out ? wide(d, key, otherwise, &value) : INVALID_ARGUMENT;

    if (r == OK)
        *out = (unsigned)value;
    return r;
}

#define ONE(function, key, otherwise)                                                                                  \
    Result function(Device d, unsigned *n) { return narrow(d, key, otherwise, n); }

ONE(nvmlDeviceGetPowerManagementLimit, "limit", "300000")
ONE(nvmlDeviceGetPowerUsage, "power", "61500")
ONE(nvmlDeviceGetPersistenceMode, "persistence", "0")
ONE(nvmlDeviceGetNumGpuCores, "cores", "16896")
ONE(nvmlDeviceGetMaxPcieLinkGeneration, "gen", "4")
ONE(nvmlDeviceGetMaxPcieLinkWidth, "width", "16")

/* Begins with its version. Drivers before 575 have no such function. */
Result nvmlDeviceGetAddressingMode(Device d, unsigned *mode)
{
    return mode && mode[0] == (8 | 1u << 24) ? narrow(d, "addressing", "!13", &mode[1]) : INVALID_ARGUMENT;
}

/* Fields of version 12; of them one: what the GPU needs to recover. */
Result nvmlDeviceGetFieldValues(Device d, int count, void *out)
{
    struct {
        unsigned field, scope;
        long long timestamp, latency;
        unsigned type;
        Result result;
        union { unsigned number; unsigned long long room; } value;
    } *values = out;
    unsigned needed = 0;
    Result r = narrow(d, "recovery", "0", &needed);

    for (int i = 0; i < count && r == OK; i++) {
        values[i].result = values[i].field == 230 ? OK : NOT_SUPPORTED;
        values[i].type = 1;
        values[i].value.number = needed;
    }
    return r;
}

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
    Result r = out ? wide(d, total, if_no_total, &out[0]) : INVALID_ARGUMENT;

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

/* Version 2 begins with the version, and has what the driver reserves. */
Result nvmlDeviceGetMemoryInfo_v2(Device d, void *out)
{
    struct { unsigned version; unsigned long long total, reserved, free, used; } *info = out;
    unsigned long long all[3] = {0};
    Result r;

    if (!initializations)
        return UNINITIALIZED;
    if (!info || info->version != ((unsigned)sizeof *info | 2u << 24))
        return INVALID_ARGUMENT;
    if (!(r = nvmlDeviceGetMemoryInfo(d, all))) {
        info->total = all[0];
        info->reserved = 0;
        info->free = all[1];
        info->used = all[2];
    }
    return r;
}

Result nvmlDeviceGetBAR1MemoryInfo(Device d, unsigned long long *out)
{
    return memory(d, "bar1", "34359738368", "bar1used", "2097152", out);
}

Result nvmlDeviceGetMemoryErrorCounter(Device d, unsigned type, unsigned counter, unsigned location,
                                       unsigned long long *n)
{
    static const char *const keys[] = {"eccl1", "eccl2", "eccmem", 0, 0, 0, 0, "eccsram"};

    if (type != 1 || counter || location > 7 || !keys[location])
        return INVALID_ARGUMENT;
    return wide(d, keys[location], location == 7 ? "!3" : "0", n);
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

    if (!initializations)
        return UNINITIALIZED;
    if (!is_device(d))
        return INVALID_ARGUMENT;
    if (is_lost(d))
        return LOST;
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
    Result r = is_device(b) && level ? narrow(a, "level", "30", &value) : INVALID_ARGUMENT;

    if (r == OK)
        *level = (int)value;
    return r;
}

/* Every other GPU, if all are at this level or nearer. */
Result nvmlDeviceGetTopologyNearestGpus(Device d, unsigned level, unsigned *count, Device *found)
{
    unsigned own = 0, n = 0;
    Result r = narrow(d, "level", "30", &own);

    if (r)
        return r;
    if (!count || level > 50 || level % 10 || (*count && !found))
        return INVALID_ARGUMENT;
    for (int i = 0; i < visible_count && own == level; i++)
        if (&gpus[visible[i]] != d) {
            if (n < *count)
                found[n] = &gpus[visible[i]];
            n++;
        }
    if (!*count || n < *count)
        *count = n;
    return OK;
}
