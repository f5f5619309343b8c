/* The part of CUDA's binary interface that the front implements: layouts and numbers of x86-64 Linux, in our own words.
 */
#ifndef CUDA_ABI_H
#define CUDA_ABI_H

#include <stdint.h>

#include "../core/emulator.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef struct context *CUcontext;
typedef uintptr_t CUstream, CUgraph, CUgraphExec;

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");

enum { TYPE_PINNED = 1, TYPE_MANAGED = 2 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3, LOCATION_HOST_NUMA_CURRENT = 4 };
enum { DMA_BUF_FD = 1, DMA_BUF_PCIE = 1 };

/* context.c */
extern bool cuda_initialised;
extern _Thread_local int context_depth;
int current_device(void); /* -1 where this thread has no context */
bool is_device(CUdevice device);

#endif
