/*
 * A simulated nvidia-smi: `nvidia-smi -L` lists the GPUs and MIG devices that this process can really reach, and
 * `nvidia-smi -q` prints some of what the real one prints about them, in its layout, with an invented serial number.
 *
 * It believes only what the kernel lets it do here and now. A GPU is listed if its directory in
 * /proc/driver/nvidia/gpus is there and readable and /dev/nvidiactl and /dev/nvidia<minor> open; a MIG device if also
 * the access files of its GPU instance and compute instance read and their /dev/nvidia-caps nodes, where there are any,
 * open. Behind the nodes of a simulated driver is nothing: ENXIO and ENODEV say that the kernel found the node and no
 * rule forbade it, which counts as open; all else does not.
 *
 * Like the real program it needs libnvidia-ml.so.1 through the loader's cache, so a broken cache shows.
 *
 * NVIDIA_SIM_NO_NODES=1: do not look at /dev at all, and say so. For roots made in a user namespace, which cannot have
 * device nodes of a driver.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The driver's procfs. Where containers share no procfs with the simulated driver, NVIDIA_SIM_PROC says where it is. */
static const char *proc = "/proc/driver/nvidia";

static int no_nodes;

/* Returns true if the kernel lets us use a device node. */
static int opens(const char *path)
{
    int fd;

    if (no_nodes)
        return 1;
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == EACCES)
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* capability nodes are read-only */
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

/* Value of a `Key: value` line of a procfs file; 0 if the file cannot be read or has none. */
static int value_of(const char *path, const char *key, char *value, size_t size)
{
    char line[256];
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    int found = 0;

    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ':') {
            const char *start = line + length + 1 + strspn(line + length + 1, " \t");
            snprintf(value, size, "%.*s", (int)strcspn(start, "\n"), start);
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}

