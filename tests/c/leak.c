/* leak: leaks contexts; the checkers must report it. */
#include "check.h"

static __attribute__((noinline)) void forget(int count)
{
    struct nvc_context *volatile ctx = nvc_context_new();

    CHECK(ctx != NULL && nvc_driver_info_new(ctx, NULL) == NULL);
    ctx = NULL;
    /* Several, and at several depths: the stack may still hold one. */
    if (count > 0)
        forget(count - 1);
}

int main(void)
{
    forget(8);
    return 0;
}
