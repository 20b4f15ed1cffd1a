/* Handles, and which GPUs a process sees. */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define MAX_INSTANCE_HANDLES 8192

static struct sim_handle gpu_handles[SIM_MAX_GPUS];
static struct sim_handle instance_handles[MAX_INSTANCE_HANDLES];
static u32 instance_handle_count;
static int visible[SIM_MAX_GPUS];
static int visible_count;
static u32 seen_binding[SIM_MAX_GPUS];
static int node_fds[SIM_MAX_GPUS]; /* of the nodes held open, plus one */

/*
 * NVML lists the GPUs whose device node the process can open, as found when it was initialised; a GPU that appears
 * later is seen after the next initialisation.
 */
void sim_scan(struct sim_state *s) {
    char path[PATH_MAX + 32];
    visible_count = 0;
    for (u32 i = 0; i < s->gpu_count; i++) {
        seen_binding[i] = s->gpus[i].bindings;
        if (!s->gpus[i].present) continue;
        snprintf(path, sizeof path, "%s/nvidia%u", sim_dev(), s->gpus[i].minor);
        if (s->gpus[i].nodeless || access(path, R_OK | W_OK) == 0) visible[visible_count++] = (int)i;
    }
}

/* A GPU that was bound anew is another one to whoever initialised before: it stays lost until the next initialisation. */
int sim_gone(const struct sim_state *s, int index) {
    const struct sim_gpu *g = &s->gpus[index];
    return g->lost || !g->present || g->bindings != seen_binding[index];
}

int sim_visible_count(void) { return visible_count; }
int sim_visible(int position) { return visible[position]; }

int sim_position(int index) {
    for (int i = 0; i < visible_count; i++)
        if (visible[i] == index) return i;
    return -1;
}

nvmlDevice_t sim_handle_for(u32 kind, u32 gpu, u64 serial) {
    if (kind == H_GPU) {
        gpu_handles[gpu].kind = H_GPU;
        gpu_handles[gpu].gpu = gpu;
        return &gpu_handles[gpu];
    }
    for (u32 i = 0; i < instance_handle_count; i++) {
        struct sim_handle *h = &instance_handles[i];
        if (h->kind == kind && h->gpu == gpu && h->serial == serial) return h;
    }
    if (instance_handle_count == MAX_INSTANCE_HANDLES) return NULL;
    struct sim_handle *h = &instance_handles[instance_handle_count++];
    h->kind = kind;
    h->gpu = gpu;
    h->serial = serial;
    return h;
}

/* Only pointers that were handed out are followed: a client's nonsense is an invalid argument and not a crash. */
static const struct sim_handle *checked(const void *handle) {
    const struct sim_handle *h = handle;
    int known = (h >= gpu_handles && h < gpu_handles + SIM_MAX_GPUS) ||
                (h >= instance_handles && h < instance_handles + instance_handle_count);
    return known && h->kind != H_FREE ? h : NULL;
}

static int find_instance(struct ctx *c, const struct sim_handle *h) {
    for (int g = 0; g < SIM_MAX_GI; g++) {
        struct sim_gi *gi = &c->gpu->gi[g];
        if (!gi->used) continue;
        if (h->kind == H_GI && gi->serial == h->serial) {
            c->gi = gi;
            return 1;
        }
        for (int i = 0; i < SIM_MAX_CI && h->kind != H_GI; i++) {
            if (!gi->ci[i].used || gi->ci[i].serial != h->serial) continue;
            c->gi = gi;
            c->ci = &gi->ci[i];
            return 1;
        }
    }
    return 0;
}

/* The handle's GPU and instance; a handle of a destroyed instance is an invalid argument, any call on a lost GPU says so. */
nvmlReturn_t sim_resolve(struct ctx *c, const void *handle, u32 kinds) {
    const struct sim_handle *h = checked(handle);
    if (!h) return NVML_ERROR_INVALID_ARGUMENT;
    c->kind = h->kind;
    c->index = (int)h->gpu;
    c->gpu = &c->s->gpus[h->gpu];
    if (sim_gone(c->s, c->index)) return NVML_ERROR_GPU_IS_LOST;
    if (h->kind != H_GPU && !find_instance(c, h)) return NVML_ERROR_INVALID_ARGUMENT;
    if (!(kinds & h->kind))
        return (h->kind & (H_GPU | H_MIG)) && (kinds & (H_GPU | H_MIG)) ? NVML_ERROR_NOT_SUPPORTED
                                                                        : NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

/*
 * From its first handle on, a session holds the GPU's device node open until it shuts NVML down. The node is opened by
 * name alone, which shows in /proc/<pid>/fd and works although no driver stands behind it.
 */
void sim_hold_gpu(struct sim_state *s, int index) {
    struct sim_session *mine = sim_session_mine(s);
    if (!mine || mine->gpus >> index & 1) return;
    char path[PATH_MAX + 32];
    mine->gpus |= 1ull << index;
    snprintf(path, sizeof path, "%s/nvidia%u", sim_dev(), s->gpus[index].minor);
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd >= 0) node_fds[index] = fd + 1;
}

void sim_release_gpus(void) {
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        if (node_fds[i]) close(node_fds[i] - 1);
        node_fds[i] = 0;
    }
}
