/* Profiles: versions and platforms as settings of knobs. README.md gives the source of each value. */
#include <stddef.h>

#include "profiles.h"

const struct profile profiles[] = {
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
    {"cuda-64k", "cuda-13", "gran_min=65536 gran_rec=65536 vmm_context=1"},
    {"cuda-fd-per-allocation", "cuda-13", "fd_per_handle=1"},
    {"cuda-stub", "cuda-13", "stub=1"},
    {"cuda-no-device", "cuda-13", "devices=0"},

    /* 6.4 is 6.4.4: the release that freed nothing (hip#3781) is 6.4.0. */
    {"hip-6.4", NULL,
     "version=60443484 gran_min=4096 gran_rec=4096 access_mode=0 map_swallows=1 unmap_single=1 free_crashes=1 "
     "unmap_crashes=1 "
     "create_on_current=0 bad_id_code=1 reserve_bad_code=2 reserve_ignores_alignment=1 "
     "import_by_pointer=1 retain_adds=0 import_known=0 attr_max=91 dmabuf_pcie_code=1 "
     "dmabuf_attr=0 dmabuf_several=0 rdma_attr=0 host_location=0"},
    {"hip-6.4.0", "hip-6.4", "version=60443482 release_leaks=1"},
    {"hip-7.0", "hip-6.4",
     "version=70051831 access_mode=1 unmap_single=0 unmap_crashes=0 create_on_current=1 bad_id_code=101 "
     "reserve_bad_code=1 "
     "reserve_ignores_alignment=0 dmabuf_attr=1"},
    {"hip-7.2", "hip-7.0", "version=70253211 import_by_pointer=0 keep_vram=1 attr_max=92 host_location=1"},
    {"hip-7.12", "hip-7.2",
     "version=71260540 gran_rec=2097152 access_mode=2 keep_vram=0 retain_adds=1 free_crashes=0 attr_max=93 "
     "dmabuf_pcie_code=0"},
    {"hip-7.14", "hip-7.12",
     "version=71460850 map_swallows=0 fd_per_handle=1 attr_max=95 rdma_attr=1 fabric_attr=0 peer_grant_corrupts=1"},
    {"hip-10.0", "hip-7.14", "version=71526333 fd_per_handle=0 import_known=1 import_host_access=0"},
    {"hip-no-device", "hip-10.0", "devices=0"},
    {NULL, NULL, NULL},
};
