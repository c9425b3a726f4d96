/*
 * A simulated libnvidia-sandboxutils.so.1: it is there, as in a driver's package, but serves no container.
 *
 * NVSANDBOXUTILS_ERROR_NOT_SUPPORTED is 2 in nvsandboxutils.h of driver 560.
 */
enum { NOT_SUPPORTED = 2 };

int nvSandboxUtilsInit(void *input)
{
    (void)input;
    return NOT_SUPPORTED;
}

int nvSandboxUtilsShutdown(void) { return NOT_SUPPORTED; }
