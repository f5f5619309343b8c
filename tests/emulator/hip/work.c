/* Memory information, memset, memcpy, streams, captures. */
#include <string.h>

#include "abi.h"

EXPORT hipError_t hipMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER(INITIALISED, "%s", "");
    if (free_bytes == NULL || total == NULL)
        return LEAVE(INVALID_VALUE);
    *free_bytes = (size_t)device_free(front_device());
    *total = (size_t)knob.total;
    note("-> free=%zu total=%zu", *free_bytes, *total);
    return LEAVE(OK);
}

EXPORT hipError_t hipMalloc(void **ptr, size_t size)
{
    ENTER(INITIALISED, "size=%zu", size);
    if (ptr == NULL)
        return LEAVE(INVALID_VALUE);
    *ptr = size ? (void *)(uintptr_t)plain_alloc(size, front_device()) : NULL;
    return LEAVE(size == 0 || *ptr != NULL ? OK : OUT_OF_MEMORY);
}

EXPORT hipError_t hipFree(void *ptr)
{
    ENTER(INITIALISED, "ptr=%p", ptr);
    finish_work();
    return LEAVE(ptr == NULL || plain_free(number(ptr)) ? OK : INVALID_VALUE);
}

/* Setting ---------------------------------------------------------------------------------------------------------- */

#define SETTING(name, type, width)                                                                         \
    EXPORT hipError_t hipMemset##name(void *ptr, type value, size_t count)                                 \
    {                                                                                                      \
        ENTER(INITIALISED, "ptr=%p value=%#x count=%zu", ptr, (unsigned)value, count);                     \
        return LEAVE(set_memory(number(ptr), count, (unsigned)value, width, NULL_STREAM));                 \
    }                                                                                                      \
    EXPORT hipError_t hipMemset##name##Async(void *ptr, type value, size_t count, hipStream_t stream)      \
    {                                                                                                      \
        ENTER(INITIALISED, "ptr=%p value=%#x count=%zu stream=%#zx", ptr, (unsigned)value, count, stream); \
        return LEAVE(set_memory(number(ptr), count, (unsigned)value, width, stream));                      \
    }

SETTING(, int, 1)
SETTING(D8, unsigned char, 1)
SETTING(D16, unsigned short, 2)
SETTING(D32, int, 4)

/* Copying ---------------------------------------------------------------------------------------------------------- */

enum { TO_HOST_FROM_HOST, TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS };

static int by_address(const void *target, const void *source)
{
    const bool to_device = reservation_over(number(target), 1) != NULL,
               from_device = reservation_over(number(source), 1) != NULL;
    return to_device ? (from_device ? ON_DEVICE : TO_DEVICE) : from_device ? TO_HOST : TO_HOST_FROM_HOST;
}

static int copy(void *target, const void *source, size_t size, int kind, hipStream_t stream, bool wait)
{
    switch (kind == BY_ADDRESS ? by_address(target, source) : kind) {
    case TO_HOST_FROM_HOST: memmove(target, source, size); return OK;
    case TO_DEVICE: return copy_to_device(number(target), source, size, stream, wait ? UNTIL_DONE : NEVER);
    case TO_HOST: return copy_from_device(target, number(source), size, stream);
    case ON_DEVICE: return copy_on_device(number(target), number(source), size, stream);
    default: return 21; /* hipErrorInvalidMemcpyDirection */
    }
}

EXPORT hipError_t hipMemcpy(void *target, const void *source, size_t size, int kind)
{
    ENTER(INITIALISED, "target=%p source=%p size=%zu kind=%d", target, source, size, kind);
    return LEAVE(copy(target, source, size, kind, NULL_STREAM, true));
}

EXPORT hipError_t hipMemcpyAsync(void *target, const void *source, size_t size, int kind, hipStream_t stream)
{
    ENTER(INITIALISED, "target=%p source=%p size=%zu kind=%d stream=%#zx", target, source, size, kind, stream);
    return LEAVE(copy(target, source, size, kind, stream, false));
}

