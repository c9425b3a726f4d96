/* What connects GPUs: NVLink and peer-to-peer access. */

enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PROP, P2P_INDICES };
enum { P2P_OK, P2P_GPU_NOT_SUPPORTED = 2, P2P_NOT_SUPPORTED = 5 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, LINK_CAPABILITIES = 6, LINK_VERSION = 4 };

/* A GPU without any link does not support them; one with a link has all of them, most of them inactive. */
#define ENTER_LINK(d, link)                                                                                            \
    do {                                                                                                               \
        ENTER_DEVICE(d);                                                                                               \
        if ((link) >= MAX_LINKS)                                                                                       \
            return INVALID_ARGUMENT;                                                                                   \
        if ((d)->is_mig || !(d)->has_links)                                                                            \
            return NOT_SUPPORTED;                                                                                      \
    } while (0)

Result nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *is_active)
{
    ENTER_LINK(d, link);
    RESULTS(is_active);
    *is_active = d->links[link] != 0;
    return OK;
}

Result nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *version)
{
    ENTER_LINK(d, link);
    RESULTS(version);
    *version = LINK_VERSION;
    return OK;
}

Result nvmlDeviceGetNvLinkCapability(Device d, unsigned link, unsigned capability, unsigned *has)
{
    ENTER_LINK(d, link);
    RESULTS(has && capability < LINK_CAPABILITIES);
    *has = d->links[link] != 0;
    return OK;
}

Result nvmlDeviceGetNvLinkRemoteDeviceType(Device d, unsigned link, unsigned *type)
{
    ENTER_LINK(d, link);
    RESULTS(type);
    if (!d->links[link])
        return NOT_SUPPORTED;
    *type = d->links[link] < 0 ? REMOTE_SWITCH : REMOTE_GPU;
    return OK;
}

Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, struct pci_3 *p)
{
    struct device a_switch = {.bus = 5};

    ENTER_LINK(d, link);
    RESULTS(p);
    if (!d->links[link])
        return NOT_SUPPORTED;
    describe_pci(d->links[link] < 0 ? &a_switch : &gpus[d->links[link] - 1], p);
    return OK;
}

static int are_linked(Device a, Device b)
{
    for (int link = 0; link < MAX_LINKS; link++)
        for (int other = 0; other < MAX_LINKS; other++)
            if (a->links[link] == b->gpu + 1 || (a->links[link] < 0 && b->links[other] < 0))
                return 1;
    return 0;
}

/* A GPU in MIG mode, and one that is no PCI device, has no peers. */
Result nvmlDeviceGetP2PStatus(Device a, Device b, unsigned index, unsigned *status)
{
    int linked;

    ENTER_DEVICE(b);
    ENTER_DEVICE(a);
    RESULTS(status && index < P2P_INDICES && a != b && !a->is_mig && !b->is_mig);
    linked = are_linked(a, b) || are_linked(b, a);
    if (a->mig == MIG_ON || b->mig == MIG_ON || a->no_pci || b->no_pci)
        *status = P2P_GPU_NOT_SUPPORTED;
    else if (index == P2P_READ || index == P2P_WRITE || ((index == P2P_NVLINK || index == P2P_ATOMICS) && linked))
        *status = P2P_OK;
    else
        *status = P2P_NOT_SUPPORTED;
    return OK;
}

/* No board of a profile has two GPUs. */
Result nvmlDeviceOnSameBoard(Device a, Device b, int *same)
{
    ENTER_DEVICE(b);
    ENTER_DEVICE(a);
    RESULTS(same);
    *same = a->gpu == b->gpu;
    return OK;
}
