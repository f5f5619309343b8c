/* Reservations: PROT_NONE, and nobody else's. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "control.h"
#include "emulator.h"

struct kept {
    LIST_ENTRY(kept) link;
    struct physical *memory;
};

static LIST_HEAD(, reservation) reservations = LIST_HEAD_INITIALIZER(reservations);
static long long reservation_count, bytes_reserved;

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

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
    LIST_FOREACH (reservation, &reservations, link)
        if (address >= reservation->base && address - reservation->base <= reservation->size &&
            size <= reservation->size - (address - reservation->base))
            return reservation;
    return NULL;
}

struct reservation *reservation_at(uint64_t base)
{
    struct reservation *reservation;
    LIST_FOREACH (reservation, &reservations, link)
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

/* The range goes on holding the memory, whatever becomes of the mapping and the handle. */
void keep(struct reservation *reservation, struct physical *memory)
{
    struct kept *kept = malloc(sizeof *kept);
    kept->memory = memory;
    physical_hold(memory);
    LIST_INSERT_HEAD(&reservation->kept, kept, link);
}

void discard_reservations(void)
{
    for (struct reservation *reservation; (reservation = LIST_FIRST(&reservations)) != NULL;) {
        for (struct mapping *mapping; (mapping = TAILQ_FIRST(&reservation->mappings)) != NULL;)
            unmap(mapping);
        reservation_free(reservation);
    }
}
