/* The VMM calls of HIP: memory, map and unmap. Which version does what is in knobs: A = ROCm 6.1 to 6.3
 * (and 6.4), B = 7.0 to 7.2, C = 7.14 and 10. [S] read in clr's or ROCr's source, [I] a public issue, [?] assumed. */
#include <string.h>

#include "abi.h"

/* Memory ----------------------------------------------------------------------------------------------------------- */

/* How the journal tells of properties; none at all are -1. */
#define SHOWN "types=%d location=%d:%d rdma=%d"
#define SHOW(prop) \
    (prop).requestedHandleTypes, (prop).location.type, (prop).location.id, (prop).allocFlags.gpuDirectRDMACapable

static hipMemAllocationProp shown_properties(const hipMemAllocationProp *prop)
{
    return prop != NULL ? *prop : (hipMemAllocationProp){.requestedHandleTypes = -1, .location = {-1, -1}};
}

static int check_properties(const hipMemAllocationProp *prop)
{
    if (prop == NULL || (prop->type != TYPE_PINNED && !(prop->type == TYPE_UNCACHED && knob.version >= ROCM_7_0)))
        return INVALID_VALUE;
    if (prop->location.type == LOCATION_HOST)
        return knob.host_location ? OK : INVALID_VALUE;
    if (prop->location.type != LOCATION_DEVICE)
        return INVALID_VALUE;
    return is_device(prop->location.id) ? OK : (int)knob.bad_id_code; /* [S] A: 1, B and C: 101 */
}

static int create(hipHandle *handle, size_t size, const hipMemAllocationProp *prop, unsigned long long flags)
{
    if (handle == NULL || size == 0 || flags != 0)
        return INVALID_VALUE;
    const int refused = check_properties(prop);
    if (refused != OK)
        return refused;
    const int types = prop->requestedHandleTypes; /* [S] one of them, never two together */
    if (types != HANDLE_NONE && types != HANDLE_POSIX_FD && !(types == HANDLE_FABRIC && knob.version >= ROCM_7_14))
        return NOT_SUPPORTED;
    if (types == HANDLE_FABRIC && knob.fabric_code != 0)
        return (int)knob.fabric_code;
    if (size % (size_t)knob.create_align != 0)
        return INVALID_VALUE;
    if (size % HOST_PAGE != 0) /* [S] passes HIP's own check, ROCr's does not, and comes back as this */
        return OUT_OF_MEMORY;
    const struct properties properties = {prop->type, types, prop->location.type, prop->location.id,
                                          prop->allocFlags.gpuDirectRDMACapable};
    int device = knob.create_on_current ? front_device() : prop->location.id; /* [S] */
    if (prop->location.type == LOCATION_HOST)
        device = -1;
    int error;
    const struct allocation *allocation = allocation_create(size, device, &properties, &error);
    if (allocation == NULL)
        return error; /* [I] no descriptor left is "out of memory" too: rocm-systems#10604 */
    *handle = allocation->handle;
    note("-> handle=%#zx device=%d", *handle, device);
    return OK;
}

EXPORT hipError_t hipMemCreate(hipHandle *handle, size_t size, const hipMemAllocationProp *prop,
                               unsigned long long flags)
{
    const hipMemAllocationProp shown = shown_properties(prop);
    ENTER(INITIALISED | VMM, "size=%zu " SHOWN " flags=%llu", size, SHOW(shown), flags);
    return LEAVE(create(handle, size, prop, flags));
}

static int release(hipHandle handle)
{
    struct allocation *allocation = allocation_find(handle);
    if (handle == 0)
        return INVALID_VALUE;
    if (allocation == NULL) { /* [S] use after free; here it is refused, and never forgotten */
        violation(allocation_was_released(handle) ? "handle %#zx released twice" : "unknown handle %#zx released",
                  handle);
        return INVALID_VALUE;
    }
    allocation_release(allocation);
    return OK;
}

EXPORT hipError_t hipMemRelease(hipHandle handle)
{
    ENTER(INITIALISED | VMM, "handle=%#zx", handle);
    return LEAVE(release(handle));
}

EXPORT hipError_t hipMemRetainAllocationHandle(hipHandle *handle, void *address)
{
    ENTER(INITIALISED | VMM, "address=%p", address);
    const struct mapping *mapping = mapping_at(number(address));
    if (handle == NULL || mapping == NULL || mapping->reservation->plain)
        return LEAVE(INVALID_VALUE);
    if (knob.retain_adds) /* before 7.12 it does not */
        allocation_retain(mapping->allocation);
    *handle = mapping->allocation->handle;
    note("-> handle=%#zx", *handle);
    return LEAVE(OK);
}

