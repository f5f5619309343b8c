/* Memory information, memset, memcpy, streams, captures: what needs a context. */
#include "abi.h"

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(CONTEXT, "%s", "");
    *free_bytes = (size_t)device_free(current_device());
    *total = (size_t)knob.total;
    note("-> free=%zu total=%zu", *free_bytes, *total);
    return LEAVE(OK);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    ENTER(CONTEXT, "size=%zu", size);
    if (size == 0)
        return LEAVE(INVALID_VALUE);
    *ptr = plain_alloc(size, current_device());
    return LEAVE(*ptr ? OK : OUT_OF_MEMORY);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    ENTER(CONTEXT, "ptr=%#llx", ptr);
    finish_work();
    return LEAVE(plain_free(ptr) ? OK : INVALID_VALUE);
}

/* Setting and copying: those without a stream use the null stream, and to the host they need not have happened.
 * --------- */

#define SETTING(name, type, width)                                                                        \
    EXPORT CUresult cuMemset##name##_v2(CUdeviceptr ptr, type value, size_t count)                        \
    {                                                                                                     \
        ENTER(CONTEXT, "ptr=%#llx value=%#x count=%zu", ptr, (unsigned)value, count);                     \
        return LEAVE(set_memory(ptr, count, value, width, NULL_STREAM));                                  \
    }                                                                                                     \
    EXPORT CUresult cuMemset##name##Async(CUdeviceptr ptr, type value, size_t count, CUstream stream)     \
    {                                                                                                     \
        ENTER(CONTEXT, "ptr=%#llx value=%#x count=%zu stream=%#zx", ptr, (unsigned)value, count, stream); \
        return LEAVE(set_memory(ptr, count, value, width, stream));                                       \
    }

SETTING(D8, unsigned char, 1)
SETTING(D16, unsigned short, 2)
SETTING(D32, unsigned, 4)

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size)
{
    ENTER(CONTEXT, "target=%#llx source=%#llx size=%zu", target, source, size);
    return LEAVE(copy_on_device(target, source, size, NULL_STREAM));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
    ENTER(CONTEXT, "target=%#llx source=%#llx size=%zu stream=%#zx", target, source, size, stream);
    return LEAVE(copy_on_device(target, source, size, stream));
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size)
{
    ENTER(CONTEXT, "target=%#llx size=%zu", target, size);
    /* [H] API synchronization behavior: it returns when the bytes are staged, and they need not have arrived. */
    return LEAVE(copy_to_device(target, source, size, NULL_STREAM, BEFORE));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
    ENTER(CONTEXT, "target=%#llx size=%zu stream=%#zx", target, size, stream);
    return LEAVE(copy_to_device(target, source, size, stream, NEVER));
}

EXPORT CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size)
{
    ENTER(CONTEXT, "source=%#llx size=%zu", source, size);
    return LEAVE(copy_from_device(target, source, size, NULL_STREAM));
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
    ENTER(CONTEXT, "source=%#llx size=%zu stream=%#zx", source, size, stream);
    return LEAVE(copy_from_device(target, source, size, stream));
}

/* Streams ---------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER(CONTEXT, "flags=%u", flags);
    if (stream == NULL || flags > 1)
        return LEAVE(INVALID_VALUE);
    *stream = stream_create(flags == 0);
    note("-> stream=%#zx", *stream);
    return LEAVE(OK);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER(CONTEXT, "stream=%#zx", stream);
    return LEAVE(stream_destroy(stream) ? OK : INVALID_VALUE);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER(CONTEXT, "stream=%#zx", stream);
    return LEAVE(synchronise_stream(stream));
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    ENTER(CONTEXT, "stream=%#zx", stream);
    if (!stream_known(stream))
        return LEAVE(INVALID_VALUE);
    return LEAVE(stream_busy(stream) ? NOT_READY : OK);
}

/* [H] Asked of the null stream while a blocking stream captures: 906, and the capture goes on. */
EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    ENTER(CONTEXT, "stream=%#zx", stream);
    if (!stream_known(stream) || status == NULL)
        return LEAVE(INVALID_VALUE);
    if (tied_to_capture(stream) != OK)
        return LEAVE(CAPTURE_IMPLICIT);
    *status = capture_status(stream);
    return LEAVE(OK);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER(CONTEXT, "stream=%#zx mode=%d", stream, mode);
    return LEAVE(capture_begin(stream));
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER(CONTEXT, "stream=%#zx", stream);
    uint64_t made = 0;
    const int code = capture_end(stream, &made);
    *graph = made;
    return LEAVE(code);
}

/* A graph is a list of operations with their addresses: an executable one is no different. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    ENTER(CONTEXT, "graph=%#zx flags=%llu", graph, flags);
    if (!graph_known(graph))
        return LEAVE(INVALID_VALUE);
    *executable = graph;
    return LEAVE(OK);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    ENTER(CONTEXT, "graph=%#zx stream=%#zx", executable, stream);
    return LEAVE(graph_launch(executable, stream));
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    ENTER(CONTEXT, "graph=%#zx", executable);
    return LEAVE(graph_known(executable) ? OK : INVALID_VALUE);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    ENTER(CONTEXT, "graph=%#zx", graph);
    return LEAVE(graph_destroy(graph) ? OK : INVALID_VALUE);
}
