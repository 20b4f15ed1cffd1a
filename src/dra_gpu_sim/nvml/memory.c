/* Memory, and the per-cgroup memory limits of driver 615. */
#include "core.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

u64 sim_memory_used(struct sim_state *s, int gpu, u32 gi, u32 ci) {
    u64 used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &s->processes[i];
        if (!p->used || (int)p->gpu != gpu) continue;
        if (gi != NVML_INSTANCE_NONE && p->gi != gi) continue;
        if (ci != NVML_INSTANCE_NONE && p->ci != ci) continue;
        if (!sim_slot_alive(s, i)) continue;
        used += p->memory;
    }
    return used;
}

static void amounts(struct ctx *c, struct nvml_memory_v2 *m) {
    if (c->kind == H_MIG) {
        m->total = (u64)c->gpu->profiles[c->gi->profile].memory_mib << 20;
        m->reserved = 0;
        m->used = sim_memory_used(c->s, c->index, c->gi->id, NVML_INSTANCE_NONE);
    } else {
        m->total = c->gpu->memory_total;
        m->reserved = c->gpu->memory_reserved;
        m->used = sim_memory_used(c->s, c->index, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE);
    }
    u64 gone = m->reserved + m->used;
    m->free = gone < m->total ? m->total - gone : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct nvml_memory_v2 *memory) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(memory);
    REQUIRE_VERSION(memory, struct nvml_memory_v2, 2);
    amounts(&c, memory);
    LEAVE(NVML_SUCCESS);
}

/* The first version has no field for what the driver keeps to itself and counts it as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, struct nvml_memory *memory) {
    struct nvml_memory_v2 m;
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(memory);
    amounts(&c, &m);
    memory->total = m.total;
    memory->free = m.free;
    memory->used = m.used + m.reserved;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, struct nvml_bar1 *bar1) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(bar1);
    REQUIRE(c.gpu->bar1_total, NVML_ERROR_NOT_SUPPORTED);
    bar1->total = c.gpu->bar1_total;
    bar1->used = 1 << 20;
    bar1->free = bar1->total - bar1->used;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t d, struct nvml_cc_memory *memory) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(memory);
    REQUIRE(c.s->cc_gpu_caps, NVML_ERROR_NOT_SUPPORTED);
    memory->protected_kib = c.s->cc_feature ? c.gpu->memory_total >> 10 : 0;
    memory->unprotected_kib = c.s->cc_feature ? 0 : c.gpu->memory_total >> 10;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t d, struct nvml_memory *memory) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(memory);
    REQUIRE(c.s->cc_feature, NVML_ERROR_NOT_SUPPORTED);
    memory->total = c.gpu->memory_total;
    memory->used = sim_memory_used(c.s, c.index, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE);
    memory->free = memory->total - memory->used;
    LEAVE(NVML_SUCCESS);
}

/* Cgroups are kept by their path below the cgroup root, however they were named. */
static const char *below_root(const struct sim_state *s, const char *cgroup) {
    size_t root = strlen(s->cgroup_root);
    if (!root || strncmp(cgroup, s->cgroup_root, root) || (cgroup[root] != '/' && cgroup[root])) return cgroup;
    return cgroup[root] ? cgroup + root : "/";
}

static int cgroup_exists(const struct sim_state *s, const char *cgroup) {
    char path[PATH_MAX];
    struct stat info;
    if (!s->cgroup_root[0]) return 1;
    snprintf(path, sizeof path, "%s/%s", s->cgroup_root, cgroup);
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static struct sim_limit *limit_of(struct sim_state *s, int gpu, const char *cgroup) {
    for (int i = 0; i < SIM_MAX_LIMITS; i++)
        if (s->limits[i].used && (int)s->limits[i].gpu == gpu && strcmp(s->limits[i].cgroup, cgroup) == 0)
            return &s->limits[i];
    return NULL;
}

/* A slot for a new limit; one whose cgroup was removed took its limit with it. */
static struct sim_limit *free_limit(struct sim_state *s) {
    for (int i = 0; i < SIM_MAX_LIMITS; i++)
        if (!s->limits[i].used) return &s->limits[i];
    for (int i = 0; i < SIM_MAX_LIMITS; i++)
        if (!cgroup_exists(s, s->limits[i].cgroup)) return &s->limits[i];
    return NULL;
}

static int within(const char *cgroup, const char *ancestor) {
    size_t length = strcmp(ancestor, "/") ? strlen(ancestor) : 0;
    return strncmp(cgroup, ancestor, length) == 0 && (cgroup[length] == '/' || cgroup[length] == 0);
}

static u64 charged(struct sim_state *s, int gpu, const char *cgroup) {
    u64 used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &s->processes[i];
        if (p->used && (int)p->gpu == gpu && within(p->cgroup, cgroup) && sim_slot_alive(s, i)) used += p->memory;
    }
    return used;
}

