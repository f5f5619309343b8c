/* cuMemSetAccess and cuMemGetAccess. [H] cuda.h 13.0, [I] a public issue, [?] assumed. */
#include "abi.h"

static CUresult check_desc(const CUmemAccessDesc *desc, const struct mapping *mapping)
{
    if (desc->flags != ACCESS_NONE && desc->flags != ACCESS_READ && desc->flags != ACCESS_READ_WRITE)
        return INVALID_VALUE;
    if (desc->flags == ACCESS_READ && knob.read_only_code != 0) /* [H] NOT_SUPPORTED is among the answers */
        return (CUresult)knob.read_only_code;
    const bool on_host = mapping->allocation->properties.location_type != LOCATION_DEVICE;
    switch (desc->location.type) {
    case LOCATION_DEVICE:
        if (!is_device(desc->location.id))
            return INVALID_DEVICE;
        /* [?] no way from one device to the other. */
        return on_host || knob.peer || desc->location.id == mapping->allocation->properties.location_id
                   ? OK
                   : INVALID_DEVICE;
    case LOCATION_HOST:
    case LOCATION_HOST_NUMA: /* [H] only for memory on the host */ return on_host ? OK : INVALID_VALUE;
    default: return INVALID_VALUE;
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
    EACH_MAPPING (mapping, first, ptr + size) {
        if (mapping->allocation->properties.rdma && knob.rdma_access_code != 0)
            return (CUresult)knob.rdma_access_code; /* [I] WSL2: pytorch#192330 */
        for (size_t i = 0; i < count; i++) {
            const CUresult refused = check_desc(&desc[i], mapping);
            if (refused != OK)
                return refused;
        }
    }
    EACH_MAPPING (mapping, first, ptr + size)
        for (size_t i = 0; i < count; i++)
            set_access(mapping, desc[i].location.type == LOCATION_DEVICE ? desc[i].location.id : HOST_PLACE,
                       desc[i].flags);
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
