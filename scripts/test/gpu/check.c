/*
 * Says what a process can really do with the driver; scripts/test/gpu/run.sh runs it on the machine and in containers.
 *
 *   check compute [--no-kernel]     computes something on each GPU that CUDA shows, by the driver API alone: memory, a
 *                    copy, a kernel in PTX, a copy back, a comparison. --no-kernel is for the simulated driver. Lines
 *                    `cuda VERSION`, `gpu NUMBER CC BUS-ID NAME`, `computed NUMBER`, `loaded LIBRARY`. Exits with 0 if
 *                    all GPUs computed, with 3 if there is none, else with 1
 *   check open SCRATCH [MAJOR:MINOR:PATH...]     for each node of the machine a line `PATH there=ANSWER made=ANSWER`:
 *                    whether the path opens, and whether a node of that number that we create in SCRATCH does
 *   check time COUNT PROGRAM [ARGUMENT...]       runs it COUNT times, without output, and prints a line of milliseconds:
 *                    `first=MS best=MS exit=STATUS`
 *   check names FILE...     for each ELF file a line `FILE BITS OWN-NAME NEEDED,NEEDED`; its own name is that of the file
 *                    if it has none
 *   check given                                  looks at each program and library that is mounted here. `library PATH`,
 *                    `program PATH`; what the loader misses is `lacks NAME PATH`, all else that keeps it from loading one
 *                    is `broken PATH REASON`. No code of a program runs
 *   check hold SECONDS                           copies memory on each GPU, and keeps it open for so long
 *
 * An answer is `yes` or the error. ENXIO and ENODEV are `yes`: they come after every check, from there being nothing
 * behind the node. So are EIO and EBUSY, which are the driver's own.
 */
#define _GNU_SOURCE
#include "elf-names.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CUDA_NO_DEVICE = 100, WORDS = 4096, MAJOR_OF_CC = 75, MINOR_OF_CC = 76 };

/* Each word becomes three times itself and seven. Older drivers refuse newer versions of PTX, newer ones older GPUs. */
#define KERNEL(version, target)                                                                                        \
    ".version " version "\n.target " target "\n.address_size 64\n"                                                     \
    ".visible .entry work(.param .u64 words, .param .u32 count)\n"                                                     \
    "{\n"                                                                                                              \
    "    .reg .pred %beyond;\n"                                                                                        \
    "    .reg .b32 %r<7>;\n"                                                                                           \
    "    .reg .b64 %a<4>;\n"                                                                                           \
    "    ld.param.u64 %a0, [words];\n"                                                                                 \
    "    ld.param.u32 %r0, [count];\n"                                                                                 \
    "    mov.u32 %r1, %ctaid.x;\n"                                                                                     \
    "    mov.u32 %r2, %ntid.x;\n"                                                                                      \
    "    mov.u32 %r3, %tid.x;\n"                                                                                       \
    "    mad.lo.s32 %r4, %r1, %r2, %r3;\n"                                                                             \
    "    setp.ge.u32 %beyond, %r4, %r0;\n"                                                                             \
    "    @%beyond bra DONE;\n"                                                                                         \
    "    cvta.to.global.u64 %a1, %a0;\n"                                                                               \
    "    mul.wide.u32 %a2, %r4, 4;\n"                                                                                  \
    "    add.s64 %a3, %a1, %a2;\n"                                                                                     \
    "    ld.global.u32 %r5, [%a3];\n"                                                                                  \
    "    mad.lo.s32 %r6, %r5, 3, 7;\n"                                                                                 \
    "    st.global.u32 [%a3], %r6;\n"                                                                                  \
    "DONE:\n"                                                                                                          \
    "    ret;\n"                                                                                                       \
    "}\n"

static const char *const kernels[] = {KERNEL("6.0", "sm_50"), KERNEL("6.3", "sm_75")};

static void *cuda;

/* Calls a function of the driver; a missing one is an error as well. */
#define CALL(name, types, ...)                                                                                         \
    (dlsym(cuda, name) ? ((int(*) types)dlsym(cuda, name))(__VA_ARGS__) : (printf("missing %s\n", name), -1))

static int failed(const char *what, int code)
{
    const char *text = NULL;

    if (code > 0)
        CALL("cuGetErrorString", (int, const char **), code, &text);
    printf("error %s: %d %s\n", what, code, text ? text : "");
    return 1;
}

static int load_kernel(void **kernel)
{
    void *module = NULL;
    int code = -1;

    for (size_t i = 0; code && i < sizeof kernels / sizeof *kernels; i++)
        code = CALL("cuModuleLoadData", (void **, const void *), &module, kernels[i]);
    if (code)
        return failed("cuModuleLoadData", code);
    if ((code = CALL("cuModuleGetFunction", (void **, void *, const char *), kernel, module, "work")))
        return failed("cuModuleGetFunction", code);
    return 0;
}

