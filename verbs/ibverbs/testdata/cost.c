// What a post and a poll take of a process that calls libibverbs from C: the counterpart of the benchmarks in
// bench_linux_test.go, which compile it. "cost MEASUREMENT ROUNDS" prints nanoseconds for each round,
// and with a third argument does so in a thread domain.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { most = 64, list = 16, bytes = 16 };

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buffer[4096];

static void need(int ok, const char *what) {
	if (!ok) {
		perror(what);
		exit(1);
	}
}

// single_threaded_cq makes a CQ without a lock.
static struct ibv_cq *single_threaded_cq(struct ibv_context *ctx) {
	struct ibv_cq_init_attr_ex init = {.cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &init);
	need(ex != NULL, "single-threaded CQ");
	return ibv_cq_ex_to_cq(ex);
}

// thread_domain makes a PD whose QPs have no locks.
static struct ibv_pd *thread_domain(struct ibv_context *ctx, struct ibv_pd *pd) {
	struct ibv_td_init_attr none = {};
	struct ibv_parent_domain_init_attr init = {.pd = pd, .td = ibv_alloc_td(ctx, &none)};
	need(init.td != NULL, "thread domain");
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &init);
	need(parent != NULL, "parent domain");
	return parent;
}

// connect_with_itself makes an RC QP on the first device.
static void connect_with_itself(int single) {
	struct ibv_device **devices = ibv_get_device_list(NULL);
	need(devices && devices[0], "a device");
	struct ibv_context *ctx = ibv_open_device(devices[0]);
	need(ctx != NULL, "open");
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	need(pd != NULL, "PD");
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(mr != NULL, "MR");
	cq = single ? single_threaded_cq(ctx) : ibv_create_cq(ctx, 256, NULL, NULL, 0);
	need(cq != NULL, "CQ");
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
	qp = ibv_create_qp(single ? thread_domain(ctx, pd) : pd, &init);
	need(qp != NULL, "QP");
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
	need(!ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid), "GID");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static struct ibv_wc wcs[most];

static int poll_once(void) {
	int n = ibv_poll_cq(cq, most, wcs);
	need(n >= 0, "poll");
	for (int i = 0; i < n; i++)
		need(wcs[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wcs[i].status));
	return n;
}

static void drain(int n) {
	while (n > 0)
		n -= poll_once();
}

int main(int argc, char **argv) {
	need(argc == 3 || argc == 4, "cost MEASUREMENT ROUNDS [SINGLE-THREADED]");
	int batch = strcmp(argv[1], "sixteen") ? 1 : list, empty = !strcmp(argv[1], "empty"), found = !strcmp(argv[1], "found");
	connect_with_itself(argc == 4);
	struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = bytes};
	struct ibv_send_wr wrs[list] = {}, *bad;
	for (int i = 0; i < batch; i++)
		wrs[i] = (struct ibv_send_wr){.next = i + 1 < batch ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE,
			.wr.rdma = {.remote_addr = (uintptr_t)buffer, .rkey = mr->rkey}};
	wrs[batch - 1].send_flags |= IBV_SEND_SIGNALED;
	int calls = most / batch;
	for (int rounds = atoi(argv[2]); rounds > 0; rounds--) {
		double begin = now();
		if (empty) {
			for (int i = 0; i < most; i++)
				poll_once();
			printf("%.1f\n", (now() - begin) / most);
			continue;
		}
		for (int i = 0; i < calls; i++)
			need(!ibv_post_send(qp, wrs, &bad), "post");
		double posted = now();
		if (!found) {
			drain(calls);
			printf("%.1f\n", (posted - begin) / calls);
			continue;
		}
		usleep(1000); // until the device has done all, or the round does not count
		begin = now();
		int n = poll_once();
		double end = now();
		drain(calls - n);
		if (n == calls)
			printf("%.1f\n", (end - begin) / calls);
	}
	return 0;
}
