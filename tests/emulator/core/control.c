/* The rest of the interface that tests use beside the vendor's: counters, leaks, reset; and what happens at load and
 * exit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "emulator.h"

static long long used_by_all(void)
{
    long long sum = 0;
    for (int device = 0; device < MAX_DEVICES; device++)
        sum += device_used(device);
    return sum;
}

static const struct {
    const char *name;
    long long (*value)(void);
} counters[] = {
    {"calls", call_count},
    {"faults", faults_fired},
    {"handles", live_handles},
    {"mapped_bytes", mapped_bytes},
    {"mappings", live_mappings},
    {"pending", pending_work},
    {"reservations", live_reservations},
    {"reserved_bytes", reserved_bytes},
    {"streams", live_streams},
    {"used", used_by_all},
    {"violations", violation_count},
};

EXPORT long long vmmemu_counter(const char *name)
{
    long long value = -1;
    lock();
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        if (strcmp(counters[i].name, name) == 0)
            value = counters[i].value();
    unlock();
    return value;
}

EXPORT long long vmmemu_used(int device)
{
    lock();
    const long long value = device >= 0 && device < MAX_DEVICES ? device_used(device) : -1;
    unlock();
    return value;
}

static long long describe_leaks(char *text, size_t size)
{
    snprintf(text, size, "%lld reservations, %lld handles, %lld mappings", live_reservations(), live_handles(),
             live_mappings());
    return live_reservations() + live_handles() + live_mappings();
}

/* How many reservations, handles and mappings there are; `text` says it in words. */
EXPORT long long vmmemu_leaks(char *text, size_t size)
{
    lock();
    const long long count = describe_leaks(text, size);
    unlock();
    return count;
}

/* Journal, violations, planned faults and an asynchronous failure go; memory, contexts and knobs stay. */
EXPORT void vmmemu_reset(void)
{
    lock();
    journal_clear();
    faults_clear();
    forget_work();
    unlock();
}

/* Before the library is unloaded, which only tests of the emulator do: gives back what it holds of the process. */
EXPORT void vmmemu_discard(void)
{
    lock();
    forget_work();
    discard_reservations();
    discard_files();
    unlock();
}

__attribute__((constructor)) static void load(void)
{
    knobs_load();
    physical_open();
    journal_open();
    faults_load();
    journal_event("load", front_vendor);
    const char *planned = getenv("VMMEMU_ON_LOAD");
    if (planned != NULL) {
        journal_begin("load", planned);
        lock();
        die_as_planned(planned);
    }
}

__attribute__((destructor)) static void unload(void)
{
    char text[256];
    const long long leaks = describe_leaks(text, sizeof text);
    journal_event(leaks ? "leaked" : "clean", text);
    if (!knob.report)
        return;
    if (leaks > 0)
        fprintf(stderr, "vmmemu: %s: left at exit: %s\n", front_vendor, text);
    if (vmmemu_violation_read(violation_count() - 1, text, sizeof text) >= 0)
        fprintf(stderr, "vmmemu: %s: %lld violations, the last: %s\n", front_vendor, violation_count(), text);
}
