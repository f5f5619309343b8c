/* Reserving and freeing addresses. [H] cuda.h 13.0, [?] assumed. */
#include "abi.h"

static CUresult address_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint,
                                unsigned long long flags)
{
    if (knob.reserve_code != 0)
        return (CUresult)knob.reserve_code;
    if (ptr == NULL || flags != 0)
        return INVALID_VALUE;
    if (size == 0 || size % HOST_PAGE != 0 || hint % HOST_PAGE != 0) /* [H] the host's page, not the granularity */
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

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags)
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
