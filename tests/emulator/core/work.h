/* Shared by the queue of work (work.c), streams (streams.c) and captured graphs (graphs.c). */
#ifndef WORK_H
#define WORK_H

#include "emulator.h"

struct operation {
    TAILQ_ENTRY(operation) link;
    uint64_t target, source; /* source 0: the bytes in `staged`, or the value */
    size_t size;
    unsigned value, width;
    unsigned char *staged;
    uint64_t stream;
    int device;
};

TAILQ_HEAD(queue, operation);

struct stream {
    LIST_ENTRY(stream) link;
    uint64_t id;
    bool blocking;
    int capture; /* 0 none, 1 active, 2 invalidated */
    struct graph *graph;
};

struct graph {
    LIST_ENTRY(graph) link;
    uint64_t id;
    struct queue nodes;
};

void work_off(bool all, uint64_t stream); /* do what waits: all of it, or what is ordered with a stream */
int submit(struct operation operation);
void drop_operation(struct queue *queue, struct operation *operation);
struct stream *find_stream(uint64_t id); /* NULL for the null streams too */
bool is_null(uint64_t stream);
bool ordered_with(uint64_t one, uint64_t other);
bool invalidate_captures(uint64_t id); /* of one stream, or with 0 of all; was there one? */
uint64_t new_id(void);

#endif
