/* Reserving and freeing addresses. Which version does what is in knobs; [S] read in clr's or ROCr's source, [I] a
 * public issue. */
#include <signal.h>

#include "abi.h"

/* Where the real library follows a NULL pointer. */
int crash(void)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return UNKNOWN;
}

static int address_reserve(void **ptr, size_t size, size_t alignment, void *hint, unsigned long long flags)
{
    if (knob.reserve_code != 0)
        return (int)knob.reserve_code;
    if (ptr == NULL || flags != 0)
        return INVALID_VALUE;
    if (size == 0 || size % HOST_PAGE != 0 || (alignment & (alignment - 1)) != 0) /* [S] */
        return (int)knob.reserve_bad_code;
    if (alignment != 0 && knob.reserve_aligned_code != 0)
        return (int)knob.reserve_aligned_code; /* [I] vllm#43022 */
    /* [S] The hint is tried first; elsewhere without an error where it is taken. */
    const struct reservation *reservation = reserve(size, knob.reserve_ignores_alignment ? 0 : alignment, number(hint));
    if (reservation == NULL)
        return OUT_OF_MEMORY;
    *ptr = (void *)(uintptr_t)reservation->base;
    note("-> ptr=%p", *ptr);
    return OK;
}

EXPORT hipError_t hipMemAddressReserve(void **ptr, size_t size, size_t alignment, void *hint, unsigned long long flags)
{
    ENTER(INITIALISED | VMM, "size=%zu alignment=%zu hint=%#llx flags=%llu", size, alignment,
          (unsigned long long)number(hint), flags);
    return LEAVE(address_reserve(ptr, size, alignment, hint, flags));
}

static int address_free(void *ptr, size_t size)
{
    struct reservation *reservation = reservation_at(number(ptr));
    if (ptr == NULL || size == 0)
        return INVALID_VALUE;
    if (reservation == NULL || reservation->plain || reservation->dropped)
        return knob.free_crashes ? crash() : INVALID_VALUE;
    if (size != reservation->size) /* [S] not looked at */
        violation("addresses at %p freed as %zu bytes, reserved as %zu", ptr, size, reservation->size);
    if (!TAILQ_EMPTY(&reservation->mappings)) {
        violation("addresses at %p freed while memory is mapped there", ptr);
        reservation->dropped = true; /* [S] ROCr refuses, HIP has already forgotten its part */
        return UNKNOWN;
    }
    reservation_free(reservation);
    return OK;
}

EXPORT hipError_t hipMemAddressFree(void *ptr, size_t size)
{
    ENTER(INITIALISED | VMM, "ptr=%p size=%zu", ptr, size);
    return LEAVE(address_free(ptr, size));
}
