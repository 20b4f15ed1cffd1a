/*
 * Slots of the process table, and which cgroup a process is in.
 *
 * A CUDA process holds a POSIX lock on the byte of the state file that stands for its slot. The kernel drops the lock
 * when the process ends, however it ends; anyone can ask for it from any pid namespace, and is told the holder's pid as
 * its own namespace numbers it. (A POSIX lock would also go if the process closed another descriptor of the file: these
 * programs open it once.)
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct flock byte_of(int slot, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = SIM_MAX_SESSIONS + slot, .l_len = 1};
    return range;
}

/* The pid of the holder; 0 if nobody holds the byte, -1 if its holder is not of a namespace below this one. */
static int holder(int slot) {
    struct flock range = byte_of(slot, F_WRLCK);
    if (fcntl(sim_state_file(), F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK) return 0;
    return range.l_pid > 0 ? range.l_pid : -1;
}

int sim_slot_alive(struct sim_state *s, int slot) {
    struct sim_process *p = &s->processes[slot];
    int alive = p->held ? holder(slot) != 0 : sim_process_alive(p->pid, p->pid_namespace, p->start_time);
    if (!alive) memset(p, 0, sizeof *p);
    return alive;
}

/* As the caller numbers it; the host's number for a process that the caller's namespace does not show. */
u32 sim_slot_pid(struct sim_state *s, int slot) {
    const struct sim_process *p = &s->processes[slot];
    int pid = p->held ? holder(slot) : 0;
    return pid > 0 ? (u32)pid : p->pid;
}

/* A slot of its own for this process, with no context yet; -1 if all are taken. The state is locked. */
int sim_slot_take(struct sim_state *s) {
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &s->processes[i];
        struct flock range = byte_of(i, F_RDLCK);
        if ((p->used && sim_slot_alive(s, i)) || holder(i)) continue;
        if (fcntl(sim_state_file(), F_SETLK, &range) != 0) continue;
        memset(p, 0, sizeof *p);
        p->pid = (u32)getpid();
        p->pid_namespace = sim_pid_namespace();
        p->start_time = sim_start_time(p->pid);
        p->uid = geteuid();
        p->gi = p->ci = NVML_INSTANCE_NONE;
        p->gpu = SIM_MAX_GPUS;
        p->serial = ++s->serial;
        p->held = p->used = 1;
        return i;
    }
    return -1;
}

int sim_slot_mine(struct sim_state *s, int slot, u64 serial) {
    return slot >= 0 && slot < SIM_MAX_PROCESSES && s->processes[slot].used && s->processes[slot].serial == serial;
}

void sim_slot_release(struct sim_state *s, int slot) {
    struct flock range = byte_of(slot, F_UNLCK);
    memset(&s->processes[slot], 0, sizeof s->processes[slot]);
    fcntl(sim_state_file(), F_SETLK, &range);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int lists(const char *controllers, const char *wanted) {
    size_t length = strlen(wanted);
    for (const char *at = controllers; length && *at;) {
        size_t word = strcspn(at, ",");
        const char *name = word > 5 && !strncmp(at, "name=", 5) ? at + 5 : at;
        if ((size_t)(at + word - name) == length && !strncmp(name, wanted, length)) return 1;
        at += word + (at[word] == ',');
    }
    return 0;
}

/*
 * The line of /proc/<pid>/cgroup that belongs to the cgroup root: the one of version 2, or of the controller that the
 * root's last part names; where version 2 is mounted beside version 1 and not used, that of the memory controller.
 */
void sim_cgroup_of(const struct sim_state *s, u32 pid, char *to, size_t length) {
    char path[64], line[1024], memory[512] = "", unified[512] = "";
    snprintf(path, sizeof path, pid ? "/proc/%u/cgroup" : "/proc/self/cgroup", pid);
    FILE *f = fopen(path, "re");
    snprintf(to, length, "/");
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *where = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!where) continue;
        line[strcspn(line, "\n")] = 0;
        *controllers++ = 0;
        *where++ = 0;
        if (lists(controllers, last_part(s->cgroup_root))) {
            snprintf(to, length, "%s", where);
            fclose(f);
            return;
        }
        if (!strcmp(controllers, "memory")) snprintf(memory, sizeof memory, "%s", where);
        if (!*controllers) snprintf(unified, sizeof unified, "%s", where);
    }
    if (f) fclose(f);
    if (unified[0] && (strcmp(unified, "/") != 0 || !memory[0])) snprintf(to, length, "%s", unified);
    else if (memory[0]) snprintf(to, length, "%s", memory);
}
