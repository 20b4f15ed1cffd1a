/*
 * The part of NVML's binary interface that the simulator speaks: codes, structs and version words.
 *
 * Sizes and offsets are those that nvidia-ml-py 13.615 and go-nvml 0.13 use; static assertions hold them.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_GPU_NOT_FOUND = 28,
    NVML_ERROR_UNKNOWN = 999,
};

#define NVML_INSTANCE_NONE 0xFFFFFFFFu
#define NVML_VALUE_NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFull
#define NVML_MEMORY_LIMIT_MAX 0xFFFFFFFFFFFFFFFFull
#define NVML_STRUCT_VERSION(type, number) ((u32)(sizeof(type) | ((number) << 24)))

enum { NVML_COMPUTEMODE_DEFAULT = 0, NVML_COMPUTEMODE_PROHIBITED = 2, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3 };
enum { NVML_EVENT_XID = 0x8, NVML_EVENT_MIG_CONFIG = 0x100, NVML_EVENT_RECOVERY_ACTION = 0x8000 };
enum { NVML_INIT_NO_GPUS = 1, NVML_INIT_NO_ATTACH = 2 };
enum { NVML_LINK_REMOTE_GPU = 0, NVML_LINK_REMOTE_SWITCH = 2 };

/* Opaque for clients: a device, a MIG device, a GPU instance or a compute instance. */
typedef struct sim_handle *nvmlDevice_t;
typedef struct sim_handle *nvmlGpuInstance_t;
typedef struct sim_handle *nvmlComputeInstance_t;
typedef struct sim_event_set *nvmlEventSet_t;

struct nvml_memory { u64 total, free, used; };
struct nvml_memory_v2 { u32 version; u64 total, reserved, free, used; };
struct nvml_bar1 { u64 total, free, used; };
struct nvml_utilization { u32 gpu, memory; };

struct nvml_pci { char legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct nvml_pci_v2 { char bus_id[16]; u32 domain, bus, device, device_id, subsystem_id, reserved[4]; };
struct nvml_pci_ext { u32 version, domain, bus, device, device_id, subsystem_id, base_class, sub_class; char bus_id[32]; };

struct nvml_uuid { u32 version, type; union { char text[41]; unsigned char bytes[16]; } value; };
struct nvml_addressing_mode { u32 version, value; };
struct nvml_temperature { u32 version, sensor; int value; };

struct nvml_process { u32 pid; u64 memory; u32 gi, ci; };
struct nvml_process_detail { u32 pid; u64 memory; u32 gi, ci; u64 protected_memory; };
struct nvml_process_detail_list { u32 version, mode, count; struct nvml_process_detail *entries; };
struct nvml_process_sample { u32 pid; u64 timestamp; u32 sm, memory, enc, dec; };
struct nvml_process_use { u64 timestamp; u32 pid, sm, memory, enc, dec, jpeg, ofa; };
struct nvml_process_use_list { u32 version, count; u64 last_seen; struct nvml_process_use *entries; };

struct nvml_limits_set { char *path; u64 soft, hard; };
struct nvml_limits_get { char *path; u64 soft, hard, used; };

union nvml_value { double d; int si; u32 ui; unsigned long ul; u64 ull; long long sll; unsigned short us; };
struct nvml_field { u32 id, scope; long long timestamp, latency_us; u32 type; nvmlReturn_t result; union nvml_value value; };

struct nvml_fabric { unsigned char cluster[16]; nvmlReturn_t status; u32 clique; u32 state; };
struct nvml_fabric_v2 { u32 version; unsigned char cluster[16]; nvmlReturn_t status; u32 clique, state, health; };
struct nvml_fabric_v3 {
    u32 version; unsigned char cluster[16]; nvmlReturn_t status; u32 clique, state, health; unsigned char summary;
};

struct nvml_event { nvmlDevice_t device; u64 type, data; u32 gi, ci; };

struct nvml_placement { u32 start, size; };
struct nvml_gi_info { nvmlDevice_t device; u32 id, profile; struct nvml_placement placement; };
struct nvml_ci_info { nvmlDevice_t device; nvmlGpuInstance_t gi; u32 id, profile; struct nvml_placement placement; };
struct nvml_ci_info_v1 { nvmlDevice_t device; nvmlGpuInstance_t gi; u32 id, profile; };
struct nvml_gi_profile { u32 id, p2p, slices, instances, sm, copy, dec, enc, jpeg, ofa; u64 memory_mib; };
struct nvml_gi_profile_v2 {
    u32 version, id, p2p, slices, instances, sm, copy, dec, enc, jpeg, ofa; u64 memory_mib; char name[96];
};
struct nvml_gi_profile_v3 {
    u32 version, id, slices, instances, sm, copy, dec, enc, jpeg, ofa; u64 memory_mib; char name[96]; u32 capabilities;
};
struct nvml_ci_profile { u32 id, slices, instances, sm, copy, dec, enc, jpeg, ofa; };
struct nvml_ci_profile_v2 { u32 version, id, slices, instances, sm, copy, dec, enc, jpeg, ofa; char name[96]; };
struct nvml_ci_profile_v3 {
    u32 version, id, slices, instances, sm, copy, dec, enc, jpeg, ofa; char name[96]; u32 capabilities;
};
struct nvml_attributes { u32 sm, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices; u64 memory_mib; };

struct nvml_cc_state { u32 environment, feature, devtools; };
struct nvml_cc_settings { u32 version, environment, feature, devtools, multi_gpu; };
struct nvml_cc_caps { u32 cpu, gpus; };
struct nvml_cc_memory { u64 protected_kib, unprotected_kib; };
struct nvml_branch { u32 version; char branch[80]; };

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
SIZE(nvml_memory, 24);
SIZE(nvml_memory_v2, 40);
SIZE(nvml_pci, 68);
SIZE(nvml_pci_v2, 52);
SIZE(nvml_pci_ext, 64);
SIZE(nvml_uuid, 52);
SIZE(nvml_process, 24);
SIZE(nvml_process_detail, 32);
SIZE(nvml_process_detail_list, 24);
SIZE(nvml_process_sample, 32);
SIZE(nvml_process_use, 40);
SIZE(nvml_process_use_list, 24);
SIZE(nvml_limits_set, 24);
SIZE(nvml_limits_get, 32);
SIZE(nvml_field, 40);
SIZE(nvml_fabric, 28);
SIZE(nvml_fabric_v2, 36);
SIZE(nvml_fabric_v3, 40);
SIZE(nvml_event, 32);
SIZE(nvml_gi_info, 24);
SIZE(nvml_ci_info, 32);
SIZE(nvml_gi_profile, 48);
SIZE(nvml_gi_profile_v2, 152);
SIZE(nvml_gi_profile_v3, 152);
SIZE(nvml_ci_profile, 36);
SIZE(nvml_ci_profile_v2, 136);
SIZE(nvml_ci_profile_v3, 140);
SIZE(nvml_attributes, 40);
_Static_assert(offsetof(struct nvml_field, value) == 32, "field value");
_Static_assert(offsetof(struct nvml_gi_profile, memory_mib) == 40, "profile memory");
_Static_assert(offsetof(struct nvml_gi_profile_v2, memory_mib) == 48, "profile v2 memory");
_Static_assert(offsetof(struct nvml_attributes, memory_mib) == 32, "attributes memory");
#undef SIZE

#endif