#define COPYING(name, kind)                                                                                     \
    EXPORT hipError_t hipMemcpy##name(void *target, const void *source, size_t size)                            \
    {                                                                                                           \
        ENTER(INITIALISED, "target=%p source=%p size=%zu", target, source, size);                               \
        return LEAVE(copy(target, source, size, kind, NULL_STREAM, true));                                      \
    }                                                                                                           \
    EXPORT hipError_t hipMemcpy##name##Async(void *target, const void *source, size_t size, hipStream_t stream) \
    {                                                                                                           \
        ENTER(INITIALISED, "target=%p source=%p size=%zu stream=%#zx", target, source, size, stream);           \
        return LEAVE(copy(target, source, size, kind, stream, false));                                          \
    }

COPYING(HtoD, TO_DEVICE)
COPYING(DtoH, TO_HOST)
COPYING(DtoD, ON_DEVICE)

/* Streams ---------------------------------------------------------------------------------------------------------- */

EXPORT hipError_t hipDeviceSynchronize(void)
{
    ENTER(INITIALISED, "%s", "");
    return LEAVE(synchronise_device());
}

static int create_stream(hipStream_t *stream, unsigned flags)
{
    if (stream == NULL || flags > 1)
        return INVALID_VALUE;
    *stream = stream_create(flags == 0);
    note("-> stream=%#zx", *stream);
    return OK;
}

EXPORT hipError_t hipStreamCreate(hipStream_t *stream)
{
    ENTER(INITIALISED, "%s", "");
    return LEAVE(create_stream(stream, 0));
}

EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags)
{
    ENTER(INITIALISED, "flags=%u", flags);
    return LEAVE(create_stream(stream, flags));
}

EXPORT hipError_t hipStreamDestroy(hipStream_t stream)
{
    ENTER(INITIALISED, "stream=%#zx", stream);
    return LEAVE(stream_destroy(stream) ? OK : INVALID_VALUE);
}

EXPORT hipError_t hipStreamSynchronize(hipStream_t stream)
{
    ENTER(INITIALISED, "stream=%#zx", stream);
    return LEAVE(synchronise_stream(stream));
}

EXPORT hipError_t hipStreamQuery(hipStream_t stream)
{
    ENTER(INITIALISED, "stream=%#zx", stream);
    if (!stream_known(stream))
        return LEAVE(INVALID_VALUE);
    return LEAVE(stream_busy(stream) ? NOT_READY : OK);
}

EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int *status)
{
    ENTER(INITIALISED, "stream=%#zx", stream);
    if (!stream_known(stream) || status == NULL)
        return LEAVE(INVALID_VALUE);
    if (tied_to_capture(stream) != OK)
        return LEAVE(CAPTURE_IMPLICIT);
    *status = capture_status(stream);
    return LEAVE(OK);
}

EXPORT hipError_t hipStreamBeginCapture(hipStream_t stream, int mode)
{
    ENTER(INITIALISED, "stream=%#zx mode=%d", stream, mode);
    return LEAVE(capture_begin(stream));
}

EXPORT hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph)
{
    ENTER(INITIALISED, "stream=%#zx", stream);
    uint64_t made = 0;
    const int code = capture_end(stream, &made);
    *graph = made;
    return LEAVE(code);
}

EXPORT hipError_t hipGraphInstantiate(hipGraphExec_t *executable, hipGraph_t graph, void *node, char *log, size_t size)
{
    ENTER(INITIALISED, "graph=%#zx node=%p log=%p size=%zu", graph, node, (void *)log, size);
    if (!graph_known(graph))
        return LEAVE(INVALID_VALUE);
    *executable = graph;
    return LEAVE(OK);
}

EXPORT hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream)
{
    ENTER(INITIALISED, "graph=%#zx stream=%#zx", executable, stream);
    return LEAVE(graph_launch(executable, stream));
}

EXPORT hipError_t hipGraphExecDestroy(hipGraphExec_t executable)
{
    ENTER(INITIALISED, "graph=%#zx", executable);
    return LEAVE(graph_known(executable) ? OK : INVALID_VALUE);
}

EXPORT hipError_t hipGraphDestroy(hipGraph_t graph)
{
    ENTER(INITIALISED, "graph=%#zx", graph);
    return LEAVE(graph_destroy(graph) ? OK : INVALID_VALUE);
}
