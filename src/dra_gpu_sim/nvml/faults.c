/* Injected faults: what makes a call late, stuck or wrong. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static int named(const struct sim_fault *f, const char *call) {
    size_t length = strnlen(f->call, sizeof f->call);
    if (length && f->call[length - 1] == '*') return strncmp(f->call, call, length - 1) == 0;
    return strcmp(f->call, call) == 0;
}

static int matches(const struct sim_fault *f, const struct ctx *c) {
    return f->used && f->remaining != 0 && (f->gpu < 0 || f->gpu == c->index) && named(f, c->call);
}

static void sleep_ms(u32 ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* Let the rest of the node go on while this call waits for the fault to be cleared. */
static void wait_cleared(const struct sim_fault *f, u64 serial, struct sim_state *s) {
    while (f->used && f->serial == serial && f->block) {
        u32 seen = __atomic_load_n(&s->fault_futex, __ATOMIC_SEQ_CST);
        sim_unlock();
        sim_futex_wait(&s->fault_futex, seen, 1000);
        sim_lock();
    }
}

/* Applies every fault that matches, in the order of injection, until one answers. Locked on entry and on return. */
static nvmlReturn_t apply(struct ctx *c, int of_gpu_only) {
    struct sim_state *s = c->s;
    if (!s->fault_count) return NVML_SUCCESS;
    for (u32 i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *f = &s->faults[i];
        if (!matches(f, c) || (of_gpu_only && f->gpu < 0)) continue;
        struct sim_fault now = *f;
        f->hits++;
        if (f->remaining > 0 && --f->remaining == 0 && !f->block) {
            f->used = 0; /* a used up fault that blocks stays until it is cleared: it still holds its calls */
            s->fault_count--;
        }
        if (now.delay_ms) {
            sim_unlock();
            sleep_ms(now.delay_ms);
            sim_lock();
        }
        if (now.block) wait_cleared(f, now.serial, s);
        if (now.code) return now.code;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t sim_faults(struct ctx *c) { return apply(c, 0); }
nvmlReturn_t sim_faults_of_gpu(struct ctx *c) { return apply(c, 1); }
