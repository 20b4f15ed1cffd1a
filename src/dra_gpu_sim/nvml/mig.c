/* What MIG allows: modes, placements, instances. No NVML calls here, so that nvidia-smi obeys the same rules. */
#include "core.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Root, or whoever may read the capability "mig/config". */
int sim_may_configure_mig(void) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap1", sim_dev());
    return geteuid() == 0 || access(path, R_OK) == 0;
}

void sim_mig_wipe(struct sim_state *s, int gpu) {
    struct sim_gpu *g = &s->gpus[gpu];
    for (int i = 0; i < SIM_MAX_GI; i++) {
        if (!g->gi[i].used) continue;
        for (int k = 0; k < SIM_MAX_CI; k++)
            if (g->gi[i].ci[k].used) sim_cap_remove(s, gpu, g->gi[i].id, (int)g->gi[i].ci[k].id);
        sim_cap_remove(s, gpu, g->gi[i].id, -1);
    }
    memset(g->gi, 0, sizeof g->gi);
}

/*
 * The call itself succeeds: whether the mode is in force is told by the activation status and by current and pending.
 * Another client of the GPU leaves it pending, and so does a board that needs a reset.
 */
nvmlReturn_t sim_mig_set_mode(struct sim_state *s, int gpu, u32 mode, nvmlReturn_t *activation) {
    struct sim_gpu *g = &s->gpus[gpu];
    u32 pids[1];
    *activation = NVML_SUCCESS;
    if (g->mig_support == SIM_MIG_NONE) return NVML_ERROR_NOT_SUPPORTED;
    if (mode > 1) return NVML_ERROR_INVALID_ARGUMENT;
    g->mig_pending = mode;
    if (g->mig_current == mode) return NVML_SUCCESS;
    int busy = sim_processes_on(s, gpu, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE, pids, 1) + sim_other_sessions(s, gpu, pids, 1);
    for (int i = 0; mode == 0 && i < SIM_MAX_GI; i++) busy += g->gi[i].used != 0;
    if (busy) *activation = NVML_ERROR_IN_USE;
    else if (g->mig_support == SIM_MIG_AFTER_RESET) *activation = NVML_ERROR_RESET_REQUIRED;
    if (*activation != NVML_SUCCESS) return NVML_SUCCESS;
    sim_mig_wipe(s, gpu);
    g->mig_current = mode;
    g->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

struct sim_profile *sim_profile_by_id(struct sim_gpu *g, u32 id) {
    for (u32 i = 0; i < g->profile_count; i++)
        if (g->profiles[i].used && g->profiles[i].id == id) return &g->profiles[i];
    return NULL;
}

static struct sim_profile *whole(struct sim_gpu *g) {
    for (u32 i = 0; i < g->profile_count; i++)
        if (g->profiles[i].slices == g->mig_slices && g->profiles[i].memory_units == g->mig_memory_units)
            return &g->profiles[i];
    return NULL;
}

/* Memory must not overlap; compute slices, engines and the profile's own count must suffice. */
int sim_gi_room(struct sim_gpu *g, const struct sim_profile *p, u32 start) {
    const struct sim_profile *all = whole(g);
    u32 slices = p->slices, same = 1, copy = p->copy, dec = p->dec, enc = p->enc, jpeg = p->jpeg, ofa = p->ofa;
    for (int i = 0; i < SIM_MAX_GI; i++) {
        const struct sim_gi *gi = &g->gi[i];
        if (!gi->used) continue;
        const struct sim_profile *q = &g->profiles[gi->profile];
        if (start < gi->start + gi->size && gi->start < start + p->memory_units) return 0;
        slices += q->slices;
        same += q->id == p->id;
        copy += q->copy, dec += q->dec, enc += q->enc, jpeg += q->jpeg, ofa += q->ofa;
    }
    if (slices > g->mig_slices || same > p->max_instances) return 0;
    return !all || (copy <= all->copy && dec <= all->dec && enc <= all->enc && jpeg <= all->jpeg && ofa <= all->ofa);
}

/* How many more instances of a profile fit, placed as the driver would place them. Tried on a copy: others look on. */
u32 sim_gi_remaining(const struct sim_gpu *g, const struct sim_profile *p) {
    struct sim_gpu tried = *g;
    u32 made = 0;
    for (u32 i = 0; i < p->placement_count; i++) {
        if (!sim_gi_room(&tried, p, p->starts[i])) continue;
        for (int k = 0; k < SIM_MAX_GI; k++) {
            if (tried.gi[k].used) continue;
            tried.gi[k].used = 1;
            tried.gi[k].profile = (u32)(p - g->profiles);
            tried.gi[k].start = p->starts[i];
            tried.gi[k].size = p->memory_units;
            made++;
            break;
        }
    }
    return made;
}

/*
 * GPU instances are numbered as a tree over the memory: 0 the whole, 1 the upper half and 2 the lower, 3 and 4 the
 * quarters of 1, 5 and 6 those of 2, 7 to 14 the eighths in the same order (MIG User Guide, listings of -lgi).
 */
static u32 instance_id(const struct sim_gpu *g, u32 start, u32 size) {
    u32 eighth = g->mig_memory_units ? start * 8 / g->mig_memory_units : 0;
    u32 width = g->mig_memory_units ? size * 8 / g->mig_memory_units : 8;
    if (width >= 8) return 0;
    if (width >= 4) return eighth >= 4 ? 1 : 2;
    if (width >= 2) return 3 + (eighth + 4) % 8 / 2;
    return 7 + (eighth + 4) % 8;
}

static int placement(struct sim_gpu *g, const struct sim_profile *p, const struct nvml_placement *at, u32 *start) {
    for (u32 i = 0; i < p->placement_count; i++) {
        if (at && (at->start != p->starts[i] || at->size != p->memory_units)) continue;
        *start = p->starts[i];
        if (sim_gi_room(g, p, *start)) return 1;
    }
    return 0;
}

nvmlReturn_t sim_gi_create(struct sim_state *s, int gpu, u32 profile_id, const struct nvml_placement *at,
                           struct sim_gi **out) {
    struct sim_gpu *g = &s->gpus[gpu];
    struct sim_profile *p = sim_profile_by_id(g, profile_id);
    u32 start = 0;
    if (g->mig_support == SIM_MIG_NONE || !g->mig_current) return NVML_ERROR_NOT_SUPPORTED;
    if (!sim_may_configure_mig()) return NVML_ERROR_NO_PERMISSION;
    if (!p) return NVML_ERROR_INVALID_ARGUMENT;
    if (!placement(g, p, at, &start)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct sim_gi *gi = NULL;
    for (int i = 0; i < SIM_MAX_GI && !gi; i++)
        if (!g->gi[i].used) gi = &g->gi[i];
    if (!gi) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    memset(gi, 0, sizeof *gi);
    gi->id = instance_id(g, start, p->memory_units);
    gi->profile = (u32)(p - g->profiles);
    gi->start = start;
    gi->size = p->memory_units;
    gi->serial = ++s->serial;
    gi->used = 1;
    sim_cap_add(s, gpu, gi->id, -1);
    *out = gi;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_gi_destroy(struct sim_state *s, int gpu, struct sim_gi *gi) {
    u32 pids[1];
    if (!sim_may_configure_mig()) return NVML_ERROR_NO_PERMISSION;
    for (int k = 0; k < SIM_MAX_CI; k++)
        if (gi->ci[k].used) return NVML_ERROR_IN_USE;
    if (sim_processes_on(s, gpu, gi->id, NVML_INSTANCE_NONE, pids, 1)) return NVML_ERROR_IN_USE;
    sim_cap_remove(s, gpu, gi->id, -1);
    memset(gi, 0, sizeof *gi);
    return NVML_SUCCESS;
}

static const u32 ci_slices[] = {1, 2, 3, 4, 7, 8, 6, 1, 7}; /* by NVML_COMPUTE_INSTANCE_PROFILE_* */

/* 1: the GPU instance has this compute profile, 0: not, -1: there is no such profile. */
int sim_ci_profile(const struct sim_profile *gi_profile, u32 profile, u32 *slices) {
    if (profile >= sizeof ci_slices / sizeof *ci_slices) return -1;
    *slices = ci_slices[profile];
    /* A "+me" GPU instance of one slice has the compute profile of its own kind only. */
    if (profile == 7) return gi_profile->nvml_profile == 7;
    if (profile == 0 && gi_profile->nvml_profile == 7) return 0;
    return profile != 5 && profile != 8 && *slices <= gi_profile->slices && !(*slices == 3 && gi_profile->slices == 4);
}

u32 sim_ci_sm(const struct sim_profile *gi_profile, u32 slices) {
    if (slices >= gi_profile->slices) return gi_profile->sm;
    return gi_profile->sm / gi_profile->slices * slices / 2 * 2; /* whole TPCs */
}

static u32 used_slices(const struct sim_gi *gi) {
    u32 mask = 0;
    for (int k = 0; k < SIM_MAX_CI; k++)
        for (u32 i = 0; gi->ci[k].used && i < gi->ci[k].slices; i++) mask |= 1u << (gi->ci[k].start + i);
    return mask;
}

u32 sim_ci_remaining(struct sim_gpu *g, struct sim_gi *gi, u32 profile) {
    u32 slices, free_run = 0, count = 0, mask = used_slices(gi);
    if (sim_ci_profile(&g->profiles[gi->profile], profile, &slices) != 1) return 0;
    for (u32 i = 0; i < g->profiles[gi->profile].slices; i++) {
        free_run = mask >> i & 1 ? 0 : free_run + 1;
        if (free_run < slices) continue;
        count++;
        free_run = 0;
    }
    return count;
}

void sim_ci_name(const struct sim_profile *gi_profile, u32 profile, u32 slices, char *to, size_t length) {
    (void)profile;
    if (slices == gi_profile->slices) snprintf(to, length, "%s", gi_profile->name);
    else snprintf(to, length, "MIG %uc.%s", slices, strncmp(gi_profile->name, "MIG ", 4) ? gi_profile->name : gi_profile->name + 4);
}

/* The same instance of the same GPU always gets the same UUID: two FNV-1a hashes of what names it. */
static void mig_uuid(const struct sim_gpu *g, u32 gi, u32 ci, u32 profile, char *to, size_t length) {
    char text[160];
    u64 half[2] = {0xcbf29ce484222325ull, 0x84222325cbf29ce4ull};
    snprintf(text, sizeof text, "%s/%u/%u/%u", g->uuid, gi, ci, profile);
    for (int h = 0; h < 2; h++)
        for (const char *p = text; *p; p++) half[h] = (half[h] ^ (u64)(unsigned char)*p) * 0x100000001b3ull;
    snprintf(to, length, "MIG-%08x-%04x-5%03x-%04x-%012llx", (u32)(half[0] >> 32), (u32)(half[0] >> 16 & 0xFFFF),
             (u32)(half[0] & 0xFFF), (u32)(0x8000 | (half[1] >> 48 & 0x3FFF)), half[1] & 0xFFFFFFFFFFFFull);
}

static u32 free_mig_index(const struct sim_gpu *g) {
    u32 taken = 0, index = 0;
    for (int i = 0; i < SIM_MAX_GI; i++)
        for (int k = 0; g->gi[i].used && k < SIM_MAX_CI; k++)
            if (g->gi[i].ci[k].used) taken |= 1u << g->gi[i].ci[k].mig_index;
    while (taken >> index & 1) index++;
    return index;
}

static int ci_start(const struct sim_gi *gi, u32 limit, u32 slices, const struct nvml_placement *at, u32 *start) {
    u32 mask = used_slices(gi), bits = (1u << slices) - 1;
    if (at && at->size != slices) return 0;
    for (u32 i = at ? at->start : 0; i + slices <= limit; i++) {
        *start = i;
        if (!(mask & bits << i)) return 1;
        if (at) return 0;
    }
    return 0;
}

nvmlReturn_t sim_ci_create(struct sim_state *s, int gpu, struct sim_gi *gi, u32 profile,
                           const struct nvml_placement *at, struct sim_ci **out) {
    struct sim_gpu *g = &s->gpus[gpu];
    u32 slices = 0, start = 0;
    if (!sim_may_configure_mig()) return NVML_ERROR_NO_PERMISSION;
    int known = sim_ci_profile(&g->profiles[gi->profile], profile, &slices);
    if (known < 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (known == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (!ci_start(gi, g->profiles[gi->profile].slices, slices, at, &start)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct sim_ci *ci = NULL;
    for (u32 k = 0; k < SIM_MAX_CI && !ci; k++) {
        if (gi->ci[k].used) continue;
        ci = &gi->ci[k];
        memset(ci, 0, sizeof *ci);
        ci->id = k;
    }
    if (!ci) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    ci->profile = profile;
    ci->start = start;
    ci->slices = slices;
    ci->mig_index = free_mig_index(g);
    ci->serial = ++s->serial;
    mig_uuid(g, gi->id, ci->id, g->profiles[gi->profile].id << 8 | profile, ci->uuid, sizeof ci->uuid);
    ci->used = 1;
    sim_cap_add(s, gpu, gi->id, (int)ci->id);
    *out = ci;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_ci_destroy(struct sim_state *s, int gpu, struct sim_gi *gi, struct sim_ci *ci) {
    u32 pids[1];
    if (!sim_may_configure_mig()) return NVML_ERROR_NO_PERMISSION;
    if (sim_processes_on(s, gpu, gi->id, ci->id, pids, 1)) return NVML_ERROR_IN_USE;
    sim_cap_remove(s, gpu, gi->id, (int)ci->id);
    memset(ci, 0, sizeof *ci);
    return NVML_SUCCESS;
}
