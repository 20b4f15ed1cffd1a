/* Finding devices and reading what they are. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static nvmlReturn_t count(const char *call, u32 *out) {
    struct ctx c;
    nvmlReturn_t result = sim_enter(&c, call);
    if (result == NVML_SUCCESS && !out) result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) *out = (u32)sim_visible_count();
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(u32 *out) { return count(__func__, out); }
EXPORT nvmlReturn_t nvmlDeviceGetCount(u32 *out) { return count(__func__, out); }

/* The call is about one GPU from here on: its faults apply, and being lost ends it. */
static nvmlReturn_t give(struct ctx *c, int index, nvmlDevice_t *out) {
    c->index = index;
    c->gpu = &c->s->gpus[index];
    if (sim_gone(c->s, index)) return NVML_ERROR_GPU_IS_LOST;
    sim_hold_gpu(c->s, index);
    *out = sim_handle_for(H_GPU, (u32)index, 0);
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(const char *call, u32 index, nvmlDevice_t *out) {
    struct ctx c;
    nvmlReturn_t result = sim_begin(&c, call); /* which faults apply is looked up once the GPU is known */
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    if (index < (u32)sim_visible_count()) c.index = sim_visible((int)index);
    result = sim_faults(&c);
    if (result == NVML_SUCCESS && (!out || c.index < 0)) result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) result = give(&c, c.index, out);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u32 i, nvmlDevice_t *out) { return by_index(__func__, i, out); }
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(u32 i, nvmlDevice_t *out) { return by_index(__func__, i, out); }

