/* Handles that leave the process, and what a pointer's owner can find out about it. */
#include <string.h>

#include "abi.h"

static int export_handle(void *shareable, hipHandle handle, int type, unsigned long long flags)
{
    const struct allocation *allocation = allocation_find(handle);
    if (shareable == NULL || allocation == NULL || flags != 0)
        return INVALID_VALUE;
    if (type == HANDLE_NONE || type != allocation->properties.handle_types) /* [S] an exact match */
        return INVALID_VALUE;
    if (type == HANDLE_FABRIC) {
        allocation_fabric(allocation, shareable);
        return OK;
    }
    const int descriptor = allocation_export(allocation);
    if (descriptor < 0)
        return OUT_OF_MEMORY;
    memcpy(shareable, &descriptor, sizeof descriptor);
    note("-> fd=%d", descriptor);
    return OK;
}

EXPORT hipError_t hipMemExportToShareableHandle(void *shareable, hipHandle handle, int type, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "handle=%#zx type=%d flags=%llu", handle, type, flags);
    return LEAVE(export_handle(shareable, handle, type, flags));
}

/* Up to 7.0 the argument is where the descriptor is, from 7.1 the descriptor itself, cast [S]. Given the other kind,
 * the older library reads at address 5. */
static int descriptor_of(void *shareable)
{
    return knob.import_by_pointer ? *(const int *)shareable : (int)(intptr_t)shareable;
}

static int import_handle(hipHandle *handle, void *shareable, int type)
{
    int error = INVALID_VALUE;
    if (handle == NULL)
        return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD && !(type == HANDLE_FABRIC && knob.version >= ROCM_7_14 && knob.fabric_code == 0))
        return NOT_SUPPORTED;
    const struct allocation *allocation = type == HANDLE_POSIX_FD ? allocation_import(descriptor_of(shareable), &error)
                                          : shareable != NULL     ? allocation_import_fabric(shareable, &error)
                                                                  : NULL;
    if (allocation == NULL)
        return error;
    *handle = allocation->handle;
    note("-> handle=%#zx", *handle);
    return OK;
}

EXPORT hipError_t hipMemImportFromShareableHandle(hipHandle *handle, void *shareable, int type)
{
    ENTER(INITIALISED | VMM, "shareable=%p type=%d", shareable, type);
    return LEAVE(import_handle(handle, shareable, type));
}

static int range_handle(void *handle, uint64_t ptr, size_t size, int type, unsigned long long flags)
{
    const struct mapping *mapping = mapping_at(ptr);
    if (handle == NULL || size == 0 || type != DMA_BUF_FD || (flags & ~(unsigned long long)DMA_BUF_PCIE) != 0)
        return INVALID_VALUE;
    if (!knob.dmabuf_attr)
        return NOT_SUPPORTED;
    if ((flags & DMA_BUF_PCIE) && knob.dmabuf_pcie_code != 0)
        return (int)knob.dmabuf_pcie_code; /* [?] */
    if (mapping == NULL || !fully_mapped(ptr, size))
        return INVALID_VALUE;
    if (ptr + size > mapping->base + mapping->size && !knob.dmabuf_several)
        return INVALID_VALUE; /* [S] ROCr looks up one allocation; [?] whether newer ones do */
    const int descriptor = dmabuf_of(ptr, size);
    if (descriptor < 0)
        return OUT_OF_MEMORY;
    memcpy(handle, &descriptor, sizeof descriptor);
    note("-> fd=%d", descriptor);
    return OK;
}

EXPORT hipError_t hipMemGetHandleForAddressRange(void *handle, void *ptr, size_t size, int type,
                                                 unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "ptr=%p size=%zu type=%d flags=%llu", ptr, size, type, flags);
    return LEAVE(range_handle(handle, number(ptr), size, type, flags));
}

/* [S] Always. */
EXPORT hipError_t hipMemMapArrayAsync(void *list, unsigned count, hipStream_t stream)
{
    ENTER(INITIALISED, "list=%p count=%u stream=%#zx", list, count, stream);
    return LEAVE(NOT_SUPPORTED);
}

/* Pointers --------------------------------------------------------------------------------------------------------- */

EXPORT hipError_t hipMemGetAddressRange(void **base, size_t *size, void *ptr)
{
    ENTER(INITIALISED, "ptr=%p", ptr);
    const struct mapping *mapping = mapping_at(number(ptr));
    if (mapping == NULL)
        return LEAVE(NOT_FOUND);
    if (base != NULL)
        *base = (void *)(uintptr_t)mapping->base;
    if (size != NULL)
        *size = mapping->size;
    return LEAVE(OK);
}

/* The numbers are CUDA's up to 17. */
static int attribute_of(void *data, int attribute, uint64_t ptr)
{
    const struct mapping *mapping = mapping_at(ptr);
    const struct reservation *reservation = reservation_over(ptr, 1);
    if (data == NULL || reservation == NULL || mapping == NULL)
        return INVALID_VALUE;
    const struct allocation *allocation = mapping->allocation;
    switch (attribute) {
    case 2: *(unsigned *)data = allocation->properties.location_type == LOCATION_DEVICE ? 2 : 1; return OK;
    case 3: *(uint64_t *)data = ptr; return OK;
    case 7: *(uint64_t *)data = allocation->handle; return OK;
    case 8: *(int *)data = 0; return OK;
    case 9: *(int *)data = allocation->device; return OK;
    case 10: *(int *)data = reservation->plain; return OK;
    case 11: *(uint64_t *)data = reservation->base; return OK;
    case 12: *(size_t *)data = reservation->size; return OK;
    case 13: *(int *)data = 1; return OK;
    case 14: *(uint64_t *)data = (unsigned)allocation->properties.handle_types; return OK;
    case 15: *(int *)data = allocation->properties.rdma && knob.rdma_honoured; return OK;
    case 16: *(int *)data = mapping->access[front_device()]; return OK;
    default: return INVALID_VALUE;
    }
}

EXPORT hipError_t hipPointerGetAttribute(void *data, int attribute, void *ptr)
{
    ENTER(INITIALISED, "attribute=%d ptr=%p", attribute, ptr);
    return LEAVE(attribute_of(data, attribute, number(ptr)));
}

EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, void *ptr)
{
    ENTER(INITIALISED, "ptr=%p", ptr);
    const struct mapping *mapping = mapping_at(number(ptr));
    if (attributes == NULL || mapping == NULL)
        return LEAVE(INVALID_VALUE);
    *attributes = (hipPointerAttribute_t){.type = 2, .device = mapping->allocation->device, .devicePointer = ptr};
    return LEAVE(OK);
}
