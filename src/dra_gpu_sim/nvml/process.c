/* Processes that run on a GPU. */
#include "core.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COMPUTE, GRAPHICS, MPS };

static int counts_as(const struct sim_process *p, int list) {
    switch (list) {
    case GRAPHICS: return p->kind == SIM_PROCESS_GRAPHICS;
    case MPS: return p->kind == SIM_PROCESS_MPS_CLIENT;
    default: return p->kind == SIM_PROCESS_COMPUTE || p->kind == SIM_PROCESS_MPS_CLIENT || p->kind == SIM_PROCESS_MPS_SERVER;
    }
}

/* The living processes that the call is about; on a MIG handle those of its instance. */
static struct sim_process *next(struct ctx *c, int list, int *at) {
    while (*at < SIM_MAX_PROCESSES) {
        struct sim_process *p = &c->s->processes[(*at)++];
        if (!p->used || !p->kind || (int)p->gpu != c->index || !counts_as(p, list)) continue;
        if (c->kind == H_MIG && (p->gi != c->gi->id || p->ci != c->ci->id)) continue;
        if (sim_slot_alive(c->s, *at - 1)) return p;
    }
    return NULL;
}

static nvmlReturn_t processes(const char *call, int list, nvmlDevice_t d, u32 *count, struct nvml_process *out) {
    struct ctx c;
    struct sim_process *p;
    u32 found = 0;
    nvmlReturn_t entered = sim_enter_handle(&c, call, d, H_GPU | H_MIG);
    if (entered != NVML_SUCCESS) return sim_leave(&c, entered);
    REQUIRE_ARGUMENT(count && (out || !*count));
    /* Over a whole GPU in MIG mode only a privileged caller sees the instances' processes. */
    int hidden = c.kind == H_GPU && c.gpu->mig_current && geteuid() != 0;
    for (int at = 0; !hidden && (p = next(&c, list, &at)); found++) {
        if (found >= *count) continue;
        memset(&out[found], 0, sizeof out[found]);
        out[found].pid = sim_slot_pid(c.s, at - 1);
        out[found].memory = p->memory;
        out[found].gi = p->gi;
        out[found].ci = p->ci;
    }
    int fits = found <= *count;
    *count = found;
    LEAVE(fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

#define LIST(function, list)                                                                                           \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *count, struct nvml_process *out) {                               \
        return processes(__func__, list, d, count, out);                                                               \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t d, struct nvml_process_detail_list *l) {
    struct sim_process *p;
    u32 found = 0;
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(l && l->mode <= MPS && (l->entries || !l->count));
    REQUIRE_VERSION(l, struct nvml_process_detail_list, 1);
    for (int at = 0; (p = next(&c, (int)l->mode, &at)); found++) {
        if (found >= l->count || !l->entries) continue;
        l->entries[found].pid = sim_slot_pid(c.s, at - 1);
        l->entries[found].memory = p->memory;
        l->entries[found].gi = p->gi;
        l->entries[found].ci = p->ci;
        l->entries[found].protected_memory = c.s->cc_feature ? p->memory : 0;
    }
    int fits = found <= l->count;
    l->count = found;
    LEAVE(fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

static u64 now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000ull + (u64)now.tv_nsec / 1000ull;
}

/* One sample per process, as busy as its share lets it be; NOT_FOUND without any, as when all samples are older. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, struct nvml_process_sample *out, u32 *count,
                                                    u64 last_seen) {
    struct sim_process *p;
    u32 found = 0;
    u64 now = now_us();
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(count);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    for (int at = 0; last_seen < now && (p = next(&c, COMPUTE, &at)); found++) {
        if (!out || found >= *count) continue;
        memset(&out[found], 0, sizeof out[found]);
        out[found].pid = sim_slot_pid(c.s, at - 1);
        out[found].timestamp = now;
        out[found].sm = p->sm_percent ? p->sm_percent : c.gpu->utilization_gpu;
        out[found].memory = c.gpu->utilization_memory;
    }
    int fits = out && found <= *count;
    *count = found;
    REQUIRE(found, NVML_ERROR_NOT_FOUND);
    LEAVE(fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t d, struct nvml_process_use_list *l) {
    struct sim_process *p;
    u32 found = 0;
    u64 now = now_us();
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(l);
    REQUIRE_VERSION(l, struct nvml_process_use_list, 1);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    for (int at = 0; l->last_seen < now && (p = next(&c, COMPUTE, &at)); found++) {
        if (!l->entries || found >= l->count) continue;
        memset(&l->entries[found], 0, sizeof l->entries[found]);
        l->entries[found].pid = sim_slot_pid(c.s, at - 1);
        l->entries[found].timestamp = now;
        l->entries[found].sm = p->sm_percent ? p->sm_percent : c.gpu->utilization_gpu;
        l->entries[found].memory = c.gpu->utilization_memory;
    }
    int fits = l->entries && found <= l->count;
    l->count = found;
    REQUIRE(found, NVML_ERROR_NOT_FOUND);
    LEAVE(fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}
