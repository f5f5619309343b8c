/* Files that hold device memory. Most drivers spend no descriptor on an allocation, so all allocations share one file,
 * and lie in it one behind the other; where a version does spend one, each has a file of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "physical.h"

static LIST_HEAD(, file) files = LIST_HEAD_INITIALIZER(files);

/* The emulator's own descriptors are not the process's affair: where its limit is small they go beyond it. Only the
 * number of a new descriptor is checked against the limit, and only when it is made. */
static int beyond_the_limit(int descriptor)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > 4096 || limit.rlim_cur == limit.rlim_max)
        return descriptor;
    const struct rlimit raised = {limit.rlim_max, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
    const int hidden = fcntl(descriptor, F_DUPFD_CLOEXEC, (int)limit.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &limit);
    if (hidden < 0)
        return descriptor;
    close(descriptor);
    return hidden;
}

static struct file *remember(int descriptor)
{
    struct stat about;
    struct file *file = calloc(1, sizeof *file);
    fstat(descriptor, &about);
    file->descriptor = knob.fd_per_handle ? descriptor : beyond_the_limit(descriptor);
    file->inode = about.st_ino;
    file->users = 1;
    LIST_INSERT_HEAD(&files, file, link);
    return file;
}

struct file *file_create(void)
{
    const int descriptor = memfd_create("vmmemu", MFD_CLOEXEC);
    return descriptor < 0 ? NULL : remember(descriptor);
}

struct file *file_open(const char *path)
{
    struct stat about;
    struct file *file;
    if (stat(path, &about) != 0)
        return NULL;
    LIST_FOREACH (file, &files, link)
        if (file->inode == about.st_ino) {
            file->users++;
            return file;
        }
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    return descriptor < 0 ? NULL : remember(descriptor);
}

void file_drop(struct file *file)
{
    if (--file->users > 0)
        return;
    close(file->descriptor);
    LIST_REMOVE(file, link);
    free(file);
}

void discard_files(void)
{
    for (struct file *file; (file = LIST_FIRST(&files)) != NULL; free(file)) {
        close(file->descriptor);
        LIST_REMOVE(file, link);
    }
}

int open_anew(const struct file *file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->descriptor);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* What a device hands out holds somebody's old bytes. All of it up to 64 MiB; beyond that, to spare the host, the first
 * and the last page of every 2 MiB. With dirty=2 always the first and the last page of every 64 KiB. */
void fill_with_old_bytes(int descriptor, off_t from, size_t size)
{
    static unsigned char old[1 << 20];
    memset(old, 0xA5, sizeof old);
    const bool all = size <= 64 << 20 && knob.dirty != 2;
    const size_t stride = all ? sizeof old : knob.dirty == 2 ? 64 << 10 : GRANULE;
    const size_t ends = all ? sizeof old : HOST_PAGE;
    for (size_t at = 0; at < size; at += stride) {
        const size_t length = size - at < stride ? size - at : stride;
        const size_t piece = length < ends ? length : ends;
        if (pwrite(descriptor, old, piece, from + (off_t)at) < 0 ||
            (!all && pwrite(descriptor, old, piece, from + (off_t)(at + length - piece)) < 0))
            return;
    }
}
