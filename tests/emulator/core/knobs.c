/* Profiles: which versions and platforms there are, as settings of knobs. README.md gives the source of each value. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

struct knobs knob;

struct profile {
    const char *name, *parent, *settings;
};

static const struct profile profiles[] = {
    {"cuda-13", NULL, "version=13000"},
    {"cuda-12.9", "cuda-13", "version=12090"},
    {"cuda-12.2", "cuda-13", "version=12020 dmabuf_pcie_code=1"},
    {"cuda-wsl2", "cuda-13", "rdma_access_code=999 posix_fd_below=4294967296 dmabuf_attr=0"},
    {"cuda-vgpu", "cuda-13", "gran_code=801 peer=0"},
    {"cuda-mig", "cuda-13", "total=10737418240 peer=0"},
    {"cuda-jetson", "cuda-13", "rdma_attr=0 rdma_create_code=801 dmabuf_attr=0 dmabuf_pcie_code=801"},
    {"cuda-no-imex", "cuda-13", "fabric_attr=1 fabric_code=800"},
    {"cuda-fabric", "cuda-13", "fabric_attr=1 fabric_code=0"},
    {"cuda-closed-modules", "cuda-13", "dmabuf_attr=0"},
    {"cuda-64k", "cuda-13", "gran_min=65536 gran_rec=65536"},
    {"cuda-fd-per-allocation", "cuda-13", "fd_per_handle=1"},
    {"cuda-stub", "cuda-13", "stub=1"},
    {"cuda-no-device", "cuda-13", "devices=0"},

    /* 6.4 is 6.4.4: the release that freed nothing (hip#3781) is 6.4.0. */
    {"hip-6.4", NULL,
     "version=60443484 gran_min=4096 gran_rec=4096 access_mode=0 map_swallows=1 unmap_single=1 null_crashes=1 "
     "create_on_current=0 bad_id_code=1 reserve_bad_code=2 import_by_pointer=1 retain_adds=0 import_known=0 attr_max=91 "
     "dmabuf_attr=0 dmabuf_several=0 rdma_attr=0 host_location=0"},
    {"hip-6.4.0", "hip-6.4", "version=60443482 release_leaks=1"},
    {"hip-7.0", "hip-6.4",
     "version=70051831 access_mode=1 unmap_single=0 create_on_current=1 bad_id_code=101 reserve_bad_code=1 dmabuf_attr=1"},
    {"hip-7.2", "hip-7.0", "version=70253211 import_by_pointer=0 keep_vram=1 attr_max=92 host_location=1"},
    {"hip-7.12", "hip-7.2",
     "version=71260540 gran_rec=2097152 access_mode=2 keep_vram=0 retain_adds=1 null_crashes=0 attr_max=93"},
    {"hip-7.14", "hip-7.12",
     "version=71460850 map_swallows=0 fd_per_handle=1 attr_max=95 rdma_attr=1 fabric_attr=0 peer_grant_corrupts=1"},
    {"hip-10.0", "hip-7.14", "version=71526333 import_known=1 import_host_access=0"},
    {"hip-no-device", "hip-10.0", "devices=0"},
};

static const struct { const char *name; long long *value; } table[] = {
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
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
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
    return index < sizeof profiles / sizeof *profiles ? profiles[index].name : NULL;
}
