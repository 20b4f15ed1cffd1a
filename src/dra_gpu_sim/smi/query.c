/* What nvidia-smi prints about GPUs. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static u64 mib(u64 bytes) { return bytes >> 20; }

static u64 used_mib(struct ctx *c) {
    return mib(sim_memory_used(c->s, c->index, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE));
}

static const char *mig_mode(const struct sim_gpu *g, u32 mode) {
    return g->mig_support == SIM_MIG_NONE ? "[N/A]" : mode ? "Enabled" : "Disabled";
}

static const char *fabric_state(const struct sim_gpu *g) {
    static const char *names[] = {"Not Supported", "Not Started", "In Progress", "Completed"};
    return g->fabric_supported && g->fabric_state < 4 ? names[g->fabric_state] : "N/A";
}

static const char *fabric_status(const struct sim_gpu *g) {
    return g->fabric_supported && g->fabric_state == 3 ? error_text((nvmlReturn_t)g->fabric_status) : "N/A";
}

int smi_list(const struct selection *gpus) {
    struct ctx c;
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi -L", gpus->gpus[i]);
        if (result != NVML_SUCCESS) {
            sim_leave(&c, result);
            if (result == NVML_ERROR_GPU_IS_LOST) return lost_message(gpus->gpus[i]);
            printf("Unable to query GPU %d: %s\n", i, error_text(result));
            return exit_code(result);
        }
        printf("GPU %d: %s (UUID: %s)\n", sim_position(c.index), c.gpu->name, c.gpu->uuid);
        for (u32 index = 0; c.gpu->mig_current && index < 32; index++)
            for (int k = 0; k < SIM_MAX_GI; k++)
                for (int n = 0; c.gpu->gi[k].used && n < SIM_MAX_CI; n++) {
                    const struct sim_ci *ci = &c.gpu->gi[k].ci[n];
                    const struct sim_profile *p = &c.gpu->profiles[c.gpu->gi[k].profile];
                    char name[64];
                    if (!ci->used || ci->mig_index != index || !sim_cap_usable(c.s, c.index, c.gpu->gi[k].id, ci->id)) continue;
                    sim_ci_name(p, ci->profile, ci->slices, name, sizeof name);
                    printf("  MIG %-12s Device %2u: (UUID: %s)\n", name + 4, index, ci->uuid);
                }
        sim_leave(&c, NVML_SUCCESS);
    }
    if (!gpus->count) printf("No devices were found\n");
    return gpus->count ? 0 : exit_code(NVML_ERROR_NOT_FOUND);
}

static void processes(struct ctx *c) {
    int none = 1;
    u32 pids[1];
    sim_processes_on(c->s, c->index, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE, pids, 1); /* drops the dead */
    printf("    %-37s :", "Processes");
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        static const char *types[] = {"", "C", "G", "M+C", "C"};
        const struct sim_process *p = &c->s->processes[i];
        if (!p->used || (int)p->gpu != c->index) continue;
        printf("%s        %-33s : %u\n            %-29s : %s\n            %-29s : %s\n            %-29s : %llu MiB\n",
               none ? "\n" : "", "Process ID", p->pid, "Type", types[p->kind <= 4 ? p->kind : 1], "Name", p->name,
               "Used GPU Memory", mib(p->memory));
        none = 0;
    }
    if (none) printf(" None\n");
}

#define ROW(indent, key, format, ...) printf("%*s%-*s : " format "\n", indent, "", 41 - (indent), key, __VA_ARGS__)

