/* Streams: who waits for whom, and whether work on one is being captured. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "work.h"

static LIST_HEAD(, stream) streams = LIST_HEAD_INITIALIZER(streams);
static long long stream_count;

uint64_t new_id(void)
{
    static uint64_t last = 0x10000; /* of streams and graphs; above what means one of the null streams */
    return last += 64;
}

struct stream *find_stream(uint64_t id)
{
    struct stream *stream;
    LIST_FOREACH (stream, &streams, link)
        if (stream->id == id)
            return stream;
    return NULL;
}

bool is_null(uint64_t stream)
{
    return stream <= PER_THREAD_STREAM;
}

/* The null stream waits for blocking streams and they for it; other streams go their own ways. */
bool ordered_with(uint64_t one, uint64_t other)
{
    if (is_null(one) && is_null(other))
        return true;
    if (!is_null(one) && !is_null(other))
        return one == other;
    const struct stream *stream = find_stream(is_null(one) ? other : one);
    return stream == NULL || stream->blocking;
}

uint64_t stream_create(bool blocking)
{
    struct stream *stream = calloc(1, sizeof *stream);
    stream->id = new_id();
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

/* Captures --------------------------------------------------------------------------------------------------------- */

/* To use the null stream while a blocking stream captures would tie the two together. */
int tied_to_capture(uint64_t stream)
{
    struct stream *other;
    if (!is_null(stream))
        return OK;
    LIST_FOREACH (other, &streams, link)
        if (other->capture == 1 && other->blocking)
            return CAPTURE_IMPLICIT;
    return OK;
}

/* To wait for a capture is an error, and ends the capture's usefulness. */
bool invalidate_captures(uint64_t id)
{
    bool found = false;
    struct stream *stream;
    LIST_FOREACH (stream, &streams, link)
        if (stream->capture == 1 && (id == 0 || id == stream->id)) {
            stream->capture = 2;
            found = true;
        }
    return found;
}

int capture_status(uint64_t id)
{
    const struct stream *stream = find_stream(id);
    return stream != NULL ? stream->capture : 0;
}

bool anything_captures(void)
{
    const struct stream *stream;
    LIST_FOREACH (stream, &streams, link)
        if (stream->capture == 1)
            return true;
    return false;
}
