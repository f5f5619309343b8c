/* What the device was asked to do. Work waits in one queue and is done at the latest moment that is legal: when
 * somebody synchronises, or a later call needs its result. So a reader who did not wait reads old bytes, and memory
 * that is taken away under waiting work is noticed. Work on a capturing stream becomes a graph instead.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "work.h"

static struct queue waiting = TAILQ_HEAD_INITIALIZER(waiting);
static long long waiting_count;
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

void drop_operation(struct queue *queue, struct operation *operation)
{
    TAILQ_REMOVE(queue, operation, link);
    free(operation->staged);
    free(operation);
}

void work_off(bool all, uint64_t stream)
{
    struct operation *operation = TAILQ_FIRST(&waiting);
    while (operation != NULL) {
        struct operation *next = TAILQ_NEXT(operation, link);
        if (all || ordered_with(stream, operation->stream)) {
            perform(operation);
            drop_operation(&waiting, operation);
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

int submit(struct operation operation)
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
    return submit(
        (struct operation){.target = target, .size = count * width, .value = value, .width = width, .stream = stream});
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

int copy_to_device(uint64_t target, const void *source, size_t size, uint64_t stream, enum waiting wait)
{
    if (size == 0)
        return OK;
    const int refused = check(target, size, ACCESS_READ_WRITE);
    if (refused != OK || !stream_known(stream))
        return refused != OK ? refused : INVALID_VALUE;
    if (wait == BEFORE)
        work_off(false, stream);
    unsigned char *staged = malloc(size);
    memcpy(staged, source, size);
    const int code = submit((struct operation){.target = target, .staged = staged, .size = size, .stream = stream});
    if (code == OK && wait == UNTIL_DONE)
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

int synchronise_device(void)
{
    if (invalidate_captures(0))
        return CAPTURE_UNSUPPORTED;
    work_off(true, 0);
    return take_sticky();
}

int synchronise_stream(uint64_t stream)
{
    if (!stream_known(stream))
        return INVALID_VALUE;
    if (!is_null(stream) && invalidate_captures(stream))
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
    TAILQ_FOREACH (operation, &waiting, link)
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
    TAILQ_FOREACH (operation, &waiting, link) {
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
        drop_operation(&waiting, TAILQ_FIRST(&waiting));
    waiting_count = 0;
    sticky = OK;
}
