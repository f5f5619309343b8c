/* Every switch of the emulator: name, value where a profile says nothing, meaning. README.md gives the source of each.
 * A profile sets some (knobs.c), VMMEMU_<NAME> in the environment overrides, vmmemu_set changes one while it runs.
 */
#ifndef KNOBS_H
#define KNOBS_H

#define KNOBS(X)                                                                                                    \
    /* the machine */                                                                                               \
    X(devices, 1, "how many there are")                                                                             \
    X(total, 16LL << 30, "memory of each device, bytes")                                                            \
    X(other_use, 0, "bytes of each device that another process uses")                                               \
    X(va_limit, 1LL << 46, "address space that can be reserved, bytes")                                             \
    X(version, 13000, "of the driver (CUDA) or the runtime (HIP)")                                                  \
    X(stub, 0, "a stub library: every call answers CUDA_ERROR_STUB_LIBRARY")                                        \
    X(init_code, 0, "what cuInit answers where there is a device")                                                  \
    X(peer, 1, "devices reach each other's memory")                                                                 \
    X(fork_poison, 1, "after a fork the child's calls answer NOT_INITIALIZED")                                      \
    /* granularity and attributes */                                                                                \
    X(gran_min, 2LL << 20, "minimum granularity, bytes")                                                            \
    X(gran_rec, 2LL << 20, "recommended granularity, bytes")                                                        \
    X(gran_code, 0, "what the granularity call answers")                                                            \
    X(vmm_attr, 1, "attribute: virtual memory management")                                                          \
    X(posix_fd_attr, 1, "attribute: file descriptor handles")                                                       \
    X(posix_fd_below, 1LL << 62, "allocations with a file descriptor handle must be smaller, else OUT_OF_MEMORY")   \
    X(rdma_attr, 1, "attribute: GPUDirect RDMA with VMM")                                                           \
    X(rdma_legacy_attr, 1, "attribute: GPUDirect RDMA of ordinary memory")                                          \
    X(rdma_create_code, 0, "what creating RDMA-capable memory answers")                                             \
    X(rdma_access_code, 0, "what granting access to RDMA-capable memory answers")                                   \
    X(rdma_honoured, 1, "memory created RDMA-capable reads back as such")                                           \
    X(fabric_attr, 0, "attribute: fabric handles")                                                                  \
    X(fabric_code, 801, "what creating memory with a fabric handle answers")                                        \
    X(dmabuf_attr, 1, "attribute: dma-buf")                                                                         \
    X(dmabuf_pcie_code, 0, "what a dma-buf through PCIe BAR1 answers")                                              \
    X(dmabuf_several, 1, "a dma-buf may span several allocations")                                                  \
    X(attr_max, 9999, "HIP: the greatest device attribute that is known")                                           \
    /* memory */                                                                                                    \
    X(dirty, 1, "new memory is full of 0xA5, as a device's is of old bytes; 2: here and there, which is cheaper")   \
    X(deferred, 1, "device work is done at the latest moment that is legal")                                        \
    X(unmap_syncs, 1, "unmap waits for the device by itself (the sources disagree; waiting for it is a violation)") \
    X(strict_access, 1, "access is set on whole mappings only")                                                     \
    X(read_only_code, 0, "CUDA: what granting access for reading only answers")                                     \
    X(vmm_context, 0, "CUDA: VMM calls are refused in a thread without a current context")                          \
    X(fd_per_handle, 0, "an allocation holds a file descriptor that counts against the process's limit")            \
    X(keep_vram, 0, "memory once mapped stays used until the addresses are freed")                                  \
    X(release_leaks, 0, "released memory is never given back")                                                      \
    X(reserve_code, 0, "what reserving addresses answers")                                                          \
    X(reserve_bad_code, 1, "what reserving answers to wrong arguments")                                             \
    X(reserve_ignores_alignment, 0, "the alignment asked for is not passed on")                                     \
    X(reserve_aligned_code, 0, "what reserving with an alignment other than 0 answers")                             \
    /* HIP's ways */                                                                                                \
    X(access_mode, 2, "hipMemSetAccess: 0 walks mappings, 1 demands a prefix sum in map order, 2 repaired")         \
    X(map_swallows, 0, "hipMemMap answers success where it has failed")                                             \
    X(unmap_single, 0, "hipMemUnmap of several mappings answers success and does nothing")                          \
    X(free_crashes, 0, "freeing unknown addresses crashes")                                                         \
    X(unmap_crashes, 0, "unmapping addresses where nothing is mapped crashes")                                      \
    X(create_on_current, 1, "hipMemCreate allocates on the current device")                                         \
    X(create_align, 2048, "size that hipMemCreate itself wants a multiple of")                                      \
    X(bad_id_code, 101, "what a device id out of range answers")                                                    \
    X(import_by_pointer, 0, "hipMemImportFromShareableHandle takes the descriptor's address")                       \
    X(retain_adds, 1, "hipMemRetainAllocationHandle adds a reference")                                              \
    X(import_known, 1, "properties of imported memory are the exporter's")                                          \
    X(import_host_access, 1, "host access can be set on imported memory")                                           \
    X(peer_grant_corrupts, 0, "granting a peer after the owner takes the owner's pages away")                       \
    X(host_location, 1, "memory can be created on the host")                                                        \
    X(report, 1, "at exit, leaks and violations are written to standard error")

#endif
