/*
 * Asks the driver after it has narrowed its bounding set, as upstream's command line does.
 *
 *     narrowed ROOT wide|narrow|docker THREADS [USER [DIRECTORY]]
 *
 * With DIRECTORY it goes there first, after the library was loaded.
 */
#define _GNU_SOURCE
#include <linux/capability.h>
#include <nvc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *wait_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

#define BIT(capability) (1ULL << (capability))

/* The capabilities that upstream's command line keeps. */
static const unsigned long long upstreams = BIT(CAP_DAC_OVERRIDE) | BIT(CAP_SYS_MODULE);

/* The capabilities that docker gives to containers. */
static const unsigned long long dockers =
    BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | BIT(CAP_KILL) |
    BIT(CAP_SETGID) | BIT(CAP_SETUID) | BIT(CAP_SETPCAP) | BIT(CAP_NET_BIND_SERVICE) | BIT(CAP_NET_RAW) |
    BIT(CAP_SYS_CHROOT) | BIT(CAP_MKNOD) | BIT(CAP_AUDIT_WRITE) | BIT(CAP_SETFCAP);

static int narrow(unsigned long long kept)
{
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (!(kept & BIT(capability)) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    struct nvc_context *context = nvc_context_new();
    struct nvc_config *config = nvc_config_new();
    struct nvc_driver_info *driver;
    struct nvc_device_info *devices;

    if (argc < 4 || !context || !config)
        return 2;
    if (argc > 5 && chdir(argv[5]))
        return 2;
    for (int i = 1; i < atoi(argv[3]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, wait_for_ever, NULL))
            return 2;
    }
    if (strcmp(argv[2], "wide") && narrow(strcmp(argv[2], "docker") ? upstreams : dockers)) {
        perror("bounding set");
        return 2;
    }
    config->root = argv[1];
    if (argc > 4)
        config->uid = config->gid = (uid_t)atoi(argv[4]);
    if (nvc_init(context, config, NULL)) {
        fprintf(stderr, "%s\n", nvc_error(context));
        return 1;
    }
    /* Twice, because later queries use another process. */
    for (int i = 0; i < 2; i++) {
        driver = nvc_driver_info_new(context, NULL);
        devices = nvc_device_info_new(context, NULL);
        if (!driver || !devices) {
            fprintf(stderr, "%s\n", nvc_error(context));
            return 1;
        }
        printf("%s %lu\n", driver->nvrm_version, (unsigned long)devices->ngpus);
        nvc_driver_info_free(driver);
        nvc_device_info_free(devices);
    }
    nvc_config_free(config);
    nvc_context_free(context);
    return 0;
}
