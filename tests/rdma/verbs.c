/* Two connected queue pairs on one RDMA device, for tests: register memory, write it to another registration, let go.
 *
 * The inline functions of <infiniband/verbs.h> cannot be called through ctypes; these can. One thread, one device, RoCE.
 * Every function that can fail gives the errno, or the status of the work completion, as a number.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1 };

struct link {
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_cq *completions;
    struct ibv_qp *pairs[2];
    union ibv_gid gid;
    int gid_index;
};

static int to_ready(struct link *link, int which)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    init.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int failed = ibv_modify_qp(link->pairs[which], &init, mask);
    if (failed)
        return failed;
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    receive.dest_qp_num = link->pairs[!which]->qp_num;
    receive.max_dest_rd_atomic = 1;
    receive.min_rnr_timer = 12;
    receive.ah_attr.is_global = 1;
    receive.ah_attr.port_num = PORT;
    receive.ah_attr.grh.dgid = link->gid;
    receive.ah_attr.grh.sgid_index = link->gid_index;
    receive.ah_attr.grh.hop_limit = 1;
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    failed = ibv_modify_qp(link->pairs[which], &receive, mask);
    if (failed)
        return failed;
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3, .rnr_retry = 3};
    send.max_rd_atomic = 1;
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(link->pairs[which], &send, mask);
}

static void drop_pairs(struct link *link)
{
    for (int which = 0; which < 2; which++)
        if (link->pairs[which]) {
            ibv_destroy_qp(link->pairs[which]);
            link->pairs[which] = NULL;
        }
}

/* Also after a failed transfer, which leaves both pairs in the error state. */
int link_connect(struct link *link)
{
    drop_pairs(link);
    struct ibv_qp_init_attr wanted = {.qp_type = IBV_QPT_RC};
    wanted.send_cq = wanted.recv_cq = link->completions;
    wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 16;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    for (int which = 0; which < 2; which++)
        if (!(link->pairs[which] = ibv_create_qp(link->domain, &wanted)))
            return errno;
    int failed = to_ready(link, 0);
    return failed ? failed : to_ready(link, 1);
}

void link_close(struct link *link)
{
    if (!link)
        return;
    drop_pairs(link);
    if (link->completions)
        ibv_destroy_cq(link->completions);
    if (link->domain)
        ibv_dealloc_pd(link->domain);
    if (link->context)
        ibv_close_device(link->context);
    free(link);
}

/* NULL where there is no device that works, with the errno in *why. */
struct link *link_open(int gid_index, int *why)
{
    struct link *link = calloc(1, sizeof *link);
    struct ibv_device **devices = ibv_get_device_list(NULL);
    *why = ENODEV;
    if (!link || !devices || !devices[0])
        goto failed;
    errno = 0;
    link->gid_index = gid_index;
    if (!(link->context = ibv_open_device(devices[0])) || !(link->domain = ibv_alloc_pd(link->context))
        || !(link->completions = ibv_create_cq(link->context, 64, NULL, NULL, 0))) {
        *why = errno ? errno : EIO;
        goto failed;
    }
    if ((*why = ibv_query_gid(link->context, PORT, gid_index, &link->gid)) || (*why = link_connect(link)))
        goto failed;
    ibv_free_device_list(devices);
    return link;
failed:
    if (devices)
        ibv_free_device_list(devices);
    link_close(link);
    return NULL;
}

struct ibv_mr *link_register(struct link *link, uint64_t address, uint64_t nbytes, int *why)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct ibv_mr *region = ibv_reg_mr(link->domain, (void *)address, nbytes, access);
    *why = region ? 0 : errno;
    return region;
}

int link_deregister(struct ibv_mr *region)
{
    return ibv_dereg_mr(region);
}

uint32_t key_of(struct ibv_mr *region)
{
    return region->rkey;
}

uint32_t local_key_of(struct ibv_mr *region)
{
    return region->lkey;
}

/* The status of the work completion: 0 is success; negative is -errno. */
int link_write(struct link *link, uint64_t source, uint32_t local_key, uint64_t target, uint32_t key, uint32_t nbytes)
{
    struct ibv_sge piece = {.addr = source, .length = nbytes, .lkey = local_key};
    struct ibv_send_wr work = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = target;
    work.wr.rdma.rkey = key;
    int failed = ibv_post_send(link->pairs[0], &work, &bad);
    if (failed)
        return -failed;
    struct ibv_wc done;
    int found;
    while (!(found = ibv_poll_cq(link->completions, 1, &done)))
        ;
    return found < 0 ? -EIO : (int)done.status;
}
