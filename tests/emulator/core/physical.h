/* Shared by the memory itself (physical.c, files.c), handles to it (allocations.c) and what leaves the process
 * (exports.c). */
#ifndef PHYSICAL_H
#define PHYSICAL_H

#include <sys/types.h>

#include "emulator.h"

/* An open file with device memory in it. */
struct file {
    LIST_ENTRY(file) link;
    int descriptor;
    ino_t inode;
    int users;
};

struct file *file_create(void);           /* NULL: no descriptor left */
struct file *file_open(const char *path); /* the one that is open already, where there is one; a user more */
void file_drop(struct file *file);        /* a user less */
int open_anew(const struct file *file);   /* a descriptor for somebody else, or -1 */
void fill_with_old_bytes(int descriptor, off_t from, size_t size);

/* Before the bytes of each allocation there is a page that tells an importer what they are. */
struct label {
    char magic[8];
    struct properties properties;
    int device;
    size_t size;
};

struct physical {
    LIST_ENTRY(physical) link;
    struct file *file;
    off_t label; /* where in the file the label is; the bytes follow one page later */
    size_t size;
    int device; /* that pays; -1: nobody here */
    int holders;
    bool exported;
};

struct physical *physical_create(size_t size, int device, const struct properties *properties);
struct physical *physical_import(int descriptor, struct label *label); /* NULL: the descriptor is of something else */

struct allocation *handle_new(struct physical *physical, const struct properties *properties);

#endif