static nvmlReturn_t find_mig(struct ctx *c, int index, const char *uuid, nvmlDevice_t *out) {
    struct sim_gpu *g = &c->s->gpus[index];
    for (int i = 0; i < SIM_MAX_GI; i++)
        for (int k = 0; g->gi[i].used && k < SIM_MAX_CI; k++) {
            struct sim_ci *ci = &g->gi[i].ci[k];
            if (!ci->used || strcmp(ci->uuid, uuid) != 0 || !sim_cap_usable(c->s, index, g->gi[i].id, ci->id)) continue;
            c->index = index;
            sim_hold_gpu(c->s, index);
            *out = sim_handle_for(H_MIG, (u32)index, ci->serial);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* To compare UUIDs NVML has to reach every GPU, so one lost GPU fails the search for any other. */
static nvmlReturn_t search_uuid(struct ctx *c, const char *uuid, nvmlDevice_t *out) {
    for (int i = 0; i < sim_visible_count(); i++)
        if (sim_gone(c->s, sim_visible(i))) return NVML_ERROR_GPU_IS_LOST;
    for (int i = 0; i < sim_visible_count(); i++) {
        int index = sim_visible(i);
        if (strcmp(c->s->gpus[index].uuid, uuid) == 0) return give(c, index, out);
        if (find_mig(c, index, uuid, out) == NVML_SUCCESS) return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_uuid(const char *call, const char *uuid, nvmlDevice_t *out) {
    struct ctx c;
    nvmlReturn_t result = sim_begin(&c, call);
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    for (int i = 0; uuid && i < sim_visible_count(); i++)
        if (strcmp(c.s->gpus[sim_visible(i)].uuid, uuid) == 0) c.index = sim_visible(i);
    result = sim_faults(&c);
    if (result == NVML_SUCCESS && (!uuid || !out)) result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) result = search_uuid(&c, uuid, out);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    return by_uuid(__func__, uuid, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const struct nvml_uuid *uuid, nvmlDevice_t *out) {
    char text[64] = "";
    if (uuid && uuid->version != NVML_STRUCT_VERSION(struct nvml_uuid, 1)) {
        ENTER();
        LEAVE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (uuid && uuid->type == 1) snprintf(text, sizeof text, "%.41s", uuid->value.text);
    if (uuid && uuid->type == 2) {
        const unsigned char *b = uuid->value.bytes;
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    }
    return by_uuid(__func__, *text ? text : NULL, out);
}

/* "0000:1b:00.0", "00000000:1B:00.0" and "1b:00.0" name the same place. */
static int parse_bus_id(const char *text, u32 *domain, u32 *bus, u32 *device) {
    u32 function = 0;
    if (sscanf(text, "%x:%x:%x.%x", domain, bus, device, &function) >= 3) return function == 0;
    *domain = 0;
    return sscanf(text, "%x:%x.%x", bus, device, &function) >= 2 && function == 0;
}

static nvmlReturn_t by_bus_id(const char *call, const char *text, nvmlDevice_t *out) {
    u32 domain, bus, device;
    struct ctx c;
    nvmlReturn_t result = sim_begin(&c, call);
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    int valid = text && out && parse_bus_id(text, &domain, &bus, &device);
    for (int i = 0; valid && i < sim_visible_count(); i++) {
        struct sim_gpu *g = &c.s->gpus[sim_visible(i)];
        if (g->pci_domain == domain && g->pci_bus == bus && g->pci_device == device) c.index = sim_visible(i);
    }
    result = sim_faults(&c);
    if (result == NVML_SUCCESS && !valid) result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && c.index < 0) result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) result = give(&c, c.index, out);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) {
    return by_bus_id(__func__, id, out);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out) {
    return by_bus_id(__func__, id, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, u32 length) {
    char text[160];
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(name);
    if (c.ci) snprintf(text, sizeof text, "%s %s", c.gpu->name, c.gpu->profiles[c.gi->profile].name);
    LEAVE(sim_copy(name, length, c.ci ? text : c.gpu->name));
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, u32 length) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(uuid);
    LEAVE(sim_copy(uuid, length, c.ci ? c.ci->uuid : c.gpu->uuid));
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, u32 *index) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(index);
    *index = c.ci ? c.ci->mig_index : (u32)sim_position(c.index);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, u32 length) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(serial);
    REQUIRE(c.gpu->serial[0], NVML_ERROR_NOT_SUPPORTED);
    LEAVE(sim_copy(serial, length, c.gpu->serial));
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t d, char *text, u32 length) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(text);
    REQUIRE(c.gpu->board_part[0], NVML_ERROR_NOT_SUPPORTED);
    LEAVE(sim_copy(text, length, c.gpu->board_part));
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *text, u32 length) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(text);
    LEAVE(sim_copy(text, length, c.gpu->vbios));
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(major && minor);
    *major = (int)c.gpu->cc_major;
    *minor = (int)c.gpu->cc_minor;
    LEAVE(NVML_SUCCESS);
}

/* Queries of one number that a GPU always has. */
#define NUMBER(function, kinds, expression)                                                                            \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *value) {                                                         \
        ENTER_HANDLE(d, kinds);                                                                                        \
        REQUIRE_ARGUMENT(value);                                                                                       \
        *value = (expression);                                                                                         \
        LEAVE(NVML_SUCCESS);                                                                                           \
    }

