/* threads DRIVER-ROOT PID ROOTFS: several contexts in parallel, and one passed from thread to thread. */
#include "check.h"

#include <pthread.h>

static char **words;

static void *own_context(void *unused)
{
    int round;

    (void)unused;
    for (round = 0; round < 3; round++) {
        struct nvc_context *ctx = context_on(words[1]);
        struct nvc_container_config *cfg = nvc_container_config_new(atoi(words[2]), words[3]);
        struct nvc_container *cnt = nvc_container_new(ctx, cfg, "supervised no-cgroups utility");
        struct nvc_driver_info *driver = nvc_driver_info_new(ctx, NULL);
        struct nvc_device_info *devices = nvc_device_info_new(ctx, NULL);

        CHECK(cnt && driver && devices && devices->ngpus == 2);
        CHECK(nvc_init(ctx, NULL, NULL) == 0);
        CHECK(nvc_driver_info_new(ctx, "x") == NULL && strcmp(nvc_error(ctx), "invalid option: x") == 0);
        nvc_driver_info_free(driver);
        nvc_device_info_free(devices);
        nvc_container_free(cnt);
        nvc_container_config_free(cfg);
        CHECK(nvc_shutdown(ctx) == 0);
        nvc_context_free(ctx);
    }
    return NULL;
}

/* The thread that initialises ends before the context is used. */
static void *initialise(void *unused)
{
    (void)unused;
    return context_on(words[1]);
}

static void *use(void *context)
{
    struct nvc_context *ctx = context;
    int round;

    for (round = 0; round < 3; round++) {
        struct nvc_device_info *devices = nvc_device_info_new(ctx, NULL);
        CHECK(devices && devices->ngpus == 2);
        nvc_device_info_free(devices);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[6];
    void *context;
    size_t i;

    CHECK(argc == 4);
    words = argv;
    for (i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], NULL, own_context, NULL) == 0);
    for (i = 0; i < 6; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    CHECK(pthread_create(&threads[0], NULL, initialise, NULL) == 0);
    CHECK(pthread_join(threads[0], &context) == 0);
    for (i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, use, context) == 0);
    for (i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(nvc_shutdown(context) == 0);
    nvc_context_free(context);
    return 0;
}
