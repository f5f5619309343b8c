/* What the two fronts (cuda/, hip/) build on: real memory, a handle table, accounting, deferred device work, a journal
 * and faults. Nothing here knows a vendor's rule: fronts decide what is refused, and with which code.
 *
 * One mutex guards everything. A vendor's entry point takes it in `enter` and gives it back in `leave`; whatever runs
 * between the two, here or in a front, runs alone.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "knobs.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8, HOST_PLACE = MAX_DEVICES, PLACES };
enum { HOST_PAGE = 4096, GRANULE = 2 << 20 };

/* Codes that are the same number on both vendors. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALISED = 3,
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
    CONTEXT_DESTROYED = 709,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
    UNKNOWN = 999,
};

enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };
enum { HANDLE_NONE = 0, HANDLE_POSIX_FD = 1, HANDLE_FABRIC = 8 };
enum { GO_ON = -1 };

/* call.c: the frame of every entry point --------------------------------------------------------------------------- */

/* What a call needs before its own rules are looked at. */
enum { ANYTIME = 0, INITIALISED = 1, CONTEXT = 2, VMM = 4, STARTS = 8 };

int enter(const char *function, unsigned needs, const char *format, ...) __attribute__((format(printf, 3, 4)));
int leave(int code);
const char *plain_name(const char *function); /* without the ABI's version suffix */

/* The whole of an entry point: ENTER refuses what cannot go on, LEAVE journals the verdict. */
#define ENTER(needs, ...)                                         \
    do {                                                          \
        const int refused_ = enter(__func__, needs, __VA_ARGS__); \
        if (refused_ != GO_ON)                                    \
            return leave(refused_);                               \
    } while (0)
#define LEAVE(verdict) leave(verdict)

/* Supplied by a front: is the library, and if CONTEXT is asked for this thread, ready? GO_ON or the vendor's code. */
int front_ready(unsigned needs);
int front_device(void);       /* the device that this thread's work runs on */
void front_verdict(int code); /* what the call at hand answers */
extern const char front_vendor[];

/* journal.c -------------------------------------------------------------------------------------------------------- */

