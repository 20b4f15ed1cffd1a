/* A CUDA process as far as sharing a GPU goes: its context, its memory, its connection to MPS. */
#ifndef SIM_CUDA_H
#define SIM_CUDA_H

#include "../mps/devices.h"
#include "../mps/wire.h"

struct context {
    int slot;
    u64 serial;
    int mps;   /* the connection to the control daemon; -1 without MPS */
    int error; /* sticky: nothing works any more */
    int gone;  /* the daemon or the server has ended */
    struct mps_device device;
};

int cuda_attach(struct context *x, int ordinal, long timeout_ms);
int cuda_allocate(struct context *x, u64 bytes);
int cuda_free(struct context *x, u64 bytes);
u64 cuda_used(struct context *x);
void cuda_information(struct context *x, char *to, size_t length);
void cuda_listen(struct context *x, long timeout_ms); /* takes in what the daemon says meanwhile */

#endif
