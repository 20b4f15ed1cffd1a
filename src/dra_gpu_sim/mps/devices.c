/* Devices as CUDA names them, and limits as MPS writes them. */
#define _GNU_SOURCE
#include "devices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *cuda_error_name(int code) {
    switch (code) {
    case CUDA_OK: return "CUDA_SUCCESS";
    case CUDA_INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case CUDA_OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case CUDA_DEVICE_UNAVAILABLE: return "CUDA_ERROR_DEVICE_UNAVAILABLE";
    case CUDA_NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case CUDA_LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    case CUDA_NOT_PERMITTED: return "CUDA_ERROR_NOT_PERMITTED";
    case CUDA_MPS_CONNECTION_FAILED: return "CUDA_ERROR_MPS_CONNECTION_FAILED";
    case CUDA_MPS_RPC_FAILURE: return "CUDA_ERROR_MPS_RPC_FAILURE";
    case CUDA_MPS_SERVER_NOT_READY: return "CUDA_ERROR_MPS_SERVER_NOT_READY";
    case CUDA_MPS_MAX_CLIENTS_REACHED: return "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED";
    case CUDA_MPS_CLIENT_TERMINATED: return "CUDA_ERROR_MPS_CLIENT_TERMINATED";
    default: return "CUDA_ERROR_UNKNOWN";
    }
}

static struct sim_gi *instance(struct sim_state *s, const struct mps_device *d) {
    for (int i = 0; i < SIM_MAX_GI; i++)
        if (s->gpus[d->gpu].gi[i].used && s->gpus[d->gpu].gi[i].id == d->gi) return &s->gpus[d->gpu].gi[i];
    return NULL;
}

static struct sim_ci *compute_instance(struct sim_state *s, const struct mps_device *d) {
    struct sim_gi *gi = instance(s, d);
    for (int i = 0; gi && i < SIM_MAX_CI; i++)
        if (gi->ci[i].used && gi->ci[i].id == d->ci) return &gi->ci[i];
    return NULL;
}

/* The MIG devices of a GPU that this process has the nodes of, in their order; the UUID picks one. */
static int mig_device(struct sim_state *s, int gpu, const char *uuid, struct mps_device *out) {
    const struct sim_gpu *g = &s->gpus[gpu];
    for (u32 index = 0; g->mig_current && index < SIM_MAX_GI * SIM_MAX_CI; index++)
        for (int i = 0; i < SIM_MAX_GI; i++)
            for (int n = 0; g->gi[i].used && n < SIM_MAX_CI; n++) {
                const struct sim_ci *ci = &g->gi[i].ci[n];
                if (!ci->used || ci->mig_index != index || !sim_cap_usable(s, gpu, g->gi[i].id, ci->id)) continue;
                if (uuid && strcmp(uuid, ci->uuid) != 0) continue;
                *out = (struct mps_device){gpu, g->gi[i].id, ci->id};
                return 1;
            }
    return 0;
}

void mps_enumerate(struct sim_state *s, struct mps_devices *out) {
    out->count = 0;
    for (int i = 0; i < sim_visible_count() && out->count < MPS_MAX_DEVICES; i++) {
        int gpu = sim_visible(i);
        struct mps_device d = {gpu, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE};
        if (s->gpus[gpu].lost || (s->gpus[gpu].mig_current && !mig_device(s, gpu, NULL, &d))) continue;
        out->at[out->count++] = d;
    }
}

/* By ordinal, by UUID or its beginning as far as it is the only one, or by the UUID of a MIG device. */
int mps_find(struct sim_state *s, const char *id, const struct mps_devices *base, struct mps_device *out) {
    char *end;
    unsigned long ordinal = strtoul(id, &end, 10);
    int found = 0;
    if (isdigit((unsigned char)*id) && !*end) {
        if (ordinal >= (unsigned long)base->count) return 0;
        *out = base->at[ordinal];
        return 1;
    }
    for (int i = 0; i < base->count; i++) {
        const struct mps_device *d = &base->at[i];
        if (!strncmp(id, "MIG-", 4) ? !strcmp(id, mps_uuid(s, d)) || mig_device(s, d->gpu, id, out)
                                    : !strncmp(id, "GPU-", 4) && !strncmp(id, s->gpus[d->gpu].uuid, strlen(id))) {
            if (strncmp(id, "MIG-", 4) || !strcmp(id, mps_uuid(s, d))) *out = *d;
            found++;
        }
    }
    return found == 1;
}

