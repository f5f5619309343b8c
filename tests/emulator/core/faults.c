/* Faults: the n-th call of a name, or a share of all calls by a seeded generator, answers a chosen code instead of
 * doing anything; or hangs; or dies. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "emulator.h"

enum { PLANS = 64, CODES = 16 };
enum { HANG = -2, ABORT = -3, CRASH = -4, EXIT = -5 }; /* instead of a code */

static struct plan {
    char call[48];         /* "*": any */
    long long skip, times; /* times 0: a free place */
    int code;
} plans[PLANS];

static struct {
    char calls[512]; /* ",name,name," or "*" */
    int codes[CODES];
    unsigned code_count;
    unsigned per_million;
    uint64_t state;
} chance;

static long long fired;

static uint64_t draw(void)
{
    /* xorshift64*: the same seed gives the same faults everywhere. */
    uint64_t x = chance.state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    chance.state = x;
    return x * 0x2545F4914F6CDD1DULL;
}

static int action_named(const char *name)
{
    static const struct {
        const char *name;
        int action;
    } actions[] = {
        {"hang", HANG},
        {"abort", ABORT},
        {"crash", CRASH},
        {"exit", EXIT},
    };
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0)
            return actions[i].action;
    return atoi(name);
}

static int act(int action)
{
    fired++;
    note("injected=%d", action);
    if (action >= 0)
        return action;
    journal_end(action);
    switch (action) {
    case HANG:
        unlock(); /* other threads may go on, as they could with a driver that waits for its device */
        for (;;)
            pause();
    case ABORT: abort();
    case EXIT: _exit(3);
    default:
        /* The process's own handler may not stop the crash: it is the library's, and final. */
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        _exit(139);
    }
}

void die_as_planned(const char *how)
{
    act(action_named(how));
}

static bool random_applies(const char *call)
{
    if (strcmp(chance.calls, "*") == 0)
        return true;
    char wanted[64];
    snprintf(wanted, sizeof wanted, ",%s,", call);
    return strstr(chance.calls, wanted) != NULL;
}

/* Every plan counts every call of its name, whether or not another plan lets it fail. */
static int planned_for(const char *call)
{
    int action = GO_ON;
    for (struct plan *plan = plans; plan < plans + PLANS; plan++) {
        if (plan->times == 0 || (strcmp(plan->call, "*") != 0 && strcmp(plan->call, call) != 0))
            continue;
        if (plan->skip > 0) {
            plan->skip--;
            continue;
        }
        plan->times--;
        if (action == GO_ON)
            action = plan->code;
    }
    return action;
}

int fault_for(const char *call)
{
    const int action = planned_for(call);
    if (action != GO_ON)
        return act(action);
    if (chance.per_million > 0 && random_applies(call) && draw() % 1000000 < chance.per_million)
        return act(chance.codes[draw() % chance.code_count]);
    return GO_ON;
}

long long faults_fired(void)
{
    return fired;
}

void faults_clear(void)
{
    memset(plans, 0, sizeof plans);
    chance.per_million = 0;
}

static int add(const char *call, long long nth, long long times, int code)
{
    struct plan *plan = plans;
    while (plan < plans + PLANS && plan->times > 0)
        plan++;
    if (plan == plans + PLANS || nth < 1 || times < 1)
        return INVALID_VALUE;
    snprintf(plan->call, sizeof plan->call, "%s", call);
    plan->skip = nth - 1;
    plan->times = times;
    plan->code = code;
    return OK;
}

/* "cuMemCreate:3:2" the third call answers 2; ":hang", ":abort", ":crash", ":exit" instead of the code; a fourth field
 * is how many calls in a row; several plans with ";". */
void faults_load(void)
{
    const char *wanted = getenv("VMMEMU_FAULTS");
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", wanted ? wanted : "");
    char *rest = copy;
    for (char *text; (text = strsep(&rest, ";")) != NULL;) {
        const char *call = strsep(&text, ":"), *nth = strsep(&text, ":"), *code = strsep(&text, ":");
        if (code != NULL)
            add(call, atoll(nth), text ? atoll(text) : 1, action_named(code));
    }
}

EXPORT int vmmemu_fail(const char *call, long long nth, long long times, int code)
{
    lock();
    const int verdict = add(call, nth, times, code);
    unlock();
    return verdict;
}

EXPORT int vmmemu_fail_randomly(const char *calls, unsigned per_million, const int *codes, unsigned count,
                                uint64_t seed)
{
    if (count == 0 || count > CODES)
        return INVALID_VALUE;
    lock();
    if (strcmp(calls, "*") == 0)
        snprintf(chance.calls, sizeof chance.calls, "*");
    else
        snprintf(chance.calls, sizeof chance.calls, ",%s,", calls);
    memcpy(chance.codes, codes, count * sizeof *codes);
    chance.code_count = count;
    chance.state = seed * 0x9E3779B97F4A7C15ULL + 1;
    chance.per_million = per_million;
    unlock();
    return OK;
}

EXPORT void vmmemu_fail_nothing(void)
{
    lock();
    faults_clear();
    unlock();
}