NUMBER(nvmlDeviceGetMinorNumber, H_GPU, c.gpu->minor)
NUMBER(nvmlDeviceGetBrand, H_GPU, c.gpu->brand)
NUMBER(nvmlDeviceGetArchitecture, H_GPU | H_MIG, c.gpu->architecture)
/* CUDA cores: 64 per SM on GA100, 128 on all later boards simulated here (NVIDIA's architecture white papers). */
NUMBER(nvmlDeviceGetNumGpuCores, H_GPU, c.gpu->sm_count * (c.gpu->cc_major == 8 && c.gpu->cc_minor == 0 ? 64 : 128))
NUMBER(nvmlDeviceGetModuleId, H_GPU, c.gpu->module_id)
NUMBER(nvmlDeviceGetVirtualizationMode, H_GPU, c.gpu->virtualization_mode)
NUMBER(nvmlDeviceGetMultiGpuBoard, H_GPU, 0)
NUMBER(nvmlDeviceGetDisplayMode, H_GPU, 0)
NUMBER(nvmlDeviceGetDisplayActive, H_GPU, 0)
NUMBER(nvmlDeviceGetBusType, H_GPU, 2) /* PCI Express */
NUMBER(nvmlDeviceGetBoardId, H_GPU, c.gpu->pci_domain << 16 | c.gpu->pci_bus << 8)

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, u32 *is_mig) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(is_mig);
    *is_mig = c.kind == H_MIG;
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t pci_info(const char *call, nvmlDevice_t d, struct nvml_pci *out) {
    struct ctx c;
    nvmlReturn_t result = sim_enter_handle(&c, call, d, H_GPU);
    if (result == NVML_SUCCESS && !out) result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS) return sim_leave(&c, result);
    memset(out, 0, sizeof *out);
    out->domain = c.gpu->pci_domain;
    out->bus = c.gpu->pci_bus;
    out->device = c.gpu->pci_device;
    out->device_id = c.gpu->pci_device_id;
    out->subsystem_id = c.gpu->pci_subsystem_id;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", c.gpu->bus_id);
    if (c.gpu->bus_id[0])
        snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFF, out->bus & 0xFF,
                 out->device & 0xFF);
    return sim_leave(&c, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct nvml_pci *out) { return pci_info(__func__, d, out); }

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, struct nvml_pci_v2 *out) {
    struct nvml_pci full;
    nvmlReturn_t result = pci_info(__func__, d, out ? &full : NULL);
    if (result != NVML_SUCCESS) return result;
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, full.legacy, sizeof out->bus_id);
    out->domain = full.domain;
    out->bus = full.bus;
    out->device = full.device;
    out->device_id = full.device_id;
    out->subsystem_id = full.subsystem_id;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t d, struct nvml_pci_ext *out) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(out);
    REQUIRE_VERSION(out, struct nvml_pci_ext, 1);
    out->domain = c.gpu->pci_domain;
    out->bus = c.gpu->pci_bus;
    out->device = c.gpu->pci_device;
    out->device_id = c.gpu->pci_device_id;
    out->subsystem_id = c.gpu->pci_subsystem_id;
    out->base_class = 3; /* display controller */
    out->sub_class = 2;  /* 3D controller */
    snprintf(out->bus_id, sizeof out->bus_id, "%s", c.gpu->bus_id);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, u32 *node) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(node);
    REQUIRE(c.gpu->gpu_numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    *node = (u32)c.gpu->gpu_numa_node;
    LEAVE(NVML_SUCCESS);
}

static void set_bits(unsigned long *words, u32 word_count, u32 first, u32 bits) {
    const u32 width = 8 * sizeof(unsigned long);
    memset(words, 0, word_count * sizeof *words);
    for (u32 i = first; i < first + bits && i / width < word_count; i++) words[i / width] |= 1ul << i % width;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, u32 size, unsigned long *nodes, u32 scope) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(nodes && size && scope <= 1);
    REQUIRE(c.gpu->numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    set_bits(nodes, size, (u32)c.gpu->numa_node, 1);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, u32 size, unsigned long *cpus) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(cpus && size);
    REQUIRE(c.gpu->cpu_count, NVML_ERROR_NOT_SUPPORTED);
    set_bits(cpus, size, c.gpu->cpu_first, c.gpu->cpu_count);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t d, u32 size, unsigned long *cpus, u32 scope) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(cpus && size && scope <= 1);
    REQUIRE(c.gpu->cpu_count, NVML_ERROR_NOT_SUPPORTED);
    set_bits(cpus, size, c.gpu->cpu_first, c.gpu->cpu_count);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t d, struct nvml_addressing_mode *mode) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(mode);
    REQUIRE_VERSION(mode, struct nvml_addressing_mode, 1);
    mode->value = c.gpu->addressing_mode;
    LEAVE(NVML_SUCCESS);
}
