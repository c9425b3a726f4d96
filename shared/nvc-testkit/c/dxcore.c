/*
 * A simulated libdxcore.so: WSL's view of one graphics adapter, whose driver store is STORE.
 *
 * The calls and structures are those of Windows' d3dkmthk.h, with wide characters of 32 bits.
 */
#include <stdint.h>
#include <string.h>
#include <wchar.h>

struct adapter { uint32_t handle, luid[2], sources, present; };
struct enumerate_2 { uint32_t count; struct adapter *adapters; };
struct enumerate_3 { uint64_t filter; uint32_t count; struct adapter *adapters; };
struct query { uint32_t handle, kind; void *data; uint32_t size; };
struct registry {
    uint32_t kind, flags, name[260], type, adapter, output_size, status;
    wchar_t output[];
};

enum { DRIVER_VERSION = 13, REGISTRY = 48, WDDM = 3100, INVALID = -1 };

static int enumerate(uint32_t *count, struct adapter *adapters)
{
    if (adapters && *count)
        adapters[0] = (struct adapter){.handle = 1};
    *count = 1;
    return 0;
}

int D3DKMTEnumAdapters2(struct enumerate_2 *e) { return enumerate(&e->count, e->adapters); }
int D3DKMTEnumAdapters3(struct enumerate_3 *e) { return enumerate(&e->count, e->adapters); }
int D3DKMTCloseAdapter(uint32_t *handle) { return handle ? 0 : INVALID; }

int D3DKMTQueryAdapterInfo(struct query *q)
{
    struct registry *registry = q->data;

    if (q->handle != 1)
        return INVALID;
    if (q->kind == DRIVER_VERSION) {
        *(uint32_t *)q->data = WDDM;
        return 0;
    }
    if (q->kind != REGISTRY || q->size < sizeof *registry + sizeof STORE)
        return INVALID;
    memcpy(registry->output, STORE, sizeof STORE);
    registry->output_size = sizeof STORE;
    registry->status = 0;
    return 0;
}
