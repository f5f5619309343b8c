/* The VMM calls, each a list of rules with where it comes from: [H] cuda.h 13.0's text, [I] a public issue, [?] assumed. */
#include <string.h>

#include "abi.h"

/* Addresses -------------------------------------------------------------------------------------------------------- */

static CUresult address_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    if (knob.reserve_code != 0)
        return (CUresult)knob.reserve_code;
    if (ptr == NULL || flags != 0)
        return INVALID_VALUE;
    if (size == 0 || size % HOST_PAGE != 0 || hint % HOST_PAGE != 0) /* [H] of the host's page, not of the granularity */
        return INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) /* [H] 0 or a power of two */
        return INVALID_VALUE;
    if (alignment != 0 && knob.reserve_aligned_code != 0)
        return (CUresult)knob.reserve_aligned_code;
    const struct reservation *reservation = reserve(size, alignment, hint);
    if (reservation == NULL)
        return OUT_OF_MEMORY;
    *ptr = reservation->base;
    note("-> ptr=%#llx", *ptr);
    return OK;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "size=%zu alignment=%zu hint=%#llx flags=%llu", size, alignment, hint, flags);
    return LEAVE(address_reserve(ptr, size, alignment, hint, flags));
}

static CUresult address_free(CUdeviceptr ptr, size_t size)
{
    struct reservation *reservation = reservation_at(ptr);
    if (reservation == NULL || reservation->plain || reservation->size != size) /* [H] both as reserved */
        return INVALID_VALUE;
    if (!TAILQ_EMPTY(&reservation->mappings)) { /* [?] undocumented */
        violation("addresses at %#llx freed while memory is mapped there", ptr);
        return INVALID_VALUE;
    }
    return reservation_free(reservation) ? OK : INVALID_VALUE;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    ENTER(INITIALISED | VMM, "ptr=%#llx size=%zu", ptr, size);
    return LEAVE(address_free(ptr, size));
}

/* Memory ----------------------------------------------------------------------------------------------------------- */

/* What create and the granularity call both want of properties. */
static CUresult check_properties(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != TYPE_PINNED)
        return INVALID_VALUE;
    switch (prop->location.type) {
    case LOCATION_DEVICE:
        return is_device(prop->location.id) ? OK : INVALID_DEVICE;
    case LOCATION_HOST: /* [H] the id is ignored; no handle to share */
        return knob.version < 13000 ? INVALID_VALUE : prop->requestedHandleTypes == HANDLE_NONE ? OK : INVALID_VALUE;
    case LOCATION_HOST_NUMA:
        return prop->location.id == 0 ? OK : INVALID_VALUE;
    default: /* [H] HOST_NUMA_CURRENT too */
        return INVALID_VALUE;
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
    const struct properties properties = {
        prop->type, prop->requestedHandleTypes, prop->location.type, prop->location.id, prop->allocFlags.gpuDirectRDMACapable};
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
    ENTER(INITIALISED | VMM, "size=%zu types=%d location=%d:%d rdma=%d flags=%llu", size, prop ? prop->requestedHandleTypes : -1,
          prop ? prop->location.type : -1, prop ? prop->location.id : -1, prop ? prop->allocFlags.gpuDirectRDMACapable : -1, flags);
    return LEAVE(create(handle, size, prop, flags));
}

static CUresult release(CUhandle handle)
{
    struct allocation *allocation = allocation_find(handle);
    if (allocation == NULL) { /* [H] undefined behaviour; here it is refused, and never forgotten */
        violation(allocation_was_released(handle) ? "handle %#llx released twice" : "unknown handle %#llx released", handle);
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
    ENTER(INITIALISED, "types=%d location=%d:%d rdma=%d option=%d", prop ? prop->requestedHandleTypes : -1,
          prop ? prop->location.type : -1, prop ? prop->location.id : -1, prop ? prop->allocFlags.gpuDirectRDMACapable : -1, option);
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

/* Access ----------------------------------------------------------------------------------------------------------- */

static CUresult check_desc(const CUmemAccessDesc *desc, const struct mapping *mapping)
{
    if (desc->flags != ACCESS_NONE && desc->flags != ACCESS_READ && desc->flags != ACCESS_READ_WRITE)
        return INVALID_VALUE;
    const bool on_host = mapping->allocation->properties.location_type != LOCATION_DEVICE;
    switch (desc->location.type) {
    case LOCATION_DEVICE:
        if (!is_device(desc->location.id))
            return INVALID_DEVICE;
        /* [?] no way from one device to the other. */
        return on_host || knob.peer || desc->location.id == mapping->allocation->properties.location_id ? OK : INVALID_DEVICE;
    case LOCATION_HOST:
    case LOCATION_HOST_NUMA: /* [H] only for memory on the host */
        return on_host ? OK : INVALID_VALUE;
    default:
        return INVALID_VALUE;
    }
}

/* The first mapping that a SetAccess of the range concerns, or NULL where the range is refused. */
static struct mapping *range_for_access(CUdeviceptr ptr, size_t size)
{
    if (knob.strict_access)
        return whole_run(ptr, size); /* [H] "containing all allocations"; a hole: 1 */
    if (ptr % (size_t)knob.gran_min != 0 || size % (size_t)knob.gran_min != 0 || !fully_mapped(ptr, size))
        return NULL;
    return mapping_at(ptr);
}

static CUresult set_access_of(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    struct mapping *first = size > 0 ? range_for_access(ptr, size) : NULL;
    if (first == NULL || first->reservation->plain || desc == NULL || count == 0)
        return INVALID_VALUE;
    /* All or nothing: everything is checked before anything is set. */
    for (struct mapping *mapping = first; mapping != NULL && mapping->base < ptr + size; mapping = TAILQ_NEXT(mapping, by_address)) {
        if (mapping->allocation->properties.rdma && knob.rdma_access_code != 0)
            return (CUresult)knob.rdma_access_code; /* [I] WSL2: pytorch#192330 */
        for (size_t i = 0; i < count; i++) {
            const CUresult refused = check_desc(&desc[i], mapping);
            if (refused != OK)
                return refused;
        }
    }
    for (struct mapping *mapping = first; mapping != NULL && mapping->base < ptr + size; mapping = TAILQ_NEXT(mapping, by_address))
        for (size_t i = 0; i < count; i++)
            set_access(mapping, desc[i].location.type == LOCATION_DEVICE ? desc[i].location.id : HOST_PLACE, desc[i].flags);
    return OK;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    const bool there = desc != NULL && count > 0;
    ENTER(INITIALISED | VMM, "ptr=%#llx size=%zu count=%zu location=%d:%d access=%d", ptr, size, count,
          there ? desc->location.type : -1, there ? desc->location.id : -1, there ? desc->flags : -1);
    return LEAVE(set_access_of(ptr, size, desc, count));
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    ENTER(INITIALISED, "ptr=%#llx location=%d:%d", ptr, location ? location->type : -1, location ? location->id : -1);
    const struct mapping *mapping = mapping_at(ptr);
    if (mapping == NULL || location == NULL || flags == NULL)
        return LEAVE(INVALID_VALUE);
    if (location->type == LOCATION_DEVICE && !is_device(location->id))
        return LEAVE(INVALID_DEVICE);
    *flags = mapping->access[location->type == LOCATION_DEVICE ? location->id : HOST_PLACE];
    return LEAVE(OK);
}
