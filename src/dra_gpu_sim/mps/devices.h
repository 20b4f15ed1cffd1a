/* Devices as CUDA names them, and limits as MPS writes them: shared by daemon, server and client. */
#ifndef SIM_MPS_DEVICES_H
#define SIM_MPS_DEVICES_H

#include "../nvml/core.h"

#define MPS_MAX_DEVICES 64

/* A GPU, or one compute instance of it. */
struct mps_device {
    int gpu;
    u32 gi, ci;
};

struct mps_devices {
    int count;
    struct mps_device at[MPS_MAX_DEVICES];
};

/* CUDA errors. Source: cuda.h 13. */
enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_DEVICE_UNAVAILABLE = 46,
    CUDA_NO_DEVICE = 100,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_PERMITTED = 800,
    CUDA_MPS_CONNECTION_FAILED = 805,
    CUDA_MPS_RPC_FAILURE = 806,
    CUDA_MPS_SERVER_NOT_READY = 807,
    CUDA_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_MPS_CLIENT_TERMINATED = 810,
    CUDA_UNKNOWN = 999,
};
const char *cuda_error_name(int code);

void mps_enumerate(struct sim_state *s, struct mps_devices *out); /* what CUDA finds without being told */
int mps_find(struct sim_state *s, const char *id, const struct mps_devices *base, struct mps_device *out);
int mps_select(struct sim_state *s, const char *list, const struct mps_devices *base, struct mps_devices *out);
const char *mps_uuid(struct sim_state *s, const struct mps_device *d);
u32 mps_sm_total(struct sim_state *s, const struct mps_device *d);
u64 mps_memory_total(struct sim_state *s, const struct mps_device *d);
u64 mps_memory_used(struct sim_state *s, const struct mps_device *d);
u64 mps_room(struct sim_state *s, int slot); /* bytes that the process in the slot may still take */
int mps_mode_allows(struct sim_state *s, const struct mps_device *d); /* one more context outside MPS, or a server */

int mps_size(const char *text, u64 *bytes);                /* 20G, 512M, 512MB, 64K */
void mps_size_text(u64 bytes, char *to, size_t length);    /* - for none */
u32 mps_sms(u32 total, double percent);

#endif
