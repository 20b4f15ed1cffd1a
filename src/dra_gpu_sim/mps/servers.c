/* Servers and namespaces: made, started, stopped, removed. */
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int mps_server_index(const struct mps_server *s) { return (int)(s - mps.servers); }

struct mps_server *mps_server_named(const char *name) {
    for (int i = 0; i < MPS_MAX_SERVERS; i++)
        if (mps.servers[i].used && !strcmp(mps.servers[i].name, name)) return &mps.servers[i];
    return NULL;
}

struct mps_server *mps_server_of_pid(pid_t pid) {
    for (int i = 0; i < MPS_MAX_SERVERS; i++)
        if (mps.servers[i].used && mps.servers[i].pid == pid) return &mps.servers[i];
    return NULL;
}

int mps_valid_name(const char *name) {
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return length > 0 && length < MPS_NAME && !name[length] && strcmp(name, "control") && strcmp(name, "log");
}

static int space_free(void) {
    for (int i = 0; i < MPS_MAX_NAMESPACES; i++)
        if (!mps.spaces[i].used) return i;
    return -1;
}

static int directory(const char *path, mode_t mode) {
    if (mkdir(path, mode) != 0 && errno != EEXIST) return 0;
    chmod(path, mode);
    return 1;
}

static int fifo(const char *folder) {
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/log", folder);
    if (mkfifo(path, 0777) != 0 && errno != EEXIST) return 0;
    chmod(path, 0777);
    return 1;
}

/* The socket that a container gets, in a directory of its own. */
struct mps_namespace *mps_space_new(int server, const char *name, char *problem, size_t length) {
    const struct mps_server *s = &mps.servers[server];
    int is_default = !strcmp(name, "default"), slot = space_free();
    if (slot < 0) {
        snprintf(problem, length, "Too many namespaces");
        return NULL;
    }
    struct mps_namespace *n = &mps.spaces[slot];
    memset(n, 0, sizeof *n);
    snprintf(n->name, sizeof n->name, "%s", name);
    snprintf(n->directory, sizeof n->directory, is_default ? "%s/%s" : "%s/%s/%s", mps.pipe, s->name, name);
    n->server = server;
    n->is_default = is_default;
    if (!directory(n->directory, 0755) || !fifo(n->directory) ||
        (n->listener = mps_listen(n->directory, "control", 0666)) < 0) {
        snprintf(problem, length, "Failed to create the pipe directory %.200s: %s", n->directory, strerror(errno));
        return NULL;
    }
    n->used = 1;
    return n;
}

void mps_space_remove(struct mps_namespace *n) {
    char path[PATH_MAX + 16];
    close(n->listener);
    snprintf(path, sizeof path, "%s/control", n->directory);
    unlink(path);
    snprintf(path, sizeof path, "%s/log", n->directory);
    unlink(path);
    rmdir(n->directory);
    memset(n, 0, sizeof *n);
}

struct mps_namespace *mps_space(const char *server, const char *name) {
    for (int i = 0; i < MPS_MAX_NAMESPACES; i++) {
        struct mps_namespace *n = &mps.spaces[i];
        if (n->used && !strcmp(n->name, name) && !strcmp(mps.servers[n->server].name, server)) return n;
    }
    return NULL;
}

struct mps_server *mps_server_new(const char *name, uid_t uid, int declared) {
    char path[PATH_MAX + 96], problem[512];
    for (int i = 0; i < MPS_MAX_SERVERS; i++) {
        struct mps_server *s = &mps.servers[i];
        if (s->used) continue;
        memset(s, 0, sizeof *s);
        snprintf(s->name, sizeof s->name, "%s", name);
        s->uid = uid;
        s->declared = declared;
        s->link = -1;
        s->limits = mps.defaults;
        snprintf(s->devices, sizeof s->devices, "%s", getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
        s->used = 1;
        if (mps.protocol != 3) return s;
        snprintf(path, sizeof path, "%s/%s", mps.log, name);
        directory(path, 0755);
        struct mps_namespace *n = mps_space_new(i, "default", problem, sizeof problem);
        if (n) {
            n->limits = mps.defaults;
            return s;
        }
        mps_log("%s", problem);
        s->used = 0;
    }
    return NULL;
}

void mps_server_remove(struct mps_server *s) {
    int index = mps_server_index(s);
    for (int defaults = 0; defaults < 2; defaults++) /* the server's own directory last */
        for (int i = 0; i < MPS_MAX_NAMESPACES; i++)
            if (mps.spaces[i].used && mps.spaces[i].server == index && mps.spaces[i].is_default == defaults)
                mps_space_remove(&mps.spaces[i]);
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0 || c->server != index) continue;
        c->server = c->space = -1;
        c->broken = c->kind != MPS_SHELL;
    }
    memset(s, 0, sizeof *s);
    s->link = -1;
}

