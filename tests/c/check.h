/* Common parts of the C tests: a check that reports its position, and an initialised context. */
#ifndef CHECK_H
#define CHECK_H

#include <nvc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* The call fails with -1 or NULL, and the context has exactly this text. */
#define FAILS(ctx, call, text)                                                             \
    do {                                                                                   \
        CHECK((call) == -1);                                                               \
        says(ctx, text, __FILE__, __LINE__);                                               \
    } while (0)
#define FAILS_NULL(ctx, call, text)                                                        \
    do {                                                                                   \
        CHECK((call) == NULL);                                                             \
        says(ctx, text, __FILE__, __LINE__);                                               \
    } while (0)

static inline void says(struct nvc_context *ctx, const char *text, const char *file, int line)
{
    const char *found = nvc_error(ctx);
    if (found == NULL || strcmp(found, text) != 0) {
        fprintf(stderr, "%s:%d: nvc_error: '%s', not '%s'\n", file, line, found ? found : "(NULL)", text);
        exit(1);
    }
}

static inline struct nvc_context *context_on(const char *root)
{
    struct nvc_context *ctx = nvc_context_new();
    struct nvc_config *cfg = nvc_config_new();
    char copy[4096];

    CHECK(ctx && cfg && strlen(root) < sizeof(copy));
    /* Overwritten right after the call: the library keeps its own copy. */
    strcpy(copy, root);
    cfg->root = copy;
    if (nvc_init(ctx, cfg, NULL) != 0) {
        fprintf(stderr, "%s\n", nvc_error(ctx));
        exit(1);
    }
    memset(copy, 'x', sizeof(copy) - 1);
    nvc_config_free(cfg);
    return ctx;
}

#endif
