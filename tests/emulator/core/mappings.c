/* Mappings: an allocation's file, MAP_SHARED and MAP_FIXED, PROT_NONE until access is set. What no driver would let a
 * kernel touch faults here too. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator.h"

static long long mapping_count, bytes_mapped;

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Finding mappings ------------------------------------------------------------------------------------------------- */

static struct mapping *first_ending_after(const struct reservation *reservation, uint64_t address)
{
    /* Growth asks for the end again and again: do not walk there each time. */
    struct mapping *mapping = TAILQ_LAST(&reservation->mappings, places_in_order);
    if (mapping == NULL || address >= mapping->base)
        return mapping != NULL && mapping->base + mapping->size > address ? mapping : NULL;
    TAILQ_FOREACH (mapping, &reservation->mappings, by_address)
        if (mapping->base + mapping->size > address)
            return mapping;
    return NULL;
}

struct mapping *mapping_at(uint64_t address)
{
    const struct reservation *reservation = reservation_over(address, 1);
    struct mapping *mapping = reservation ? first_ending_after(reservation, address) : NULL;
    return mapping != NULL && mapping->base <= address ? mapping : NULL;
}

bool range_is_unmapped(uint64_t address, size_t size)
{
    const struct reservation *reservation = reservation_over(address, size);
    const struct mapping *mapping = reservation ? first_ending_after(reservation, address) : NULL;
    return reservation != NULL && (mapping == NULL || mapping->base >= address + size);
}

static uint64_t end_of_run(const struct mapping *mapping, uint64_t limit)
{
    uint64_t end = mapping->base;
    for (; mapping != NULL && mapping->base == end && end < limit; mapping = TAILQ_NEXT(mapping, by_address))
        end += mapping->size;
    return end;
}

struct mapping *whole_run(uint64_t address, size_t size)
{
    struct mapping *mapping = mapping_at(address);
    if (mapping == NULL || mapping->base != address || size == 0)
        return NULL;
    return end_of_run(mapping, address + size) == address + size ? mapping : NULL;
}

bool fully_mapped(uint64_t address, size_t size)
{
    const struct mapping *mapping = mapping_at(address);
    return mapping != NULL && size > 0 && end_of_run(mapping, address + size) >= address + size;
}

/* Mapping ---------------------------------------------------------------------------------------------------------- */

static void place_file(const struct mapping *mapping, int protection)
{
    mmap(at(mapping->base), mapping->size, protection, MAP_SHARED | MAP_FIXED, allocation_file(mapping->allocation),
         allocation_offset(mapping->allocation));
}

static void place_nothing(uint64_t address, size_t size, int protection)
{
    mmap(at(address), size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* The processor stands for all devices, so it sees what any of them may. */
static int protection(const struct mapping *mapping)
{
    int flags = ACCESS_NONE;
    for (int place = 0; place < PLACES; place++)
        flags |= mapping->access[place];
    return flags == ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE : flags == ACCESS_READ ? PROT_READ : PROT_NONE;
}

struct mapping *map(struct reservation *reservation, uint64_t address, size_t size, struct allocation *allocation)
{
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->reservation = reservation;
    mapping->allocation = allocation;
    mapping->base = address;
    mapping->size = size;
    struct mapping *after = first_ending_after(reservation, address);
    if (after != NULL)
        TAILQ_INSERT_BEFORE(after, mapping, by_address);
    else
        TAILQ_INSERT_TAIL(&reservation->mappings, mapping, by_address);
    TAILQ_INSERT_TAIL(&reservation->by_age, mapping, by_age);
    place_file(mapping, PROT_NONE);
    allocation_mapped(allocation);
    mapping_count++;
    bytes_mapped += (long long)size;
    return mapping;
}

void unmap(struct mapping *mapping)
{
    struct reservation *reservation = mapping->reservation;
    place_nothing(mapping->base, mapping->size, PROT_NONE);
    TAILQ_REMOVE(&reservation->mappings, mapping, by_address);
    TAILQ_REMOVE(&reservation->by_age, mapping, by_age);
    if (knob.keep_vram && !reservation->plain)
        keep(reservation, memory_of(mapping->allocation));
    mapping_count--;
    bytes_mapped -= (long long)mapping->size;
    allocation_unmapped(mapping->allocation);
    free(mapping);
}

long long live_mappings(void)
{
    return mapping_count;
}

long long mapped_bytes(void)
{
    return bytes_mapped;
}

/* Access ----------------------------------------------------------------------------------------------------------- */

void set_access(struct mapping *mapping, int place, int flags)
{
    mapping->access[place] = (unsigned char)flags;
    mprotect(at(mapping->base), mapping->size, protection(mapping));
}

void lose_pages(struct mapping *mapping)
{
    mapping->wrong_pages = true;
    place_nothing(mapping->base, mapping->size, PROT_READ | PROT_WRITE);
    memset(at(mapping->base), 0xEE, mapping->size);
    mprotect(at(mapping->base), mapping->size, protection(mapping));
}

void find_pages(struct mapping *mapping)
{
    mapping->wrong_pages = false;
    place_file(mapping, protection(mapping));
}

bool accessible(uint64_t address, size_t size, int place, int flags)
{
    if (!fully_mapped(address, size))
        return false;
    EACH_MAPPING (mapping, mapping_at(address), address + size)
        if ((mapping->access[place] & flags) != flags)
            return false;
    return true;
}
