/* A CUDA context: through MPS when a control daemon answers, else directly on the GPU. */
#define _GNU_SOURCE
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A node that is there and that the device cgroup forbids is of no use; ENXIO is what a simulated one answers. */
static int opens(const char *name) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", sim_dev(), name);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) close(fd);
    return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

static int usable(struct sim_state *s, int gpu) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", s->gpus[gpu].minor);
    return s->gpus[gpu].nodeless || opens(name);
}

static void find_devices(struct sim_state *s, struct mps_devices *out, u64 *visible) {
    struct mps_devices all;
    mps_enumerate(s, &all);
    out->count = 0;
    *visible = 0;
    for (int i = 0; i < all.count; i++) {
        if (!usable(s, all.at[i].gpu)) continue;
        *visible |= 1ull << all.at[i].gpu;
        out->at[out->count++] = all.at[i];
    }
}

static void own_name(char *to, size_t length) {
    ssize_t got = readlink("/proc/self/exe", to, length - 1);
    to[got > 0 ? got : 0] = 0;
    const char *slash = strrchr(to, '/');
    if (slash) memmove(to, slash + 1, strlen(slash));
}

static const char *given(const char *name, char *to, size_t length) {
    const char *value = getenv(name);
    snprintf(to, length, value ? "=%s" : "-", value);
    return to;
}

/* Waits in line like cuInit does; a server that hangs never answers. */
static int through_mps(struct context *x, u64 visible, int ordinal, long timeout_ms) {
    char list[1100], percent[64], pinned[2100], priority[64], cgroup[600], name[64], line[256];
    own_name(name, sizeof name);
    if (!wire_send(x->mps, "CLIENT\x1f%d\x1f%llu\x1f%llx\x1f%d\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\n", x->slot, x->serial, visible,
                   ordinal, given("CUDA_VISIBLE_DEVICES", list, sizeof list),
                   given("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent, sizeof percent),
                   given("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", pinned, sizeof pinned),
                   given("CUDA_MPS_CLIENT_PRIORITY", priority, sizeof priority),
                   given("DRA_GPU_SIM_CGROUP", cgroup, sizeof cgroup), name))
        return CUDA_MPS_RPC_FAILURE;
    int answered = wire_line(x->mps, line, sizeof line, timeout_ms);
    if (answered == 0) return CUDA_MPS_CONNECTION_FAILED; /* the daemon went away meanwhile */
    if (answered != 1) return CUDA_MPS_RPC_FAILURE;
    if (!strncmp(line, "ERROR ", 6)) return atoi(line + 6);
    if (strcmp(line, "ATTACHED")) {
        close(x->mps);
        x->mps = -1;
    }
    return CUDA_OK;
}

static int directly(struct context *x, struct sim_state *s, const struct mps_devices *found, int ordinal) {
    struct mps_devices mine;
    const char *cgroup = getenv("DRA_GPU_SIM_CGROUP");
    int code = CUDA_OK;
    sim_lock();
    mps_select(s, getenv("CUDA_VISIBLE_DEVICES"), found, &mine);
    if (ordinal >= mine.count) code = CUDA_NO_DEVICE;
    else if (!mps_mode_allows(s, &mine.at[ordinal])) code = CUDA_DEVICE_UNAVAILABLE;
    if (code == CUDA_OK) {
        struct sim_process *p = &s->processes[x->slot];
        const struct mps_device *d = &mine.at[ordinal];
        u64 context = (u64)s->context_mib << 20;
        p->gpu = (u32)d->gpu;
        p->gi = d->gi;
        p->ci = d->ci;
        p->sm_count = mps_sm_total(s, d);
        own_name(p->name, sizeof p->name);
        if (cgroup) snprintf(p->cgroup, sizeof p->cgroup, "%s", cgroup);
        else sim_cgroup_of(s, 0, p->cgroup, sizeof p->cgroup);
        if (mps_room(s, x->slot) < context) code = CUDA_OUT_OF_MEMORY;
        else {
            p->memory = context;
            p->kind = SIM_PROCESS_COMPUTE;
        }
    }
    sim_unlock();
    return code;
}

static void give_up(struct context *x) {
    sim_lock();
    if (sim_slot_mine(sim_state(), x->slot, x->serial)) sim_slot_release(sim_state(), x->slot);
    sim_unlock();
}

/* No socket, or nobody behind it: without MPS and without its limits, and nothing says so. */
int cuda_attach(struct context *x, int ordinal, long timeout_ms) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct mps_devices found = {0};
    struct ctx c;
    u64 visible = 0;
    x->slot = x->mps = -1;
    nvmlReturn_t result = sim_init(&c, "cuInit", NVML_INIT_NO_ATTACH);
    if (result == NVML_SUCCESS) {
        find_devices(c.s, &found, &visible);
        x->slot = sim_slot_take(c.s);
        if (x->slot >= 0) x->serial = c.s->processes[x->slot].serial;
    }
    sim_leave(&c, result);
    if (result == NVML_ERROR_DRIVER_NOT_LOADED || (result == NVML_SUCCESS && !found.count)) return CUDA_NO_DEVICE;
    if (result != NVML_SUCCESS || x->slot < 0 || !opens("nvidia-uvm")) return CUDA_UNKNOWN;
    x->mps = wire_connect(pipe && *pipe ? pipe : "/tmp/nvidia-mps", "control");
    int code = x->mps >= 0 ? through_mps(x, visible, ordinal, timeout_ms) : CUDA_OK;
    if (code == CUDA_OK && x->mps < 0) code = directly(x, c.s, &found, ordinal);
    if (code != CUDA_OK) {
        give_up(x);
        return code;
    }
    const struct sim_process *p = &c.s->processes[x->slot];
    x->device = (struct mps_device){(int)p->gpu, p->gi, p->ci};
    return CUDA_OK;
}

