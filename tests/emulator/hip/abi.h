/* The part of HIP's binary interface that the front implements: layouts and numbers of x86-64 Linux, in our own words.
 */
#ifndef HIP_ABI_H
#define HIP_ABI_H

#include <stdint.h>

#include "../core/emulator.h"

typedef int hipError_t;
typedef uintptr_t hipHandle, hipStream_t, hipGraph_t, hipGraphExec_t; /* pointers that callers never look behind */

typedef struct {
    int type, id;
} hipMemLocation;

typedef struct {
    hipMemLocation location;
    int flags;
} hipMemAccessDesc;

typedef struct {
    int type, requestedHandleTypes;
    hipMemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
    } allocFlags;
} hipMemAllocationProp;

typedef struct {
    int type, device;
    void *devicePointer, *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;

_Static_assert(sizeof(hipMemAccessDesc) == 12, "hipMemAccessDesc");
_Static_assert(sizeof(hipMemAllocationProp) == 32, "hipMemAllocationProp");
_Static_assert(sizeof(hipPointerAttribute_t) == 32, "hipPointerAttribute_t");

enum { TYPE_PINNED = 1, TYPE_UNCACHED = 0x40000000 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2 };
enum { DMA_BUF_FD = 1, DMA_BUF_PCIE = 1 };

/* HIP's version integers from which something is there. */
enum { ROCM_7_0 = 70000000, ROCM_7_14 = 71400000 };

/* addresses.c */
int crash(void); /* as where the real library follows a NULL pointer */

/* device.c */
bool is_device(int device);
bool vmm_works(void);

static inline uint64_t number(const void *pointer)
{
    return (uintptr_t)pointer;
}

#endif
