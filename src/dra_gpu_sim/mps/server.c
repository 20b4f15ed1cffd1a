/*
 * nvidia-cuda-mps-server: the one process that has contexts on the GPUs for all its clients.
 *
 * The control daemon starts it with one end of a socket pair, and answers for it to the clients. It ends when the
 * daemon does.
 */
#define _GNU_SOURCE
#include "devices.h"
#include "wire.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(int link, int code) {
    wire_send(link, "FAIL %d\n", code);
    return 1;
}

/* Contexts on all devices, or on none. */
static int take(struct sim_state *s, const struct mps_devices *devices) {
    for (int i = 0; i < devices->count; i++)
        if (!mps_mode_allows(s, &devices->at[i])) return CUDA_DEVICE_UNAVAILABLE;
    for (int i = 0; i < devices->count; i++) {
        int slot = sim_slot_take(s);
        if (slot < 0) return CUDA_OUT_OF_MEMORY;
        struct sim_process *p = &s->processes[slot];
        p->gpu = (u32)devices->at[i].gpu;
        p->gi = devices->at[i].gi;
        p->ci = devices->at[i].ci;
        p->memory = (u64)s->mps_server_mib << 20;
        p->kind = SIM_PROCESS_MPS_SERVER;
        sim_cgroup_of(s, 0, p->cgroup, sizeof p->cgroup);
        snprintf(p->name, sizeof p->name, "nvidia-cuda-mps-server");
    }
    return CUDA_OK;
}

int main(void) {
    const char *link_text = getenv("DRA_GPU_SIM_MPS_LINK"), *uid = getenv("DRA_GPU_SIM_MPS_UID");
    struct mps_devices all, mine;
    struct ctx c;
    char line[WIRE_LINE], *end = line;
    if (!link_text) {
        fprintf(stderr, "nvidia-cuda-mps-server is started by the control daemon only\n");
        return 1;
    }
    int link = atoi(link_text);
    signal(SIGPIPE, SIG_IGN);
    nvmlReturn_t result = sim_init(&c, "cuInit", NVML_INIT_NO_ATTACH);
    int found = 0;
    if (result == NVML_SUCCESS) {
        mps_enumerate(c.s, &all);
        found = mps_select(c.s, getenv("CUDA_VISIBLE_DEVICES"), &all, &mine) && mine.count;
    }
    sim_leave(&c, result);
    struct pollfd ended = {.fd = link, .events = POLLIN};
    int gpus = found ? mine.count : 1;
    if (sim_state() && poll(&ended, 1, (int)sim_state()->mps_start_ms * gpus)) return 1;
    if (!found) return fail(link, CUDA_NO_DEVICE);
    sim_lock();
    int code = take(sim_state(), &mine);
    sim_unlock();
    if (code != CUDA_OK) return fail(link, code);
    if (uid && geteuid() == 0 && setuid((uid_t)atol(uid)) != 0) return fail(link, CUDA_NOT_PERMITTED);
    end += sprintf(end, "READY");
    for (int i = 0; i < mine.count; i++) end += sprintf(end, " %d %u %u", mine.at[i].gpu, mine.at[i].gi, mine.at[i].ci);
    wire_send(link, "%s\n", line);
    wire_line(link, line, sizeof line, -1); /* QUIT, or the daemon has gone */
    return 0;
}
