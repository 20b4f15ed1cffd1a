/*
 * The state of one simulated node: a single file that every process of the node maps.
 *
 * This header is the only definition of the layout. dra_gpu_sim/state.py mirrors it for Python, and a test has the
 * compiler compare the two field by field. Whoever changes a struct raises SIM_LAYOUT_VERSION.
 *
 * Access: readers and writers hold flock(2) on the file (freed by the kernel when a process dies, kill -9 included)
 * and, within a process, a mutex. Words that others wait on are futexes: event_futex and fault_futex.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdint.h>

#define SIM_MAGIC 0x314d495355504744ull /* "DGPUSIM1", little endian */
#define SIM_LAYOUT_VERSION 4u

#define SIM_MAX_GPUS 64
#define SIM_MAX_LINKS 36
#define SIM_MAX_PROFILES 20
#define SIM_MAX_PLACEMENTS 14
#define SIM_MAX_GI 14
#define SIM_MAX_CI 8
#define SIM_MAX_FAULTS 256
#define SIM_MAX_EVENTS 256
#define SIM_MAX_PROCESSES 512
#define SIM_MAX_SESSIONS 256
#define SIM_MAX_LIMITS 256

/* How a change of the MIG mode takes effect. */
enum { SIM_MIG_NONE = 0, SIM_MIG_LIVE = 1, SIM_MIG_AFTER_RESET = 2 };
/* Kinds of processes; 0 while a process has a slot and no context yet. */
enum { SIM_PROCESS_COMPUTE = 1, SIM_PROCESS_GRAPHICS = 2, SIM_PROCESS_MPS_CLIENT = 3, SIM_PROCESS_MPS_SERVER = 4 };
/* Whether a Fabric Manager runs, and whether it lets guests share the switches. */
enum { SIM_FABRIC_MANAGER_NONE = 0, SIM_FABRIC_MANAGER_BARE_METAL = 1, SIM_FABRIC_MANAGER_SHARED = 2 };
/* How device nodes of the simulated /dev are made. */
enum { SIM_NODES_DEVICES = 1, SIM_NODES_FILES = 2 };

struct sim_link {
    uint32_t state;
    uint32_t version;
    uint32_t speed_mbps; /* one direction */
    uint32_t remote_type;
    uint32_t remote_domain;
    uint32_t remote_bus;
    uint32_t remote_device;
    uint32_t remote_link;
};

/* One kind of GPU instance that a GPU can make. */
struct sim_profile {
    uint32_t used;
    uint32_t nvml_profile; /* NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t id;
    uint32_t slices;
    uint32_t memory_units;
    uint32_t sm;
    uint32_t memory_mib;
    uint32_t max_instances;
    uint32_t copy;
    uint32_t dec;
    uint32_t enc;
    uint32_t jpeg;
    uint32_t ofa;
    uint32_t capabilities;
    uint32_t placement_count;
    uint32_t starts[SIM_MAX_PLACEMENTS];
    char name[32];
};

struct sim_ci {
    uint32_t used;
    uint32_t id;
    uint32_t profile; /* NVML_COMPUTE_INSTANCE_PROFILE_* */
    uint32_t start;
    uint32_t slices;
    uint32_t mig_index; /* index of the MIG device under its GPU */
    uint64_t serial;    /* never given twice: a handle to a destroyed instance stays dead */
    char uuid[64];
};

struct sim_gi {
    uint32_t used;
    uint32_t id;
    uint32_t profile; /* index into sim_gpu.profiles */
    uint32_t start;
    uint32_t size;
    uint32_t reserved;
    uint64_t serial;
    struct sim_ci ci[SIM_MAX_CI];
};

struct sim_gpu {
    uint32_t present; /* the driver has bound it */
    uint32_t lost;    /* fallen off the bus */
    uint32_t minor;
    uint32_t module_id;
    uint32_t brand;
    uint32_t architecture;
    uint32_t cc_major;
    uint32_t cc_minor;
    int32_t numa_node;     /* of the host; -1 unknown */
    int32_t gpu_numa_node; /* of the GPU's own memory on coherent platforms; -1 none */
    uint32_t cpu_first;
    uint32_t cpu_count;
    uint32_t sm_count;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id; /* device << 16 | vendor */
    uint32_t pci_subsystem_id;
    uint32_t pci_root; /* bus number of the root complex */
    uint32_t addressing_mode;
    uint32_t virtualization_mode;
    uint32_t compute_mode;
    uint32_t time_slice;
    uint32_t time_slice_supported;
    uint32_t persistence;
    uint32_t ecc_current;
    uint32_t ecc_pending;
    uint32_t power_mw;
    uint32_t power_limit_mw;
    uint32_t temperature;
    uint32_t utilization_gpu;
    uint32_t utilization_memory;
    uint32_t recovery_action; /* NVML field 230 */
    uint32_t mig_support;
    uint32_t mig_survives_reboot;
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t mig_slices; /* compute slices in all */
    uint32_t mig_memory_units;
    uint32_t profile_count;
    uint32_t link_count;
    uint32_t fabric_supported;
    uint32_t fabric_state;
    uint32_t fabric_status;
    uint32_t fabric_clique;
    uint32_t fabric_health_mask;
    uint32_t fabric_health_summary;
    uint8_t fabric_cluster[16];
    uint32_t nodeless; /* seen without a /dev/nvidia<minor>, as integrated GPUs are */
    uint32_t bindings; /* how often the driver has bound it anew */
    uint32_t remap_pending; /* memory rows that are replaced at the next reset */
    uint32_t remap_failure; /* memory rows for which none is left */
    uint64_t event_types; /* what nvmlDeviceRegisterEvents accepts; 0 = events are not supported */
    uint64_t memory_total;
    uint64_t memory_reserved;
    uint64_t bar1_total;
    uint64_t energy_base;  /* mJ at energy_since */
    uint64_t energy_since; /* ms of the monotonic clock */
    char uuid[64];
    char name[96];
    char serial[32];
    char board_part[32];
    char bus_id[32]; /* as NVML spells it */
    char vbios[32];
    struct sim_link links[SIM_MAX_LINKS];
    struct sim_profile profiles[SIM_MAX_PROFILES];
    struct sim_gi gi[SIM_MAX_GI];
};

