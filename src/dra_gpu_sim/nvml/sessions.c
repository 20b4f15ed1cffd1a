/* Who holds a GPU: NVML sessions and processes with contexts. The dead are dropped when they are looked at. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

u64 sim_pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (u64)info.st_ino : 0;
}

/* Field 22 of /proc/<pid>/stat, in clock ticks since boot; 0 if there is no such process. */
u64 sim_start_time(u32 pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t length = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[length] = 0;
    char *at = strrchr(text, ')'); /* the command may hold spaces and parentheses */
    u64 start = 0;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) sscanf(at, " %llu", &start);
    return start;
}

/* A process of another pid namespace cannot be judged from here and counts as alive. */
int sim_process_alive(u32 pid, u64 pid_namespace, u64 start_time) {
    if (pid_namespace && pid_namespace != sim_pid_namespace()) return 1;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return 0;
    u64 now = sim_start_time(pid);
    return now != 0 && (!start_time || now == start_time);
}

/*
 * A session lives as long as its process holds a lock on the byte of the state file that has the slot's number. The
 * kernel drops it when the process ends, however it ends, and anyone can ask, from another pid namespace too.
 */
static void hold(int slot) {
    struct flock range = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    fcntl(sim_state_file(), F_OFD_SETLK, &range);
}

static void let_go(int slot) {
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    fcntl(sim_state_file(), F_OFD_SETLK, &range);
}

static int held_by_another(int slot) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(sim_state_file(), F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

struct sim_session *sim_session_mine(struct sim_state *s) {
    u32 pid = (u32)getpid();
    u64 space = sim_pid_namespace();
    for (int i = 0; i < SIM_MAX_SESSIONS; i++)
        if (s->sessions[i].used && s->sessions[i].pid == pid && s->sessions[i].pid_namespace == space)
            return &s->sessions[i];
    return NULL;
}

void sim_session_open(struct sim_state *s) {
    struct sim_session *mine = sim_session_mine(s); /* left by a process whose pid we inherited */
    for (int i = 0; i < SIM_MAX_SESSIONS && !mine; i++)
        if (!s->sessions[i].used || !held_by_another(i)) mine = &s->sessions[i];
    if (!mine) return;
    memset(mine, 0, sizeof *mine);
    mine->pid = (u32)getpid();
    mine->pid_namespace = sim_pid_namespace();
    mine->start_time = sim_start_time(mine->pid);
    mine->used = 1;
    hold((int)(mine - s->sessions));
}

void sim_session_close(struct sim_state *s) {
    struct sim_session *mine = sim_session_mine(s);
    sim_release_gpus();
    if (!mine) return;
    let_go((int)(mine - s->sessions));
    memset(mine, 0, sizeof *mine);
}

int sim_other_sessions(struct sim_state *s, int gpu, u32 *pids, int room) {
    struct sim_session *mine = sim_session_mine(s);
    int count = 0;
    for (int i = 0; i < SIM_MAX_SESSIONS; i++) {
        struct sim_session *e = &s->sessions[i];
        if (!e->used || e == mine || !(e->gpus >> gpu & 1)) continue;
        if (!held_by_another(i)) {
            memset(e, 0, sizeof *e);
            continue;
        }
        if (count < room) pids[count] = e->pid;
        count++;
    }
    return count;
}

int sim_processes_on(struct sim_state *s, int gpu, u32 gi, u32 ci, u32 *pids, int room) {
    int count = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *p = &s->processes[i];
        if (!p->used || !p->kind || (int)p->gpu != gpu || !sim_slot_alive(s, i)) continue;
        if (gi != NVML_INSTANCE_NONE && p->gi != gi) continue;
        if (ci != NVML_INSTANCE_NONE && p->ci != ci) continue;
        if (count < room) pids[count] = sim_slot_pid(s, i);
        count++;
    }
    return count;
}