void journal_open(void);
void journal_begin(const char *call, const char *arguments);
void note(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* appended to the record of the call at hand */
void journal_end(int code);
/* Something no driver refuses and no correct caller does; tests demand that there is none. */
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
long long violation_count(void);

/* faults.c --------------------------------------------------------------------------------------------------------- */

void faults_load(void);
int fault_for(const char *call); /* GO_ON, or the code to answer; does not return where the plan is to hang or to die */
long long faults_fired(void);
void die_as_planned(const char *how);

/* knobs.c ---------------------------------------------------------------------------------------------------------- */

struct knobs {
#define FIELD(name, value, meaning) long long name;
    KNOBS(FIELD)
#undef FIELD
};
extern struct knobs knob;
void knobs_load(void);

/* physical.c, allocations.c, exports.c: memory, and handles to it
 * ------------------------------------------------------ */

struct properties {
    int type;          /* pinned 1, AMD's uncached 0x40000000 */
    int handle_types;  /* as requested */
    int location_type; /* device 1, host 2, ... */
    int location_id;
    bool rdma;
};

struct physical;

struct allocation {
    uint64_t handle;
    unsigned slot;
    int references; /* of the handle: create, import, retain; 0 while only mappings keep the memory */
    int mappings;
    size_t size;
    struct properties properties;
    int device; /* that pays for it; -1: host memory, or imported from another process */
    bool imported;
    struct physical *physical;
};

struct allocation *allocation_create(size_t size, int device, const struct properties *properties, int *error);
struct allocation *allocation_find(uint64_t handle); /* NULL for what is unknown or released */
bool allocation_was_released(uint64_t handle);
void allocation_release(struct allocation *allocation); /* one reference less */
void allocation_retain(struct allocation *allocation);
void allocation_mapped(struct allocation *allocation);
void allocation_unmapped(struct allocation *allocation);
int allocation_file(const struct allocation *allocation);       /* a descriptor that stays the allocation's */
int64_t allocation_offset(const struct allocation *allocation); /* where in the file its bytes begin */
int allocation_export(const struct allocation *allocation);     /* a descriptor for the caller, or -1 */
void allocation_fabric(const struct allocation *allocation, unsigned char handle[64]);
struct allocation *allocation_import(int descriptor, int *error);
struct allocation *allocation_import_fabric(const unsigned char handle[64], int *error);
void physical_open(void);
int dmabuf_of(uint64_t address, size_t size); /* a descriptor for the caller, or -1 */
struct physical *memory_of(const struct allocation *allocation);
void physical_hold(struct physical *physical);
void physical_drop(struct physical *physical);
bool same_memory(const struct allocation *one, const struct allocation *other);
long long live_handles(void);

long long device_used(int device);
long long device_free(int device);

/* reservations.c, mappings.c, plain.c: addresses and what is mapped there --------------------------------------------
 */

struct mapping {
    TAILQ_ENTRY(mapping) by_address;
    TAILQ_ENTRY(mapping) by_age;
    struct reservation *reservation;
    struct allocation *allocation;
    uint64_t base;
    size_t size;
    unsigned char access[PLACES];
    bool wrong_pages; /* the defect of ROCm 7.14: the owner no longer sees its memory */
};

struct reservation {
    LIST_ENTRY(reservation) link;
    uint64_t base;
    size_t size;
    TAILQ_HEAD(places_in_order, mapping) mappings; /* ascending addresses */
    TAILQ_HEAD(, mapping) by_age;                  /* oldest first */
    LIST_HEAD(, kept) kept;                        /* memory that the range goes on holding until it is freed */
    bool plain;                                    /* cuMemAlloc, hipMalloc: no VMM memory */
    bool dropped;                                  /* the HIP layer has forgotten it, the layer below has not */
};

struct reservation *reserve(size_t size, size_t alignment, uint64_t hint);
struct reservation *reservation_at(uint64_t base);
struct reservation *reservation_over(uint64_t address, size_t size); /* that holds the whole range */
bool reservation_free(struct reservation *reservation);
void keep(struct reservation *reservation, struct physical *memory);
long long live_reservations(void);
long long reserved_bytes(void);

/* From a mapping on, all that begin before an address. */
#define EACH_MAPPING(mapping, first, end)                                           \
    for (struct mapping *mapping = first; mapping != NULL && mapping->base < (end); \
         mapping = TAILQ_NEXT(mapping, by_address))

struct mapping *mapping_at(uint64_t address); /* any address inside */
bool range_is_unmapped(uint64_t address, size_t size);
/* The first mapping of a run of whole mappings without a hole that is exactly [address, address + size); NULL if none.
 */
struct mapping *whole_run(uint64_t address, size_t size);
bool fully_mapped(uint64_t address, size_t size);
struct mapping *map(struct reservation *reservation, uint64_t address, size_t size, struct allocation *allocation);
void unmap(struct mapping *mapping);
void set_access(struct mapping *mapping, int place, int flags);
void lose_pages(struct mapping *mapping);
void find_pages(struct mapping *mapping);
bool accessible(uint64_t address, size_t size, int place, int flags);
long long live_mappings(void);
long long mapped_bytes(void);

uint64_t plain_alloc(size_t size, int device); /* 0: out of memory */
bool plain_free(uint64_t address);

/* work.c, streams.c, graphs.c: what the device has been asked to do and may not have done yet ------------------------
 */

enum { NULL_STREAM = 0, LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

uint64_t stream_create(bool blocking);
bool stream_known(uint64_t stream);
bool stream_destroy(uint64_t stream);
long long live_streams(void);
int set_memory(uint64_t target, size_t count, unsigned value, unsigned width, uint64_t stream);
int copy_on_device(uint64_t target, uint64_t source, size_t size, uint64_t stream);
/* What a copy from the host's pageable memory waits for: nothing, the work before it, or its own end. */
enum waiting { NEVER, BEFORE, UNTIL_DONE };
int copy_to_device(uint64_t target, const void *source, size_t size, uint64_t stream, enum waiting wait);
int copy_from_device(void *target, uint64_t source, size_t size, uint64_t stream);
int synchronise_device(void);
int synchronise_stream(uint64_t stream);
bool stream_busy(uint64_t stream);
void about_to_unmap(uint64_t address, size_t size);
void finish_work(void);
void forget_work(void);
long long pending_work(void);

int capture_begin(uint64_t stream);
int capture_end(uint64_t stream, uint64_t *graph);
int capture_status(uint64_t stream); /* 0 none, 1 active, 2 invalidated */
bool anything_captures(void);
int tied_to_capture(uint64_t stream); /* OK or CAPTURE_IMPLICIT */
bool graph_known(uint64_t graph);
int graph_launch(uint64_t graph, uint64_t stream);
bool graph_destroy(uint64_t graph);

#endif