static void describe(struct ctx *c) {
    const struct sim_gpu *g = c->gpu;
    printf("GPU %s\n", g->bus_id);
    ROW(4, "Product Name", "%s", g->name);
    ROW(4, "Persistence Mode", "%s", g->persistence ? "Enabled" : "Disabled");
    printf("    MIG Mode\n");
    ROW(8, "Current", "%s", g->mig_support ? mig_mode(g, g->mig_current) : "N/A");
    ROW(8, "Pending", "%s", g->mig_support ? mig_mode(g, g->mig_pending) : "N/A");
    ROW(4, "Serial Number", "%s", g->serial[0] ? g->serial : "N/A");
    ROW(4, "GPU UUID", "%s", g->uuid);
    ROW(4, "Minor Number", "%u", g->minor);
    ROW(4, "VBIOS Version", "%s", g->vbios);
    ROW(4, "GPU Part Number", "%s", g->board_part[0] ? g->board_part : "N/A");
    printf("    PCI\n");
    ROW(8, "Bus", "0x%02X", g->pci_bus);
    ROW(8, "Device", "0x%02X", g->pci_device);
    ROW(8, "Domain", "0x%04X", g->pci_domain);
    ROW(8, "Device Id", "0x%08X", g->pci_device_id);
    ROW(8, "Bus Id", "%s", g->bus_id);
    printf("    FB Memory Usage\n");
    ROW(8, "Total", "%llu MiB", mib(g->memory_total));
    ROW(8, "Reserved", "%llu MiB", mib(g->memory_reserved));
    ROW(8, "Used", "%llu MiB", used_mib(c));
    ROW(8, "Free", "%llu MiB", mib(g->memory_total - g->memory_reserved) - used_mib(c));
    ROW(4, "Compute Mode", "%s", compute_mode_name(g->compute_mode));
    printf("    Fabric\n");
    ROW(8, "State", "%s", fabric_state(g));
    ROW(8, "Status", "%s", fabric_status(g));
    if (g->fabric_supported && g->fabric_state == 3) {
        const unsigned char *b = g->fabric_cluster;
        ROW(8, "CliqueId", "%u", g->fabric_clique);
        ROW(8, "ClusterUUID", "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
            b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    }
    processes(c);
    printf("\n");
}

int smi_full(const struct selection *gpus) {
    struct sim_state *s = sim_state();
    struct ctx c;
    printf("\n==============NVSMI LOG==============\n\n");
    ROW(0, "Driver Version", "%s", s->driver_version);
    ROW(0, "CUDA Version", "%u.%u", s->cuda_version / 1000, s->cuda_version % 1000 / 10);
    printf("\n");
    ROW(0, "Attached GPUs", "%d", sim_visible_count());
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi -q", gpus->gpus[i]);
        if (result == NVML_SUCCESS) describe(&c);
        sim_leave(&c, result);
        if (result == NVML_ERROR_GPU_IS_LOST) return lost_message(gpus->gpus[i]);
        if (result != NVML_SUCCESS) return exit_code(result);
    }
    return 0;
}

