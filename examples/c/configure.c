/* Adds the NVIDIA driver and one GPU to a container.
 *
 *     cc configure.c -o configure $(pkg-config --cflags --libs libnvidia-container)
 *     configure PID ROOTFS GPU [DRIVER-ROOT]
 *
 * PID is a process in the container's mount namespace, ROOTFS its root directory, GPU a number from 0. */
#include <nvc.h>
#include <stdio.h>
#include <stdlib.h>

static int configure(struct nvc_context *ctx, struct nvc_container_config *where, size_t gpu)
{
    struct nvc_driver_info *driver = nvc_driver_info_new(ctx, NULL);
    struct nvc_device_info *devices = driver ? nvc_device_info_new(ctx, NULL) : NULL;
    struct nvc_container *container =
        devices ? nvc_container_new(ctx, where, "supervised no-cgroups utility compute") : NULL;
    int done = -1;

    if (container && gpu >= devices->ngpus)
        fprintf(stderr, "configure: there is no GPU %zu\n", gpu);
    else if (!container || nvc_driver_mount(ctx, container, driver) != 0 ||
             nvc_device_mount(ctx, container, &devices->gpus[gpu]) != 0 ||
             nvc_ldcache_update(ctx, container) != 0)
        fprintf(stderr, "configure: %s\n", nvc_error(ctx));
    else {
        printf("%s, driver %s\n", devices->gpus[gpu].model, driver->nvrm_version);
        done = 0;
    }
    nvc_container_free(container);
    nvc_device_info_free(devices);
    nvc_driver_info_free(driver);
    return done;
}

int main(int argc, char **argv)
{
    struct nvc_context *ctx = nvc_context_new();
    struct nvc_config *config = nvc_config_new();
    struct nvc_container_config *where = NULL;
    int done = -1;

    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: configure PID ROOTFS GPU [DRIVER-ROOT]\n");
    } else {
        config->root = argc == 5 ? argv[4] : NULL;
        where = nvc_container_config_new(atoi(argv[1]), argv[2]);
        if (nvc_init(ctx, config, NULL) != 0)
            fprintf(stderr, "configure: %s\n", nvc_error(ctx));
        else
            done = configure(ctx, where, strtoul(argv[3], NULL, 10));
    }
    nvc_container_config_free(where);
    nvc_config_free(config);
    nvc_shutdown(ctx);
    nvc_context_free(ctx);
    return done == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
