/* NVLink, the multi-node fabric, and the field values through which much of it is read. */
#include "core.h"

#include <string.h>
#include <time.h>

enum {
    FIELD_LINK_COUNT = 91,
    FIELD_SPEED_COMMON = 90,
    FIELD_SPEED_L0 = 84,  /* to 89: links 0 to 5 */
    FIELD_SPEED_L6 = 132, /* to 137: links 6 to 11 */
    FIELD_REMOTE_LINK = 146,
    FIELD_LINK_SPEED = 164,
    FIELD_LINK_STATE = 165,
    FIELD_LINK_VERSION = 166,
    FIELD_ENERGY = 83,
    FIELD_REMAPPED_CORRECTABLE = 142,
    FIELD_REMAPPED_UNCORRECTABLE = 143,
    FIELD_REMAPPED_PENDING = 144,
    FIELD_REMAPPED_FAILURE = 145,
    FIELD_RECOVERY_ACTION = 230,
};

enum { ARCHITECTURE_AMPERE = 7 };

/* Before Hopper a GPU in MIG mode has its links trained off; later ones keep them (Fabric Manager User Guide). */
static int up(const struct sim_gpu *g, const struct sim_link *l) {
    return l->state == 1 && !(g->mig_current && g->architecture <= ARCHITECTURE_AMPERE);
}

/* NOT_SUPPORTED without NVLink, an invalid argument past the last link; otherwise the link. */
#define LINK()                                                                                                         \
    REQUIRE(c.gpu->link_count, NVML_ERROR_NOT_SUPPORTED);                                                              \
    REQUIRE_ARGUMENT(link < c.gpu->link_count);                                                                        \
    struct sim_link *l = &c.gpu->links[link]

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, u32 link, u32 *active) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(active);
    LINK();
    *active = up(c.gpu, l);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, u32 link, u32 *version) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(version);
    LINK();
    *version = l->version;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, u32 link, u32 capability, u32 *result) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(result && capability <= 5);
    LINK();
    *result = up(c.gpu, l) && capability != 4; /* everything but SLI */
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t remote_pci(const char *call, nvmlDevice_t d, u32 link, struct nvml_pci *out) {
    struct ctx c;
    nvmlReturn_t entered = sim_enter_handle(&c, call, d, H_GPU);
    if (entered != NVML_SUCCESS) return sim_leave(&c, entered);
    REQUIRE_ARGUMENT(out);
    LINK();
    REQUIRE(up(c.gpu, l), NVML_ERROR_INVALID_ARGUMENT);
    memset(out, 0, sizeof *out);
    out->domain = l->remote_domain;
    out->bus = l->remote_bus;
    out->device = l->remote_device;
    __builtin_snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFF, out->bus & 0xFF,
                       out->device & 0xFF);
    __builtin_snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, u32 link, struct nvml_pci *out) {
    return remote_pci(__func__, d, link, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, u32 link, u32 *type) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(type);
    LINK();
    *type = up(c.gpu, l) ? l->remote_type : 0xFF;
    LEAVE(NVML_SUCCESS);
}

/* Both GPUs must reach each other over links: directly, or each over a switch of the same fabric. */
static int linked(const struct sim_gpu *a, const struct sim_gpu *b) {
    int through_switch = 0;
    for (u32 i = 0; i < a->link_count; i++) {
        if (!up(a, &a->links[i])) continue;
        if (a->links[i].remote_type == NVML_LINK_REMOTE_SWITCH) through_switch = 1;
        else if (a->links[i].remote_bus == b->pci_bus && a->links[i].remote_domain == b->pci_domain) return 1;
    }
    for (u32 i = 0; through_switch && i < b->link_count; i++)
        if (up(b, &b->links[i]) && b->links[i].remote_type == NVML_LINK_REMOTE_SWITCH) return 1;
    return 0;
}

/* The other handle of a call about two GPUs; the first one is already in the context. */
static struct sim_gpu *other(const struct ctx *c, nvmlDevice_t d) {
    struct ctx second = {.s = c->s};
    return sim_resolve(&second, d, H_GPU) == NVML_SUCCESS ? second.gpu : NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, u32 capability, u32 *status) {
    ENTER_HANDLE(a, H_GPU);
    struct sim_gpu *peer = other(&c, b);
    REQUIRE_ARGUMENT(status && peer && capability < 5);
    *status = c.gpu == peer || capability != 2 || linked(c.gpu, peer) ? 0 : 5; /* 5: not supported */
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, u32 *level) {
    ENTER_HANDLE(a, H_GPU);
    struct sim_gpu *peer = other(&c, b);
    REQUIRE_ARGUMENT(level && peer);
    if (c.gpu == peer) *level = 0;
    else if (c.gpu->pci_domain == peer->pci_domain && c.gpu->pci_root == peer->pci_root) *level = 30;
    else *level = c.gpu->numa_node == peer->numa_node ? 40 : 50;
    LEAVE(NVML_SUCCESS);
}

