/* Prints the driver's version and the GPUs of a driver root, as a user of the -dev package would write it. */

#include <stdio.h>
#include <string.h>

#include <nvc.h>

int main(int argc, char **argv)
{
    struct nvc_context *ctx = nvc_context_new();
    struct nvc_config *cfg = nvc_config_new();
    struct nvc_driver_info *drv = NULL;
    struct nvc_device_info *dev = NULL;
    int status = 1;

    if (strcmp(nvc_version()->string, NVC_VERSION) != 0) {
        fprintf(stderr, "library %s, header %s\n", nvc_version()->string, NVC_VERSION);
        return 1;
    }
    if (argc > 1)
        cfg->root = argv[1];
    if (nvc_init(ctx, cfg, NULL) == 0 && (drv = nvc_driver_info_new(ctx, NULL)) != NULL &&
        (dev = nvc_device_info_new(ctx, NULL)) != NULL) {
        printf("driver %s\n", drv->nvrm_version);
        for (size_t i = 0; i < dev->ngpus; ++i)
            printf("gpu %s\n", dev->gpus[i].uuid);
        status = 0;
    } else {
        fprintf(stderr, "%s\n", nvc_error(ctx));
    }
    nvc_device_info_free(dev);
    nvc_driver_info_free(drv);
    nvc_shutdown(ctx);
    nvc_config_free(cfg);
    nvc_context_free(ctx);
    return status;
}