/* One field of --query-gpu; 0 if there is no such field. */
static int value(struct ctx *c, const char *field, int units, char *to, size_t length) {
    const struct sim_gpu *g = c->gpu;
    const char *unit = units ? " MiB" : "";
#define IS(name) (!strcmp(field, name))
#define PUT(...) return snprintf(to, length, __VA_ARGS__), 1
    if (IS("index")) PUT("%d", sim_position(c->index));
    if (IS("uuid") || IS("gpu_uuid")) PUT("%s", g->uuid);
    if (IS("name") || IS("gpu_name")) PUT("%s", g->name);
    if (IS("serial") || IS("gpu_serial")) PUT("%s", g->serial[0] ? g->serial : "[N/A]");
    if (IS("count")) PUT("%d", sim_visible_count());
    if (IS("driver_version")) PUT("%s", c->s->driver_version);
    if (IS("pci.bus_id") || IS("gpu_bus_id")) PUT("%s", g->bus_id);
    if (IS("pci.device_id")) PUT("0x%08X", g->pci_device_id);
    if (IS("memory.total")) PUT("%llu%s", mib(g->memory_total), unit);
    if (IS("memory.reserved")) PUT("%llu%s", mib(g->memory_reserved), unit);
    if (IS("memory.used")) PUT("%llu%s", used_mib(c), unit);
    if (IS("memory.free")) PUT("%llu%s", mib(g->memory_total - g->memory_reserved) - used_mib(c), unit);
    if (IS("compute_mode")) PUT("%s", compute_mode_name(g->compute_mode));
    if (IS("compute_cap")) PUT("%u.%u", g->cc_major, g->cc_minor);
    if (IS("mig.mode.current")) PUT("%s", mig_mode(g, g->mig_current));
    if (IS("mig.mode.pending")) PUT("%s", mig_mode(g, g->mig_pending));
    if (IS("fabric.state")) PUT("%s", fabric_state(g));
    if (IS("fabric.status")) PUT("%s", fabric_status(g));
    if (IS("persistence_mode")) PUT("%s", g->persistence ? "Enabled" : "Disabled");
    if (IS("temperature.gpu")) PUT("%u", g->temperature);
    if (IS("utilization.gpu")) PUT("%u%s", g->utilization_gpu, units ? " %" : "");
    if (IS("power.draw")) PUT("%u.%02u%s", g->power_mw / 1000, g->power_mw % 1000 / 10, units ? " W" : "");
#undef IS
#undef PUT
    return 0;
}

static const char *unit_of(const char *field) {
    return !strncmp(field, "memory.", 7) ? " [MiB]" : !strncmp(field, "utilization.", 12) ? " [%]" : !strcmp(field, "power.draw") ? " [W]" : "";
}

int smi_csv(const struct selection *gpus, const char *fields, const char *format) {
    char names[2048], text[128], *rest, *field;
    struct ctx c;
    int header = !strstr(format, "noheader"), units = !strstr(format, "nounits");
    for (int row = header ? -1 : 0; row < gpus->count; row++) {
        const char *separator = "";
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi --query-gpu", gpus->gpus[row < 0 ? 0 : row]);
        if (result != NVML_SUCCESS) {
            sim_leave(&c, result);
            return result == NVML_ERROR_GPU_IS_LOST ? lost_message(c.index) : exit_code(result);
        }
        snprintf(names, sizeof names, "%s", fields);
        for (field = strtok_r(names, ", ", &rest); field; field = strtok_r(NULL, ", ", &rest)) {
            if (!value(&c, field, units, text, sizeof text)) {
                sim_leave(&c, NVML_ERROR_INVALID_ARGUMENT);
                printf("Field \"%s\" is not a valid field to query.\n\n", field);
                return exit_code(NVML_ERROR_INVALID_ARGUMENT);
            }
            printf("%s%s%s", separator, row < 0 ? field : text, row < 0 && units ? unit_of(field) : "");
            separator = ", ";
        }
        printf("\n");
        sim_leave(&c, NVML_SUCCESS);
    }
    return 0;
}

int smi_overview(const struct selection *gpus) {
    struct sim_state *s = sim_state();
    struct ctx c;
    printf("NVIDIA-SMI %s    Driver Version: %s    CUDA Version: %u.%u    (simulated)\n", s->driver_version, s->driver_version,
           s->cuda_version / 1000, s->cuda_version % 1000 / 10);
    printf("%-4s %-32s %-18s %-22s %s\n", "GPU", "Name", "Bus-Id", "Memory-Usage", "Compute M.");
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi", gpus->gpus[i]);
        if (result == NVML_SUCCESS)
            printf("%-4d %-32s %-18s %6lluMiB / %6lluMiB %s\n", sim_position(c.index), c.gpu->name, c.gpu->bus_id, used_mib(&c),
                   mib(c.gpu->memory_total), compute_mode_name(c.gpu->compute_mode));
        sim_leave(&c, result);
        if (result == NVML_ERROR_GPU_IS_LOST) return lost_message(gpus->gpus[i]);
        if (result != NVML_SUCCESS) return exit_code(result);
    }
    return 0;
}