EXPORT hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *prop, hipHandle handle)
{
    ENTER(INITIALISED | VMM, "handle=%#zx", handle);
    const struct allocation *allocation = allocation_find(handle);
    if (prop == NULL || allocation == NULL)
        return LEAVE(INVALID_VALUE);
    memset(prop, 0, sizeof *prop);
    prop->type = allocation->properties.type;
    prop->requestedHandleTypes = allocation->properties.handle_types;
    prop->location.type = allocation->properties.location_type;
    prop->location.id = allocation->properties.location_id;
    if (allocation->imported && !knob.import_known) /* [S] what it does not know it makes up */
        prop->location.id = front_device();
    prop->allocFlags.gpuDirectRDMACapable = allocation->properties.rdma && knob.rdma_honoured;
    return LEAVE(OK);
}

EXPORT hipError_t hipMemGetAllocationGranularity(size_t *granularity, const hipMemAllocationProp *prop, int option)
{
    const hipMemAllocationProp shown = shown_properties(prop);
    ENTER(INITIALISED | VMM, SHOWN " option=%d", SHOW(shown), option);
    if (knob.gran_code != 0)
        return LEAVE((int)knob.gran_code);
    const int refused = check_properties(prop);
    if (refused != OK)
        return LEAVE(refused);
    if (granularity == NULL || (option != 0 && option != 1))
        return LEAVE(INVALID_VALUE);
    *granularity = (size_t)(option == 0 ? knob.gran_min : knob.gran_rec);
    return LEAVE(OK);
}

/* Map and unmap ---------------------------------------------------------------------------------------------------- */

static int try_map(uint64_t ptr, size_t size, struct allocation *allocation)
{
    struct reservation *reservation = reservation_over(ptr, size);
    if (size % HOST_PAGE != 0 || ptr % HOST_PAGE != 0 || size > allocation->size)
        return INVALID_VALUE;
    if (reservation == NULL || reservation->plain || !range_is_unmapped(ptr, size))
        return INVALID_VALUE;
    map(reservation, ptr, size, allocation);
    return OK;
}

static int map_memory(uint64_t ptr, size_t size, size_t offset, hipHandle handle, unsigned long long flags)
{
    struct allocation *allocation = allocation_find(handle);
    if (ptr == 0 || size == 0 || offset != 0 || handle == 0 || flags != 0)
        return INVALID_VALUE;
    if (allocation == NULL) {
        violation("handle %#zx mapped, which is not there", handle);
        return INVALID_VALUE;
    }
    const int verdict = try_map(ptr, size, allocation);
    if (verdict != OK && knob.map_swallows) {
        note("swallowed=%d", verdict); /* [S] A and B drop what the map command says */
        return OK;
    }
    return verdict;
}

EXPORT hipError_t hipMemMap(void *ptr, size_t size, size_t offset, hipHandle handle, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "ptr=%p size=%zu offset=%zu handle=%#zx flags=%llu", ptr, size, offset, handle, flags);
    return LEAVE(map_memory(number(ptr), size, offset, handle, flags));
}

static int unmap_memory(uint64_t ptr, size_t size)
{
    struct mapping *mapping = mapping_at(ptr);
    if (ptr == 0 || size == 0)
        return INVALID_VALUE;
    if (mapping == NULL || mapping->reservation->plain)
        return knob.unmap_crashes ? crash() : INVALID_VALUE;
    const uint64_t start = mapping->base; /* [S] an address inside stands for the mapping's start */
    if (knob.unmap_single && mapping->size != size) {
        note("ignored=1"); /* [I] ROCR-Runtime#285: success, and nothing happened */
        return OK;
    }
    if (whole_run(start, size) == NULL)
        return INVALID_VALUE;
    about_to_unmap(start, size);
    while (mapping != NULL && mapping->base < start + size) {
        struct mapping *next = TAILQ_NEXT(mapping, by_address);
        unmap(mapping);
        mapping = next;
    }
    return OK;
}

EXPORT hipError_t hipMemUnmap(void *ptr, size_t size)
{
    ENTER(INITIALISED | VMM, "ptr=%p size=%zu", ptr, size);
    return LEAVE(unmap_memory(number(ptr), size));
}
