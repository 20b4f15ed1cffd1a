/*
 * libnvfm.so.1: the library by which a program asks a running Fabric Manager for its partitions.
 *
 * Structures, versions and return values follow the header nv_fm_types.h and the Fabric Manager User Guide, "Fabric
 * Manager SDK". The simulated Fabric Manager is a word of the node's state; connecting needs the file of its socket, as
 * connecting to a real one does. In shared NVSwitch mode it divides an HGX baseboard as the guide's tables have it.
 */
#include "../nvml/core.h"

#include <string.h>
#include <unistd.h>

typedef int fmReturn_t;
typedef void *fmHandle_t;

enum {
    FM_ST_SUCCESS = 0,
    FM_ST_BADPARAM = -1,
    FM_ST_GENERIC_ERROR = -2,
    FM_ST_NOT_SUPPORTED = -3,
    FM_ST_UNINITIALIZED = -4,
    FM_ST_VERSION_MISMATCH = -6,
    FM_ST_IN_USE = -7,
    FM_ST_CONNECTION_NOT_VALID = -9,
};

enum { MAX_GPUS = 16, MAX_PARTITIONS = 64, BASEBOARD = 8, HOPPER = 9 };

struct fm_connect {
    unsigned version;
    char address[256];
    unsigned timeout_ms;
    unsigned is_unix_socket;
};

struct fm_gpu {
    unsigned physical_id;
    char uuid[80];
    char bus_id[32];
    unsigned links_available;
    unsigned links;
    unsigned line_rate_mbps;
};

struct fm_partition {
    unsigned id;
    unsigned is_active;
    unsigned gpu_count;
    struct fm_gpu gpus[MAX_GPUS];
};

struct fm_partition_list {
    unsigned version;
    unsigned count;
    unsigned most;
    struct fm_partition partitions[MAX_PARTITIONS];
};

#define FM_VERSION(type, number) ((unsigned)(sizeof(type) | ((number) << 24U)))

/* The sets of modules of a baseboard that can be joined, by the number of the partition. */
static const unsigned char SETS[][BASEBOARD + 1] = {
    {1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4}, {5, 6, 7, 8}, {1, 3}, {2, 4}, {5, 7}, {6, 8}, {1}, {2}, {3},
    {4},                      {5},          {6},          {7},    {8},
};

static int initialised;
static int connected;

static fmReturn_t enter(struct ctx *c, const char *call) {
    if (sim_program(c, call, -1) == NVML_SUCCESS) return FM_ST_SUCCESS;
    sim_leave(c, NVML_ERROR_UNKNOWN);
    return FM_ST_GENERIC_ERROR;
}

static fmReturn_t leave(struct ctx *c, fmReturn_t result) {
    sim_detail(c, "fabric manager answers %d", result);
    sim_leave(c, result == FM_ST_SUCCESS ? NVML_SUCCESS : NVML_ERROR_UNKNOWN);
    return result;
}

EXPORT fmReturn_t fmLibInit(void) {
    if (initialised) return FM_ST_IN_USE;
    initialised = 1;
    return FM_ST_SUCCESS;
}

EXPORT fmReturn_t fmLibShutdown(void) {
    if (!initialised) return FM_ST_UNINITIALIZED;
    initialised = connected = 0;
    return FM_ST_SUCCESS;
}

EXPORT fmReturn_t fmConnect(struct fm_connect *to, fmHandle_t *handle) {
    struct ctx c;
    if (!initialised) return FM_ST_UNINITIALIZED;
    if (!to || !handle) return FM_ST_BADPARAM;
    if (to->version != FM_VERSION(struct fm_connect, 1)) return FM_ST_VERSION_MISMATCH;
    fmReturn_t entered = enter(&c, __func__);
    if (entered != FM_ST_SUCCESS) return entered;
    if (!c.s->fabric_manager || !to->is_unix_socket || access(to->address, F_OK) != 0)
        return leave(&c, FM_ST_CONNECTION_NOT_VALID);
    connected = 1;
    *handle = &connected;
    return leave(&c, FM_ST_SUCCESS);
}

EXPORT fmReturn_t fmDisconnect(fmHandle_t handle) {
    if (!initialised) return FM_ST_UNINITIALIZED;
    if (handle != &connected || !connected) return FM_ST_BADPARAM;
    connected = 0;
    return FM_ST_SUCCESS;
}

static const struct sim_gpu *module(const struct sim_state *s, unsigned id) {
    for (unsigned i = 0; i < s->gpu_count; i++)
        if (s->gpus[i].present && s->gpus[i].module_id == id && s->gpus[i].link_count) return &s->gpus[i];
    return NULL;
}

/* From Hopper on UUID and address stay empty: the module is all that is told. */
static void fill(struct fm_gpu *to, const struct sim_gpu *g) {
    to->physical_id = g->module_id;
    if (g->architecture < HOPPER) {
        strncpy(to->uuid, g->uuid, sizeof to->uuid - 1);
        strncpy(to->bus_id, g->bus_id, sizeof to->bus_id - 1);
    }
    to->links = g->link_count;
    for (unsigned i = 0; i < g->link_count; i++) to->links_available += g->links[i].state == 1;
    to->line_rate_mbps = g->links[0].speed_mbps;
}

EXPORT fmReturn_t fmGetSupportedFabricPartitions(fmHandle_t handle, struct fm_partition_list *list) {
    struct ctx c;
    if (!initialised) return FM_ST_UNINITIALIZED;
    if (handle != &connected || !connected || !list) return FM_ST_BADPARAM;
    if (list->version != FM_VERSION(struct fm_partition_list, 1)) return FM_ST_VERSION_MISMATCH;
    fmReturn_t entered = enter(&c, __func__);
    if (entered != FM_ST_SUCCESS) return entered;
    if (c.s->fabric_manager != SIM_FABRIC_MANAGER_SHARED) return leave(&c, FM_ST_NOT_SUPPORTED);
    list->count = 0;
    list->most = sizeof SETS / sizeof *SETS;
    for (unsigned number = 0; number < list->most; number++) {
        struct fm_partition *p = &list->partitions[list->count];
        memset(p, 0, sizeof *p);
        p->id = number;
        int complete = 1;
        for (const unsigned char *id = SETS[number]; *id && complete; id++) {
            const struct sim_gpu *g = module(c.s, *id);
            if (g) fill(&p->gpus[p->gpu_count++], g);
            else complete = 0;
        }
        list->count += complete;
    }
    return leave(&c, FM_ST_SUCCESS);
}
