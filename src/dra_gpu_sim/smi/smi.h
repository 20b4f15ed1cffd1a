/* The stand-in for nvidia-smi. It obeys the rules of the library because it is linked with the same sources. */
#ifndef SIM_SMI_H
#define SIM_SMI_H

#include "../nvml/core.h"

/* Exit codes (nvidia-smi's manual page): 2 bad argument, 3 not available on the target, 4 no permission, 6 not found. */
struct selection {
    int count;
    int gpus[SIM_MAX_GPUS];
};

/* smi.c */
nvmlReturn_t on_gpu(struct ctx *c, const char *call, int gpu); /* locked; faults applied; GPU_IS_LOST if it is */
int select_gpus(const char *list, struct selection *out);      /* list NULL: all; 0 or an exit code, message printed */
int exit_code(nvmlReturn_t result);
int lost_message(int gpu);
const char *error_text(nvmlReturn_t result);
const char *compute_mode_name(u32 mode);

/* query.c */
int smi_list(const struct selection *gpus);
int smi_full(const struct selection *gpus);
int smi_csv(const struct selection *gpus, const char *fields, const char *format);
int smi_overview(const struct selection *gpus);

/* modes.c */
int smi_set_compute_mode(const struct selection *gpus, const char *mode);
int smi_set_mig_mode(const struct selection *gpus, const char *mode);
int smi_reset(const struct selection *gpus);
int smi_compute_policy(int count, char **arguments);

/* mig.c */
int smi_mig(int count, char **arguments);

const char *nvmlErrorString(nvmlReturn_t code);

#endif