static void run_server(const struct mps_server *s, int link) {
    char path[PATH_MAX] = "", number[16], uid[16];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    char *slash = length > 0 ? strrchr(path, '/') : NULL;
    if (!slash) _exit(127);
    strcpy(slash + 1, "nvidia-cuda-mps-server");
    snprintf(number, sizeof number, "%d", link);
    snprintf(uid, sizeof uid, "%u", s->uid);
    setenv("DRA_GPU_SIM_MPS_LINK", number, 1);
    setenv("DRA_GPU_SIM_MPS_UID", uid, 1);
    setenv("DRA_GPU_SIM_ROOT", sim_root(), 1);
    if (s->devices[0]) setenv("CUDA_VISIBLE_DEVICES", s->devices, 1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGCHLD, SIG_DFL);
    execl(path, "nvidia-cuda-mps-server", (char *)NULL);
    _exit(127);
}

void mps_server_start(struct mps_server *s) {
    int ends[2];
    s->start = 0;
    s->failed = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    pid_t pid = fork();
    if (pid == 0) {
        fcntl(ends[1], F_SETFD, 0);
        run_server(s, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return;
    }
    s->pid = pid;
    s->link = ends[0];
    s->status = MPS_INITIALIZING;
    mps_log("Starting new server %d for user %u", (int)pid, s->uid);
}

void mps_server_stop(struct mps_server *s) {
    if (s->link >= 0) wire_send(s->link, "QUIT\n");
    if (s->link >= 0) shutdown(s->link, SHUT_WR);
    s->retire = 1;
}

static void ready(struct mps_server *s, char *line) {
    char *rest = line;
    s->at.count = 0;
    strsep(&rest, " ");
    while (rest && s->at.count < MPS_MAX_DEVICES) {
        struct mps_device *d = &s->at.at[s->at.count];
        char *gpu = strsep(&rest, " "), *gi = strsep(&rest, " "), *ci = strsep(&rest, " ");
        if (!ci) break;
        d->gpu = atoi(gpu);
        d->gi = (u32)strtoul(gi, NULL, 10);
        d->ci = (u32)strtoul(ci, NULL, 10);
        s->at.count++;
    }
    s->status = MPS_ACTIVE;
    mps_log("NEW SERVER %d: Ready", (int)s->pid);
    for (int i = 0; i < s->at.count; i++) mps_server_log(s, "Volta MPS: Creating server context on device %d", i);
    if (s->limits.percent > 0) mps_server_log(s, "activeThreadsPercentage set to %f", s->limits.percent);
    mps_server_log(s, "MPS Server is started");
}

/* Its process is ready, cannot go on, or has ended: then its clients end with it. */
void mps_server_heard(struct mps_server *s) {
    char line[WIRE_LINE];
    int index = mps_server_index(s);
    if (wire_line(s->link, line, sizeof line, 1000) == 1) {
        if (!strncmp(line, "READY", 5)) ready(s, line);
        else s->failed = atoi(line + strcspn(line, " "));
        if (s->failed)
            mps_server_log(s, s->failed == CUDA_NO_DEVICE ? "no CUDA-capable device is detected" : "Failed to start: %s",
                           cuda_error_name(s->failed));
        return;
    }
    mps_log("Server %d exited", (int)s->pid);
    close(s->link);
    s->link = -1;
    s->pid = 0;
    s->hung = 0;
    s->status = MPS_STOPPED;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        int waits = c->kind == MPS_PENDING && (c->server == index || mps.protocol == 2);
        if (c->fd < 0) continue;
        if ((c->kind == MPS_CLIENT || c->kind == MPS_LOST || c->kind == MPS_TERMINATED) && c->server == index) c->broken = 1;
        if (!waits || !s->failed) continue;
        /* Protocol 3: the server leaves, and its clients run without MPS. */
        if (mps.protocol == 3 && s->failed == CUDA_NO_DEVICE) wire_send(c->fd, "NONE\n");
        else wire_send(c->fd, "ERROR %d\n", s->failed == CUDA_NO_DEVICE ? CUDA_NO_DEVICE : CUDA_MPS_CONNECTION_FAILED);
        c->broken = 1;
    }
    int leaves = mps.protocol == 3 ? s->failed || (s->retire && !s->declared) : 1;
    s->retire = 0;
    if (leaves) mps_server_remove(s);
}

int mps_clients_of(int server, int space) {
    int count = 0;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        int attached = c->kind == MPS_CLIENT || c->kind == MPS_LOST;
        if (c->fd >= 0 && attached && c->server == server && (space < 0 || c->space == space)) count++;
    }
    return count;
}

int mps_draining(int server) {
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0 && c->kind == MPS_CLIENT && c->server == server && c->terminate) return 1;
    }
    return 0;
}
