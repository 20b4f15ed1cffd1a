/* nvidia-smi commands that set a GPU's modes: compute mode, MIG mode, time slice; and the reset. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static int refused(const struct ctx *c, const char *what, nvmlReturn_t result) {
    if (result == NVML_ERROR_GPU_IS_LOST) return lost_message(c->index);
    printf("Unable to %s for GPU %s: %s\n", what, c->gpu->bus_id, error_text(result));
    return exit_code(result);
}

static int parse_compute_mode(const char *text) {
    if (!strcmp(text, "0") || !strcasecmp(text, "DEFAULT")) return 0;
    if (!strcmp(text, "2") || !strcasecmp(text, "PROHIBITED")) return 2;
    if (!strcmp(text, "3") || !strcasecmp(text, "EXCLUSIVE_PROCESS")) return 3;
    return -1;
}

int smi_set_compute_mode(const struct selection *gpus, const char *text) {
    static const char *names[] = {"DEFAULT", "", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    int mode = parse_compute_mode(text);
    struct ctx c;
    if (mode < 0) {
        printf("Invalid compute mode \"%s\": use 0, 2, 3 or DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS\n", text);
        return exit_code(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi -c", gpus->gpus[i]);
        sim_detail(&c, "mode=%d", mode);
        if (result == NVML_SUCCESS && geteuid() != 0) result = NVML_ERROR_NO_PERMISSION;
        if (result == NVML_SUCCESS && c.gpu->mig_current) result = NVML_ERROR_NOT_SUPPORTED;
        int same = result == NVML_SUCCESS && (int)c.gpu->compute_mode == mode;
        if (result == NVML_SUCCESS) c.gpu->compute_mode = (u32)mode;
        sim_leave(&c, result);
        if (result != NVML_SUCCESS) return refused(&c, "set the compute mode", result);
        if (same) printf("Compute mode is already set to %s for GPU %s.\n", names[mode], c.gpu->bus_id);
        else printf("Set compute mode to %s for GPU %s.\n", names[mode], c.gpu->bus_id);
    }
    printf("All done.\n");
    return 0;
}

int smi_set_mig_mode(const struct selection *gpus, const char *text) {
    int mode = !strcmp(text, "1") || !strcasecmp(text, "ENABLED") ? 1 : !strcmp(text, "0") || !strcasecmp(text, "DISABLED") ? 0 : -1;
    struct ctx c;
    if (mode < 0) {
        printf("Invalid MIG mode \"%s\": use 0 or 1\n", text);
        return exit_code(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t activation = NVML_SUCCESS, result = on_gpu(&c, "nvidia-smi -mig", gpus->gpus[i]);
        sim_detail(&c, "mode=%d", mode);
        if (result == NVML_SUCCESS && geteuid() != 0) result = NVML_ERROR_NO_PERMISSION;
        if (result == NVML_SUCCESS) result = sim_mig_set_mode(c.s, c.index, (u32)mode, &activation);
        sim_leave(&c, result);
        if (result != NVML_SUCCESS) return refused(&c, mode ? "enable MIG Mode" : "disable MIG Mode", result);
        if (activation == NVML_SUCCESS) {
            printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", c.gpu->bus_id);
            continue;
        }
        printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", c.gpu->bus_id,
               activation == NVML_ERROR_RESET_REQUIRED ? "Reset is required" : error_text(activation));
        if (activation == NVML_ERROR_RESET_REQUIRED)
            printf("Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU %s\n", c.gpu->bus_id);
        else
            printf("GPU %s is currently being used by one or more other processes (e.g. CUDA application or a monitoring\n"
                   "application such as another instance of nvidia-smi). Please first kill all processes using the device\n"
                   "and retry the command or reboot the system to make MIG mode effective.\n", c.gpu->bus_id);
    }
    printf("All done.\n");
    return 0;
}

/* The MIG layout, the time slice and counters do not survive a reset; a pending MIG mode takes effect. */
static void reset(struct ctx *c) {
    sim_mig_wipe(c->s, c->index);
    c->gpu->mig_current = c->gpu->mig_pending;
    c->gpu->ecc_current = c->gpu->ecc_pending;
    c->gpu->time_slice = 0;
    c->gpu->recovery_action = 0;
    c->gpu->remap_pending = 0; /* rows are replaced; those for which none is left stay as they are */
    sim_energy_restart(c->gpu);
}

