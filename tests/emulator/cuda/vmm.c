/* The VMM calls, each a list of rules with where it comes from: [H] cuda.h 13.0's text, [I] a public issue, [?]
 * assumed. */
#include <string.h>

#include "abi.h"

/* Memory ----------------------------------------------------------------------------------------------------------- */

/* How the journal tells of properties; none at all are -1. */
#define SHOWN "types=%d location=%d:%d rdma=%d"
#define SHOW(prop) \
    (prop).requestedHandleTypes, (prop).location.type, (prop).location.id, (prop).allocFlags.gpuDirectRDMACapable

static CUmemAllocationProp shown_properties(const CUmemAllocationProp *prop)
{
    return prop != NULL ? *prop : (CUmemAllocationProp){.requestedHandleTypes = -1, .location = {-1, -1}};
}

/* What create and the granularity call both want of properties. */
static CUresult check_properties(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != TYPE_PINNED)
        return INVALID_VALUE;
    switch (prop->location.type) {
    case LOCATION_DEVICE: return is_device(prop->location.id) ? OK : INVALID_DEVICE;
    case LOCATION_HOST: /* [H] the id is ignored; no handle to share */
        return knob.version < 13000 ? INVALID_VALUE : prop->requestedHandleTypes == HANDLE_NONE ? OK : INVALID_VALUE;
    case LOCATION_HOST_NUMA: return prop->location.id == 0 ? OK : INVALID_VALUE;
    default: /* [H] HOST_NUMA_CURRENT too */ return INVALID_VALUE;
    }
}

static CUresult check_handle_types(const CUmemAllocationProp *prop, size_t size)
{
    const int wanted = prop->requestedHandleTypes;
    if (wanted & ~(HANDLE_POSIX_FD | HANDLE_FABRIC))
        return (wanted & ~15) ? INVALID_VALUE : NOT_SUPPORTED; /* 2 and 4 are Windows' */
    if ((wanted & HANDLE_POSIX_FD) && !knob.posix_fd_attr)
        return NOT_SUPPORTED;
    if ((wanted & HANDLE_FABRIC) && knob.fabric_code != 0)
        return (CUresult)knob.fabric_code; /* [H] no IMEX channel: NOT_PERMITTED, [I] DeepEP#487 */
    if ((wanted & HANDLE_POSIX_FD) && (long long)size >= knob.posix_fd_below)
        return OUT_OF_MEMORY; /* [I] xla#48979 */
    return OK;
}

static CUresult create(CUhandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (handle == NULL || flags != 0)
        return INVALID_VALUE;
    CUresult refused = check_properties(prop);
    if (refused != OK)
        return refused;
    if (size == 0 || size % (size_t)knob.gran_min != 0) /* [H] */
        return INVALID_VALUE;
    refused = check_handle_types(prop, size);
    if (refused != OK)
        return refused;
    if (prop->allocFlags.gpuDirectRDMACapable && knob.rdma_create_code != 0)
        return (CUresult)knob.rdma_create_code;
    const struct properties properties = {prop->type, prop->requestedHandleTypes, prop->location.type,
                                          prop->location.id, prop->allocFlags.gpuDirectRDMACapable};
    int error;
    const int device = prop->location.type == LOCATION_DEVICE ? prop->location.id : -1;
    const struct allocation *allocation = allocation_create(size, device, &properties, &error);
    if (allocation == NULL)
        return error;
    *handle = allocation->handle;
    note("-> handle=%#llx", *handle);
    return OK;
}

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    const CUmemAllocationProp shown = shown_properties(prop);
    ENTER(INITIALISED | VMM, "size=%zu " SHOWN " flags=%llu", size, SHOW(shown), flags);
    return LEAVE(create(handle, size, prop, flags));
}

static CUresult release(CUhandle handle)
{
    struct allocation *allocation = allocation_find(handle);
    if (allocation == NULL) { /* [H] undefined behaviour; here it is refused, and never forgotten */
        violation(allocation_was_released(handle) ? "handle %#llx released twice" : "unknown handle %#llx released",
                  handle);
        return INVALID_VALUE;
    }
    allocation_release(allocation);
    return OK;
}

