/* Start, end, and what is true of the whole node. */
#include "core.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlInitWithFlags(u32 flags) {
    struct ctx c;
    nvmlReturn_t result = sim_init(&c, __func__, flags);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    struct ctx c;
    nvmlReturn_t result = sim_init(&c, __func__, 0);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlInit(void) {
    struct ctx c;
    nvmlReturn_t result = sim_init(&c, __func__, 0);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    struct ctx c;
    nvmlReturn_t result = sim_shutdown(&c, __func__);
    return sim_leave(&c, result);
}

/* Texts as nvidia-smi and the bindings print them; they need no initialised library. */
EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 5: return "Already Initialized";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "GPU access blocked by the operating system";
    case 18: return "Driver/library version mismatch";
    case 19: return "In use by another client";
    case 20: return "Insufficient Memory";
    case 21: return "No data";
    case 23: return "Insufficient Resources";
    case 25: return "Argument version mismatch";
    case 26: return "Deprecated";
    case 27: return "Not Ready";
    case 28: return "GPU not found";
    case 29: return "Invalid State";
    default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, u32 length) {
    ENTER();
    REQUIRE_ARGUMENT(version);
    LEAVE(sim_copy(version, length, c.s->driver_version));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, u32 length) {
    ENTER();
    REQUIRE_ARGUMENT(version);
    LEAVE(sim_copy(version, length, c.s->nvml_version));
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER();
    REQUIRE_ARGUMENT(version);
    *version = (int)c.s->cuda_version;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER();
    REQUIRE_ARGUMENT(version);
    *version = (int)c.s->cuda_version;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(struct nvml_branch *branch, u32 length) {
    ENTER();
    REQUIRE_ARGUMENT(branch);
    REQUIRE_VERSION(branch, struct nvml_branch, 1);
    size_t major = strcspn(c.s->driver_version, ".");
    char text[80];
    snprintf(text, sizeof text, "r%.*s_00", (int)major, c.s->driver_version);
    LEAVE(sim_copy(branch->branch, length < sizeof branch->branch ? length : (u32)sizeof branch->branch, text));
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(u32 pid, char *name, u32 length) {
    ENTER();
    REQUIRE_ARGUMENT(name && length);
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &c.s->processes[i];
        if (!p->used || p->pid != pid) continue;
        snprintf(name, length, "%s", p->name);
        LEAVE(NVML_SUCCESS);
    }
    LEAVE(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeState(struct nvml_cc_state *state) {
    ENTER();
    REQUIRE_ARGUMENT(state);
    REQUIRE(c.s->cc_gpu_caps, NVML_ERROR_NOT_SUPPORTED);
    state->environment = c.s->cc_environment;
    state->feature = c.s->cc_feature;
    state->devtools = c.s->cc_devtools;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeSettings(struct nvml_cc_settings *settings) {
    ENTER();
    REQUIRE_ARGUMENT(settings);
    REQUIRE_VERSION(settings, struct nvml_cc_settings, 1);
    REQUIRE(c.s->cc_gpu_caps, NVML_ERROR_NOT_SUPPORTED);
    settings->environment = c.s->cc_environment;
    settings->feature = c.s->cc_feature;
    settings->devtools = c.s->cc_devtools;
    settings->multi_gpu = c.s->cc_multi_gpu;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeCapabilities(struct nvml_cc_caps *caps) {
    ENTER();
    REQUIRE_ARGUMENT(caps);
    caps->cpu = c.s->cc_cpu_caps;
    caps->gpus = c.s->cc_gpu_caps;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(u32 *ready) {
    ENTER();
    REQUIRE_ARGUMENT(ready);
    REQUIRE(c.s->cc_feature, NVML_ERROR_NOT_SUPPORTED);
    *ready = c.s->cc_ready;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemSetConfComputeGpusReadyState(u32 ready) {
    ENTER();
    sim_detail(&c, "ready=%u", ready);
    REQUIRE(c.s->cc_feature, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE_ARGUMENT(ready <= 1);
    c.s->cc_ready = ready;
    LEAVE(NVML_SUCCESS);
}
