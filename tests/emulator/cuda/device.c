/* Initialisation, devices, error names: what a program asks before it has a context. */
#include <stdio.h>
#include <string.h>

#include "abi.h"

bool cuda_initialised;
const char front_vendor[] = "cuda";

/* No device, and a second try: 100 each time; flags first: 1. Seen with a real library without a kernel module [T]. */
static CUresult initialise(unsigned flags)
{
    if (flags != 0)
        return INVALID_VALUE;
    if (knob.devices == 0)
        return NO_DEVICE;
    if (knob.init_code != 0)
        return (CUresult)knob.init_code;
    cuda_initialised = true;
    return OK;
}

EXPORT CUresult cuInit(unsigned flags)
{
    ENTER(STARTS, "flags=%u", flags);
    return LEAVE(initialise(flags));
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(ANYTIME, "%s", "");
    if (version == NULL)
        return LEAVE(INVALID_VALUE);
    *version = (int)knob.version;
    note("version=%d", *version);
    return LEAVE(OK);
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(INITIALISED, "%s", "");
    *count = (int)knob.devices;
    return LEAVE(OK);
}

bool is_device(CUdevice device)
{
    return device >= 0 && device < knob.devices;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(INITIALISED, "ordinal=%d", ordinal);
    if (!is_device(ordinal))
        return LEAVE(INVALID_DEVICE);
    *device = ordinal;
    return LEAVE(OK);
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    snprintf(name, (size_t)length, "Emulated CUDA device %d", device);
    return LEAVE(OK);
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    memcpy(uuid, "emulated cuda \0", 16);
    uuid[15] = (unsigned char)device;
    return LEAVE(OK);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(INITIALISED, "device=%d", device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    *bytes = (size_t)knob.total;
    return LEAVE(OK);
}

static int attribute_value(int attribute)
{
    switch (attribute) {
    case 16: return 132; /* multiprocessors */
    case 33: return 1;   /* PCI bus */
    case 41: return 1;   /* unified addressing */
    case 75: return 9;   /* compute capability */
    case 102: return (int)knob.vmm_attr;
    case 103: return (int)knob.posix_fd_attr;
    case 107: return 0; /* compression */
    case 110: return (int)knob.rdma_attr;
    case 115: return 1; /* memory pools */
    case 116: return (int)knob.rdma_legacy_attr;
    case 124: return (int)knob.dmabuf_attr;
    case 128: return (int)knob.fabric_attr;
    case 141:
    case 145: return knob.version >= 13000; /* VMM on the host */
    default: return 0;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(INITIALISED, "attribute=%d device=%d", attribute, device);
    if (!is_device(device))
        return LEAVE(INVALID_DEVICE);
    if (value == NULL || attribute < 1 || attribute > 150)
        return LEAVE(INVALID_VALUE);
    *value = attribute_value(attribute);
    note("value=%d", *value);
    return LEAVE(OK);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *answer, CUdevice device, CUdevice peer)
{
    ENTER(INITIALISED, "device=%d peer=%d", device, peer);
    if (!is_device(device) || !is_device(peer))
        return LEAVE(INVALID_DEVICE);
    *answer = device != peer && knob.peer;
    return LEAVE(OK);
}
