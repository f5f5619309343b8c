/* What the device was asked to do. Work waits in one queue and is done at the latest moment that is legal: when somebody
 * synchronises, or a later call needs its result. So a reader who did not wait reads old bytes, and memory that is taken
 * away under waiting work is noticed. Work on a capturing stream becomes a graph instead.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

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

static struct queue waiting = TAILQ_HEAD_INITIALIZER(waiting);
static LIST_HEAD(, stream) streams = LIST_HEAD_INITIALIZER(streams);
static LIST_HEAD(, graph) graphs = LIST_HEAD_INITIALIZER(graphs);
static uint64_t next_id = 0x10000;
static long long stream_count, waiting_count;
static int sticky; /* an asynchronous failure poisons the device, as on both vendors */

/* Doing it --------------------------------------------------------------------------------------------------------- */

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void set_wide(unsigned char *target, unsigned value, unsigned width, size_t size)
{
    if (width == 1) {
        memset(target, (int)value, size);
        return;
    }
    for (size_t i = 0; i + width <= size; i += width)
        memcpy(target + i, &value, width);
}

static void perform(const struct operation *operation)
{
    const bool from_device = operation->source != 0;
    if (!accessible(operation->target, operation->size, operation->device, ACCESS_READ_WRITE) ||
        (from_device && !accessible(operation->source, operation->size, operation->device, ACCESS_READ))) {
        violation("device work on [%#llx, +%zu) was still waiting when the range lost its memory",
                  (unsigned long long)operation->target, operation->size);
        sticky = ILLEGAL_ADDRESS;
        return;
    }
    if (operation->staged != NULL)
        memcpy(at(operation->target), operation->staged, operation->size);
    else if (from_device)
        memmove(at(operation->target), at(operation->source), operation->size);
    else
        set_wide(at(operation->target), operation->value, operation->width, operation->size);
}

static void drop(struct queue *queue, struct operation *operation)
{
    TAILQ_REMOVE(queue, operation, link);
    free(operation->staged);
    free(operation);
}

static struct stream *find_stream(uint64_t id)
{
    struct stream *stream;
    LIST_FOREACH(stream, &streams, link)
        if (stream->id == id)
            return stream;
    return NULL;
}

static bool is_null(uint64_t stream)
{
    return stream <= PER_THREAD_STREAM;
}

/* The null stream waits for blocking streams and they for it; other streams go their own ways. */
static bool ordered_with(uint64_t one, uint64_t other)
{
    if (is_null(one) && is_null(other))
        return true;
    if (!is_null(one) && !is_null(other))
        return one == other;
    const struct stream *stream = find_stream(is_null(one) ? other : one);
    return stream == NULL || stream->blocking;
}

static void work_off(bool all, uint64_t stream)
{
    struct operation *operation = TAILQ_FIRST(&waiting);
    while (operation != NULL) {
        struct operation *next = TAILQ_NEXT(operation, link);
        if (all || ordered_with(stream, operation->stream)) {
            perform(operation);
            drop(&waiting, operation);
            waiting_count--;
        }
        operation = next;
    }
}

static int take_sticky(void)
{
    return sticky;
}

/* Asking for it ---------------------------------------------------------------------------------------------------- */

/* To use the null stream while a blocking stream captures would tie the two together. */
int tied_to_capture(uint64_t stream)
{
    struct stream *other;
    if (!is_null(stream))
        return OK;
    LIST_FOREACH(other, &streams, link)
        if (other->capture == 1 && other->blocking)
            return CAPTURE_IMPLICIT;
    return OK;
}

static int check(uint64_t address, size_t size, int flags)
{
    if (!fully_mapped(address, size))
        return INVALID_VALUE;
    if (!accessible(address, size, front_device(), flags)) {
        violation("device work on [%#llx, +%zu), which is mapped without access", (unsigned long long)address, size);
        return ILLEGAL_ADDRESS;
    }
    return OK;
}

