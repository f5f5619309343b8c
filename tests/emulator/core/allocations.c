/* Physical memory and the handles to it.
 *
 * The memory is a memfd: pages that the kernel counts, shares and frees, as a GPU's kernel driver does with its own. A
 * handle is a slot and the slot's generation, so a released handle is never taken for the one that follows it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulator.h"

struct physical {
    LIST_ENTRY(physical) link;
    int file;
    ino_t inode;
    size_t size;
    int device; /* that pays; -1: nobody here */
    int holders;
};

struct slot {
    unsigned generation;
    struct allocation *allocation;
};

enum { SLOT_BITS = 20 };

static struct slot *slots;
static unsigned slot_count;
static LIST_HEAD(, physical) physicals = LIST_HEAD_INITIALIZER(physicals);
static long long used[MAX_DEVICES];
static long long handles;

/* Accounting ------------------------------------------------------------------------------------------------------- */

long long device_used(int device)
{
    return used[device];
}

long long device_free(int device)
{
    const long long left = knob.total - knob.other_use - used[device];
    return left > 0 ? left : 0;
}

static void device_charge(int device, long long bytes)
{
    if (device >= 0)
        used[device] += bytes;
}

long long live_handles(void)
{
    return handles;
}

/* The memory itself ------------------------------------------------------------------------------------------------ */

enum { SMALL_LIMIT = 4096 };

/* Most drivers spend no descriptor on an allocation. The emulator must, so where the process's soft limit is small it puts
 * its own beyond it: only the number of a new descriptor is checked against the limit, and only when it is made. */
static int hide(int file, rlim_t beyond)
{
    const int hidden = fcntl(file, F_DUPFD_CLOEXEC, (int)beyond);
    if (hidden < 0)
        return file;
    close(file);
    return hidden;
}

static int open_unlimited(int (*opening)(const char *), const char *name)
{
    struct rlimit limit;
    if (knob.fd_per_handle || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > SMALL_LIMIT)
        return opening(name);
    const struct rlimit raised = {limit.rlim_max, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
    int file = opening(name);
    if (file >= 0)
        file = hide(file, limit.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &limit);
    return file;
}

static int new_file(const char *name)
{
    return memfd_create(name, MFD_CLOEXEC);
}

static int reopen(const char *path)
{
    return open(path, O_RDWR | O_CLOEXEC);
}

/* What a device hands out holds somebody's old bytes. All of it up to 64 MiB; beyond that, to spare the host, the first
 * and the last page of every 2 MiB. */
static void fill_with_old_bytes(int file, size_t size)
{
    static unsigned char old[1 << 20];
    memset(old, 0xA5, sizeof old);
    if (size <= 64 << 20) {
        for (size_t at = 0; at < size; at += sizeof old)
            if (pwrite(file, old, size - at < sizeof old ? size - at : sizeof old, (off_t)at) < 0)
                return;
        return;
    }
    for (size_t at = 0; at < size; at += GRANULE) {
        const size_t end = at + GRANULE < size ? at + GRANULE : size;
        if (pwrite(file, old, HOST_PAGE, (off_t)at) < 0 || pwrite(file, old, HOST_PAGE, (off_t)(end - HOST_PAGE)) < 0)
            return;
    }
}

static struct physical *physical_new(int file, size_t size, int device)
{
    struct stat about;
    struct physical *physical = calloc(1, sizeof *physical);
    fstat(file, &about);
    physical->file = file;
    physical->inode = about.st_ino;
    physical->size = size;
    physical->device = device;
    LIST_INSERT_HEAD(&physicals, physical, link);
    device_charge(device, (long long)size);
    return physical;
}

struct physical *memory_of(const struct allocation *allocation)
{
    return allocation->physical;
}

void physical_hold(struct physical *physical)
{
    physical->holders++;
}

void physical_drop(struct physical *physical)
{
    if (--physical->holders > 0)
        return;
    if (!knob.release_leaks)
        device_charge(physical->device, -(long long)physical->size);
    close(physical->file);
    LIST_REMOVE(physical, link);
    free(physical);
}

/* Handles ---------------------------------------------------------------------------------------------------------- */

static unsigned free_slot(void)
{
    for (unsigned i = 0; i < slot_count; i++)
        if (slots[i].allocation == NULL)
            return i;
    const unsigned first = slot_count;
    slot_count = slot_count ? 2 * slot_count : 256;
    slots = realloc(slots, slot_count * sizeof *slots);
    for (unsigned i = first; i < slot_count; i++)
        slots[i] = (struct slot){.generation = 1};
    return first;
}

static struct allocation *handle_new(struct physical *physical, const struct properties *properties)
{
    struct allocation *allocation = calloc(1, sizeof *allocation);
    allocation->slot = free_slot();
    slots[allocation->slot].allocation = allocation;
    /* Looks like an address, as both vendors' do, and is none. */
    allocation->handle = ((uint64_t)slots[allocation->slot].generation << (SLOT_BITS + 6)) | (uint64_t)allocation->slot << 6;
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
    /* What an importer cannot read from the file itself travels in its name. */
    char name[64];
    snprintf(name, sizeof name, "vmmemu:%d:%d:%d:%d", device, properties->handle_types, properties->rdma, properties->type);
    const int file = open_unlimited(new_file, name);
    if (file < 0)
        return NULL;
    if (ftruncate(file, (off_t)size) != 0) {
        close(file);
        return NULL;
    }
    if (knob.dirty)
        fill_with_old_bytes(file, size);
    *error = OK;
    return handle_new(physical_new(file, size, device), properties);
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
    return allocation->physical->file;
}

bool same_memory(const struct allocation *one, const struct allocation *other)
{
    return one->physical == other->physical;
}

/* Sharing ---------------------------------------------------------------------------------------------------------- */

int allocation_export(const struct allocation *allocation)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", allocation->physical->file);
    return reopen(path);
}

