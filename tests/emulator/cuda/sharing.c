/* Handles that leave the process, and what a pointer's owner can find out about it. */
#include <string.h>

#include "abi.h"

static CUresult export_handle(void *shareable, CUhandle handle, int type, unsigned long long flags)
{
    const struct allocation *allocation = allocation_find(handle);
    if (allocation == NULL || shareable == NULL || flags != 0)
        return INVALID_VALUE;
    if ((type != HANDLE_POSIX_FD && type != HANDLE_FABRIC) || !(allocation->properties.handle_types & type))
        return INVALID_VALUE; /* [H] asked for at creation, one at a time */
    if (type == HANDLE_FABRIC) {
        allocation_fabric(allocation, shareable);
        return OK;
    }
    const int descriptor = allocation_export(allocation); /* [H] the caller's to close */
    if (descriptor < 0)
        return OUT_OF_MEMORY;
    memcpy(shareable, &descriptor, sizeof descriptor);
    note("-> fd=%d", descriptor);
    return OK;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUhandle handle, int type, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "handle=%#llx type=%d flags=%llu", handle, type, flags);
    return LEAVE(export_handle(shareable, handle, type, flags));
}

static CUresult import_handle(CUhandle *handle, void *shareable, int type)
{
    int error = INVALID_VALUE;
    struct allocation *allocation = NULL;
    if (handle == NULL)
        return INVALID_VALUE;
    if (type == HANDLE_POSIX_FD) {
        allocation = allocation_import((int)(intptr_t)shareable, &error); /* the descriptor itself, cast */
    } else if (type == HANDLE_FABRIC) {
        if (knob.fabric_code != 0)
            return (CUresult)knob.fabric_code;
        allocation = shareable ? allocation_import_fabric(shareable, &error) : NULL;
    } else {
        return type == 2 || type == 4 ? NOT_SUPPORTED : INVALID_VALUE;
    }
    if (allocation == NULL)
        return error;
    *handle = allocation->handle;
    note("-> handle=%#llx", *handle);
    return OK;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shareable, int type)
{
    ENTER(INITIALISED | VMM, "shareable=%p type=%d", shareable, type);
    return LEAVE(import_handle(handle, shareable, type));
}

/* dma-buf ---------------------------------------------------------------------------------------------------------- */

static bool equal(const struct properties *one, const struct properties *other)
{
    return one->type == other->type && one->handle_types == other->handle_types && one->rdma == other->rdma &&
           one->location_type == other->location_type && one->location_id == other->location_id;
}

/* [H] One device and equal properties throughout. */
static bool alike(CUdeviceptr ptr, size_t size)
{
    const struct mapping *first = mapping_at(ptr);
    EACH_MAPPING (mapping, mapping_at(ptr), ptr + size)
        if (!equal(&mapping->allocation->properties, &first->allocation->properties))
            return false;
    return true;
}

static CUresult range_handle(void *handle, CUdeviceptr ptr, size_t size, int type, unsigned long long flags)
{
    if (!knob.dmabuf_attr)
        return NOT_SUPPORTED;
    if ((flags & DMA_BUF_PCIE) && knob.dmabuf_pcie_code != 0)
        return (CUresult)knob.dmabuf_pcie_code; /* [I] libfabric#10976, #10995 */
    if (!fully_mapped(ptr, size))               /* [H] */
        return INVALID_VALUE;
    if (!alike(ptr, size))
        return INVALID_VALUE;
    const int descriptor = dmabuf_of(ptr, size);
    if (descriptor < 0)
        return OUT_OF_MEMORY;
    memcpy(handle, &descriptor, sizeof descriptor);
    note("-> fd=%d", descriptor);
    (void)type;
    return OK;
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, int type,
                                              unsigned long long flags)
{
    /* Arguments come before everything else: a library that is not initialised answers 1 to nonsense, not 3 [T]. */
    const bool sane = handle != NULL && ptr % HOST_PAGE == 0 && size % HOST_PAGE == 0 && size > 0 &&
                      type == DMA_BUF_FD && (flags & ~(unsigned long long)DMA_BUF_PCIE) == 0;
    ENTER(sane ? CONTEXT : ANYTIME, "ptr=%#llx size=%zu type=%d flags=%llu", ptr, size, type, flags);
    return LEAVE(sane ? range_handle(handle, ptr, size, type, flags) : INVALID_VALUE);
}

/* Pointers --------------------------------------------------------------------------------------------------------- */

/* [I] The bounds of the one handle that holds the pointer: ucx#11461. Not mapped: 500, nccl#2332. */
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    ENTER(CONTEXT, "ptr=%#llx", ptr);
    const struct mapping *mapping = mapping_at(ptr);
    if (mapping == NULL)
        return LEAVE(NOT_FOUND);
    if (base != NULL)
        *base = mapping->base;
    if (size != NULL)
        *size = mapping->size;
    return LEAVE(OK);
}

static CUresult attribute_of(void *data, int attribute, CUdeviceptr ptr)
{
    const struct mapping *mapping = mapping_at(ptr);
    const struct reservation *reservation = reservation_over(ptr, 1);
    if (reservation == NULL || data == NULL)
        return INVALID_VALUE;
    if (attribute == 11 || attribute == 12) { /* [H] of the reservation, not of the mapping */
        const unsigned long long bounds[] = {reservation->base, reservation->size};
        memcpy(data, &bounds[attribute - 11], sizeof *bounds);
        return OK;
    }
    if (attribute == 13) {
        *(int *)data = mapping != NULL;
        return OK;
    }
    if (mapping == NULL)
        return INVALID_VALUE;
    const struct allocation *allocation = mapping->allocation;
    switch (attribute) {
    case 2: *(unsigned *)data = allocation->properties.location_type == LOCATION_DEVICE ? 2 : 1; return OK;
    case 3: *(unsigned long long *)data = ptr; return OK;
    case 7:
    case 20: *(unsigned long long *)data = allocation->handle; return OK;
    case 8: *(int *)data = 0; return OK;
    case 9: *(int *)data = allocation->properties.location_id; return OK;
    case 10: *(int *)data = reservation->plain; return OK; /* legacy IPC does not take VMM memory */
    case 14: *(unsigned long long *)data = (unsigned)allocation->properties.handle_types; return OK;
    case 15:
        *(int *)data = allocation->properties.rdma && knob.rdma_honoured;
        return OK; /* [I] a request only: ucx#10007 */
    case 16: *(int *)data = mapping->access[current_device() < 0 ? 0 : current_device()]; return OK;
    case 18: *(unsigned long long *)data = mapping->size; return OK;
    case 19: *(unsigned long long *)data = mapping->base; return OK;
    default: return INVALID_VALUE;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
    ENTER(INITIALISED, "attribute=%d ptr=%#llx", attribute, ptr);
    return LEAVE(attribute_of(data, attribute, ptr));
}

/* [H] A pointer that is none of the driver's is no error here: the answers are zero. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr ptr)
{
    ENTER(INITIALISED, "count=%u ptr=%#llx", count, ptr);
    for (unsigned i = 0; i < count; i++)
        if (attribute_of(data[i], attributes[i], ptr) != OK)
            memset(data[i], 0, sizeof(int));
    return LEAVE(OK);
}