static int submit(struct operation operation)
{
    const int blocked = tied_to_capture(operation.stream);
    if (blocked != OK)
        return blocked;
    struct operation *copy = malloc(sizeof *copy);
    *copy = operation;
    copy->device = front_device();
    const struct stream *stream = find_stream(operation.stream);
    if (stream != NULL && stream->capture == 1) {
        TAILQ_INSERT_TAIL(&stream->graph->nodes, copy, link);
        return OK;
    }
    TAILQ_INSERT_TAIL(&waiting, copy, link);
    waiting_count++;
    if (!knob.deferred)
        work_off(true, 0);
    return take_sticky();
}

int set_memory(uint64_t target, size_t count, unsigned value, unsigned width, uint64_t stream)
{
    if (count == 0)
        return OK;
    const int refused = check(target, count * width, ACCESS_READ_WRITE);
    if (refused != OK || !stream_known(stream))
        return refused != OK ? refused : INVALID_VALUE;
    return submit((struct operation){.target = target, .size = count * width, .value = value, .width = width, .stream = stream});
}

int copy_on_device(uint64_t target, uint64_t source, size_t size, uint64_t stream)
{
    if (size == 0)
        return OK;
    int refused = check(target, size, ACCESS_READ_WRITE);
    if (refused == OK)
        refused = check(source, size, ACCESS_READ);
    if (refused != OK || !stream_known(stream))
        return refused != OK ? refused : INVALID_VALUE;
    return submit((struct operation){.target = target, .source = source, .size = size, .stream = stream});
}

int copy_to_device(uint64_t target, const void *source, size_t size, uint64_t stream, bool wait)
{
    if (size == 0)
        return OK;
    const int refused = check(target, size, ACCESS_READ_WRITE);
    if (refused != OK || !stream_known(stream))
        return refused != OK ? refused : INVALID_VALUE;
    unsigned char *staged = malloc(size);
    memcpy(staged, source, size);
    const int code = submit((struct operation){.target = target, .staged = staged, .size = size, .stream = stream});
    if (code == OK && wait)
        work_off(false, stream);
    return code;
}

int copy_from_device(void *target, uint64_t source, size_t size, uint64_t stream)
{
    if (size == 0)
        return OK;
    const int refused = check(source, size, ACCESS_READ);
    if (refused != OK || !stream_known(stream))
        return refused != OK ? refused : INVALID_VALUE;
    const int blocked = tied_to_capture(stream);
    if (blocked != OK)
        return blocked;
    work_off(false, stream);
    if (sticky == OK)
        memcpy(target, at(source), size);
    return take_sticky();
}

/* Waiting for it --------------------------------------------------------------------------------------------------- */

/* To wait for a capture is an error, and ends the capture's usefulness. */
static bool invalidates_captures(uint64_t id)
{
    bool found = false;
    struct stream *stream;
    LIST_FOREACH(stream, &streams, link)
        if (stream->capture == 1 && (id == 0 || id == stream->id)) {
            stream->capture = 2;
            found = true;
        }
    return found;
}

int synchronise_device(void)
{
    if (invalidates_captures(0))
        return CAPTURE_UNSUPPORTED;
    work_off(true, 0);
    return take_sticky();
}

int synchronise_stream(uint64_t stream)
{
    if (!stream_known(stream))
        return INVALID_VALUE;
    if (!is_null(stream) && invalidates_captures(stream))
        return CAPTURE_UNSUPPORTED;
    const int blocked = tied_to_capture(stream);
    if (blocked != OK)
        return blocked;
    work_off(false, stream);
    return take_sticky();
}

bool stream_busy(uint64_t stream)
{
    const struct operation *operation;
    TAILQ_FOREACH(operation, &waiting, link)
        if (operation->stream == stream)
            return true;
    return false;
}

static bool overlaps(uint64_t one, uint64_t other, size_t one_size, size_t other_size)
{
    return one < other + other_size && other < one + one_size;
}

