/* Ordinary device memory, which is reserved, created, mapped and granted in one call. */
#include "emulator.h"

uint64_t plain_alloc(size_t size, int device)
{
    const size_t rounded = (size + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    const struct properties properties = {.type = 1, .location_type = 1, .location_id = device};
    int error;
    struct allocation *allocation = allocation_create(rounded, device, &properties, &error);
    if (allocation == NULL)
        return 0;
    struct reservation *reservation = reserve(rounded, GRANULE, 0);
    if (reservation == NULL) {
        allocation_release(allocation);
        return 0;
    }
    reservation->plain = true;
    set_access(map(reservation, reservation->base, rounded, allocation), device, ACCESS_READ_WRITE);
    return reservation->base;
}

bool plain_free(uint64_t address)
{
    struct reservation *reservation = reservation_at(address);
    if (reservation == NULL || !reservation->plain)
        return false;
    struct mapping *mapping = TAILQ_FIRST(&reservation->mappings);
    struct allocation *allocation = mapping->allocation;
    unmap(mapping);
    allocation_release(allocation);
    return reservation_free(reservation);
}
