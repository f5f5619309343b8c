/* Knobs: defaults, then a profile, then the environment. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "profiles.h"

struct knobs knob;

static const struct {
    const char *name;
    long long *value;
} table[] = {
#define ROW(name, value, meaning) {#name, &knob.name},
    KNOBS(ROW)
#undef ROW
};

static void complain(const char *what, const char *name)
{
    /* A test that misspells a knob must not pass by luck. */
    fprintf(stderr, "vmmemu: no such %s: %s\n", what, name);
    abort();
}

static long long *find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].value;
    return NULL;
}

static void apply_settings(const char *settings)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", settings);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        long long *place = find(word);
        if (place == NULL)
            complain("knob", word);
        else
            *place = strtoll(value, NULL, 0);
    }
}

static void apply_profile(const char *name)
{
    for (size_t i = 0; profiles[i].name != NULL; i++) {
        if (strcmp(profiles[i].name, name) != 0)
            continue;
        if (profiles[i].parent != NULL)
            apply_profile(profiles[i].parent);
        apply_settings(profiles[i].settings);
        return;
    }
    complain("profile", name);
}

static void apply_environment(void)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char variable[64] = "VMMEMU_";
        for (size_t j = 0; table[i].name[j] != '\0'; j++) {
            const char c = table[i].name[j];
            variable[7 + j] = (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
        }
        const char *value = getenv(variable);
        if (value != NULL)
            *table[i].value = strtoll(value, NULL, 0);
    }
}

static void check_devices(void)
{
    if (knob.devices < 0 || knob.devices > MAX_DEVICES)
        complain("number of devices (0 to 8)", "devices");
}

static void apply_defaults(void)
{
#define DEFAULT(name, value, meaning) knob.name = value;
    KNOBS(DEFAULT)
#undef DEFAULT
}

void knobs_load(void)
{
    apply_defaults();
    const char *profile = getenv("VMMEMU_PROFILE");
    /* A process may load both libraries; each takes a profile of its own vendor from the list. */
    char copy[256];
    snprintf(copy, sizeof copy, "%s", profile ? profile : "");
    char *rest = copy, *chosen = NULL;
    for (char *word; (word = strsep(&rest, ",")) != NULL;)
        if (strncmp(word, front_vendor, strlen(front_vendor)) == 0)
            chosen = word;
    apply_profile(chosen ? chosen : strcmp(front_vendor, "cuda") == 0 ? "cuda-13" : "hip-10.0");
    apply_environment();
    check_devices();
}

EXPORT void vmmemu_profile(const char *name, const char *settings)
{
    apply_defaults();
    apply_profile(name);
    apply_settings(settings);
    check_devices();
}

EXPORT int vmmemu_set(const char *name, long long value)
{
    long long *place = find(name);
    if (place == NULL)
        return INVALID_VALUE;
    *place = value;
    return OK;
}

EXPORT int vmmemu_get(const char *name, long long *value)
{
    const long long *place = find(name);
    if (place == NULL)
        return INVALID_VALUE;
    *value = *place;
    return OK;
}

EXPORT const char *vmmemu_profile_name(unsigned index)
{
    return profiles[index].name;
}
