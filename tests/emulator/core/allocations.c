/* Handles to physical memory: a slot and the slot's generation, so that a released handle is never taken for the one
 * that follows it. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "physical.h"

struct slot {
    unsigned generation;
    struct allocation *allocation;
};

enum { SLOT_BITS = 20 };

static struct slot *slots;
static unsigned slot_count, lowest_free; /* no slot below lowest_free is free */
static long long handles;

long long live_handles(void)
{
    return handles;
}

struct physical *memory_of(const struct allocation *allocation)
{
    return allocation->physical;
}

static unsigned free_slot(void)
{
    for (; lowest_free < slot_count; lowest_free++)
        if (slots[lowest_free].allocation == NULL)
            return lowest_free;
    const unsigned first = slot_count;
    slot_count = slot_count ? 2 * slot_count : 256;
    slots = realloc(slots, slot_count * sizeof *slots);
    for (unsigned i = first; i < slot_count; i++)
        slots[i] = (struct slot){.generation = 1};
    return first;
}

struct allocation *handle_new(struct physical *physical, const struct properties *properties)
{
    struct allocation *allocation = calloc(1, sizeof *allocation);
    allocation->slot = free_slot();
    slots[allocation->slot].allocation = allocation;
    /* Looks like an address, as both vendors' do, and is none. */
    allocation->handle = ((uint64_t)slots[allocation->slot].generation << (SLOT_BITS + 6)) | (uint64_t)allocation->slot
                                                                                                 << 6;
    allocation->references = 1;
    allocation->size = physical->size;
    allocation->properties = *properties;
    allocation->device = physical->device;
    allocation->physical = physical;
    physical->holders++;
    handles++;
    return allocation;
}

static void drop_unless_needed(struct allocation *allocation)
{
    if (allocation->references > 0 || allocation->mappings > 0)
        return;
    slots[allocation->slot].allocation = NULL;
    slots[allocation->slot].generation++;
    if (allocation->slot < lowest_free)
        lowest_free = allocation->slot;
    physical_drop(allocation->physical);
    free(allocation);
}

static struct allocation *at_slot(uint64_t handle)
{
    const uint64_t slot = handle >> 6 & ((1u << SLOT_BITS) - 1);
    if (slot >= slot_count || (handle & 63) != 0)
        return NULL;
    struct allocation *allocation = slots[slot].allocation;
    return allocation != NULL && allocation->handle == handle ? allocation : NULL;
}

struct allocation *allocation_find(uint64_t handle)
{
    struct allocation *allocation = at_slot(handle);
    return allocation != NULL && allocation->references > 0 ? allocation : NULL;
}

bool allocation_was_released(uint64_t handle)
{
    const uint64_t slot = handle >> 6 & ((1u << SLOT_BITS) - 1), generation = handle >> (SLOT_BITS + 6);
    if (allocation_find(handle) != NULL || slot >= slot_count || (handle & 63) != 0 || generation == 0)
        return false;
    return generation <= slots[slot].generation;
}

struct allocation *allocation_create(size_t size, int device, const struct properties *properties, int *error)
{
    *error = OUT_OF_MEMORY;
    if (device >= 0 && (long long)size > device_free(device))
        return NULL;
    struct physical *physical = physical_create(size, device, properties);
    if (physical == NULL)
        return NULL;
    *error = OK;
    return handle_new(physical, properties);
}

void allocation_release(struct allocation *allocation)
{
    if (--allocation->references == 0)
        handles--;
    drop_unless_needed(allocation);
}

void allocation_retain(struct allocation *allocation)
{
    if (allocation->references++ == 0)
        handles++;
}

void allocation_mapped(struct allocation *allocation)
{
    allocation->mappings++;
}

void allocation_unmapped(struct allocation *allocation)
{
    allocation->mappings--;
    drop_unless_needed(allocation);
}

int allocation_file(const struct allocation *allocation)
{
    return allocation->physical->file->descriptor;
}

int64_t allocation_offset(const struct allocation *allocation)
{
    return allocation->physical->label + HOST_PAGE;
}

bool same_memory(const struct allocation *one, const struct allocation *other)
{
    return one->physical == other->physical;
}
