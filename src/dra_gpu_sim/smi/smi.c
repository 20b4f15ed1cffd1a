/* Command line of the nvidia-smi stand-in. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *error_text(nvmlReturn_t result) { return nvmlErrorString(result); }

int exit_code(nvmlReturn_t result) { return result >= 0 && result < 255 ? result : 255; }

const char *compute_mode_name(u32 mode) {
    return mode == NVML_COMPUTEMODE_PROHIBITED ? "Prohibited" : mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "Exclusive_Process" : "Default";
}

nvmlReturn_t on_gpu(struct ctx *c, const char *call, int gpu) {
    nvmlReturn_t result = sim_begin(c, call);
    if (result != NVML_SUCCESS) return result;
    c->index = gpu;
    c->gpu = &c->s->gpus[gpu];
    result = sim_faults(c);
    if (result != NVML_SUCCESS) return result;
    return sim_gone(c->s, gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

int lost_message(int gpu) {
    printf("Unable to determine the device handle for GPU%d: %s: GPU is lost.  Reboot the system to recover this GPU\n",
           sim_position(gpu), sim_state()->gpus[gpu].bus_id);
    return exit_code(NVML_ERROR_GPU_IS_LOST);
}

static int find_gpu(const char *id) {
    struct sim_state *s = sim_state();
    char *end;
    unsigned long index = strtoul(id, &end, 10);
    if (*id && !*end && index < (unsigned long)sim_visible_count()) return sim_visible((int)index);
    for (int i = 0; i < sim_visible_count(); i++) {
        const struct sim_gpu *g = &s->gpus[sim_visible(i)];
        char full[64], plain[64];
        snprintf(full, sizeof full, "%08x:%02x:%02x.0", g->pci_domain, g->pci_bus, g->pci_device);
        snprintf(plain, sizeof plain, "%04x:%02x:%02x.0", g->pci_domain, g->pci_bus, g->pci_device);
        if (!strcmp(id, g->uuid) || !strcasecmp(id, full) || !strcasecmp(id, plain) || !strcasecmp(id, g->bus_id))
            return sim_visible(i);
        for (int k = 0; k < SIM_MAX_GI; k++)
            for (int n = 0; g->gi[k].used && n < SIM_MAX_CI; n++)
                if (g->gi[k].ci[n].used && !strcmp(id, g->gi[k].ci[n].uuid)) return sim_visible(i);
    }
    return -1;
}

int select_gpus(const char *list, struct selection *out) {
    char copy[4096], *rest = NULL;
    out->count = 0;
    if (!list) {
        for (int i = 0; i < sim_visible_count(); i++) out->gpus[out->count++] = sim_visible(i);
        return 0;
    }
    snprintf(copy, sizeof copy, "%s", list);
    for (char *id = strtok_r(copy, ",", &rest); id && out->count < SIM_MAX_GPUS; id = strtok_r(NULL, ",", &rest)) {
        int gpu = find_gpu(id);
        if (gpu < 0) {
            printf("No devices were found\n");
            return exit_code(NVML_ERROR_NOT_FOUND);
        }
        out->gpus[out->count++] = gpu;
    }
    return 0;
}

struct options {
    const char *ids, *query, *format, *compute_mode, *mig_mode;
    int list, full, reset;
};

/* The value of "-x VALUE", "--long VALUE" or "--long=VALUE"; NULL if this argument is another one. */
static const char *value_of(char **argv, int argc, int *i, const char *brief, const char *name) {
    size_t length = strlen(name);
    if (!strncmp(argv[*i], name, length) && argv[*i][length] == '=') return argv[*i] + length + 1;
    if ((strcmp(argv[*i], name) && (!brief || strcmp(argv[*i], brief))) || *i + 1 >= argc) return NULL;
    return argv[++*i];
}

static int parse(int argc, char **argv, struct options *o) {
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus")) o->list = 1;
        else if (!strcmp(argv[i], "-q") || !strcmp(argv[i], "--query")) o->full = 1;
        else if (!strcmp(argv[i], "-r") || !strcmp(argv[i], "--gpu-reset")) o->reset = 1;
        else if ((value = value_of(argv, argc, &i, "-i", "--id"))) o->ids = value;
        else if ((value = value_of(argv, argc, &i, NULL, "--query-gpu"))) o->query = value;
        else if ((value = value_of(argv, argc, &i, NULL, "--format"))) o->format = value;
        else if ((value = value_of(argv, argc, &i, "-c", "--compute-mode"))) o->compute_mode = value;
        else if ((value = value_of(argv, argc, &i, "-mig", "--multi-instance-gpu"))) o->mig_mode = value;
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
            return 1;
        }
    }
    return 0;
}

static int dispatch(int argc, char **argv) {
    struct options o = {0};
    struct selection gpus;
    if (argc > 1 && !strcmp(argv[1], "compute-policy")) return smi_compute_policy(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "mig")) return smi_mig(argc - 2, argv + 2);
    if (parse(argc, argv, &o)) return 1;
    int failed = select_gpus(o.ids, &gpus);
    if (failed) return failed;
    if (o.list) return smi_list(&gpus);
    if (!gpus.count) {
        printf("No devices were found\n");
        return exit_code(NVML_ERROR_NOT_FOUND);
    }
    if (o.full) return smi_full(&gpus);
    if (o.query) return smi_csv(&gpus, o.query, o.format ? o.format : "csv");
    if (o.compute_mode) return smi_set_compute_mode(&gpus, o.compute_mode);
    if (o.mig_mode) return smi_set_mig_mode(&gpus, o.mig_mode);
    if (o.reset) return smi_reset(&gpus);
    return smi_overview(&gpus);
}

int main(int argc, char **argv) {
    struct ctx c;
    if (argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
        printf("nvidia-smi (simulated) [-L | -q | --query-gpu=FIELDS --format=csv[,noheader][,nounits] | -c MODE | -mig 0|1 | -r]"
               " [-i ID[,ID]]\nnvidia-smi compute-policy [-i ID[,ID]] [-l | --set-timeslice 0|1|2|3]\n"
               "nvidia-smi mig [-i ID] [-lgip | -lgipp | -lgi | -lci | -cgi P[,P] [-C] | -cci [P] -gi N | -dci | -dgi] \n");
        return 0;
    }
    nvmlReturn_t result = sim_init(&c, "nvmlInit_v2", NVML_INIT_NO_ATTACH);
    sim_leave(&c, result);
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
               " NVIDIA driver is installed and running.\n\n");
        return exit_code(result);
    }
    if (result != NVML_SUCCESS) {
        printf("Failed to initialize NVML: %s\n", error_text(result));
        return 255;
    }
    int code = dispatch(argc, argv);
    sim_leave(&c, sim_shutdown(&c, "nvmlShutdown"));
    return code;
}
