/* What every call of the library goes through: the mapped state, locks, handles, faults, the call log. */
#ifndef SIM_CORE_H
#define SIM_CORE_H

#include "abi.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

enum { H_FREE = 0, H_GPU = 1, H_MIG = 2, H_GI = 4, H_CI = 8 };

struct sim_handle {
    u32 kind;
    u32 gpu;
    u64 serial; /* of the GPU instance or compute instance it stands for */
};

/* One call in flight. Between enter and leave the state is locked. */
struct ctx {
    const char *call;
    struct sim_state *s;
    int index;           /* of the GPU, -1 for calls that concern none */
    struct sim_gpu *gpu; /* and the rest as far as the handle goes */
    struct sim_gi *gi;
    struct sim_ci *ci;
    u32 kind;
    u32 locked;
    char detail[160];
};

/* core.c */
nvmlReturn_t sim_attach(void);           /* map the state; DRIVER_NOT_LOADED without one */
nvmlReturn_t sim_init(struct ctx *c, const char *call, u32 flags);
nvmlReturn_t sim_shutdown(struct ctx *c, const char *call);
nvmlReturn_t sim_begin(struct ctx *c, const char *call); /* locked, faults not yet looked at */
nvmlReturn_t sim_program(struct ctx *c, const char *call, int gpu); /* of a program that needs no handles; locked */
nvmlReturn_t sim_enter(struct ctx *c, const char *call);
nvmlReturn_t sim_enter_handle(struct ctx *c, const char *call, const void *handle, u32 kinds);
nvmlReturn_t sim_leave(struct ctx *c, nvmlReturn_t result);
void sim_detail(struct ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_lock(void);
void sim_unlock(void);
struct sim_state *sim_state(void);
int sim_state_file(void); /* the open file, for locks on parts of it */
const char *sim_root(void);
const char *sim_dev(void);
void sim_futex_wake(u32 *word);
void sim_futex_wait(u32 *word, u32 value, long timeout_ms);
long sim_now_ms(void);
nvmlReturn_t sim_copy(char *to, u32 length, const char *text);

/* handles.c */
int sim_visible_count(void);
int sim_visible(int position);        /* array index of the GPU at an NVML index */
int sim_position(int index);          /* and back; -1 if this process does not see it */
void sim_scan(struct sim_state *s);   /* what this process sees, decided once at initialisation */
int sim_gone(const struct sim_state *s, int index); /* lost, unbound, or bound anew since this process initialised */
nvmlReturn_t sim_resolve(struct ctx *c, const void *handle, u32 kinds);
nvmlDevice_t sim_handle_for(u32 kind, u32 gpu, u64 serial);
void sim_hold_gpu(struct sim_state *s, int index);
void sim_release_gpus(void);          /* closes what sim_hold_gpu opened */

/* faults.c */
nvmlReturn_t sim_faults(struct ctx *c);
nvmlReturn_t sim_faults_of_gpu(struct ctx *c); /* those of the GPU alone, not those of every GPU */

/* sessions.c */
int sim_process_alive(u32 pid, u64 pid_namespace, u64 start_time);
int sim_slot_alive(struct sim_state *s, int slot); /* of the process table; frees it if its process is gone */
u32 sim_slot_pid(struct sim_state *s, int slot);
u64 sim_start_time(u32 pid);
u64 sim_pid_namespace(void);
void sim_session_open(struct sim_state *s);
void sim_session_close(struct sim_state *s);
struct sim_session *sim_session_mine(struct sim_state *s);
int sim_other_sessions(struct sim_state *s, int gpu, u32 *pids, int room); /* alive holders of a GPU's node */
int sim_processes_on(struct sim_state *s, int gpu, u32 gi, u32 ci, u32 *pids, int room);

/* health.c */
u64 sim_energy(const struct sim_gpu *g);        /* mJ since the GPU was last reset */
void sim_energy_restart(struct sim_gpu *g);

/* events.c */
void sim_event(struct sim_state *s, int gpu, u64 type, u64 data, u32 gi, u32 ci);

/* mig.c */
nvmlReturn_t sim_mig_set_mode(struct sim_state *s, int gpu, u32 mode, nvmlReturn_t *activation);
nvmlReturn_t sim_gi_create(struct sim_state *s, int gpu, u32 profile_id, const struct nvml_placement *at, struct sim_gi **out);
nvmlReturn_t sim_gi_destroy(struct sim_state *s, int gpu, struct sim_gi *gi);
nvmlReturn_t sim_ci_create(struct sim_state *s, int gpu, struct sim_gi *gi, u32 profile, const struct nvml_placement *at, struct sim_ci **out);
nvmlReturn_t sim_ci_destroy(struct sim_state *s, int gpu, struct sim_gi *gi, struct sim_ci *ci);
int sim_gi_room(struct sim_gpu *g, const struct sim_profile *p, u32 start);
u32 sim_gi_remaining(const struct sim_gpu *g, const struct sim_profile *p);
int sim_ci_profile(const struct sim_profile *gi_profile, u32 profile, u32 *slices);
u32 sim_ci_remaining(struct sim_gpu *g, struct sim_gi *gi, u32 profile);
u32 sim_ci_sm(const struct sim_profile *gi_profile, u32 slices);
void sim_ci_name(const struct sim_profile *gi_profile, u32 profile, u32 slices, char *to, size_t length);
void sim_mig_wipe(struct sim_state *s, int gpu);
struct sim_profile *sim_profile_by_id(struct sim_gpu *g, u32 id);
int sim_may_configure_mig(void);

/* capnodes.c: device nodes and /proc entries of MIG instances */
void sim_cap_add(struct sim_state *s, int gpu, u32 gi, int ci);
void sim_cap_remove(struct sim_state *s, int gpu, u32 gi, int ci);
int sim_cap_usable(struct sim_state *s, int gpu, u32 gi, u32 ci);

/* memory.c */
u64 sim_memory_used(struct sim_state *s, int gpu, u32 gi, u32 ci);
u64 sim_cgroup_room(struct sim_state *s, int gpu, const char *cgroup);  /* bytes till a hard limit is reached */
u64 sim_cgroup_hard(struct sim_state *s, int gpu, const char *cgroup);  /* of this very cgroup; MAX if none */

/* occupancy.c */
int sim_slot_take(struct sim_state *s);
void sim_slot_release(struct sim_state *s, int slot);
int sim_slot_mine(struct sim_state *s, int slot, u64 serial);
void sim_cgroup_of(const struct sim_state *s, u32 pid, char *to, size_t length); /* pid 0: this process */


#define ENTER()                                                                                                        \
    struct ctx c;                                                                                                      \
    do {                                                                                                               \
        nvmlReturn_t entered = sim_enter(&c, __func__);                                                                \
        if (entered != NVML_SUCCESS) return sim_leave(&c, entered);                                                    \
    } while (0)
#define ENTER_HANDLE(handle, kinds)                                                                                    \
    struct ctx c;                                                                                                      \
    do {                                                                                                               \
        nvmlReturn_t entered = sim_enter_handle(&c, __func__, (handle), (kinds));                                      \
        if (entered != NVML_SUCCESS) return sim_leave(&c, entered);                                                    \
    } while (0)
#define LEAVE(result) return sim_leave(&c, (result))
#define REQUIRE(condition, result)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) LEAVE(result);                                                                               \
    } while (0)
#define REQUIRE_ARGUMENT(condition) REQUIRE(condition, NVML_ERROR_INVALID_ARGUMENT)
#define REQUIRE_VERSION(pointer, type, number)                                                                         \
    REQUIRE((pointer)->version == NVML_STRUCT_VERSION(type, number), NVML_ERROR_ARGUMENT_VERSION_MISMATCH)

#endif