static struct sim_process *mine(struct context *x) {
    return sim_slot_mine(sim_state(), x->slot, x->serial) ? &sim_state()->processes[x->slot] : NULL;
}

int cuda_allocate(struct context *x, u64 bytes) {
    int code = CUDA_OK;
    sim_lock();
    struct sim_process *p = mine(x);
    if (!p || !p->kind || sim_state()->gpus[p->gpu].lost) code = CUDA_UNKNOWN;
    else if (bytes > mps_room(sim_state(), x->slot)) code = CUDA_OUT_OF_MEMORY;
    else p->memory += bytes;
    sim_unlock();
    return code;
}

/* What the context itself takes stays. */
int cuda_free(struct context *x, u64 bytes) {
    int code = CUDA_OK;
    sim_lock();
    struct sim_process *p = mine(x);
    u64 context = (u64)sim_state()->context_mib << 20;
    if (!p || !p->kind) code = CUDA_UNKNOWN;
    else if (p->memory < context || p->memory - context < bytes) code = CUDA_INVALID_VALUE;
    else p->memory -= bytes;
    sim_unlock();
    return code;
}

u64 cuda_used(struct context *x) {
    sim_lock();
    const struct sim_process *p = mine(x);
    u64 used = p ? p->memory : 0;
    sim_unlock();
    return used;
}

/*
 * As cuMemGetInfo tells it: an MPS limit shows as less free memory, a limit on the process's own cgroup as a smaller
 * GPU, and one on a parent cgroup as nothing but less free memory.
 */
void cuda_information(struct context *x, char *to, size_t length) {
    struct sim_state *s = sim_state();
    sim_lock();
    const struct sim_process *p = mine(x);
    u64 total = mps_memory_total(s, &x->device), hard = p ? sim_cgroup_hard(s, (int)p->gpu, p->cgroup) : total;
    if (p && p->gi == NVML_INSTANCE_NONE && hard < total) total = hard;
    snprintf(to, length, "gpu=%s mps=%s total=%llu free=%llu used=%llu sms=%u", mps_uuid(s, &x->device),
             x->mps < 0 ? "no" : p && p->mps_namespace[0] ? p->mps_namespace : "classic", total >> 20,
             p ? mps_room(s, x->slot) >> 20 : 0, p ? (u64)p->memory >> 20 : 0, p ? p->sm_count : 0);
    sim_unlock();
}

void cuda_listen(struct context *x, long timeout_ms) {
    struct pollfd news = {.fd = x->mps, .events = POLLIN};
    char line[256];
    if (x->mps < 0 || x->gone || poll(&news, 1, (int)timeout_ms) <= 0) return;
    if (wire_line(x->mps, line, sizeof line, -1) != 1) {
        x->gone = 1;
        if (!x->error) x->error = CUDA_MPS_RPC_FAILURE;
    } else if (!strncmp(line, "ERROR ", 6) && !x->error) x->error = atoi(line + 6);
}
