/* panic: in a debug build of the library, a panic requested by NVC_TEST_PANIC fails the call and poisons the context. */
#include "check.h"

int main(void)
{
    struct nvc_context *ctx = nvc_context_new();

    CHECK(setenv("NVC_TEST_PANIC", "1", 1) == 0);
    FAILS(ctx, nvc_init(ctx, NULL, NULL), "internal error: as asked");
    CHECK(unsetenv("NVC_TEST_PANIC") == 0);
    FAILS(ctx, nvc_init(ctx, NULL, NULL), "internal error: an earlier call on this context failed");
    FAILS_NULL(ctx, nvc_device_info_new(ctx, NULL), "internal error: an earlier call on this context failed");
    CHECK(nvc_shutdown(ctx) == 0);
    nvc_context_free(ctx);
    /* Other contexts are not affected. */
    ctx = nvc_context_new();
    FAILS_NULL(ctx, nvc_device_info_new(ctx, NULL), "context uninitialized");
    nvc_context_free(ctx);
    return 0;
}