void about_to_unmap(uint64_t address, size_t size)
{
    const struct operation *operation;
    TAILQ_FOREACH(operation, &waiting, link) {
        if (!overlaps(operation->target, address, operation->size, size) &&
            !(operation->source != 0 && overlaps(operation->source, address, operation->size, size)))
            continue;
        violation("unmap of [%#llx, +%zu) while the device has work on it", (unsigned long long)address, size);
        break;
    }
    if (knob.unmap_syncs)
        work_off(true, 0);
}

void finish_work(void)
{
    work_off(true, 0);
}

long long pending_work(void)
{
    return waiting_count;
}

void forget_work(void)
{
    while (!TAILQ_EMPTY(&waiting))
        drop(&waiting, TAILQ_FIRST(&waiting));
    waiting_count = 0;
    sticky = OK;
}

/* Streams ---------------------------------------------------------------------------------------------------------- */

uint64_t stream_create(bool blocking)
{
    struct stream *stream = calloc(1, sizeof *stream);
    stream->id = next_id += 64;
    stream->blocking = blocking;
    LIST_INSERT_HEAD(&streams, stream, link);
    stream_count++;
    return stream->id;
}

bool stream_known(uint64_t stream)
{
    return is_null(stream) || find_stream(stream) != NULL;
}

bool stream_destroy(uint64_t id)
{
    struct stream *stream = find_stream(id);
    if (stream == NULL)
        return false;
    work_off(false, id);
    if (stream->capture != 0)
        graph_destroy(stream->graph->id);
    LIST_REMOVE(stream, link);
    free(stream);
    stream_count--;
    return true;
}

long long live_streams(void)
{
    return stream_count;
}

/* Captures and graphs ---------------------------------------------------------------------------------------------- */

static struct graph *find_graph(uint64_t id)
{
    struct graph *graph;
    LIST_FOREACH(graph, &graphs, link)
        if (graph->id == id)
            return graph;
    return NULL;
}

int capture_begin(uint64_t id)
{
    struct stream *stream = find_stream(id);
    if (stream == NULL)
        return is_null(id) ? CAPTURE_UNSUPPORTED : INVALID_VALUE;
    if (stream->capture != 0)
        return INVALID_VALUE;
    stream->capture = 1;
    stream->graph = calloc(1, sizeof *stream->graph);
    stream->graph->id = next_id += 64;
    TAILQ_INIT(&stream->graph->nodes);
    LIST_INSERT_HEAD(&graphs, stream->graph, link);
    return OK;
}

int capture_end(uint64_t id, uint64_t *graph)
{
    struct stream *stream = find_stream(id);
    if (stream == NULL || stream->capture == 0)
        return INVALID_VALUE;
    const bool good = stream->capture == 1;
    stream->capture = 0;
    *graph = good ? stream->graph->id : 0;
    if (!good)
        graph_destroy(stream->graph->id);
    stream->graph = NULL;
    return good ? OK : CAPTURE_INVALIDATED;
}

int capture_status(uint64_t id)
{
    const struct stream *stream = find_stream(id);
    return stream != NULL ? stream->capture : 0;
}

bool anything_captures(void)
{
    const struct stream *stream;
    LIST_FOREACH(stream, &streams, link)
        if (stream->capture == 1)
            return true;
    return false;
}

bool graph_known(uint64_t graph)
{
    return find_graph(graph) != NULL;
}

int graph_launch(uint64_t id, uint64_t stream)
{
    const struct graph *graph = find_graph(id);
    if (graph == NULL || !stream_known(stream))
        return INVALID_VALUE;
    const struct operation *node;
    TAILQ_FOREACH(node, &graph->nodes, link) {
        struct operation again = *node;
        again.stream = stream;
        if (node->staged != NULL) {
            again.staged = malloc(node->size);
            memcpy(again.staged, node->staged, node->size);
        }
        const int code = submit(again);
        if (code != OK)
            return code;
    }
    return OK;
}

bool graph_destroy(uint64_t id)
{
    struct graph *graph = find_graph(id);
    if (graph == NULL)
        return false;
    while (!TAILQ_EMPTY(&graph->nodes))
        drop(&graph->nodes, TAILQ_FIRST(&graph->nodes));
    LIST_REMOVE(graph, link);
    free(graph);
    return true;
}