static void put_fabric(const struct sim_gpu *g, unsigned char *cluster, nvmlReturn_t *status, u32 *clique, u32 *state) {
    memcpy(cluster, g->fabric_cluster, 16);
    *status = (nvmlReturn_t)g->fabric_status;
    *clique = g->fabric_clique;
    *state = g->fabric_state;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, struct nvml_fabric *info) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(info);
    REQUIRE(c.gpu->fabric_supported, NVML_ERROR_NOT_SUPPORTED);
    put_fabric(c.gpu, info->cluster, &info->status, &info->clique, &info->state);
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, struct nvml_fabric_v2 *info) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(info);
    REQUIRE(c.gpu->fabric_supported, NVML_ERROR_NOT_SUPPORTED);
    int third = info->version == NVML_STRUCT_VERSION(struct nvml_fabric_v3, 3);
    REQUIRE(third || info->version == NVML_STRUCT_VERSION(struct nvml_fabric_v2, 2),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    put_fabric(c.gpu, info->cluster, &info->status, &info->clique, &info->state);
    info->health = c.gpu->fabric_health_mask;
    if (third) ((struct nvml_fabric_v3 *)info)->summary = (unsigned char)c.gpu->fabric_health_summary;
    LEAVE(NVML_SUCCESS);
}

static nvmlReturn_t link_field(const struct sim_gpu *g, struct nvml_field *f) {
    u32 link = f->scope;
    if (!g->link_count) return NVML_ERROR_NOT_SUPPORTED;
    if (f->id >= FIELD_SPEED_L0 && f->id < FIELD_SPEED_L0 + 6) link = f->id - FIELD_SPEED_L0;
    if (f->id >= FIELD_SPEED_L6 && f->id < FIELD_SPEED_L6 + 6) link = f->id - FIELD_SPEED_L6 + 6;
    if (f->id == FIELD_LINK_COUNT) {
        f->value.ui = g->link_count;
        return NVML_SUCCESS;
    }
    if (f->id == FIELD_SPEED_COMMON) {
        for (u32 i = 0; i < g->link_count; i++)
            if (up(g, &g->links[i])) f->value.ui = g->links[i].speed_mbps;
        return NVML_SUCCESS;
    }
    if (link >= g->link_count) return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_link *l = &g->links[link];
    switch (f->id) {
    case FIELD_LINK_STATE: f->value.ui = l->state == 1 ? (u32)up(g, l) : l->state; break;
    case FIELD_LINK_VERSION: f->value.ui = l->version; break;
    case FIELD_REMOTE_LINK: f->value.ui = l->remote_link; break;
    default: f->value.ui = up(g, l) ? l->speed_mbps : 0;
    }
    return NVML_SUCCESS;
}

/* Rows are remapped from Ampere on, where ECC counts what fails. */
static nvmlReturn_t remap_field(const struct sim_gpu *g, struct nvml_field *f) {
    if (g->architecture < ARCHITECTURE_AMPERE || !g->ecc_current) return NVML_ERROR_NOT_SUPPORTED;
    if (f->id == FIELD_REMAPPED_PENDING) f->value.ui = g->remap_pending != 0;
    if (f->id == FIELD_REMAPPED_FAILURE) f->value.ui = g->remap_failure != 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t field(const struct sim_gpu *g, struct nvml_field *f) {
    f->value.ull = 0;
    f->type = 1; /* unsigned int */
    switch (f->id) {
    case FIELD_ENERGY:
        f->type = 3; /* unsigned long long */
        f->value.ull = sim_energy(g);
        return NVML_SUCCESS;
    case FIELD_REMAPPED_CORRECTABLE:
    case FIELD_REMAPPED_UNCORRECTABLE:
    case FIELD_REMAPPED_PENDING:
    case FIELD_REMAPPED_FAILURE: return remap_field(g, f);
    case FIELD_RECOVERY_ACTION: f->value.ui = g->recovery_action; return NVML_SUCCESS;
    case FIELD_LINK_COUNT:
    case FIELD_SPEED_COMMON:
    case FIELD_REMOTE_LINK:
    case FIELD_LINK_SPEED:
    case FIELD_LINK_STATE:
    case FIELD_LINK_VERSION: return link_field(g, f);
    default:
        if (f->id >= FIELD_SPEED_L0 && f->id < FIELD_SPEED_L0 + 6) return link_field(g, f);
        if (f->id >= FIELD_SPEED_L6 && f->id < FIELD_SPEED_L6 + 6) return link_field(g, f);
        return f->id ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* The call succeeds when it ran; each entry carries a result of its own. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int number, struct nvml_field *values) {
    struct timespec now;
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(values && number > 0);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < number; i++) {
        values[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        values[i].latency_us = 1;
        values[i].result = field(c.gpu, &values[i]);
    }
    LEAVE(NVML_SUCCESS);
}
