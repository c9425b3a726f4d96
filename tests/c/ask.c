/* ask DRIVER-ROOT [FILE PLACE]: prints versions and number of GPUs, or the error and ends with 1. With a file, which then
 * is put in place, prints the number once more: each question after the first goes to the driver. */
#include "check.h"

static size_t gpus(struct nvc_context *ctx)
{
    struct nvc_device_info *info = nvc_device_info_new(ctx, NULL);
    size_t count;

    if (info == NULL) {
        fprintf(stderr, "devices: %s\n", nvc_error(ctx));
        nvc_context_free(ctx);
        exit(1);
    }
    count = info->ngpus;
    nvc_device_info_free(info);
    return count;
}

int main(int argc, char **argv)
{
    struct nvc_context *ctx = nvc_context_new();
    struct nvc_config *cfg = nvc_config_new();
    struct nvc_driver_info *driver;
    int done;

    CHECK(argc == 2 || argc == 4);
    cfg->root = argv[1];
    done = nvc_init(ctx, cfg, NULL);
    nvc_config_free(cfg);
    if (done != 0) {
        fprintf(stderr, "init: %s\n", nvc_error(ctx));
        nvc_context_free(ctx);
        return 1;
    }
    driver = nvc_driver_info_new(ctx, NULL);
    if (driver == NULL) {
        fprintf(stderr, "driver: %s\n", nvc_error(ctx));
        nvc_context_free(ctx);
        return 1;
    }
    printf("%s %s %zu\n", driver->nvrm_version, driver->cuda_version, gpus(ctx));
    if (argc == 4) {
        CHECK(rename(argv[2], argv[3]) == 0);
        printf("%zu\n", gpus(ctx));
    }
    nvc_driver_info_free(driver);
    nvc_context_free(ctx);
    return 0;
}
