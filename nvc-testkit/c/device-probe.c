/*
 * Says what a process in a cgroup may do with devices, and attaches device programs to cgroups of version 2.
 *
 *   device-probe attach DIR multi|override|single [MAJOR:MINOR...]   a program that allows only these char devices
 *   device-probe count DIR                                           how many device programs DIR has of its own
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

/* r2 = major, r3 = minor; for each device: equal to both, return 1; at the end return 0. */
static int load_program(char **devices)
{
    static struct bpf_insn code[4 + 4 * MAX_DEVICES];
    union bpf_attr attr;
    unsigned n = 0, major, minor;
    int fd;

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
    memset(&attr, 0, sizeof attr);
    attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    attr.insns = (uintptr_t)code;
    attr.insn_cnt = n;
    attr.license = (uintptr_t) "Apache-2.0";
    if ((fd = (int)bpf(BPF_PROG_LOAD, &attr)) < 0)
        die("BPF_PROG_LOAD");
    return fd;
}

static void attach(const char *dir, const char *how, char **devices)
{
    union bpf_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.target_fd = (unsigned)cgroup_fd(dir);
    attr.attach_bpf_fd = (unsigned)load_program(devices);
    attr.attach_type = BPF_CGROUP_DEVICE;
    attr.attach_flags = !strcmp(how, "multi") ? BPF_F_ALLOW_MULTI : !strcmp(how, "override") ? BPF_F_ALLOW_OVERRIDE : 0;
    if (bpf(BPF_PROG_ATTACH, &attr) < 0)
        die("BPF_PROG_ATTACH");
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

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "attach"))
        attach(argv[2], argv[3], argv + 4);
    else if (argc == 3 && !strcmp(argv[1], "count"))
        count(argv[2]);
    else if (argc >= 5 && !strcmp(argv[1], "try"))
        try_all(argv[2], argv[3], argv + 4);
    else
        return fputs("usage: see the head of device-probe.c\n", stderr), 2;
    return 0;
}