struct fabric {
    char magic[8];
    int pid, file;
    uint64_t inode;
};

void allocation_fabric(const struct allocation *allocation, unsigned char handle[64])
{
    const struct fabric fabric = {"vmmemuF", getpid(), allocation->physical->file, allocation->physical->inode};
    memset(handle, 0, 64);
    memcpy(handle, &fabric, sizeof fabric);
}

static struct physical *known(ino_t inode)
{
    struct physical *physical;
    LIST_FOREACH(physical, &physicals, link)
        if (physical->inode == inode)
            return physical;
    return NULL;
}

struct allocation *allocation_import(int descriptor, int *error)
{
    char path[64], name[128];
    struct stat about;
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(path, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    struct properties properties = {.location_type = 1};
    int device, rdma;
    *error = INVALID_VALUE;
    if (sscanf(name, "/memfd:vmmemu:%d:%d:%d:%d", &device, &properties.handle_types, &rdma, &properties.type) != 4)
        return NULL;
    if (fstat(descriptor, &about) != 0)
        return NULL;
    properties.rdma = rdma;
    properties.location_id = device;
    *error = OUT_OF_MEMORY;
    struct physical *physical = known(about.st_ino);
    if (physical == NULL) {
        const int file = open_unlimited(reopen, path);
        if (file < 0)
            return NULL;
        /* The exporter's process pays for the memory; this one only holds it. */
        physical = physical_new(file, (size_t)about.st_size, -1);
    }
    *error = OK;
    struct allocation *allocation = handle_new(physical, &properties);
    allocation->imported = true;
    return allocation;
}

struct allocation *allocation_import_fabric(const unsigned char handle[64], int *error)
{
    struct fabric fabric;
    struct stat about;
    char path[64];
    memcpy(&fabric, handle, sizeof fabric);
    *error = INVALID_VALUE;
    if (strcmp(fabric.magic, "vmmemuF") != 0)
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", fabric.pid, fabric.file);
    const int file = reopen(path);
    if (file < 0)
        return NULL;
    struct allocation *allocation = NULL;
    if (fstat(file, &about) == 0 && about.st_ino == fabric.inode)
        allocation = allocation_import(file, error);
    close(file);
    return allocation;
}
