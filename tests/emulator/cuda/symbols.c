/* cuGetProcAddress: the one symbol that the bindings look up by name; everything else comes through it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define FUNCTIONS(X)                                                                                        \
    X(cuInit, cuInit, 2000)                                                                                 \
    X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                         \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                             \
    X(cuDeviceGet, cuDeviceGet, 2000)                                                                       \
    X(cuDeviceGetName, cuDeviceGetName, 2000)                                                               \
    X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 9020)                                                            \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020)                                                          \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                                     \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000)                                                   \
    X(cuGetErrorName, cuGetErrorName, 6000)                                                                 \
    X(cuGetErrorString, cuGetErrorString, 6000)                                                             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                             \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 7000)                                        \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                                         \
    X(cuCtxCreate, cuCtxCreate_v4, 12050)                                                                   \
    X(cuCtxCreate, cuCtxCreate_v2, 3020)                                                                    \
    X(cuCtxDestroy, cuCtxDestroy_v2, 4000)                                                                  \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)                                                          \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                                                            \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                               \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                               \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000)                                                                 \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                             \
    X(cuMemGetInfo, cuMemGetInfo_v2, 3020)                                                                  \
    X(cuMemAlloc, cuMemAlloc_v2, 3020)                                                                      \
    X(cuMemFree, cuMemFree_v2, 3020)                                                                        \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020)                                                      \
    X(cuMemAddressFree, cuMemAddressFree, 10020)                                                            \
    X(cuMemCreate, cuMemCreate, 10020)                                                                      \
    X(cuMemRelease, cuMemRelease, 10020)                                                                    \
    X(cuMemMap, cuMemMap, 10020)                                                                            \
    X(cuMemUnmap, cuMemUnmap, 10020)                                                                        \
    X(cuMemSetAccess, cuMemSetAccess, 10020)                                                                \
    X(cuMemGetAccess, cuMemGetAccess, 10020)                                                                \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020)                                  \
    X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020)                \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020)                                    \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020)                                \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000)                                      \
    X(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070)                                  \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020)                                                  \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000)                                                   \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000)                                                 \
    X(cuMemsetD8, cuMemsetD8_v2, 3020)                                                                      \
    X(cuMemsetD16, cuMemsetD16_v2, 3020)                                                                    \
    X(cuMemsetD32, cuMemsetD32_v2, 3020)                                                                    \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020)                                                               \
    X(cuMemsetD16Async, cuMemsetD16Async, 3020)                                                             \
    X(cuMemsetD32Async, cuMemsetD32Async, 3020)                                                             \
    X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020)                                                                  \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020)                                                        \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020)                                                                  \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020)                                                        \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020)                                                                  \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020)                                                        \
    X(cuStreamCreate, cuStreamCreate, 2000)                                                                 \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000)                                                            \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000)                                                       \
    X(cuStreamQuery, cuStreamQuery, 2000)                                                                   \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                                      \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010)                                                 \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000)                                                        \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040)                                      \
    X(cuGraphLaunch, cuGraphLaunch, 10000)                                                                  \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000)                                                        \
    X(cuGraphDestroy, cuGraphDestroy, 10000)                                                                \
    X(cuGetProcAddress, cuGetProcAddress_v2, 12000)

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_TOO_LOW = 2 };

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

#define DECLARE(name, function, since) extern int function();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