static int launch(void *kernel, uint64_t memory)
{
    uint32_t count = WORDS;
    void *arguments[] = {&memory, &count};
    int code = CALL("cuLaunchKernel",
                    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **),
                    kernel, WORDS / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL);

    if (code)
        return failed("cuLaunchKernel", code);
    if ((code = CALL("cuCtxSynchronize", (void))))
        return failed("cuCtxSynchronize", code);
    return 0;
}

static int compute(int device, int with_kernel)
{
    static uint32_t words[WORDS];
    uint64_t memory = 0;
    void *context = NULL, *kernel = NULL;
    int code;

    if ((code = CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device)))
        return failed("cuDevicePrimaryCtxRetain", code);
    if ((code = CALL("cuCtxSetCurrent", (void *), context)))
        return failed("cuCtxSetCurrent", code);
    if ((code = CALL("cuMemAlloc_v2", (uint64_t *, size_t), &memory, sizeof words)))
        return failed("cuMemAlloc_v2", code);
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = i * 2654435761u;
    if ((code = CALL("cuMemcpyHtoD_v2", (uint64_t, const void *, size_t), memory, words, sizeof words)))
        return failed("cuMemcpyHtoD_v2", code);
    if (with_kernel && (load_kernel(&kernel) || launch(kernel, memory)))
        return 1;
    memset(words, 0, sizeof words);
    if ((code = CALL("cuMemcpyDtoH_v2", (void *, uint64_t, size_t), words, memory, sizeof words)))
        return failed("cuMemcpyDtoH_v2", code);
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t word = i * 2654435761u;
        if (words[i] != (with_kernel ? word * 3 + 7 : word))
            return printf("error GPU %d computed %u for word %u\n", device, words[i], i), 1;
    }
    if ((code = CALL("cuMemFree_v2", (uint64_t), memory)))
        return failed("cuMemFree_v2", code);
    printf("computed %d\n", device);
    return 0;
}

/* Prints the driver's libraries in this process: those, the catalogue must have. */
static void print_loaded(void)
{
    char line[4096], last[4096] = "", *path;
    FILE *maps = fopen("/proc/self/maps", "re");

    while (maps && fgets(line, sizeof line, maps)) {
        if (!(path = strchr(line, '/')) || !strcmp(path, last) || !(strstr(path, "nvidia") || strstr(path, "libcuda")) ||
            !strstr(path, ".so"))
            continue;
        snprintf(last, sizeof last, "%s", path);
        printf("loaded %s", path);
    }
    if (maps)
        fclose(maps);
}

static int compute_all(int with_kernel)
{
    int code, version = 0, count = 0, wrong = 0;

    if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
        return printf("error %s\n", dlerror()), 1;
    if ((code = CALL("cuInit", (unsigned), 0))) {
        failed("cuInit", code);
        return code == CUDA_NO_DEVICE ? 3 : 1;
    }
    CALL("cuDriverGetVersion", (int *), &version);
    printf("cuda %d.%d\n", version / 1000, version % 1000 / 10);
    if ((code = CALL("cuDeviceGetCount", (int *), &count)))
        return failed("cuDeviceGetCount", code);
    for (int i = 0; i < count; i++) {
        char name[128] = "", bus[32] = "";
        int device = i, major = 0, minor = 0;

        if ((code = CALL("cuDeviceGet", (int *, int), &device, i)))
            return failed("cuDeviceGet", code);
        CALL("cuDeviceGetName", (char *, int, int), name, (int)sizeof name, device);
        CALL("cuDeviceGetAttribute", (int *, int, int), &major, MAJOR_OF_CC, device);
        CALL("cuDeviceGetAttribute", (int *, int, int), &minor, MINOR_OF_CC, device);
        if (CALL("cuDeviceGetPCIBusId", (char *, int, int), bus, (int)sizeof bus, device))
            strcpy(bus, "-");
        printf("gpu %d %d.%d %s %s\n", i, major, minor, bus, name);
        fflush(stdout);
        wrong += compute(device, with_kernel);
    }
    print_loaded();
    return wrong ? 1 : count ? 0 : 3;
}

