/* Every call with its arguments, its verdict and its place in the order: a ring in memory, and a file on request. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "emulator.h"

enum { RECORDS = 1 << 14, VIOLATIONS = 256 };

struct record {
    long long sequence;
    pid_t thread;
    int code;
    char call[48];
    char text[320]; /* arguments, then what note() added */
};

static struct record ring[RECORDS];
static long long next_sequence, oldest;
static struct record *current; /* the call at hand; never NULL between begin and end */
static char violations[VIOLATIONS][256];
static long long violated;
static int file = -1;

void journal_open(void)
{
    const char *path = getenv("VMMEMU_JOURNAL");
    if (path != NULL && file < 0)
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static pid_t this_thread(void)
{
    static _Thread_local pid_t cached;
    if (cached == 0)
        cached = (pid_t)syscall(SYS_gettid);
    return cached;
}

void journal_begin(const char *call, const char *arguments)
{
    current = &ring[next_sequence % RECORDS];
    current->sequence = next_sequence++;
    current->thread = this_thread();
    current->code = OK;
    snprintf(current->call, sizeof current->call, "%s", call);
    snprintf(current->text, sizeof current->text, "%s", arguments);
}

static void append(const char *format, va_list list)
{
    const size_t used = strlen(current->text);
    if (used + 1 >= sizeof current->text)
        return;
    if (used > 0)
        strcat(current->text, " ");
    const size_t start = strlen(current->text);
    vsnprintf(current->text + start, sizeof current->text - start, format, list);
}

void note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    append(format, list);
    va_end(list);
}

/* One line of JSON. Texts are ours: no quotes, no backslashes. One write per line, so that processes may share a file.
 */
static int render(const struct record *record, char *line, size_t size)
{
    return snprintf(line, size,
                    "{\"sequence\":%lld,\"pid\":%d,\"thread\":%d,\"call\":\"%s\",\"text\":\"%s\",\"code\":%d}",
                    record->sequence, (int)getpid(), (int)record->thread, record->call, record->text, record->code);
}

static void write_out(const struct record *record)
{
    char line[640];
    const int length = render(record, line, sizeof line - 1);
    line[length] = '\n';
    if (write(file, line, (size_t)length + 1) < 0)
        file = -1;
}

void journal_end(int code)
{
    current->code = code;
    if (file >= 0)
        write_out(current);
}

void journal_event(const char *name, const char *text)
{
    journal_begin(name, text);
    journal_end(OK);
}

void violation(const char *format, ...)
{
    char *text = violations[violated++ % VIOLATIONS];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof *violations, format, list);
    va_end(list);
    note("violation=%lld", violated);
    if (file >= 0) {
        struct record record = {.sequence = current->sequence, .thread = this_thread(), .call = "violation"};
        snprintf(record.text, sizeof record.text, "%s", text);
        write_out(&record);
    }
}

long long violation_count(void)
{
    return violated;
}

void journal_clear(void)
{
    /* The sequence goes on, so that a reader never mistakes an old record for a new one. */
    oldest = next_sequence;
    violated = 0;
}

EXPORT long long vmmemu_journal_next(void)
{
    lock();
    const long long next = next_sequence;
    unlock();
    return next;
}

/* The record with that number as a line of JSON; -1 where it is no longer, or not yet, there. */
EXPORT int vmmemu_journal_read(long long sequence, char *line, size_t size)
{
    lock();
    const struct record *record = &ring[(unsigned long long)sequence % RECORDS];
    const bool there = sequence >= oldest && sequence < next_sequence && record->sequence == sequence;
    const int length = there ? render(record, line, size) : -1;
    unlock();
    return length;
}

EXPORT int vmmemu_violation_read(long long index, char *text, size_t size)
{
    lock();
    const bool there = index >= 0 && index < violated && index >= violated - VIOLATIONS;
    const int length = there ? snprintf(text, size, "%s", violations[index % VIOLATIONS]) : -1;
    unlock();
    return length;
}