/* Returns true if a MIG capability is ours: its access file can be read and its node, if there is one, opened. */
static int capability(const char *access_file)
{
    char minor[32], node[64];

    if (!value_of(access_file, "DeviceFileMinor", minor, sizeof minor))
        return 0;
    if (access("/dev/nvidia-caps", F_OK))
        return 1; /* a driver without capability nodes */
    snprintf(node, sizeof node, "/dev/nvidia-caps/nvidia-cap%s", minor);
    return opens(node);
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* The MIG devices of a GPU. The real driver knows their names and UUIDs; the simulated one writes them into the
   compute instance's access file, after the lines that libnvc reads. */
static void list_mig_devices(const char *minor)
{
    struct dirent **gis, **cis;
    char dir[128], path[512], name[96], uuid[96];
    int index = 0, gi_count, ci_count;

    snprintf(dir, sizeof dir, "%.64s/capabilities/gpu%.8s/mig", proc, minor);
    gi_count = scandir(dir, &gis, visible, versionsort);
    for (int i = 0; i < gi_count; i++) {
        snprintf(path, sizeof path, "%s/%.32s/access", dir, gis[i]->d_name);
        if (!capability(path))
            continue;
        snprintf(path, sizeof path, "%s/%.32s", dir, gis[i]->d_name);
        ci_count = scandir(path, &cis, visible, versionsort);
        for (int j = 0; j < ci_count; j++) {
            snprintf(path, sizeof path, "%s/%.32s/%.32s/access", dir, gis[i]->d_name, cis[j]->d_name);
            if (strncmp(cis[j]->d_name, "ci", 2) || !capability(path))
                continue;
            if (value_of(path, "SimulatedName", name, sizeof name) && value_of(path, "SimulatedUUID", uuid, sizeof uuid))
                printf("  MIG %-15s Device %2d: (UUID: %s)\n", name, index++, uuid);
        }
    }
}

/* The lines of `-q` about a MIG device. Its instances' numbers are in the names of directories. */
static void query_mig_devices(const char *minor)
{
    struct dirent **gis, **cis;
    char dir[128], path[512];
    int index = 0, gi_count, ci_count;

    snprintf(dir, sizeof dir, "%.64s/capabilities/gpu%.8s/mig", proc, minor);
    gi_count = scandir(dir, &gis, visible, versionsort);
    for (int i = 0; i < gi_count; i++) {
        snprintf(path, sizeof path, "%s/%.32s", dir, gis[i]->d_name);
        ci_count = scandir(path, &cis, visible, versionsort);
        for (int j = 0; j < ci_count; j++)
            if (!strncmp(cis[j]->d_name, "ci", 2))
                printf("    MIG Device\n        %-30s: %d\n        %-30s: %s\n        %-30s: %s\n", "Index", index++,
                       "GPU Instance ID", gis[i]->d_name + 2, "Compute Instance ID", cis[j]->d_name + 2);
    }
    if (gi_count <= 0)
        printf("    %-34s: None\n", "MIG Devices");
}

static void query_gpu(const char *directory, const char *name, const char *uuid, const char *minor)
{
    char path[128];
    unsigned domain = 0;
    int colon = 0, mig;

    sscanf(directory, "%x%n", &domain, &colon);
    printf("\nGPU %08X", domain);
    for (const char *c = directory + colon; *c; c++)
        putchar(*c >= 'a' && *c <= 'f' ? *c - 'a' + 'A' : *c);
    snprintf(path, sizeof path, "%.64s/capabilities/gpu%.8s/mig/gi1", proc, minor);
    mig = !access(path, F_OK);
    printf("\n    %-34s: %s\n    %-34s: %s\n", "Product Name", name, "Persistence Mode", "Enabled");
    printf("    MIG Mode\n        %-30s: %s\n        %-30s: %s\n", "Current", mig ? "Enabled" : "N/A", "Pending",
           mig ? "Enabled" : "N/A");
    query_mig_devices(minor);
    printf("    %-34s: %s\n    %-34s: %s\n    %-34s: %s\n", "Serial Number", "1650123456789", "GPU UUID", uuid,
           "Minor Number", minor);
}

static int list_gpus(int long_form)
{
    struct dirent **gpus;
    char path[512], name[96], uuid[96], minor[32], node[64];
    int index = 0, count;

    snprintf(path, sizeof path, "%.64s/gpus", proc);
    count = scandir(path, &gpus, visible, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%.64s/gpus/%.64s/information", proc, gpus[i]->d_name);
        if (!value_of(path, "Model", name, sizeof name) || !value_of(path, "GPU UUID", uuid, sizeof uuid) ||
            !value_of(path, "Device Minor", minor, sizeof minor))
            continue;
        snprintf(node, sizeof node, "/dev/nvidia%s", minor);
        if (!opens("/dev/nvidiactl") || !opens(node))
            continue;
        if (long_form) {
            query_gpu(gpus[i]->d_name, name, uuid, minor);
            index++;
            continue;
        }
        printf("GPU %d: %s (UUID: %s)\n", index++, name, uuid);
        list_mig_devices(minor);
    }
    return index;
}

int main(int argc, char **argv)
{
    char version[256], path[256];
    const char *switched_off = getenv("NVIDIA_SIM_NO_NODES"), *other_proc = getenv("NVIDIA_SIM_PROC");
    void *nvml;
    int long_form = argc == 2 && !strcmp(argv[1], "-q"), cuda = 0;
    int (*cuda_version)(int *);

    if (argc != 2 || (!long_form && strcmp(argv[1], "-L"))) {
        fputs("usage: nvidia-smi -L | -q      (this is the simulated nvidia-smi of libnvc's test kit)\n", stderr);
        return 2;
    }
    if (!(nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW)) || !dlsym(nvml, "nvmlInit_v2")) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. (%s)\n", dlerror());
        return 12;
    }
    if (other_proc)
        proc = other_proc;
    no_nodes = switched_off && *switched_off && strcmp(switched_off, "0");
    if (no_nodes)
        fprintf(stderr, "nvidia-smi (simulated): device nodes are not looked at, only %s\n", proc);
    snprintf(path, sizeof path, "%.64s/version", proc);
    if (!value_of(path, "NVRM version", version, sizeof version)) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
        return 9;
    }
    if (long_form) {
        char *number = version + strcspn(version, "0123456789");

        if ((cuda_version = (int (*)(int *))dlsym(nvml, "nvmlSystemGetCudaDriverVersion")))
            cuda_version(&cuda);
        printf("\n==============NVSMI LOG==============\n\n%-38s: %.*s\n%-38s: %d.%d\n", "Driver Version",
               (int)strcspn(number, " "), number, "CUDA Version", cuda / 1000, cuda % 1000 / 10);
    }
    if (list_gpus(long_form))
        return 0;
    puts(long_form ? "No devices were found" : "No devices found.");
    return long_form ? 6 : 0; /* as the real one */
}