/* Opens a node in each way in which a driver may be used; returns 0 or the first way's error. */
static int opened(const char *path)
{
    static const int ways[] = {O_RDWR, O_RDONLY, O_WRONLY};
    int error = 0;

    for (int i = 0; i < 3; i++) {
        int fd = open(path, ways[i] | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

        if (fd >= 0)
            close(fd);
        if (fd >= 0 || errno == ENXIO || errno == ENODEV || errno == EIO || errno == EBUSY)
            return 0;
        error = error ? error : errno;
    }
    return error;
}

static const char *answer(int error) { return error ? strerrorname_np(error) : "yes"; }

static int open_all(const char *scratch, char **nodes)
{
    char made[4096];

    snprintf(made, sizeof made, "%s/check-node", scratch);
    for (; *nodes; nodes++) {
        unsigned major, minor;
        int start = 0, error;

        if (sscanf(*nodes, "%u:%u:%n", &major, &minor, &start) != 2 || !start)
            return fprintf(stderr, "check: not MAJOR:MINOR:PATH: %s\n", *nodes), 2;
        printf("%s there=%s", *nodes + start, answer(opened(*nodes + start)));
        error = mknod(made, S_IFCHR | 0666, makedev(major, minor)) ? errno : 0;
        if (error) {
            printf(" made=not-created-%s\n", answer(error));
            continue;
        }
        printf(" made=%s\n", answer(opened(made)));
        unlink(made);
    }
    return 0;
}

enum { ROOM = 4096 };

static int print_names(char **files)
{
    char own[ROOM], needs[ROOM];

    for (; *files; files++) {
        int bits = elf_names(*files, own, needs, ROOM);

        needs[strlen(needs) ? strlen(needs) - 1 : 0] = 0;
        if (bits)
            printf("%s %d %s %s\n", *files, bits, *own ? own : strrchr(*files, '/') + 1, needs);
    }
    return 0;
}

/* Loads a library in a process of its own; prints what is missing or wrong. */
static int loads(const char *name, const char *path)
{
    int status = 0;
    pid_t child;

    fflush(stdout);
    if (!(child = fork())) {
        const char *error = dlopen(name, RTLD_LAZY) ? NULL : dlerror();
        const char *end = error ? strstr(error, ": cannot open shared object file") : NULL;

        if (end)
            printf("lacks %.*s %s\n", (int)(end - error), error, path);
        else if (error)
            printf("broken %s %s\n", path, error);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (status)
        printf("broken %s the loader ended with status %d\n", path, status);
    return 0;
}

/* Starts a program, of which the loader only lists the libraries. */
static void starts(const char *path)
{
    char line[ROOM + 64], name[ROOM];
    FILE *list;

    snprintf(line, sizeof line, "LD_TRACE_LOADED_OBJECTS=1 '%s' 2>&1 || echo broken", path);
    list = popen(line, "r");
    while (list && fgets(line, sizeof line, list)) {
        if (strstr(line, " => not found") && sscanf(line, "%4095s", name) == 1)
            printf("lacks %s %s\n", name, path);
        if (!strncmp(line, "broken", 6))
            printf("broken %s it does not start\n", path);
    }
    if (list)
        pclose(list);
}

static int look_at_given(void)
{
    char line[2 * ROOM], path[ROOM], own[ROOM], needs[ROOM];
    FILE *table = fopen("/proc/self/mountinfo", "re");

    while (table && fgets(line, sizeof line, table)) {
        const char *name, *kind;
        struct stat at;
        int bits;

        if (sscanf(line, "%*s %*s %*s %*s %4095s", path) != 1 || stat(path, &at) || !S_ISREG(at.st_mode))
            continue;
        name = strrchr(path, '/') + 1;
        kind = strstr(name, ".so") ? "library" : !strncmp(name, "nv", 2) && (at.st_mode & 0111) ? "program" : NULL;
        if (!kind)
            continue;
        printf("%s %s\n", kind, path);
        bits = elf_names(path, own, needs, ROOM);
        if (!bits)
            printf("broken %s it is no ELF file\n", path);
        else if (*kind == 'p')
            starts(path);
        else if (bits == 8 * sizeof(void *)) {
            for (char *rest = needs, *need; (need = strsep(&rest, ",")) && *need;)
                loads(need, path);
            loads(path, path);
        }
    }
    if (table)
        fclose(table);
    return 0;
}

static double run_once(char **command, int *status)
{
    struct timespec before, after;
    pid_t child;

    clock_gettime(CLOCK_MONOTONIC, &before);
    if (!(child = fork())) {
        int null = open("/dev/null", O_RDWR);
        if (null >= 0)
            dup2(null, 0), dup2(null, 1), dup2(null, 2);
        execvp(*command, command);
        _exit(127);
    }
    if (child < 0 || waitpid(child, status, 0) < 0)
        *status = 127 << 8;
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6;
}

static int time_runs(int count, char **command)
{
    int status = 0;
    double first = run_once(command, &status), best = first;

    for (int i = 1; i < count; i++) {
        double again = run_once(command, &status);
        best = again < best ? again : best;
    }
    printf("first=%.1f best=%.1f exit=%d\n", first, best, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 2 && !strcmp(argv[1], "compute"))
        return compute_all(argc == 2 || strcmp(argv[2], "--no-kernel"));
    if (argc == 3 && !strcmp(argv[1], "hold"))
        return compute_all(0) || (int)sleep((unsigned)atoi(argv[2]));
    if (argc == 2 && !strcmp(argv[1], "given"))
        return look_at_given();
    if (argc >= 3 && !strcmp(argv[1], "names"))
        return print_names(argv + 2);
    if (argc >= 3 && !strcmp(argv[1], "open"))
        return open_all(argv[2], argv + 3);
    if (argc >= 4 && !strcmp(argv[1], "time"))
        return time_runs(atoi(argv[2]), argv + 3);
    fputs("usage: see the head of check.c\n", stderr);
    return 2;
}
