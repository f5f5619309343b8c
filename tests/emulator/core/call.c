/* The frame of every entry point: lock, fork check, planned faults, readiness, journal. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "emulator.h"

static pthread_mutex_t everything = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner; /* the process that made the first call that needs a device; 0 before it */
static long long calls;

const char *plain_name(const char *function)
{
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "%s", function);
    const size_t length = strlen(name);
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
        name[length - 3] = '\0';
    return name;
}

/* A vendor's state does not survive a fork: the child has the structures, but not the device's side of them. */
static bool forked(unsigned needs)
{
    if (needs == ANYTIME)
        return false;
    if (owner == 0)
        owner = getpid();
    return knob.fork_poison && owner != getpid();
}

static int verdict(const char *call, unsigned needs)
{
    if (forked(needs))
        return NOT_INITIALISED;
    if (knob.stub)
        return STUB_LIBRARY;
    const int planned = fault_for(call);
    if (planned != GO_ON)
        return planned;
    return needs == ANYTIME || needs == STARTS ? GO_ON : front_ready(needs);
}

int enter(const char *function, unsigned needs, const char *format, ...)
{
    char arguments[256];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    const char *call = plain_name(function);
    pthread_mutex_lock(&everything);
    calls++;
    journal_begin(call, arguments);
    if ((needs & VMM) && knob.vmm_context)
        needs |= CONTEXT;
    if ((needs & VMM) && anything_captures())
        violation("%s while a stream is capturing", call);
    return verdict(call, needs);
}

int leave(int code)
{
    journal_end(code);
    front_verdict(code);
    pthread_mutex_unlock(&everything);
    return code;
}

/* For the control interface, which is no vendor's call: neither journalled nor refused. */

void lock(void)
{
    pthread_mutex_lock(&everything);
}

void unlock(void)
{
    pthread_mutex_unlock(&everything);
}

/* A child must be able to make its calls, and be refused, even if another thread of the parent held the lock. */
__attribute__((constructor)) static void survive_forks(void)
{
    pthread_atfork(lock, unlock, unlock);
}

long long call_count(void)
{
    return calls;
}
