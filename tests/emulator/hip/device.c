/* Initialisation, devices, errors. HIP has no contexts to speak of: each thread has a current device, 0 at first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

const char front_vendor[] = "hip";

static _Thread_local int current;
static _Thread_local int last_error;

/* Without a device everything but the count and the versions answers 101; seen with a real 5.2 library [T]. */
int front_ready(unsigned needs)
{
    if (knob.devices == 0)
        return INVALID_DEVICE;
    return (needs & VMM) && !vmm_works() ? NOT_SUPPORTED : GO_ON;
}

int front_device(void)
{
    return current;
}

/* The last failure stays behind in the thread, for whoever asks next: torch does. */
void front_verdict(int code)
{
    if (code != OK)
        last_error = code;
}

bool is_device(int device)
{
    return device >= 0 && device < knob.devices;
}

/* [S] ROCr reads the variable once, at its start. */
bool vmm_works(void)
{
    static int allowed = -1;
    if (allowed < 0) {
        const char *setting = getenv("HIP_VMEM_MANAGE_SUPPORT");
        allowed = setting == NULL || strcmp(setting, "0") != 0;
    }
    return allowed && knob.vmm_attr;
}

EXPORT hipError_t hipInit(unsigned flags)
{
    ENTER(STARTS, "flags=%u", flags);
    if (flags != 0)
        return LEAVE(INVALID_VALUE);
    return LEAVE(knob.devices == 0 ? INVALID_DEVICE : (int)knob.init_code);
}

static int version(int *out)
{
    if (out == NULL)
        return INVALID_VALUE;
    *out = (int)knob.version;
    note("version=%d", *out);
    return OK;
}

EXPORT hipError_t hipRuntimeGetVersion(int *out)
{
    ENTER(ANYTIME, "%s", "");
    return LEAVE(version(out));
}

EXPORT hipError_t hipDriverGetVersion(int *out)
{
    ENTER(ANYTIME, "%s", "");
    return LEAVE(version(out));
}

EXPORT hipError_t hipGetDeviceCount(int *count)
{
    ENTER(STARTS, "%s", "");
    if (count == NULL)
        return LEAVE(INVALID_VALUE);
    *count = (int)knob.devices;
    return LEAVE(knob.devices == 0 ? NO_DEVICE : OK);
}

EXPORT hipError_t hipSetDevice(int device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    current = device;
    return LEAVE(OK);
}

EXPORT hipError_t hipGetDevice(int *device)
{
    ENTER(INITIALISED, "%s", "");
    if (device == NULL)
        return LEAVE(INVALID_VALUE);
    *device = current;
    return LEAVE(OK);
}

EXPORT hipError_t hipDeviceGet(int *device, int ordinal)
{
    ENTER(INITIALISED, "ordinal=%d", ordinal);
    if (!is_device(ordinal))
        return LEAVE(INVALID_DEVICE);
    *device = ordinal;
    return LEAVE(OK);
}

EXPORT hipError_t hipDeviceGetName(char *name, int length, int device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    snprintf(name, (size_t)length, "Emulated HIP device %d", device);
    return LEAVE(OK);
}

EXPORT hipError_t hipDeviceTotalMem(size_t *bytes, int device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    *bytes = (size_t)knob.total;
    return LEAVE(OK);
}

static void uuid_of(int device, unsigned char uuid[16])
{
    memcpy(uuid, "emulated  hip \0", 16);
    uuid[15] = (unsigned char)device;
}

EXPORT hipError_t hipDeviceGetUuid(unsigned char uuid[16], int device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    uuid_of(device, uuid);
    return LEAVE(OK);
}

EXPORT hipError_t hipDeviceCanAccessPeer(int *answer, int device, int peer)
{
    ENTER(INITIALISED, "device=%d peer=%d", device, peer);
    if (!is_device(device) || !is_device(peer))
        return LEAVE(INVALID_DEVICE);
    *answer = device != peer && knob.peer;
    return LEAVE(OK);
}

/* hipDeviceProp_tR0600 is 1472 bytes; these are the places of what a caller of ours may look at [T]. */
enum { PROPERTIES = 1472, NAME = 0, UUID = 256, TOTAL_MEMORY = 288, WARP_SIZE = 308, GCN_ARCH = 1160 };

EXPORT hipError_t hipGetDevicePropertiesR0600(unsigned char *properties, int device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (properties == NULL)
        return LEAVE(INVALID_VALUE);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    const size_t total = (size_t)knob.total;
    const int wave = 64;
    memset(properties, 0, PROPERTIES);
    snprintf((char *)properties + NAME, 256, "Emulated HIP device %d", device);
    uuid_of(device, properties + UUID);
    memcpy(properties + TOTAL_MEMORY, &total, sizeof total);
    memcpy(properties + WARP_SIZE, &wave, sizeof wave);
    snprintf((char *)properties + GCN_ARCH, 256, "gfx942:sramecc+:xnack-");
    return LEAVE(OK);
}

static int attribute_value(int attribute)
{
    switch (attribute) {
    case 23: return 9; /* compute capability */
    case 61: return 4;
    case 63: return 304; /* multiprocessors */
    case 85: return 1;   /* unified addressing */
    case 87: return 64;  /* wave size */
    case 88: return 1;   /* memory pools */
    case 89: return vmm_works();
    case 91: return (int)knob.posix_fd_attr;
    case 93: return (int)knob.dmabuf_attr;
    case 94: return (int)knob.rdma_attr;
    case 95: return (int)knob.fabric_attr;
    default: return 0;
    }
}

EXPORT hipError_t hipDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER(INITIALISED, "attribute=%d device=%d", attribute, device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    /* An older runtime does not know the newer attributes. */
    if (value == NULL || attribute < 0 || (attribute > knob.attr_max && attribute < 10000))
        return LEAVE(INVALID_VALUE);
    *value = attribute_value(attribute);
    note("value=%d", *value);
    return LEAVE(OK);
}

EXPORT hipError_t hipGetLastError(void)
{
    const int error = last_error;
    last_error = OK;
    return error;
}

EXPORT hipError_t hipPeekAtLastError(void)
{
    return last_error;
}
