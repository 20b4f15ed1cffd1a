/* Commands of protocol 2: one a line. Source: MPS documentation r615, "Legacy MPS v2 Interface". */
#define _GNU_SOURCE
#include "mps.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int mps_parse_percent(const char *text, double *percent) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value <= 0 || value > 100) return 0;
    *percent = value;
    return 1;
}

/* The command line of a process, with blanks between its words. */
int mps_command_of(u32 pid, char *to, size_t length) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, to, length - 1);
    if (fd >= 0) close(fd);
    if (got <= 0) {
        snprintf(to, length, "-");
        return 0;
    }
    while (got > 1 && !to[got - 1]) got--;
    for (ssize_t i = 0; i < got; i++)
        if (!to[i] || to[i] == ',' || to[i] == '\n') to[i] = ' ';
    to[got] = 0;
    return 1;
}

static struct mps_server *server_by(const char *pid, struct reply *r) {
    struct mps_server *s = pid ? mps_server_of_pid((pid_t)atoi(pid)) : NULL;
    if (!s || s->link < 0) {
        refuse(r, "Server %s not found\n", pid ? pid : "");
        return NULL;
    }
    return s;
}

static void set_pin(struct mps_limits *l, const char *device, u64 bytes, struct reply *r) {
    struct mps_pin *p = NULL;
    for (int i = 0; i < l->pin_count; i++)
        if (!strcmp(l->pins[i].device, device)) p = &l->pins[i];
    if (p && p != &l->pins[l->pin_count - 1]) { /* the last one wins: move it there */
        memmove(p, p + 1, (size_t)(&l->pins[l->pin_count - 1] - p) * sizeof *p);
        p = &l->pins[l->pin_count - 1];
    }
    if (!p && l->pin_count == MPS_MAX_PINS) {
        refuse(r, "Too many limits\n");
        return;
    }
    if (!p) p = &l->pins[l->pin_count++];
    snprintf(p->device, sizeof p->device, "%s", device);
    p->bytes = bytes;
}

static void get_pin(const struct mps_limits *l, const char *device, struct reply *r) {
    char text[32] = "";
    for (int i = 0; i < l->pin_count; i++)
        if (!strcmp(l->pins[i].device, device)) mps_size_text(l->pins[i].bytes, text, sizeof text);
    say(r, "%s\n", text);
}

static void set_percent(struct mps_limits *l, const char *text, struct reply *r) {
    if (!text || !mps_parse_percent(text, &l->percent)) refuse(r, "Invalid active thread percentage\n");
    else say(r, "%.1f\n", l->percent);
}

static void set_priority(struct mps_limits *l, const char *text, struct reply *r) {
    if (!text || (strcmp(text, "0") && strcmp(text, "1"))) refuse(r, "Invalid client priority\n");
    else l->priority = atoi(text);
}

static void list_clients(const struct mps_server *s, struct reply *r) {
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0 && (c->kind == MPS_CLIENT || c->kind == MPS_LOST) && c->server == mps_server_index(s))
            say(r, "%u\n", c->pid);
    }
}

static void list_processes(const char *only, struct reply *r) {
    char command[512], space_path[64];
    say(r, "%-10s %-4s %-10s %-22s %-11s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        struct stat info = {0};
        if (c->fd < 0 || (c->kind != MPS_CLIENT && c->kind != MPS_LOST)) continue;
        if (only && (u32)atoi(only) != c->pid) continue;
        snprintf(space_path, sizeof space_path, "/proc/%u/ns/pid", c->pid);
        if (stat(space_path, &info) != 0) info.st_ino = 0;
        mps_command_of(c->pid, command, sizeof command);
        say(r, "%-10u %-4d %-10d %-22.22s %-11lu %s\n", c->pid, 0, (int)mps.servers[c->server].pid,
            mps_uuid(sim_state(), &c->device), (unsigned long)info.st_ino, command);
    }
}

static void list_devices(const char *pid, struct reply *r) {
    say(r, "%-8s %-10s %-40s %s\n", "ORDINAL", "SERVER", "DEVICE", "NAME");
    for (int i = 0; i < MPS_MAX_SERVERS; i++) {
        const struct mps_server *s = &mps.servers[i];
        if (!s->used || s->link < 0 || (pid && s->pid != (pid_t)atoi(pid))) continue;
        for (int n = 0; n < s->at.count; n++)
            say(r, "%-8d %-10d %-40s %s\n", n, (int)s->pid, mps_uuid(sim_state(), &s->at.at[n]),
                sim_state()->gpus[s->at.at[n].gpu].name);
    }
}

static void terminate(struct mps_connection *shell, struct mps_server *s, const char *pid, struct reply *r) {
    struct mps_connection *c = pid ? mps_client_of(mps_server_index(s), (u32)atoi(pid)) : NULL;
    if (!c) {
        refuse(r, "%d\n", CUDA_INVALID_VALUE);
        return;
    }
    c->terminate = 1;
    shell->waits = WAIT_TERMINATE;
    shell->target = c->id;
}

