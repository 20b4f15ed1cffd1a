/* NVML's MIG calls on devices and GPU instances. */
#include "core.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t d, u32 mode, nvmlReturn_t *activation) {
    ENTER_HANDLE(d, H_GPU);
    sim_detail(&c, "mode=%u", mode);
    REQUIRE_ARGUMENT(activation);
    REQUIRE(geteuid() == 0, NVML_ERROR_NO_PERMISSION);
    LEAVE(sim_mig_set_mode(c.s, c.index, mode, activation));
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, u32 *current, u32 *pending) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(current && pending);
    REQUIRE(c.gpu->mig_support != SIM_MIG_NONE, NVML_ERROR_NOT_SUPPORTED);
    *current = c.gpu->mig_current;
    *pending = c.gpu->mig_pending;
    LEAVE(NVML_SUCCESS);
}

/* By the profile enumeration: NOT_SUPPORTED is a hole in it, INVALID_ARGUMENT its end. Works with MIG mode off, too. */
static struct sim_profile *profile_of(struct ctx *c, u32 profile, nvmlReturn_t *result) {
    *result = profile < 0x12 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    if (c->gpu->mig_support == SIM_MIG_NONE) {
        *result = NVML_ERROR_NOT_SUPPORTED;
        return NULL;
    }
    for (u32 i = 0; i < c->gpu->profile_count; i++) {
        if (!c->gpu->profiles[i].used || c->gpu->profiles[i].nvml_profile != profile) continue;
        *result = NVML_SUCCESS;
        return &c->gpu->profiles[i];
    }
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, u32 profile, struct nvml_gi_profile *info) {
    nvmlReturn_t result;
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(info);
    const struct sim_profile *p = profile_of(&c, profile, &result);
    if (!p) LEAVE(result);
    *info = (struct nvml_gi_profile){.id = p->id, .p2p = p->capabilities & 1, .slices = p->slices,
        .instances = p->max_instances, .sm = p->sm, .copy = p->copy, .dec = p->dec, .enc = p->enc, .jpeg = p->jpeg,
        .ofa = p->ofa, .memory_mib = p->memory_mib};
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t fill_profile(const struct sim_profile *p, struct nvml_gi_profile_v2 *info) {
    u32 version = info->version;
    if (version == NVML_STRUCT_VERSION(struct nvml_gi_profile_v2, 2)) {
        *info = (struct nvml_gi_profile_v2){.version = version, .id = p->id, .p2p = p->capabilities & 1,
            .slices = p->slices, .instances = p->max_instances, .sm = p->sm, .copy = p->copy, .dec = p->dec,
            .enc = p->enc, .jpeg = p->jpeg, .ofa = p->ofa, .memory_mib = p->memory_mib};
        snprintf(info->name, sizeof info->name, "%s", p->name);
        return NVML_SUCCESS;
    }
    if (version == NVML_STRUCT_VERSION(struct nvml_gi_profile_v3, 3)) {
        struct nvml_gi_profile_v3 *third = (struct nvml_gi_profile_v3 *)info;
        *third = (struct nvml_gi_profile_v3){.version = version, .id = p->id, .slices = p->slices,
            .instances = p->max_instances, .sm = p->sm, .copy = p->copy, .dec = p->dec, .enc = p->enc,
            .jpeg = p->jpeg, .ofa = p->ofa, .memory_mib = p->memory_mib, .capabilities = p->capabilities};
        snprintf(third->name, sizeof third->name, "%s", p->name);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INVALID_ARGUMENT; /* this call tells a wrong version so, and not as a version mismatch */
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t d, u32 profile, struct nvml_gi_profile_v2 *info) {
    nvmlReturn_t result;
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(info);
    const struct sim_profile *p = profile_of(&c, profile, &result);
    LEAVE(p ? fill_profile(p, info) : result);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t d, u32 id, struct nvml_gi_profile_v2 *info) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(info);
    REQUIRE(c.gpu->mig_support != SIM_MIG_NONE, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *p = sim_profile_by_id(c.gpu, id);
    LEAVE(p ? fill_profile(p, info) : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t placements(const char *call, nvmlDevice_t d, u32 id, struct nvml_placement *out, u32 *count) {
    struct ctx c;
    nvmlReturn_t entered = sim_enter_handle(&c, call, d, H_GPU);
    if (entered != NVML_SUCCESS) return sim_leave(&c, entered);
    REQUIRE_ARGUMENT(count);
    REQUIRE(c.gpu->mig_support != SIM_MIG_NONE, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(sim_may_configure_mig(), NVML_ERROR_NO_PERMISSION);
    const struct sim_profile *p = sim_profile_by_id(c.gpu, id);
    REQUIRE_ARGUMENT(p);
    REQUIRE(!out || *count >= p->placement_count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (u32 i = 0; out && i < p->placement_count; i++) out[i] = (struct nvml_placement){p->starts[i], p->memory_units};
    *count = p->placement_count;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t d, u32 id, struct nvml_placement *out,
                                                                  u32 *count) {
    return placements(__func__, d, id, out, count);
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t d, u32 id, struct nvml_placement *out,
                                                               u32 *count) {
    return placements(__func__, d, id, out, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t d, u32 id, u32 *count) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(count);
    REQUIRE(c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    const struct sim_profile *p = sim_profile_by_id(c.gpu, id);
    REQUIRE_ARGUMENT(p);
    *count = sim_gi_remaining(c.gpu, p);
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t create(const char *call, nvmlDevice_t d, u32 id, const struct nvml_placement *at, nvmlGpuInstance_t *out) {
    struct ctx c;
    struct sim_gi *gi = NULL;
    nvmlReturn_t result = sim_enter_handle(&c, call, d, H_GPU);
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    sim_detail(&c, "profile=%u start=%d", id, at ? (int)at->start : -1);
    REQUIRE_ARGUMENT(out);
    result = sim_gi_create(c.s, c.index, id, at, &gi);
    if (result == NVML_SUCCESS) *out = sim_handle_for(H_GI, (u32)c.index, gi->serial);
    LEAVE(result);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t d, u32 id, nvmlGpuInstance_t *out) {
    return create(__func__, d, id, NULL, out);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t d, u32 id, const struct nvml_placement *at,
                                                             nvmlGpuInstance_t *out) {
    return create(__func__, d, id, at, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t h) {
    ENTER_HANDLE(h, H_GI);
    sim_detail(&c, "gi=%u", c.gi->id);
    LEAVE(sim_gi_destroy(c.s, c.index, c.gi));
}

/* The array must hold as many as the profile allows: no size goes in. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t d, u32 id, nvmlGpuInstance_t *out, u32 *count) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(count && out);
    REQUIRE(c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE_ARGUMENT(sim_profile_by_id(c.gpu, id));
    *count = 0;
    for (int i = 0; i < SIM_MAX_GI; i++) {
        const struct sim_gi *gi = &c.gpu->gi[i];
        if (gi->used && c.gpu->profiles[gi->profile].id == id)
            out[(*count)++] = sim_handle_for(H_GI, (u32)c.index, gi->serial);
    }
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t d, u32 id, nvmlGpuInstance_t *out) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(out);
    REQUIRE(c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < SIM_MAX_GI; i++) {
        if (!c.gpu->gi[i].used || c.gpu->gi[i].id != id) continue;
        *out = sim_handle_for(H_GI, (u32)c.index, c.gpu->gi[i].serial);
        LEAVE(NVML_SUCCESS);
    }
    LEAVE(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t h, struct nvml_gi_info *info) {
    ENTER_HANDLE(h, H_GI);
    REQUIRE_ARGUMENT(info);
    info->device = sim_handle_for(H_GPU, (u32)c.index, 0);
    info->id = c.gi->id;
    info->profile = c.gpu->profiles[c.gi->profile].id;
    info->placement = (struct nvml_placement){c.gi->start, c.gi->size};
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, u32 *count) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(count);
    *count = c.gpu->mig_current ? c.gpu->mig_slices : 0;
    LEAVE(NVML_SUCCESS);
}

/* Indices may have holes; an instance whose capability nodes the process cannot read is one. */
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, u32 index, nvmlDevice_t *out) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(out && index < 32);
    REQUIRE(c.gpu->mig_current, NVML_ERROR_NOT_FOUND);
    for (int i = 0; i < SIM_MAX_GI; i++)
        for (int k = 0; c.gpu->gi[i].used && k < SIM_MAX_CI; k++) {
            const struct sim_ci *ci = &c.gpu->gi[i].ci[k];
            if (!ci->used || ci->mig_index != index || !sim_cap_usable(c.s, c.index, c.gpu->gi[i].id, ci->id)) continue;
            *out = sim_handle_for(H_MIG, (u32)c.index, ci->serial);
            LEAVE(NVML_SUCCESS);
        }
    LEAVE(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *out) {
    ENTER_HANDLE(d, H_MIG);
    REQUIRE_ARGUMENT(out);
    *out = sim_handle_for(H_GPU, (u32)c.index, 0);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, u32 *id) {
    ENTER_HANDLE(d, H_MIG);
    REQUIRE_ARGUMENT(id);
    *id = c.gi->id;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, u32 *id) {
    ENTER_HANDLE(d, H_MIG);
    REQUIRE_ARGUMENT(id);
    *id = c.ci->id;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, struct nvml_attributes *a) {
    ENTER_HANDLE(d, H_MIG);
    REQUIRE_ARGUMENT(a);
    const struct sim_profile *p = &c.gpu->profiles[c.gi->profile];
    *a = (struct nvml_attributes){.sm = sim_ci_sm(p, c.ci->slices), .copy = p->copy, .dec = p->dec, .enc = p->enc,
        .jpeg = p->jpeg, .ofa = p->ofa, .gi_slices = p->slices, .ci_slices = c.ci->slices, .memory_mib = p->memory_mib};
    LEAVE(NVML_SUCCESS);
}
