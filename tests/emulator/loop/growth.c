/* What growing and shrinking costs in bare calls: the yardstick for a driver written in Python.
 *
 *     growth LIBRARY cu|hip ROUNDS GRANULES
 *
 * prints nanoseconds per VMM call, the best of ROUNDS rounds; a round maps GRANULES allocations of 2 MiB (create, map,
 * set access) and takes them away again (unmap, release).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GRANULE = 2 << 20, CALLS_PER_GRANULE = 5 };

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

typedef int (*call)();

static void *library;
static const char *prefix;

static call find(const char *name)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
    void *found = dlsym(library, symbol);
    if (found == NULL) {
        fprintf(stderr, "%s: no such entry point\n", symbol);
        exit(1);
    }
    call function;
    memcpy(&function, &found, sizeof function);
    return function;
}

static void expect_success(int code, const char *what)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s%s answered %d\n", prefix, what, code);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **arguments)
{
    if (count != 5) {
        fprintf(stderr, "usage: %s LIBRARY cu|hip ROUNDS GRANULES\n", arguments[0]);
        return 2;
    }
    library = dlopen(arguments[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    prefix = arguments[2];
    const int rounds = atoi(arguments[3]);
    const size_t granules = (size_t)atoi(arguments[4]);
    const call reserve = find("MemAddressReserve"), create = find("MemCreate"), map = find("MemMap"),
               grant = find("MemSetAccess"), unmap = find("MemUnmap"), release = find("MemRelease");
    const struct properties properties = {.type = 1, .location = {1, 0}};
    const struct access access = {{1, 0}, 3};
    const uint64_t none = 0;
    uint64_t base = 0, *handles = calloc(granules, sizeof *handles);
    expect_success(find("Init")(0), "Init");
    expect_success(reserve(&base, granules * GRANULE, none, none, none), "MemAddressReserve");
    double best = 1e18;
    for (int round = 0; round < rounds; round++) {
        const double start = now();
        for (size_t i = 0; i < granules; i++) {
            expect_success(create(&handles[i], (size_t)GRANULE, &properties, none), "MemCreate");
            expect_success(map(base + i * GRANULE, (size_t)GRANULE, none, handles[i], none), "MemMap");
            expect_success(grant(base + i * GRANULE, (size_t)GRANULE, &access, (size_t)1), "MemSetAccess");
        }
        for (size_t i = 0; i < granules; i++) {
            expect_success(unmap(base + i * GRANULE, (size_t)GRANULE), "MemUnmap");
            expect_success(release(handles[i]), "MemRelease");
        }
        const double took = (now() - start) / (double)(granules * CALLS_PER_GRANULE);
        if (took < best)
            best = took;
    }
    printf("%.0f\n", best);
    return 0;
}