/* The devices of a list as CUDA_VISIBLE_DEVICES holds it, up to the first that is none; 0 if there is one like that. */
int mps_select(struct sim_state *s, const char *list, const struct mps_devices *base, struct mps_devices *out) {
    char copy[4096], *at = copy, *id;
    if (!list) {
        *out = *base;
        return 1;
    }
    out->count = 0;
    snprintf(copy, sizeof copy, "%s", list);
    while (*list && (id = strsep(&at, ","))) {
        id += strspn(id, " ");
        id[strcspn(id, " ")] = 0;
        if (out->count == MPS_MAX_DEVICES || !mps_find(s, id, base, &out->at[out->count])) return 0;
        out->count++;
    }
    return 1;
}

const char *mps_uuid(struct sim_state *s, const struct mps_device *d) {
    struct sim_ci *ci = d->gi == NVML_INSTANCE_NONE ? NULL : compute_instance(s, d);
    return ci ? ci->uuid : s->gpus[d->gpu].uuid;
}

u32 mps_sm_total(struct sim_state *s, const struct mps_device *d) {
    struct sim_gpu *g = &s->gpus[d->gpu];
    struct sim_gi *gi = d->gi == NVML_INSTANCE_NONE ? NULL : instance(s, d);
    struct sim_ci *ci = gi ? compute_instance(s, d) : NULL;
    return ci ? sim_ci_sm(&g->profiles[gi->profile], ci->slices) : g->sm_count;
}

u64 mps_memory_total(struct sim_state *s, const struct mps_device *d) {
    struct sim_gpu *g = &s->gpus[d->gpu];
    struct sim_gi *gi = d->gi == NVML_INSTANCE_NONE ? NULL : instance(s, d);
    return gi ? (u64)g->profiles[gi->profile].memory_mib << 20 : g->memory_total - g->memory_reserved;
}

u64 mps_memory_used(struct sim_state *s, const struct mps_device *d) {
    return sim_memory_used(s, d->gpu, d->gi, NVML_INSTANCE_NONE);
}

/* What physical memory, its MPS limit and the limits of its cgroups leave to a process; the least of them. */
u64 mps_room(struct sim_state *s, int slot) {
    const struct sim_process *p = &s->processes[slot];
    struct mps_device d = {(int)p->gpu, p->gi, p->ci};
    u64 total = mps_memory_total(s, &d), used = mps_memory_used(s, &d), room = used < total ? total - used : 0;
    u64 limited = p->memory < p->memory_limit ? p->memory_limit - p->memory : 0;
    u64 group = p->gi == NVML_INSTANCE_NONE ? sim_cgroup_room(s, d.gpu, p->cgroup) : room;
    if (p->memory_limit && limited < room) room = limited;
    return group < room ? group : room;
}

/* EXCLUSIVE_PROCESS lets one process in, and an MPS server is one; clients of the server do not count. */
int mps_mode_allows(struct sim_state *s, const struct mps_device *d) {
    u32 mode = s->gpus[d->gpu].compute_mode;
    if (d->gi != NVML_INSTANCE_NONE || mode == NVML_COMPUTEMODE_DEFAULT) return 1;
    if (mode == NVML_COMPUTEMODE_PROHIBITED) return 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *p = &s->processes[i];
        int counts = p->used && (p->kind == SIM_PROCESS_COMPUTE || p->kind == SIM_PROCESS_MPS_SERVER);
        if (counts && (int)p->gpu == d->gpu && sim_slot_alive(s, i)) return 0;
    }
    return 1;
}

int mps_size(const char *text, u64 *bytes) {
    char *unit;
    unsigned long long number = strtoull(text, &unit, 10);
    if (!isdigit((unsigned char)*text) || number > 1ull << 40) return 0;
    int shift = *unit == 'G' || *unit == 'g' ? 30 : *unit == 'M' || *unit == 'm' ? 20 : *unit == 'K' || *unit == 'k' ? 10 : -1;
    if (shift < 0 || (unit[1] && strcmp(unit + 1, "B") && strcmp(unit + 1, "b"))) return 0;
    *bytes = number << shift;
    return 1;
}

void mps_size_text(u64 bytes, char *to, size_t length) {
    if (!bytes) snprintf(to, length, "-");
    else if (!(bytes & ((1ull << 30) - 1))) snprintf(to, length, "%lluG", bytes >> 30);
    else if (!(bytes & ((1ull << 20) - 1))) snprintf(to, length, "%lluM", bytes >> 20);
    else snprintf(to, length, "%lluK", bytes >> 10);
}

/* Down to a whole number and then to an even one: SMs come in pairs. Measured on 188 SMs: 10 % 18, 25 % 46, 75 % 140. */
u32 mps_sms(u32 total, double percent) {
    if (percent <= 0 || percent >= 100) return total;
    u32 whole = (u32)((double)total * percent / 100 + 1e-9) & ~1u;
    return whole < 2 ? 2 : whole;
}