struct sim_fault {
    uint32_t used;
    int32_t gpu;       /* index, or -1: every GPU */
    int32_t code;      /* what the call answers; 0: the call goes on */
    uint32_t delay_ms; /* before it goes on */
    uint32_t block;    /* until the fault is cleared */
    int32_t remaining; /* calls left; -1: every call */
    uint32_t builtin;  /* a property of the simulated board: clear leaves it */
    uint32_t reserved;
    uint64_t serial;
    uint64_t hits;
    char call[64]; /* name, or a beginning followed by a star */
};

struct sim_event {
    uint64_t sequence;
    uint64_t type;
    uint64_t data;
    uint32_t gpu;
    uint32_t gi;
    uint32_t ci;
    uint32_t reserved;
};

struct sim_process {
    uint32_t used;
    uint32_t pid;
    uint32_t gpu;
    uint32_t kind;
    uint32_t gi; /* 0xFFFFFFFF outside MIG */
    uint32_t ci;
    uint32_t sm_percent; /* share an MPS client got; 0 = no MPS limit */
    uint32_t sm_count;   /* SMs that follow from it; 0 = not known */
    uint32_t uid;
    uint32_t held;       /* it lives as long as it holds the lock on its slot's byte; see occupancy.c */
    uint64_t serial;     /* never given twice: whoever lost the slot can tell */
    uint64_t pid_namespace; /* inode; 0 = that of the node */
    uint64_t start_time;    /* field 22 of /proc/<pid>/stat: a recycled pid is another process */
    uint64_t memory;
    uint64_t memory_limit; /* 0 = none */
    char name[64];
    char mps_namespace[160]; /* server/namespace; empty with classic MPS */
    char cgroup[512];        /* below the cgroup root, as the host sees it */
};

/* A process that has NVML initialised, and the GPUs whose device node it therefore holds open. */
struct sim_session {
    uint32_t used;
    uint32_t pid;
    uint64_t pid_namespace;
    uint64_t start_time;
    uint64_t gpus; /* bit i: GPU i */
};

struct sim_limit {
    uint32_t used;
    uint32_t gpu;
    uint64_t soft;
    uint64_t hard;
    char cgroup[512];
};

struct sim_state {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t size;
    uint32_t gpu_count;
    uint32_t log_calls;
    uint32_t device_nodes; /* SIM_NODES_* */
    uint32_t caps_major;
    uint32_t cuda_version; /* major * 1000 + minor * 10 */
    uint32_t fault_count;
    uint32_t fault_futex;
    uint32_t event_futex;
    uint32_t cc_feature;
    uint32_t cc_environment;
    uint32_t cc_devtools;
    uint32_t cc_multi_gpu;
    uint32_t cc_cpu_caps;
    uint32_t cc_gpu_caps;
    uint32_t cc_ready;
    uint32_t mps_start_ms;   /* how long an MPS server initialises each of its GPUs */
    uint32_t context_mib;    /* what a CUDA context takes for itself */
    uint32_t mps_server_mib; /* and an MPS server */
    uint32_t fabric_manager; /* SIM_FABRIC_MANAGER_* */
    uint32_t reserved;
    uint64_t event_sequence;
    uint64_t serial; /* source of all serial numbers */
    char driver_version[80];
    char nvml_version[80];
    char profile[64];
    char cgroup_root[256]; /* where the cgroups of memory limits are; empty: any name counts as that of a cgroup */
    struct sim_gpu gpus[SIM_MAX_GPUS];
    struct sim_fault faults[SIM_MAX_FAULTS];
    struct sim_event events[SIM_MAX_EVENTS];
    struct sim_process processes[SIM_MAX_PROCESSES];
    struct sim_session sessions[SIM_MAX_SESSIONS];
    struct sim_limit limits[SIM_MAX_LIMITS];
};

#endif
