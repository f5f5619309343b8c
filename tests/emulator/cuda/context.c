/* Contexts: one primary per device, shared by everybody and counted; private ones; and each thread's stack of them. */
#include <stdlib.h>

#include "abi.h"

struct context {
    int device;
    bool primary, alive;
    int retained; /* primary only */
};

enum { STACK = 64 };

static struct context primaries[MAX_DEVICES];
static _Thread_local CUcontext stack[STACK];
_Thread_local int context_depth;

int current_device(void)
{
    return context_depth > 0 && stack[context_depth - 1] != NULL ? stack[context_depth - 1]->device : -1;
}

int front_device(void)
{
    return current_device();
}

/* Everything but initialisation, version and error names answers 3 before cuInit [T]; work also needs a context [?]. */
int front_ready(unsigned needs)
{
    if (!cuda_initialised)
        return NOT_INITIALISED;
    if (!(needs & CONTEXT))
        return GO_ON;
    if (current_device() < 0)
        return INVALID_CONTEXT;
    return stack[context_depth - 1]->alive ? GO_ON : CONTEXT_DESTROYED;
}

/* A CUDA call leaves no trace but its own answer. */
void front_verdict(int code)
{
    (void)code;
}

/* The primary context ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    struct context *primary = &primaries[device];
    primary->device = device;
    primary->primary = primary->alive = true;
    primary->retained++;
    *context = primary;
    return LEAVE(OK);
}

/* [H] one that was not retained: 201. The last release resets it; a thread that has it on its stack keeps a dead one.
 */
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    if (primaries[device].retained == 0)
        return LEAVE(INVALID_CONTEXT);
    if (--primaries[device].retained == 0)
        primaries[device].alive = false;
    return LEAVE(OK);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    *flags = 0;
    *active = primaries[device].alive;
    return LEAVE(OK);
}

/* Private contexts ------------------------------------------------------------------------------------------------- */

static CUresult create_private(CUcontext *context, CUdevice device)
{
    if (!is_device(device))
        return INVALID_DEVICE;
    if (context_depth == STACK)
        return INVALID_VALUE;
    violation("a private context was created on device %d: what it holds is not torch's", device);
    *context = calloc(1, sizeof **context);
    (*context)->device = device;
    (*context)->alive = true;
    stack[context_depth++] = *context;
    return OK;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    ENTER(INITIALISED, "flags=%u device=%d", flags, device);
    return LEAVE(create_private(context, device));
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, const void *parameters, unsigned flags, CUdevice device)
{
    ENTER(INITIALISED, "parameters=%d flags=%u device=%d", parameters != NULL, flags, device);
    return LEAVE(create_private(context, device));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER(INITIALISED, "context=%p", (void *)context);
    if (context == NULL || context->primary || !context->alive)
        return LEAVE(INVALID_CONTEXT);
    context->alive = false; /* the structure stays: another thread may have it on its stack */
    if (context_depth > 0 && stack[context_depth - 1] == context)
        context_depth--;
    return LEAVE(OK);
}

/* A thread's stack ------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(INITIALISED, "context=%p", (void *)context);
    if (context == NULL || context_depth == STACK)
        return LEAVE(INVALID_VALUE);
    if (!context->alive)
        return LEAVE(CONTEXT_DESTROYED);
    stack[context_depth++] = context;
    return LEAVE(OK);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(INITIALISED, "%s", "");
    if (context_depth == 0)
        return LEAVE(INVALID_CONTEXT);
    context_depth--;
    if (context != NULL)
        *context = stack[context_depth];
    return LEAVE(OK);
}

/* The top of the stack is replaced; NULL pops it. */
EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(INITIALISED, "context=%p", (void *)context);
    if (context != NULL && !context->alive)
        return LEAVE(CONTEXT_DESTROYED);
    if (context_depth > 0)
        context_depth--;
    if (context != NULL)
        stack[context_depth++] = context;
    return LEAVE(OK);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(INITIALISED, "%s", "");
    *context = context_depth > 0 ? stack[context_depth - 1] : NULL;
    return LEAVE(OK);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(CONTEXT, "%s", "");
    *device = current_device();
    return LEAVE(OK);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(CONTEXT, "%s", "");
    return LEAVE(synchronise_device());
}

/* For tests: how many contexts this thread has stacked, and how often a device's primary context is retained. */
EXPORT int vmmemu_context_depth(void)
{
    return context_depth;
}

EXPORT int vmmemu_primary_retained(CUdevice device)
{
    return device >= 0 && device < MAX_DEVICES ? primaries[device].retained : -1;
}
