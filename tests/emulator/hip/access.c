/* hipMemSetAccess and its three generations, rocm-systems#2516 among them [S]. */
#include "abi.h"

enum { WALK = 0, PREFIX_SUM = 1, REPAIRED = 2 };

/* ROCm 7.0 to 7.2: the sizes of all mappings of the reservation, added up in the order in which they were mapped, must
 * hit `size` exactly. Where the range begins plays no part. */
static bool is_prefix_sum(const struct mapping *inside, size_t size)
{
    size_t sum = 0;
    const struct mapping *mapping;
    TAILQ_FOREACH (mapping, &inside->reservation->by_age, by_age) {
        sum += mapping->size;
        if (sum >= size)
            break;
    }
    return sum == size;
}

/* The repair (#2451): the sizes of consecutive mappings from the one that holds `ptr` must hit `size` exactly. */
static bool is_whole_number(const struct mapping *first, size_t size)
{
    size_t sum = 0;
    uint64_t end = first->base;
    for (const struct mapping *mapping = first; mapping != NULL && mapping->base == end && sum < size;
         mapping = TAILQ_NEXT(mapping, by_address)) {
        sum += mapping->size;
        end += mapping->size;
    }
    return sum == size;
}

/* ROCr, below all of them: mappings must start exactly where the walk has come to. A range that ends inside one is
 * rounded up. */
static bool walk(const struct mapping *first, uint64_t ptr, size_t size)
{
    uint64_t at = ptr;
    for (const struct mapping *mapping = first; at < ptr + size; mapping = TAILQ_NEXT(mapping, by_address)) {
        if (mapping == NULL || mapping->base != at)
            return false;
        at += mapping->size;
    }
    return true;
}

static bool range_is_good(const struct mapping *first, uint64_t ptr, size_t size)
{
    if (first == NULL || first->reservation->plain || reservation_over(ptr, size) != first->reservation)
        return false;
    if (knob.access_mode == PREFIX_SUM && !is_prefix_sum(first, size))
        return false;
    if (knob.access_mode == REPAIRED && !is_whole_number(first, size))
        return false;
    return walk(first, ptr, size);
}

static void grant(struct mapping *mapping, int place, int flags)
{
    const int owner = mapping->allocation->device;
    const bool to_owner = place == owner;
    set_access(mapping, place, flags);
    /* [I] 7.14: a peer's grant drops the owner's pages, a later grant of the owner's brings them back:
     * rocm-systems#9908 and xla#46576. */
    if (knob.peer_grant_corrupts && !to_owner && owner >= 0 && place < MAX_DEVICES &&
        mapping->access[owner] != ACCESS_NONE)
        lose_pages(mapping);
    if (to_owner && mapping->wrong_pages)
        find_pages(mapping);
}

static int one_desc(uint64_t ptr, size_t size, const hipMemAccessDesc *desc)
{
    struct mapping *first = mapping_at(ptr);
    if (desc->flags != ACCESS_NONE && desc->flags != ACCESS_READ && desc->flags != ACCESS_READ_WRITE)
        return INVALID_VALUE;
    const bool host = desc->location.type == LOCATION_HOST;
    if (!host && desc->location.type != LOCATION_DEVICE)
        return INVALID_VALUE;
    if (host && !knob.host_location)
        return INVALID_VALUE;
    if (!host && !is_device(desc->location.id))
        return (int)knob.bad_id_code;
    if (!range_is_good(first, ptr, size))
        return INVALID_VALUE;
    if (host && first->allocation->imported && !knob.import_host_access)
        return INVALID_VALUE; /* [I] rocm-systems#11185 */
    if (!host && desc->location.id != first->allocation->device && first->allocation->device >= 0 && !knob.peer)
        return INVALID_DEVICE; /* [?] */
    EACH_MAPPING (mapping, first, ptr + size)
        grant(mapping, host ? HOST_PLACE : desc->location.id, desc->flags);
    return OK;
}

/* [S] One after the other: what the first ones did stays when a later one is refused. */
static int set_access_of(uint64_t ptr, size_t size, const hipMemAccessDesc *desc, size_t count)
{
    if (ptr == 0 || size == 0 || desc == NULL || count == 0)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const int refused = one_desc(ptr, size, &desc[i]);
        if (refused != OK)
            return refused;
    }
    return OK;
}

EXPORT hipError_t hipMemSetAccess(void *ptr, size_t size, const hipMemAccessDesc *desc, size_t count)
{
    const bool there = desc != NULL && count > 0;
    ENTER(INITIALISED | VMM, "ptr=%p size=%zu count=%zu location=%d:%d access=%d", ptr, size, count,
          there ? desc->location.type : -1, there ? desc->location.id : -1, there ? desc->flags : -1);
    return LEAVE(set_access_of(number(ptr), size, desc, count));
}

EXPORT hipError_t hipMemGetAccess(unsigned long long *flags, const hipMemLocation *location, void *ptr)
{
    ENTER(INITIALISED | VMM, "ptr=%p location=%d:%d", ptr, location ? location->type : -1,
          location ? location->id : -1);
    const struct mapping *mapping = mapping_at(number(ptr));
    if (flags == NULL || location == NULL || mapping == NULL)
        return LEAVE(INVALID_VALUE);
    if (location->type == LOCATION_DEVICE && !is_device(location->id))
        return LEAVE((int)knob.bad_id_code);
    *flags = mapping->access[location->type == LOCATION_DEVICE ? location->id : HOST_PLACE];
    return LEAVE(OK);
}