EXPORT CUresult cuMemRelease(CUhandle handle)
{
    ENTER(INITIALISED | VMM, "handle=%#llx", handle);
    return LEAVE(release(handle));
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    ENTER(INITIALISED | VMM, "address=%p", address);
    const struct mapping *mapping = mapping_at((uintptr_t)address);
    if (mapping == NULL || mapping->reservation->plain) /* [H] not mapped: fails; any address inside will do */
        return LEAVE(INVALID_VALUE);
    allocation_retain(mapping->allocation);
    *handle = mapping->allocation->handle; /* [H] the same value */
    note("-> handle=%#llx", *handle);
    return LEAVE(OK);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUhandle handle)
{
    ENTER(INITIALISED, "handle=%#llx", handle);
    const struct allocation *allocation = allocation_find(handle);
    if (allocation == NULL)
        return LEAVE(INVALID_VALUE);
    memset(prop, 0, sizeof *prop);
    prop->type = allocation->properties.type;
    prop->requestedHandleTypes = allocation->properties.handle_types;
    prop->location.type = allocation->properties.location_type;
    prop->location.id = allocation->properties.location_id;
    prop->allocFlags.gpuDirectRDMACapable = allocation->properties.rdma && knob.rdma_honoured;
    return LEAVE(OK);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
    const CUmemAllocationProp shown = shown_properties(prop);
    ENTER(INITIALISED, SHOWN " option=%d", SHOW(shown), option);
    if (knob.gran_code != 0) /* [I] vGPU: xgboost#12217 */
        return LEAVE((CUresult)knob.gran_code);
    const CUresult refused = check_properties(prop);
    if (refused != OK)
        return LEAVE(refused);
    if (granularity == NULL || (option != 0 && option != 1))
        return LEAVE(INVALID_VALUE);
    *granularity = (size_t)(option == 0 ? knob.gran_min : knob.gran_rec);
    return LEAVE(OK);
}

/* Addresses and memory together ------------------------------------------------------------------------------------ */

static CUresult map_memory(CUdeviceptr ptr, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
    const size_t granularity = (size_t)knob.gran_min;
    struct allocation *allocation = allocation_find(handle);
    if (flags != 0 || allocation == NULL || size == 0)
        return INVALID_VALUE;
    if (ptr % granularity != 0 || size % granularity != 0 || offset % granularity != 0) /* [H] */
        return INVALID_VALUE;
    if (offset != 0) /* [H] "currently must be zero" */
        return INVALID_VALUE;
    if (size > allocation->size) /* [H] says less than; the full size is what everybody maps */
        return INVALID_VALUE;
    struct reservation *reservation = reservation_over(ptr, size);
    if (reservation == NULL || reservation->plain || !range_is_unmapped(ptr, size)) /* [H] */
        return INVALID_VALUE;
    map(reservation, ptr, size, allocation);
    return OK;
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "ptr=%#llx size=%zu offset=%zu handle=%#llx flags=%llu", ptr, size, offset, handle, flags);
    return LEAVE(map_memory(ptr, size, offset, handle, flags));
}

static CUresult unmap_memory(CUdeviceptr ptr, size_t size)
{
    struct mapping *mapping = whole_run(ptr, size); /* [H] never part of a mapping; several whole ones are accepted */
    if (mapping == NULL || mapping->reservation->plain)
        return INVALID_VALUE;
    about_to_unmap(ptr, size);
    while (mapping != NULL && mapping->base < ptr + size) {
        struct mapping *next = TAILQ_NEXT(mapping, by_address);
        unmap(mapping);
        mapping = next;
    }
    return OK;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    ENTER(INITIALISED | VMM, "ptr=%#llx size=%zu", ptr, size);
    return LEAVE(unmap_memory(ptr, size));
}
