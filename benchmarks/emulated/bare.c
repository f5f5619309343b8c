/* What growing and giving back takes in C: the calls that vmmcache makes, in its order, on the same loaded library.
 *
 * grow() and give_back() do OPERATIONS operations of SEGMENTS segments each, one allocation a segment, and return
 * seconds; negative: the call of that number in `names` failed. start() comes first, finish() last. Nothing is zeroed,
 * as in the operations that it is compared with.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct location {
    int type, id;
};
struct access {
    struct location location;
    int flags;
};
struct properties {
    int type, handle_types;
    struct location location;
    void *unused;
    unsigned char flags[8];
};

enum call { RESERVE, CREATE, MAP, GRANT, UNMAP, RELEASE, FREE, SYNCHRONISE, ENTER, LEAVE, RETAIN, CALLS };

typedef int (*function)();

static const char *const names[2][CALLS] = {
    {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
     "cuCtxSynchronize", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRetain"},
    {"hipMemAddressReserve", "hipMemCreate", "hipMemMap", "hipMemSetAccess", "hipMemUnmap", "hipMemRelease",
     "hipMemAddressFree", "hipDeviceSynchronize", "hipGetDevice", NULL, NULL},
};

static function calls[CALLS];
static int is_hip;
static void *context;
static uint64_t base;
static uint64_t *handles;

/* Memory as the driver makes it: pinned, on device 0, with a file descriptor handle and the RDMA flag. */
static const struct properties properties = {.type = 1, .handle_types = 1, .location = {1, 0}, .flags = {0, 1}};
static const struct access read_write = {{1, 0}, 3};
static const uint64_t none = 0;

#define DO(call, ...)                   \
    do {                                \
        if (calls[call](__VA_ARGS__))   \
            return -(double)(call) - 1; \
    } while (0)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double enter(void)
{
    int device;
    if (is_hip)
        DO(ENTER, &device);
    else
        DO(ENTER, context);
    return 0;
}

static double leave(void)
{
    void *popped;
    if (!is_hip)
        DO(LEAVE, &popped);
    return 0;
}

double start(const char *library, int hip, size_t allocations, size_t nbytes)
{
    void *loaded = dlopen(library, RTLD_NOW);
    is_hip = hip;
    for (int call = 0; call < CALLS; call++) {
        void *found = loaded && names[hip][call] ? dlsym(loaded, names[hip][call]) : NULL;
        if (found == NULL && names[hip][call] != NULL)
            return -call - 1;
        memcpy(&calls[call], &found, sizeof found);
    }
    handles = calloc(allocations, sizeof *handles);
    if (!hip)
        DO(RETAIN, &context, 0);
    DO(RESERVE, &base, allocations * nbytes, none, none, none);
    return 0;
}

double grow(size_t operations, size_t segments, size_t nbytes)
{
    const double begin = now();
    for (size_t first = 0; first < operations * segments; first += segments) {
        if (enter() < 0)
            return -ENTER - 1;
        for (size_t i = first; i < first + segments; i++) {
            DO(CREATE, &handles[i], nbytes, &properties, none);
            DO(MAP, base + i * nbytes, nbytes, none, handles[i], none);
            DO(GRANT, base + i * nbytes, nbytes, &read_write, (size_t)1);
        }
        if (leave() < 0)
            return -LEAVE - 1;
    }
    return now() - begin;
}

double give_back(size_t operations, size_t segments, size_t nbytes)
{
    const double begin = now();
    if (enter() < 0)
        return -ENTER - 1;
    DO(SYNCHRONISE, none);
    for (size_t i = 0; i < operations * segments; i++) {
        DO(UNMAP, base + i * nbytes, nbytes);
        DO(RELEASE, handles[i]);
    }
    if (leave() < 0)
        return -LEAVE - 1;
    return now() - begin;
}

double finish(size_t allocations, size_t nbytes)
{
    DO(FREE, base, allocations * nbytes);
    free(handles);
    return 0;
}
