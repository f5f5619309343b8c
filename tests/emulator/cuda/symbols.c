/* cuGetProcAddress: the one symbol that the bindings look up by name; everything else comes through it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

static const struct {
    const char *name, *symbol; /* as asked for, as exported */
    int since;                 /* CUDA version: 1000 * major + 10 * minor */
} functions[] = {
    /* Of several rows with one name the first that is old enough is taken: the newest comes first. */
    {"cuInit", "cuInit", 2000},
    {"cuDriverGetVersion", "cuDriverGetVersion", 2020},
    {"cuDeviceGetCount", "cuDeviceGetCount", 2000},
    {"cuDeviceGet", "cuDeviceGet", 2000},
    {"cuDeviceGetName", "cuDeviceGetName", 2000},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 9020},
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020},
    {"cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000},
    {"cuDeviceCanAccessPeer", "cuDeviceCanAccessPeer", 4000},
    {"cuGetErrorName", "cuGetErrorName", 6000},
    {"cuGetErrorString", "cuGetErrorString", 6000},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 7000},
    {"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000},
    {"cuCtxCreate", "cuCtxCreate_v4", 12050},
    {"cuCtxCreate", "cuCtxCreate_v2", 3020},
    {"cuCtxDestroy", "cuCtxDestroy_v2", 4000},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000},
    {"cuCtxSetCurrent", "cuCtxSetCurrent", 4000},
    {"cuCtxGetCurrent", "cuCtxGetCurrent", 4000},
    {"cuCtxGetDevice", "cuCtxGetDevice", 2000},
    {"cuCtxSynchronize", "cuCtxSynchronize", 2000},
    {"cuMemGetInfo", "cuMemGetInfo_v2", 3020},
    {"cuMemAlloc", "cuMemAlloc_v2", 3020},
    {"cuMemFree", "cuMemFree_v2", 3020},
    {"cuMemAddressReserve", "cuMemAddressReserve", 10020},
    {"cuMemAddressFree", "cuMemAddressFree", 10020},
    {"cuMemCreate", "cuMemCreate", 10020},
    {"cuMemRelease", "cuMemRelease", 10020},
    {"cuMemMap", "cuMemMap", 10020},
    {"cuMemUnmap", "cuMemUnmap", 10020},
    {"cuMemSetAccess", "cuMemSetAccess", 10020},
    {"cuMemGetAccess", "cuMemGetAccess", 10020},
    {"cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity", 10020},
    {"cuMemGetAllocationPropertiesFromHandle", "cuMemGetAllocationPropertiesFromHandle", 10020},
    {"cuMemExportToShareableHandle", "cuMemExportToShareableHandle", 10020},
    {"cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle", 10020},
    {"cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000},
    {"cuMemGetHandleForAddressRange", "cuMemGetHandleForAddressRange", 11070},
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020},
    {"cuPointerGetAttribute", "cuPointerGetAttribute", 4000},
    {"cuPointerGetAttributes", "cuPointerGetAttributes", 7000},
    {"cuMemsetD8", "cuMemsetD8_v2", 3020},
    {"cuMemsetD16", "cuMemsetD16_v2", 3020},
    {"cuMemsetD32", "cuMemsetD32_v2", 3020},
    {"cuMemsetD8Async", "cuMemsetD8Async", 3020},
    {"cuMemsetD16Async", "cuMemsetD16Async", 3020},
    {"cuMemsetD32Async", "cuMemsetD32Async", 3020},
    {"cuMemcpyDtoD", "cuMemcpyDtoD_v2", 3020},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 3020},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 3020},
    {"cuStreamCreate", "cuStreamCreate", 2000},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
    {"cuStreamSynchronize", "cuStreamSynchronize", 2000},
    {"cuStreamQuery", "cuStreamQuery", 2000},
    {"cuStreamIsCapturing", "cuStreamIsCapturing", 10000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuStreamEndCapture", "cuStreamEndCapture", 10000},
    {"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000}, /* since 12.0 the one name means the other */
    {"cuGraphLaunch", "cuGraphLaunch", 10000},
    {"cuGraphExecDestroy", "cuGraphExecDestroy", 10000},
    {"cuGraphDestroy", "cuGraphDestroy", 10000},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
};

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_TOO_LOW = 2 };

/* VMMEMU_HIDE: names that this driver does not have, with commas. */
static bool hidden(const char *name)
{
    const char *list = getenv("VMMEMU_HIDE");
    char all[1024], wanted[96];
    snprintf(all, sizeof all, ",%s,", list ? list : "");
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return strstr(all, wanted) != NULL;
}

static void *own_symbol(const char *symbol)
{
    static void *self;
    Dl_info about;
    if (self == NULL && dladdr((void *)own_symbol, &about) != 0) {
        self = dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        dlclose(self); /* the handle lives as long as the library, which this must not prolong */
    }
    return self ? dlsym(self, symbol) : NULL;
}

static int look_up(const char *name, int version, void **function)
{
    int status = SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].name, name) != 0 || functions[i].since > knob.version)
            continue;
        status = VERSION_TOO_LOW;
        if (functions[i].since > version)
            continue;
        *function = own_symbol(functions[i].symbol);
        return FOUND;
    }
    return status;
}

/* A real one (535) answers 0 with NULL for what it does not know, and says why in the status; v1 answers 500 [T]. Not
 * in the journal: the bindings ask half a thousand times. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)flags;
    if (knob.stub)
        return STUB_LIBRARY;
    if (name == NULL || function == NULL)
        return INVALID_VALUE;
    *function = NULL;
    const int found = hidden(name) ? SYMBOL_NOT_FOUND : look_up(name, version, function);
    if (status != NULL)
        *status = found;
    return OK;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    const CUresult refused = cuGetProcAddress_v2(name, function, version, flags, NULL);
    return refused != OK ? refused : *function != NULL ? OK : NOT_FOUND;
}
