/*
 * Says what a process in a cgroup may do with devices, and attaches device programs to cgroups of version 2.
 *
 *   device-probe attach DIR multi|override|single [MAJOR:MINOR...]   a program that allows only these char devices
 *   device-probe attach DIR calls|maps                               one among several that calls a helper, or uses a map,
 *                    and allows nothing
 *   device-probe attach DIR again [MAJOR:MINOR...]                   such a program in place of the first one
 *   device-probe link DIR [MAJOR:MINOR...]                           one that a link holds, until standard input ends
 *   device-probe count DIR                                           how many device programs DIR has of its own
 *   device-probe loaded                                              how many the kernel has of those that this program,
 *                    run by the same process, has attached, and of their successors: they keep the name
 *   device-probe race DIR SCRATCH MAJOR:MINOR                        join the cgroup DIR and try to open the device over and
 *                    over until standard input ends; `denied` after the first time, then how often it was opened
 *   device-probe try DIR SCRATCH MAJOR:MINOR...                      join the cgroup DIR (either version); for each char
 *                    device a line `MAJOR:MINOR read=ANSWER write=ANSWER create=ANSWER`; nodes are made in SCRATCH
 *
 * ANSWER is `yes` or `no` (EPERM, the cgroup's refusal) or another error. ENXIO and ENODEV are `yes`: they come after
 * the cgroup's check, from there being nothing behind the node.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MAX_DEVICES = 100 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static long bpf(int command, union bpf_attr *attr) { return syscall(SYS_bpf, command, attr, sizeof *attr); }

static int cgroup_fd(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        die(dir);
    return fd;
}

static void parse(const char *text, unsigned *major, unsigned *minor)
{
    if (sscanf(text, "%u:%u", major, minor) != 2) {
        fprintf(stderr, "not MAJOR:MINOR: %s\n", text);
        exit(2);
    }
}

static struct bpf_insn insn(int code, int dst, int src, int off, int imm)
{
    struct bpf_insn i = {.code = (uint8_t)code, .dst_reg = dst & 15, .src_reg = src & 15, .off = (int16_t)off, .imm = imm};
    return i;
}

/* Returns the name of the programs of one test. */
static const char *name(void)
{
    static char name[BPF_OBJ_NAME_LEN];

    snprintf(name, sizeof name, "nvc_%d", (int)getppid());
    return name;
}

static int load(const struct bpf_insn *code, unsigned n)
{
    union bpf_attr attr;
    int fd;

    memset(&attr, 0, sizeof attr);
    attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    attr.insns = (uintptr_t)code;
    attr.insn_cnt = n;
    attr.license = (uintptr_t) "Apache-2.0";
    strcpy(attr.prog_name, name());
    if ((fd = (int)bpf(BPF_PROG_LOAD, &attr)) < 0)
        die("BPF_PROG_LOAD");
    return fd;
}

