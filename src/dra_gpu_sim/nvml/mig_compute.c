/* NVML's calls on compute instances. */
#include "core.h"

#include <stdio.h>

/* By the compute profile enumeration: NOT_SUPPORTED is a hole, INVALID_ARGUMENT its end. */
static nvmlReturn_t look_up(struct ctx *c, u32 profile, u32 engine, u32 *slices) {
    if (engine != 0) return NVML_ERROR_INVALID_ARGUMENT;
    int known = sim_ci_profile(&c->gpu->profiles[c->gi->profile], profile, slices);
    return known > 0 ? NVML_SUCCESS : known < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t h, u32 profile, u32 engine,
                                                                 struct nvml_ci_profile *info) {
    u32 slices;
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(info);
    nvmlReturn_t result = look_up(&c, profile, engine, &slices);
    if (result != NVML_SUCCESS) LEAVE(result);
    const struct sim_profile *p = &c.gpu->profiles[c.gi->profile];
    *info = (struct nvml_ci_profile){.id = profile, .slices = slices, .instances = p->slices / slices,
        .sm = sim_ci_sm(p, slices), .copy = p->copy, .dec = p->dec, .enc = p->enc, .jpeg = p->jpeg, .ofa = p->ofa};
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t h, u32 profile, u32 engine,
                                                                  struct nvml_ci_profile_v2 *info) {
    u32 slices;
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(info);
    u32 version = info->version;
    int third = version == NVML_STRUCT_VERSION(struct nvml_ci_profile_v3, 3);
    REQUIRE_ARGUMENT(third || version == NVML_STRUCT_VERSION(struct nvml_ci_profile_v2, 2));
    nvmlReturn_t result = look_up(&c, profile, engine, &slices);
    if (result != NVML_SUCCESS) LEAVE(result);
    const struct sim_profile *p = &c.gpu->profiles[c.gi->profile];
    *info = (struct nvml_ci_profile_v2){.version = version, .id = profile, .slices = slices,
        .instances = p->slices / slices, .sm = sim_ci_sm(p, slices), .copy = p->copy, .dec = p->dec, .enc = p->enc,
        .jpeg = p->jpeg, .ofa = p->ofa};
    sim_ci_name(p, profile, slices, info->name, sizeof info->name);
    if (third) ((struct nvml_ci_profile_v3 *)info)->capabilities = p->capabilities >> 1 & 1; /* graphics */
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t h, u32 profile, u32 *count) {
    u32 slices;
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(count);
    nvmlReturn_t result = look_up(&c, profile, 0, &slices);
    if (result != NVML_SUCCESS) LEAVE(result);
    *count = sim_ci_remaining(c.gpu, c.gi, profile);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t h, u32 profile,
                                                                        struct nvml_placement *out, u32 *count) {
    u32 slices;
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(count);
    nvmlReturn_t result = look_up(&c, profile, 0, &slices);
    if (result != NVML_SUCCESS) LEAVE(result);
    u32 need = c.gpu->profiles[c.gi->profile].slices - slices + 1;
    REQUIRE(!out || *count >= need, NVML_ERROR_INSUFFICIENT_SIZE);
    for (u32 i = 0; out && i < need; i++) out[i] = (struct nvml_placement){i, slices};
    *count = need;
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t create(const char *call, nvmlGpuInstance_t h, u32 profile, const struct nvml_placement *at,
                           nvmlComputeInstance_t *out) {
    struct ctx c;
    struct sim_ci *ci = NULL;
    nvmlReturn_t result = sim_enter_handle(&c, call, h, H_GI);
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    sim_detail(&c, "gi=%u profile=%u", c.gi->id, profile);
    REQUIRE_ARGUMENT(out);
    result = sim_ci_create(c.s, c.index, c.gi, profile, at, &ci);
    if (result == NVML_SUCCESS) *out = sim_handle_for(H_CI, (u32)c.index, ci->serial);
    LEAVE(result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t h, u32 profile, nvmlComputeInstance_t *out) {
    return create(__func__, h, profile, NULL, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t h, u32 profile,
                                                                      const struct nvml_placement *at,
                                                                      nvmlComputeInstance_t *out) {
    return create(__func__, h, profile, at, out);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t h) {
    ENTER_HANDLE(h, H_CI);
    sim_detail(&c, "gi=%u ci=%u", c.gi->id, c.ci->id);
    LEAVE(sim_ci_destroy(c.s, c.index, c.gi, c.ci));
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t h, u32 profile, nvmlComputeInstance_t *out,
                                                       u32 *count) {
    u32 slices;
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(out && count);
    nvmlReturn_t result = look_up(&c, profile, 0, &slices);
    if (result != NVML_SUCCESS) LEAVE(result);
    *count = 0;
    for (int k = 0; k < SIM_MAX_CI; k++)
        if (c.gi->ci[k].used && c.gi->ci[k].profile == profile)
            out[(*count)++] = sim_handle_for(H_CI, (u32)c.index, c.gi->ci[k].serial);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t h, u32 id, nvmlComputeInstance_t *out) {
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(out);
    for (int k = 0; k < SIM_MAX_CI; k++) {
        if (!c.gi->ci[k].used || c.gi->ci[k].id != id) continue;
        *out = sim_handle_for(H_CI, (u32)c.index, c.gi->ci[k].serial);
        LEAVE(NVML_SUCCESS);
    }
    LEAVE(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t h, struct nvml_ci_info *info) {
    ENTER_HANDLE(h, H_CI);
    REQUIRE_ARGUMENT(info);
    info->device = sim_handle_for(H_GPU, (u32)c.index, 0);
    info->gi = sim_handle_for(H_GI, (u32)c.index, c.gi->serial);
    info->id = c.ci->id;
    info->profile = c.ci->profile;
    info->placement = (struct nvml_placement){c.ci->start, c.ci->slices};
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t h, struct nvml_ci_info_v1 *info) {
    ENTER_HANDLE(h, H_CI);
    REQUIRE_ARGUMENT(info);
    info->device = sim_handle_for(H_GPU, (u32)c.index, 0);
    info->gi = sim_handle_for(H_GI, (u32)c.index, c.gi->serial);
    info->id = c.ci->id;
    info->profile = c.ci->profile;
    LEAVE(NVML_SUCCESS);
}
