/* released DRIVER-ROOT: in a debug build of the library, released handles are detected. */
#include "check.h"

int main(int argc, char **argv)
{
    struct nvc_context *ctx, *volatile stale;
    struct nvc_driver_info *info, *volatile stale_info;

    CHECK(argc == 2);
    ctx = context_on(argv[1]);
    info = nvc_driver_info_new(ctx, NULL);
    stale = ctx;
    stale_info = info;
    nvc_driver_info_free(info);
    nvc_context_free(ctx);
    CHECK(nvc_init(stale, NULL, NULL) == -1);
    CHECK(nvc_error(stale) == NULL);
    CHECK(nvc_shutdown(stale) == -1);
    nvc_driver_info_free(stale_info);
    nvc_context_free(stale);
    return 0;
}
