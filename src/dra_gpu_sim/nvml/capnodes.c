/*
 * Device nodes and /proc entries that let a container use a MIG instance.
 *
 * Minor numbers are fixed per GPU and instance, as /proc/driver/nvidia-caps/mig-minors lists them: 3 onwards, 135 for
 * each GPU, 9 for each GPU instance (itself, then its eight compute instances).
 */
#include "core.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static u32 minor_of(u32 gpu_minor, u32 gi, int ci) { return 3 + gpu_minor * 135 + gi * 9 + (u32)(ci + 1); }

static void capability_path(char *to, size_t length, u32 gpu_minor, u32 gi, int ci, const char *leaf) {
    char instance[32] = "";
    if (ci >= 0) snprintf(instance, sizeof instance, "/ci%d", ci);
    snprintf(to, length, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u%s%s", sim_root(), gpu_minor, gi, instance, leaf);
}

/* What cannot be written (a container's read-only view) is left: the instance exists all the same. */
void sim_cap_add(struct sim_state *s, int gpu, u32 gi, int ci) {
    char path[PATH_MAX + 128];
    u32 gpu_minor = s->gpus[gpu].minor, minor_number = minor_of(gpu_minor, gi, ci);
    capability_path(path, sizeof path, gpu_minor, gi, ci, "");
    mkdir(path, 0755);
    capability_path(path, sizeof path, gpu_minor, gi, ci, "/access");
    FILE *f = fopen(path, "we");
    if (f) {
        fprintf(f, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor_number);
        fclose(f);
    }
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", sim_root(), minor_number);
    if (s->device_nodes == SIM_NODES_DEVICES) {
        if (mknod(path, S_IFCHR | 0444, makedev(s->caps_major, minor_number)) == 0) chmod(path, 0444);
    } else {
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
        if (fd >= 0) close(fd);
    }
}

void sim_cap_remove(struct sim_state *s, int gpu, u32 gi, int ci) {
    char path[PATH_MAX + 128];
    u32 gpu_minor = s->gpus[gpu].minor;
    capability_path(path, sizeof path, gpu_minor, gi, ci, "/access");
    unlink(path);
    capability_path(path, sizeof path, gpu_minor, gi, ci, "");
    rmdir(path);
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", sim_root(), minor_of(gpu_minor, gi, ci));
    unlink(path);
}

/* A process reaches a MIG device through the nodes of its GPU instance and of its compute instance. */
int sim_cap_usable(struct sim_state *s, int gpu, u32 gi, u32 ci) {
    char path[PATH_MAX + 64];
    u32 gpu_minor = s->gpus[gpu].minor;
    snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap%u", sim_dev(), minor_of(gpu_minor, gi, -1));
    if (access(path, R_OK) != 0) return 0;
    snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap%u", sim_dev(), minor_of(gpu_minor, gi, (int)ci));
    return access(path, R_OK) == 0;
}