/* r2 = major, r3 = minor; for each device: equal to both, return 1; at the end return 0. */
static int load_program(char **devices)
{
    static struct bpf_insn code[4 + 4 * MAX_DEVICES];
    unsigned n = 0, major, minor;

    code[n++] = insn(BPF_LDX | BPF_MEM | BPF_W, 2, 1, 4, 0);
    code[n++] = insn(BPF_LDX | BPF_MEM | BPF_W, 3, 1, 8, 0);
    for (int i = 0; devices[i] && i < MAX_DEVICES; i++) {
        parse(devices[i], &major, &minor);
        code[n++] = insn(BPF_JMP | BPF_JNE | BPF_K, 2, 0, 3, (int)major);
        code[n++] = insn(BPF_JMP | BPF_JNE | BPF_K, 3, 0, 2, (int)minor);
        code[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1);
        code[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    }
    code[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
    code[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return load(code, n);
}

/* A program whose dump cannot be loaded again: it refers to something. */
static int load_referring(int to_map)
{
    struct bpf_insn code[5];
    union bpf_attr attr;
    unsigned n = 0;

    if (to_map) {
        memset(&attr, 0, sizeof attr);
        attr.map_type = BPF_MAP_TYPE_ARRAY;
        attr.key_size = attr.value_size = 4;
        attr.max_entries = 1;
        code[n++] = insn(BPF_LD | BPF_IMM | BPF_DW, 2, BPF_PSEUDO_MAP_FD, 0, (int)bpf(BPF_MAP_CREATE, &attr));
        code[n++] = insn(0, 0, 0, 0, 0);
    } else {
        code[n++] = insn(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_current_uid_gid);
    }
    code[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
    code[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return load(code, n);
}

static int first_program(int cgroup)
{
    unsigned ids[64];
    union bpf_attr attr;
    int fd;

    memset(&attr, 0, sizeof attr);
    attr.query.target_fd = (unsigned)cgroup;
    attr.query.attach_type = BPF_CGROUP_DEVICE;
    attr.query.prog_ids = (uintptr_t)ids;
    attr.query.prog_cnt = 64;
    if (bpf(BPF_PROG_QUERY, &attr) < 0 || attr.query.prog_cnt == 0)
        die("BPF_PROG_QUERY");
    memset(&attr, 0, sizeof attr);
    attr.prog_id = ids[0];
    if ((fd = (int)bpf(BPF_PROG_GET_FD_BY_ID, &attr)) < 0)
        die("BPF_PROG_GET_FD_BY_ID");
    return fd;
}

static void attach(const char *dir, const char *how, char **devices)
{
    int refers = !strcmp(how, "calls") || !strcmp(how, "maps");
    union bpf_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.target_fd = (unsigned)cgroup_fd(dir);
    attr.attach_bpf_fd = (unsigned)(refers ? load_referring(!strcmp(how, "maps")) : load_program(devices));
    attr.attach_type = BPF_CGROUP_DEVICE;
    if (!strcmp(how, "again"))
        attr.replace_bpf_fd = (unsigned)first_program((int)attr.target_fd);
    attr.attach_flags = !strcmp(how, "again")             ? BPF_F_ALLOW_MULTI | BPF_F_REPLACE
                        : refers || !strcmp(how, "multi") ? BPF_F_ALLOW_MULTI
                        : !strcmp(how, "override")      ? BPF_F_ALLOW_OVERRIDE
                                                        : 0;
    if (bpf(BPF_PROG_ATTACH, &attr) < 0)
        die("BPF_PROG_ATTACH");
}

static void wait_for_end_of_input(void)
{
    char byte;

    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

static void link_held(const char *dir, char **devices)
{
    union bpf_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.link_create.prog_fd = (unsigned)load_program(devices);
    attr.link_create.target_fd = (unsigned)cgroup_fd(dir);
    attr.link_create.attach_type = BPF_CGROUP_DEVICE;
    if (bpf(BPF_LINK_CREATE, &attr) < 0)
        die("BPF_LINK_CREATE");
    puts("attached");
    fflush(stdout);
    wait_for_end_of_input();
}

static void loaded(void)
{
    unsigned id = 0, count = 0;
    union bpf_attr attr;

    for (;;) {
        struct bpf_prog_info info = {0};
        int fd;

        memset(&attr, 0, sizeof attr);
        attr.start_id = id;
        if (bpf(BPF_PROG_GET_NEXT_ID, &attr) < 0)
            break;
        id = attr.next_id;
        memset(&attr, 0, sizeof attr);
        attr.prog_id = id;
        if ((fd = (int)bpf(BPF_PROG_GET_FD_BY_ID, &attr)) < 0)
            continue; /* gone meanwhile */
        memset(&attr, 0, sizeof attr);
        attr.info.bpf_fd = (unsigned)fd;
        attr.info.info_len = sizeof info;
        attr.info.info = (uintptr_t)&info;
        if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) < 0)
            die("BPF_OBJ_GET_INFO_BY_FD");
        count += !strcmp(info.name, name());
        close(fd);
    }
    printf("%u\n", count);
}

static void count(const char *dir)
{
    unsigned ids[64];
    union bpf_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.query.target_fd = (unsigned)cgroup_fd(dir);
    attr.query.attach_type = BPF_CGROUP_DEVICE;
    attr.query.prog_ids = (uintptr_t)ids;
    attr.query.prog_cnt = 64;
    if (bpf(BPF_PROG_QUERY, &attr) < 0)
        die("BPF_PROG_QUERY");
    printf("%u\n", attr.query.prog_cnt);
}

static void join(const char *dir)
{
    char path[4096];
    FILE *procs;

    snprintf(path, sizeof path, "%s/cgroup.procs", dir);
    if (!(procs = fopen(path, "we")) || fprintf(procs, "%d", (int)getpid()) < 0 || fclose(procs))
        die(path);
}

static const char *answer(int good)
{
    if (good || errno == ENXIO || errno == ENODEV)
        return "yes";
    return errno == EPERM ? "no" : strerror(errno);
}

static const char *try_open(const char *path, int flags)
{
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    const char *result = answer(fd >= 0);
    if (fd >= 0)
        close(fd);
    return result;
}

/* Making a node needs the cgroup's leave too, so the ones to be opened are made before joining it. */
static void try_all(const char *dir, const char *scratch, char **devices)
{
    char path[4096];
    unsigned major, minor;

    for (int i = 0; devices[i]; i++) {
        parse(devices[i], &major, &minor);
        snprintf(path, sizeof path, "%s/%s", scratch, devices[i]);
        if (mknod(path, S_IFCHR | 0600, makedev(major, minor)) < 0 && errno != EEXIST)
            die(path);
    }
    join(dir);
    for (int i = 0; devices[i]; i++) {
        parse(devices[i], &major, &minor);
        snprintf(path, sizeof path, "%s/%s", scratch, devices[i]);
        printf("%s read=%s", devices[i], try_open(path, O_RDONLY));
        printf(" write=%s", try_open(path, O_WRONLY));
        snprintf(path, sizeof path, "%s/new-%s", scratch, devices[i]);
        printf(" create=%s\n", answer(mknod(path, S_IFCHR | 0600, makedev(major, minor)) == 0));
        unlink(path);
    }
}

static void *end_of_input(void *ended)
{
    wait_for_end_of_input();
    __atomic_store_n((int *)ended, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void race(const char *dir, const char *scratch, const char *device)
{
    unsigned major, minor;
    unsigned long denied = 0, opened = 0;
    int ended = 0;
    char path[4096];
    pthread_t thread;

    parse(device, &major, &minor);
    snprintf(path, sizeof path, "%s/race-%s", scratch, device);
    if (mknod(path, S_IFCHR | 0600, makedev(major, minor)) < 0 && errno != EEXIST)
        die(path);
    join(dir);
    if (pthread_create(&thread, NULL, end_of_input, &ended) != 0)
        die("pthread_create");
    while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
        int no = 0, flags[] = {O_RDONLY, O_WRONLY, O_RDWR};

        for (int i = 0; i < 3; i++)
            no += !strcmp(try_open(path, flags[i]), "no");
        opened += no != 3;
        if (denied++ == 0) {
            puts("denied");
            fflush(stdout);
        }
    }
    printf("%lu\n", opened);
}

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "attach"))
        attach(argv[2], argv[3], argv + 4);
    else if (argc >= 3 && !strcmp(argv[1], "link"))
        link_held(argv[2], argv + 3);
    else if (argc == 2 && !strcmp(argv[1], "loaded"))
        loaded();
    else if (argc == 5 && !strcmp(argv[1], "race"))
        race(argv[2], argv[3], argv[4]);
    else if (argc == 3 && !strcmp(argv[1], "count"))
        count(argv[2]);
    else if (argc >= 5 && !strcmp(argv[1], "try"))
        try_all(argv[2], argv[3], argv + 4);
    else
        return fputs("usage: see the head of device-probe.c\n", stderr), 2;
    return 0;
}
