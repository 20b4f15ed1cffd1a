/* Event sets. Events lie in a ring in the state; waiting is a futex wait with the caller's time limit. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

struct sim_event_set {
    u64 mask[SIM_MAX_GPUS];
    u64 after[SIM_MAX_GPUS]; /* what happened before registration is not delivered */
    u64 next;
};

void sim_event(struct sim_state *s, int gpu, u64 type, u64 data, u32 gi, u32 ci) {
    u64 sequence = ++s->event_sequence;
    struct sim_event *e = &s->events[sequence % SIM_MAX_EVENTS];
    e->type = type;
    e->data = data;
    e->gpu = (u32)gpu;
    e->gi = gi;
    e->ci = ci;
    e->sequence = sequence;
    sim_futex_wake(&s->event_futex);
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    ENTER();
    REQUIRE_ARGUMENT(out);
    struct sim_event_set *set = calloc(1, sizeof *set);
    REQUIRE(set, NVML_ERROR_MEMORY);
    set->next = c.s->event_sequence + 1;
    *out = set;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    ENTER();
    REQUIRE_ARGUMENT(set);
    free(set);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, u64 *types) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(types);
    REQUIRE(c.gpu->event_types, NVML_ERROR_NOT_SUPPORTED);
    *types = c.gpu->event_types;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, u64 types, nvmlEventSet_t set) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(set && types);
    sim_detail(&c, "types=0x%llx", types);
    /* One type that is not supported leaves nothing registered, and the set usable. */
    REQUIRE((types & ~c.gpu->event_types) == 0, NVML_ERROR_NOT_SUPPORTED);
    if (!set->mask[c.index]) set->after[c.index] = c.s->event_sequence;
    set->mask[c.index] |= types;
    LEAVE(NVML_SUCCESS);
}

static int take(struct ctx *c, struct sim_event_set *set, struct nvml_event *out) {
    struct sim_state *s = c->s;
    if (s->event_sequence >= SIM_MAX_EVENTS && set->next <= s->event_sequence - SIM_MAX_EVENTS)
        set->next = s->event_sequence - SIM_MAX_EVENTS + 1;
    for (; set->next <= s->event_sequence; set->next++) {
        const struct sim_event *e = &s->events[set->next % SIM_MAX_EVENTS];
        if (!(set->mask[e->gpu] & e->type) || e->sequence <= set->after[e->gpu]) continue;
        out->device = sim_handle_for(H_GPU, e->gpu, 0);
        out->type = e->type;
        out->data = e->data;
        out->gi = e->gi;
        out->ci = e->ci;
        c->index = (int)e->gpu;
        set->next++;
        return 1;
    }
    return 0;
}

static int watches_a_lost_gpu(const struct sim_state *s, const struct sim_event_set *set) {
    for (u32 i = 0; i < s->gpu_count; i++)
        if (set->mask[i] && sim_gone(s, (int)i)) return 1;
    return 0;
}

/* A wait concerns every GPU of the set: a fault of one of them is one of the wait. */
static nvmlReturn_t faults_of_watched(struct ctx *c, const struct sim_event_set *set) {
    nvmlReturn_t result = NVML_SUCCESS;
    for (u32 i = 0; i < c->s->gpu_count && result == NVML_SUCCESS; i++) {
        if (!set->mask[i]) continue;
        c->index = (int)i;
        result = sim_faults_of_gpu(c);
    }
    if (result == NVML_SUCCESS) c->index = -1;
    return result;
}

/* TIMEOUT is the normal end; a lost GPU in the set ends every wait at once, as often as one waits. */
static nvmlReturn_t wait_event(const char *call, nvmlEventSet_t set, struct nvml_event *out, u32 timeout_ms) {
    struct ctx c;
    nvmlReturn_t entered = sim_enter(&c, call);
    if (entered != NVML_SUCCESS) return sim_leave(&c, entered);
    REQUIRE_ARGUMENT(set && out);
    entered = faults_of_watched(&c, set);
    if (entered != NVML_SUCCESS) LEAVE(entered);
    long end = sim_now_ms() + (long)timeout_ms;
    for (;;) {
        if (take(&c, set, out)) {
            sim_detail(&c, "type=0x%llx data=%llu", out->type, out->data);
            LEAVE(NVML_SUCCESS);
        }
        REQUIRE(!watches_a_lost_gpu(c.s, set), NVML_ERROR_GPU_IS_LOST);
        long left = end - sim_now_ms();
        REQUIRE(left > 0, NVML_ERROR_TIMEOUT);
        u32 seen = __atomic_load_n(&c.s->event_futex, __ATOMIC_SEQ_CST);
        sim_unlock();
        sim_futex_wait(&c.s->event_futex, seen, left);
        sim_lock();
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct nvml_event *out, u32 timeout_ms) {
    return wait_event(__func__, set, out, timeout_ms);
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct nvml_event *out, u32 timeout_ms) {
    return wait_event(__func__, set, out, timeout_ms);
}
