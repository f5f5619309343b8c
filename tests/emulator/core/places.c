/* Addresses, and what is mapped there. A reservation is PROT_NONE; a mapping is the allocation's file, MAP_SHARED and
 * MAP_FIXED, PROT_NONE until access is set: what no driver would let a kernel touch faults here too. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator.h"

struct kept {
    LIST_ENTRY(kept) link;
    struct physical *memory;
};

static LIST_HEAD(, reservation) reservations = LIST_HEAD_INITIALIZER(reservations);
static long long reservation_count, mapping_count, bytes_reserved, bytes_mapped;

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Reservations ----------------------------------------------------------------------------------------------------- */

static uint64_t take(void *hint, size_t size, int flags)
{
    void *base = mmap(hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return base == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)base;
}

static uint64_t take_aligned(size_t size, size_t alignment)
{
    const uint64_t raw = take(NULL, size + alignment, 0);
    if (raw == 0)
        return 0;
    const uint64_t base = (raw + alignment - 1) & ~((uint64_t)alignment - 1);
    if (base > raw)
        munmap(at(raw), base - raw);
    munmap(at(base + size), raw + alignment - base);
    return base;
}

struct reservation *reserve(size_t size, size_t alignment, uint64_t hint)
{
    if (bytes_reserved + (long long)size > knob.va_limit)
        return NULL;
    if (alignment < GRANULE)
        alignment = GRANULE;
    uint64_t base = 0;
    if (hint != 0 && hint % alignment == 0)
        base = take(at(hint), size, MAP_FIXED_NOREPLACE);
    if (base != 0 && base != hint) { /* a kernel that does not know the flag */
        munmap(at(base), size);
        base = 0;
    }
    if (base == 0)
        base = take_aligned(size, alignment);
    if (base == 0)
        return NULL;
    struct reservation *reservation = calloc(1, sizeof *reservation);
    reservation->base = base;
    reservation->size = size;
    TAILQ_INIT(&reservation->mappings);
    TAILQ_INIT(&reservation->by_age);
    LIST_INSERT_HEAD(&reservations, reservation, link);
    reservation_count++;
    bytes_reserved += (long long)size;
    return reservation;
}

struct reservation *reservation_over(uint64_t address, size_t size)
{
    struct reservation *reservation;
    LIST_FOREACH(reservation, &reservations, link)
        if (address >= reservation->base && address - reservation->base <= reservation->size &&
            size <= reservation->size - (address - reservation->base))
            return reservation;
    return NULL;
}

struct reservation *reservation_at(uint64_t base)
{
    struct reservation *reservation;
    LIST_FOREACH(reservation, &reservations, link)
        if (reservation->base == base)
            return reservation;
    return NULL;
}

bool reservation_free(struct reservation *reservation)
{
    if (!TAILQ_EMPTY(&reservation->mappings))
        return false;
    for (struct kept *kept; (kept = LIST_FIRST(&reservation->kept)) != NULL; free(kept)) {
        LIST_REMOVE(kept, link);
        physical_drop(kept->memory);
    }
    munmap(at(reservation->base), reservation->size);
    LIST_REMOVE(reservation, link);
    reservation_count--;
    bytes_reserved -= (long long)reservation->size;
    free(reservation);
    return true;
}

long long live_reservations(void)
{
    return reservation_count;
}

long long reserved_bytes(void)
{
    return bytes_reserved;
}

/* Finding mappings ------------------------------------------------------------------------------------------------- */

static struct mapping *first_ending_after(const struct reservation *reservation, uint64_t address)
{
    struct mapping *mapping;
    TAILQ_FOREACH(mapping, &reservation->mappings, by_address)
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
    mmap(at(mapping->base), mapping->size, protection, MAP_SHARED | MAP_FIXED, allocation_file(mapping->allocation), 0);
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

/* The range goes on holding the memory, whatever becomes of the mapping and the handle. */
static void keep(struct reservation *reservation, struct physical *memory)
{
    struct kept *kept = malloc(sizeof *kept);
    kept->memory = memory;
    physical_hold(memory);
    LIST_INSERT_HEAD(&reservation->kept, kept, link);
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
    for (const struct mapping *mapping = mapping_at(address); mapping != NULL && mapping->base < address + size;
         mapping = TAILQ_NEXT(mapping, by_address))
        if ((mapping->access[place] & flags) != flags)
            return false;
    return true;
}

/* Ordinary device memory ------------------------------------------------------------------------------------------- */

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