static void start(const char *flag, const char *uid, struct reply *r) {
    for (int i = 0; i < MPS_MAX_SERVERS; i++)
        if (mps.servers[i].used) {
            refuse(r, "Server already exists\n");
            return;
        }
    if (!flag || strcmp(flag, "-uid") || !uid) {
        refuse(r, "Usage: start_server -uid <uid>\n");
        return;
    }
    struct mps_server *s = mps_server_new("classic", (uid_t)atol(uid), 0);
    if (s) s->start = 1;
}

/* No new clients from here on; it ends when the old ones have gone, or after that many seconds. */
void mps_quit(struct mps_connection *shell, long seconds) {
    mps.quitting = 1;
    if (seconds > 0) mps.quit_at = sim_now_ms() + seconds * 1000;
    if (shell) shell->waits = WAIT_QUIT;
}

static const char *status_of(const struct mps_server *s) {
    return s->status == MPS_INITIALIZING ? "INITIALIZING" : s->status == MPS_FAULT ? "FAULT" : "ACTIVE";
}

/* Commands that speak to a server; a server that hangs never answers them. */
static int to_server(struct mps_connection *shell, int count, char **w, struct reply *r) {
    static const char *names[] = {"get_client_list", "shutdown_server", "set_active_thread_percentage",
                                  "get_active_thread_percentage", "set_device_pinned_mem_limit",
                                  "get_device_pinned_mem_limit", "terminate_client", "get_server_status"};
    int which = -1;
    u64 bytes;
    for (int i = 0; i < 8; i++)
        if (!strcmp(w[0], names[i])) which = i;
    if (which < 0) return 0;
    struct mps_server *s = server_by(w[1], r);
    if (!s) return 1;
    if (s->hung && which != 7) {
        shell->waits = WAIT_FOREVER;
        return 1;
    }
    switch (which) {
    case 0: list_clients(s, r); break;
    case 1:
        s->retire = 1;
        if (count > 2 && !strcmp(w[2], "-f")) mps_server_stop(s);
        shell->waits = WAIT_SHUTDOWN;
        shell->target = (u64)s->pid;
        break;
    case 2: set_percent(&s->limits, w[2], r); break;
    case 3: say(r, "%.1f\n", s->limits.percent > 0 ? s->limits.percent : 100.0); break;
    case 4:
        if (!w[2] || !w[3] || !mps_size(w[3], &bytes)) refuse(r, "Invalid pinned device memory limit\n");
        else set_pin(&s->limits, w[2], bytes, r);
        break;
    case 5: get_pin(&s->limits, w[2] ? w[2] : "", r); break;
    case 6: terminate(shell, s, w[2], r); break;
    default: say(r, "%s\n", status_of(s));
    }
    return 1;
}

static int changes(const char *command) {
    return !strncmp(command, "set_", 4) || !strncmp(command, "start_", 6) || !strncmp(command, "shutdown_", 9) ||
           !strcmp(command, "terminate_client") || !strcmp(command, "quit");
}

void mps_classic(struct mps_connection *shell, char *line, struct reply *r) {
    char *w[8] = {0}, *word, *rest = line;
    int count = 0;
    u64 bytes;
    mps_log("Cmd:%s", line);
    while (count < 7 && (word = strsep(&rest, " \t\x1f")))
        if (*word) w[count++] = word;
    if (!count) return;
    if (changes(w[0]) && shell->uid != mps.owner && shell->uid != 0) {
        mps_log("User did not send valid credentials");
        refuse(r, "Insufficient privileges\n");
        return;
    }
    if (to_server(shell, count, w, r)) return;
    if (!strcmp(w[0], "get_server_list")) {
        for (int i = 0; i < MPS_MAX_SERVERS; i++)
            if (mps.servers[i].used && mps.servers[i].link >= 0) say(r, "%d\n", (int)mps.servers[i].pid);
    } else if (!strcmp(w[0], "start_server")) start(w[1], w[2], r);
    else if (!strcmp(w[0], "ps")) list_processes(w[1] && !strcmp(w[1], "-p") ? w[2] : NULL, r);
    else if (!strcmp(w[0], "device_query") || !strcmp(w[0], "get_device_client_list")) list_devices(w[1], r);
    else if (!strcmp(w[0], "set_default_active_thread_percentage")) set_percent(&mps.defaults, w[1], r);
    else if (!strcmp(w[0], "get_default_active_thread_percentage"))
        say(r, "%.1f\n", mps.defaults.percent > 0 ? mps.defaults.percent : 100.0);
    else if (!strcmp(w[0], "set_default_device_pinned_mem_limit")) {
        if (!w[1] || !w[2] || !mps_size(w[2], &bytes)) refuse(r, "Invalid pinned device memory limit\n");
        else set_pin(&mps.defaults, w[1], bytes, r);
    } else if (!strcmp(w[0], "get_default_device_pinned_mem_limit")) get_pin(&mps.defaults, w[1] ? w[1] : "", r);
    else if (!strcmp(w[0], "set_default_client_priority")) set_priority(&mps.defaults, w[1], r);
    else if (!strcmp(w[0], "get_default_client_priority")) say(r, "%d\n", mps.defaults.priority);
    else if (!strcmp(w[0], "quit")) mps_quit(shell, w[1] && !strcmp(w[1], "-t") && w[2] ? atol(w[2]) : 0);
    else refuse(r, "Unrecognized command: %s\n", w[0]);
}
