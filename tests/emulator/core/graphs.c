/* Captured graphs: the operations that a stream was given instead of doing them, with their addresses as they were. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "work.h"

static LIST_HEAD(, graph) graphs = LIST_HEAD_INITIALIZER(graphs);

static struct graph *find_graph(uint64_t id)
{
    struct graph *graph;
    LIST_FOREACH (graph, &graphs, link)
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
    stream->graph->id = new_id();
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
    TAILQ_FOREACH (node, &graph->nodes, link) {
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
        drop_operation(&graph->nodes, TAILQ_FIRST(&graph->nodes));
    LIST_REMOVE(graph, link);
    free(graph);
    return true;
}
