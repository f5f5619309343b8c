/* Allocations that leave the process, as a descriptor or as a fabric handle, and come back. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "physical.h"

int allocation_export(const struct allocation *allocation)
{
    struct physical *physical = allocation->physical;
    const int descriptor = open_anew(physical->file);
    if (descriptor < 0)
        return -1;
    lseek(descriptor, physical->label, SEEK_SET);
    physical->exported = true;
    return descriptor;
}

struct allocation *allocation_import(int descriptor, int *error)
{
    struct label label;
    struct physical *physical = physical_import(descriptor, &label);
    *error = physical != NULL ? OK : INVALID_VALUE;
    if (physical == NULL)
        return NULL;
    struct allocation *allocation = handle_new(physical, &label.properties);
    allocation->imported = true;
    return allocation;
}

/* Fabric handles: where to find the file, and where in it ------------------------------------------------------------
 */

struct fabric {
    char magic[8];
    int pid, descriptor;
    uint64_t inode;
    int64_t label;
};

void allocation_fabric(const struct allocation *allocation, unsigned char handle[64])
{
    const struct physical *physical = allocation->physical;
    const struct fabric fabric = {"vmmemuF", getpid(), physical->file->descriptor, physical->file->inode,
                                  physical->label};
    allocation->physical->exported = true;
    memset(handle, 0, 64);
    memcpy(handle, &fabric, sizeof fabric);
}

struct allocation *allocation_import_fabric(const unsigned char handle[64], int *error)
{
    struct fabric fabric;
    struct stat about;
    char path[64];
    memcpy(&fabric, handle, sizeof fabric);
    *error = INVALID_VALUE;
    if (memcmp(fabric.magic, "vmmemuF", sizeof fabric.magic) != 0)
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", fabric.pid, fabric.descriptor);
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return NULL;
    struct allocation *allocation = NULL;
    if (fstat(descriptor, &about) == 0 && about.st_ino == fabric.inode) {
        lseek(descriptor, fabric.label, SEEK_SET);
        allocation = allocation_import(descriptor, error);
    }
    close(descriptor);
    return allocation;
}

/* A dma-buf only stands for its range: its size is right, its bytes are nobody's. */
int dmabuf_of(uint64_t address, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "vmmemu-dmabuf:%#llx:%zu", (unsigned long long)address, size);
    const int descriptor = memfd_create(name, MFD_CLOEXEC);
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)size) == 0)
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}
