/* Physical memory: pages of a file, which the kernel counts, shares and frees, as a GPU's kernel driver does with its
 * own; and what each device has left of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "physical.h"

static const char magic[8] = "vmmemu1";

static LIST_HEAD(, physical) physicals = LIST_HEAD_INITIALIZER(physicals);
static long long used[MAX_DEVICES];
static struct file *shared; /* by all allocations that have no descriptor of their own; open from load to exit */
static off_t shared_end;

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

/* The memory itself ------------------------------------------------------------------------------------------------ */

static struct physical *physical_new(struct file *file, off_t label, size_t size, int device)
{
    struct physical *physical = calloc(1, sizeof *physical);
    physical->file = file;
    physical->label = label;
    physical->size = size;
    physical->device = device;
    LIST_INSERT_HEAD(&physicals, physical, link);
    device_charge(device, (long long)size);
    return physical;
}

/* At load, so that nobody takes the one descriptor of it for an allocation's. */
void physical_open(void)
{
    shared = file_create();
}

/* Places in the shared file are never used again, so no old label is ever mistaken for a new one. */
static struct file *place_for(size_t size, off_t *label)
{
    *label = 0;
    if (knob.fd_per_handle)
        return file_create();
    if (shared == NULL)
        return NULL;
    *label = shared_end;
    shared_end += (off_t)(HOST_PAGE + size);
    shared->users++;
    return shared;
}

struct physical *physical_create(size_t size, int device, const struct properties *properties)
{
    struct label label;
    memset(&label, 0, sizeof label);
    memcpy(label.magic, magic, sizeof magic);
    label.properties = *properties;
    label.device = device;
    label.size = size;
    off_t at;
    struct file *file = place_for(size, &at);
    if (file == NULL)
        return NULL;
    if (ftruncate(file->descriptor, at + (off_t)(HOST_PAGE + size)) != 0 ||
        pwrite(file->descriptor, &label, sizeof label, at) != sizeof label) {
        file_drop(file);
        return NULL;
    }
    if (knob.dirty)
        fill_with_old_bytes(file->descriptor, at + HOST_PAGE, size);
    return physical_new(file, at, size, device);
}

void physical_hold(struct physical *physical)
{
    physical->holders++;
}

/* What was exported stays: whoever has the descriptor may still import it, and nobody says when it is closed. */
void physical_drop(struct physical *physical)
{
    if (--physical->holders > 0)
        return;
    if (!knob.release_leaks)
        device_charge(physical->device, -(long long)physical->size);
    if (physical->file == shared && !physical->exported)
        fallocate(shared->descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical->label,
                  (off_t)(HOST_PAGE + physical->size));
    file_drop(physical->file);
    LIST_REMOVE(physical, link);
    free(physical);
}

/* An exported descriptor stands at the label of what it exports. */
struct physical *physical_import(int descriptor, struct label *label)
{
    char path[64];
    const off_t at = lseek(descriptor, 0, SEEK_CUR);
    if (at < 0 || pread(descriptor, label, sizeof *label, at) != sizeof *label ||
        memcmp(label->magic, magic, sizeof magic) != 0)
        return NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    struct file *file = file_open(path);
    if (file == NULL)
        return NULL;
    struct physical *physical;
    LIST_FOREACH (physical, &physicals, link)
        if (physical->file == file && physical->label == at) {
            file_drop(file);
            return physical;
        }
    physical = physical_new(file, at, label->size, -1); /* the exporter's process pays */
    physical->exported = true;
    return physical;
}