int smi_reset(const struct selection *gpus) {
    struct ctx c;
    u32 pids[8];
    int busy = 0;
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi --gpu-reset", gpus->gpus[i]);
        if (result == NVML_SUCCESS && geteuid() != 0) result = NVML_ERROR_NO_PERMISSION;
        if (result == NVML_SUCCESS && c.gpu->virtualization_mode) result = NVML_ERROR_NOT_SUPPORTED;
        if (result == NVML_SUCCESS && (sim_other_sessions(c.s, c.index, pids, 8) ||
                                       sim_processes_on(c.s, c.index, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE, pids, 8)))
            result = NVML_ERROR_IN_USE;
        if (result == NVML_SUCCESS) reset(&c);
        sim_leave(&c, result);
        if (result == NVML_ERROR_IN_USE) {
            if (!busy++) printf("The following GPUs could not be reset:\n");
            printf("  GPU %s: %s\n", c.gpu->bus_id, error_text(result));
        } else if (result == NVML_ERROR_NOT_SUPPORTED) {
            printf("Resetting GPU %s is not supported.\n", c.gpu->bus_id);
            return exit_code(result);
        } else if (result != NVML_SUCCESS) {
            return refused(&c, "reset the device", result);
        } else {
            printf("GPU %s was successfully reset.\n", c.gpu->bus_id);
        }
    }
    if (!busy) {
        printf("All done.\n");
        return 0;
    }
    printf("\n%d device%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application,\n"
           "graphics application such as an X server, or a monitoring application such as another instance of\n"
           "nvidia-smi). Please first kill all processes using %s and all compute applications running in the system.\n",
           busy, busy == 1 ? " is" : "s are", busy == 1 ? "this device" : "these devices");
    return 255;
}

static int list_policies(const struct selection *gpus) {
    static const char *names[] = {"Default", "Short", "Medium", "Long"};
    struct ctx c;
    printf("+-----------------------------------------------------------+\n"
           "| GPU compute policies:                                     |\n"
           "| GPU     Policy Name                       Policy Value    |\n"
           "|===========================================================|\n");
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi compute-policy", gpus->gpus[i]);
        const char *shown = result == NVML_SUCCESS && c.gpu->time_slice_supported ? names[c.gpu->time_slice & 3] : "Not Supported";
        sim_leave(&c, result);
        printf("| %3d     %-33s %-15s |\n+-----------------------------------------------------------+\n",
               sim_position(gpus->gpus[i]), "Time-slice", shown);
    }
    return 0;
}

static int set_time_slice(const struct selection *gpus, const char *text) {
    static const char *names[] = {"DEFAULT", "SHORT", "MEDIUM", "LONG"};
    struct ctx c;
    if (strlen(text) != 1 || *text < '0' || *text > '3') {
        printf("Invalid time-slice \"%s\": use 0 (DEFAULT), 1 (SHORT), 2 (MEDIUM) or 3 (LONG)\n", text);
        return exit_code(NVML_ERROR_INVALID_ARGUMENT);
    }
    u32 value = (u32)(*text - '0');
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi compute-policy", gpus->gpus[i]);
        sim_detail(&c, "time_slice=%u", value);
        if (result == NVML_SUCCESS && geteuid() != 0) result = NVML_ERROR_NO_PERMISSION;
        if (result == NVML_SUCCESS && !c.gpu->time_slice_supported) result = NVML_ERROR_NOT_SUPPORTED;
        if (result == NVML_SUCCESS) c.gpu->time_slice = value;
        sim_leave(&c, result);
        if (result != NVML_SUCCESS) return refused(&c, "set the time-slice", result);
        printf("Successfully set time-slice to %s for GPU %s\n", names[value], c.gpu->bus_id);
    }
    return 0;
}

int smi_compute_policy(int count, char **arguments) {
    const char *ids = NULL, *slice = NULL;
    struct selection gpus;
    int list = 0;
    for (int i = 0; i < count; i++) {
        if ((!strcmp(arguments[i], "-i") || !strcmp(arguments[i], "--id")) && i + 1 < count) ids = arguments[++i];
        else if (!strncmp(arguments[i], "--set-timeslice=", 16)) slice = arguments[i] + 16;
        else if (!strcmp(arguments[i], "--set-timeslice") && i + 1 < count) slice = arguments[++i];
        else if (!strcmp(arguments[i], "-l") || !strcmp(arguments[i], "--list")) list = 1;
        else if (!strcmp(arguments[i], "-h") || !strcmp(arguments[i], "--help")) {
            printf("compute-policy -- Control and list compute policies.\n\nUsage: nvidia-smi compute-policy [options]\n\n"
                   "    -i, --id ID[,ID]       index, UUID or bus id\n    -l, --list             list the policies\n"
                   "    --set-timeslice VALUE  0 - DEFAULT, 1 - SHORT, 2 - MEDIUM, 3 - LONG\n");
            return 0;
        } else {
            printf("Option %s is not recognized. Please run 'nvidia-smi compute-policy -h'.\n", arguments[i]);
            return exit_code(NVML_ERROR_INVALID_ARGUMENT);
        }
    }
    int failed = select_gpus(ids, &gpus);
    if (failed) return failed;
    if (slice) return set_time_slice(&gpus, slice);
    (void)list; /* listing is also what happens without an option */
    return list_policies(&gpus);
}