/* Every limited ancestor counts, as dmem.max does. */
u64 sim_cgroup_room(struct sim_state *s, int gpu, const char *cgroup) {
    u64 room = NVML_MEMORY_LIMIT_MAX;
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        struct sim_limit *l = &s->limits[i];
        if (!l->used || (int)l->gpu != gpu || l->hard == NVML_MEMORY_LIMIT_MAX || !within(cgroup, l->cgroup)) continue;
        if (!cgroup_exists(s, l->cgroup)) continue;
        u64 used = charged(s, gpu, l->cgroup), left = used < l->hard ? l->hard - used : 0;
        if (left < room) room = left;
    }
    return room;
}

u64 sim_cgroup_hard(struct sim_state *s, int gpu, const char *cgroup) {
    struct sim_limit *l = limit_of(s, gpu, cgroup);
    return l && cgroup_exists(s, cgroup) ? l->hard : NVML_MEMORY_LIMIT_MAX;
}

/*
 * Bytes; soft 0 and hard MAX clear the limit. A hard limit below the present use is accepted: nothing is taken back.
 */
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, struct nvml_limits_set *limits) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(limits && limits->path && strlen(limits->path) < sizeof c.s->limits[0].cgroup);
    sim_detail(&c, "cgroup=%s soft=%llu hard=%llu", limits->path, limits->soft, limits->hard);
    REQUIRE(geteuid() == 0, NVML_ERROR_NO_PERMISSION);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    u64 total = c.gpu->memory_total;
    REQUIRE_ARGUMENT(limits->soft <= limits->hard && limits->soft <= total);
    REQUIRE_ARGUMENT(limits->hard <= total || limits->hard == NVML_MEMORY_LIMIT_MAX);
    const char *cgroup = below_root(c.s, limits->path);
    REQUIRE(cgroup_exists(c.s, cgroup), NVML_ERROR_NOT_FOUND);
    struct sim_limit *l = limit_of(c.s, c.index, cgroup);
    if (limits->soft == 0 && limits->hard == NVML_MEMORY_LIMIT_MAX) {
        if (l) memset(l, 0, sizeof *l);
        LEAVE(NVML_SUCCESS);
    }
    if (!l) l = free_limit(c.s);
    REQUIRE(l, NVML_ERROR_INSUFFICIENT_RESOURCES);
    snprintf(l->cgroup, sizeof l->cgroup, "%s", cgroup);
    l->gpu = (u32)c.index;
    l->soft = limits->soft;
    l->hard = limits->hard;
    l->used = 1;
    LEAVE(NVML_SUCCESS);
}

/* The nearest ancestor with a limit answers; without any, soft is 0 and hard is MAX. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, struct nvml_limits_get *limits) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(limits && limits->path);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    const char *cgroup = below_root(c.s, limits->path);
    REQUIRE(cgroup_exists(c.s, cgroup), NVML_ERROR_NOT_FOUND);
    size_t nearest = 0;
    limits->soft = 0;
    limits->hard = NVML_MEMORY_LIMIT_MAX;
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        struct sim_limit *l = &c.s->limits[i];
        size_t length = strlen(l->cgroup);
        if (!l->used || (int)l->gpu != c.index || !within(cgroup, l->cgroup) || length < nearest) continue;
        if (!cgroup_exists(c.s, l->cgroup)) continue;
        nearest = length;
        limits->soft = l->soft;
        limits->hard = l->hard;
    }
    limits->used = charged(c.s, c.index, cgroup);
    LEAVE(NVML_SUCCESS);
}
