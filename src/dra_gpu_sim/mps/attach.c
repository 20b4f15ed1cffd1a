/* Clients: whether one may attach, what it gets, and what ends it. */
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void drop(struct mps_connection *c, int code) {
    wire_send(c->fd, "ERROR %d\n", code);
    mps_log("Client %u from user %u refused: %s", c->pid, c->uid, cuda_error_name(code));
    c->broken = 1;
}

static void keep(char *to, size_t length, const char *word) { snprintf(to, length, "%s", word[0] == '=' ? word + 1 : ""); }

/* CLIENT slot serial visible ordinal devices percent pinned priority cgroup name; optional words start with "=". */
void mps_hello(struct mps_connection *c, char *line) {
    char *words[12];
    if (wire_split(line, words, 12) != 11) {
        c->broken = 1;
        return;
    }
    c->kind = MPS_PENDING;
    c->id = ++mps.last_id;
    c->slot = atoi(words[1]);
    c->serial = strtoull(words[2], NULL, 10);
    c->visible = strtoull(words[3], NULL, 16);
    c->ordinal = atoi(words[4]);
    c->has_list = words[5][0] == '=';
    keep(c->list, sizeof c->list, words[5]);
    keep(c->percent, sizeof c->percent, words[6]);
    keep(c->pinned, sizeof c->pinned, words[7]);
    keep(c->priority, sizeof c->priority, words[8]);
    keep(c->cgroup, sizeof c->cgroup, words[9]);
    snprintf(c->name, sizeof c->name, "%s", words[10]);
    mps_log("NEW CLIENT %u from user %u", c->pid, c->uid);
}

/* The server that a client belongs to; NULL while it has to wait, or when it was refused. */
static struct mps_server *server_for(struct mps_connection *c) {
    char name[MPS_NAME];
    struct mps_server *s = NULL;
    int foreign = !mps.multi_user && c->uid != mps.owner;
    if (mps.protocol == 3 && foreign) {
        drop(c, CUDA_NOT_PERMITTED); /* root too */
        return NULL;
    }
    if (c->server >= 0) return &mps.servers[c->server];
    if (mps.protocol == 3) {
        snprintf(name, sizeof name, "uid_%u", c->uid);
        s = mps_server_named(name);
        if (!s) s = mps_server_new(name, c->uid, 0);
        if (!s) return NULL;
        c->server = mps_server_index(s);
        c->space = (int)(mps_space(name, "default") - mps.spaces);
        return s;
    }
    if (mps.owner != 0 && foreign) {
        mps_log("User did not send valid credentials");
        drop(c, CUDA_NOT_PERMITTED);
        return NULL;
    }
    for (int i = 0; i < MPS_MAX_SERVERS && !s; i++)
        if (mps.servers[i].used) s = &mps.servers[i];
    if (!s) return mps_server_new("classic", mps.multi_user ? mps.owner : c->uid, 0);
    if (!mps.multi_user && s->uid != c->uid) { /* one user at a time: the next waits until the server has gone */
        if (!mps_clients_of(mps_server_index(s), -1) && !s->retire) mps_server_stop(s);
        return NULL;
    }
    return s->retire ? NULL : s;
}

static u32 room_for_contexts(struct sim_state *s, const struct mps_device *d) {
    u32 most = s->cuda_version >= 13010 ? 60 : 48, all = s->gpus[d->gpu].sm_count;
    if (d->gi == NVML_INSTANCE_NONE || !all) return most;
    u32 part = most * mps_sm_total(s, d) / all;
    return part ? part : 1;
}

static u32 contexts_on(const struct mps_device *d) {
    u32 count = 0;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0 || (c->kind != MPS_CLIENT && c->kind != MPS_LOST)) continue;
        count += c->device.gpu == d->gpu && c->device.gi == d->gi && c->device.ci == d->ci;
    }
    return count;
}

static int same(const struct mps_device *a, const struct mps_device *b) {
    return a->gpu == b->gpu && a->gi == b->gi && a->ci == b->ci;
}

/* The last entry for a device wins; an entry for none has no effect. */
u64 mps_pin_for(const struct mps_limits *l, const struct mps_devices *base, const struct mps_device *d) {
    struct mps_device found;
    u64 bytes = l->pinned;
    for (int i = 0; i < l->pin_count; i++)
        if (mps_find(sim_state(), l->pins[i].device, base, &found) && same(&found, d)) bytes = l->pins[i].bytes;
    return bytes;
}

/* The client's own limit; one entry for a GPU it does not see takes every limit away, the namespace's too. */
static int pinned_by_client(const char *text, const struct mps_devices *base, const struct mps_device *d, u64 *bytes) {
    char copy[2048], *rest = copy, *entry;
    struct mps_device found;
    u64 amount;
    *bytes = 0;
    snprintf(copy, sizeof copy, "%s", text);
    while (*text && (entry = strsep(&rest, ","))) {
        char *value = strchr(entry, '=');
        if (!value) continue;
        *value++ = 0;
        if (!mps_find(sim_state(), entry, base, &found)) return 0;
        if (mps_size(value, &amount) && same(&found, d)) *bytes = amount;
    }
    return 1;
}

static u64 lower(u64 a, u64 b) { return a && b ? (a < b ? a : b) : a ? a : b; }

/* Writes what the client got into its slot; the limits of now, whatever they become later. */
static int enter(struct mps_connection *c, const struct mps_server *s, const struct mps_devices *base) {
    struct sim_state *state = sim_state();
    const struct mps_namespace *n = mps.protocol == 3 ? &mps.spaces[c->space] : NULL;
    const struct mps_limits *limits = n ? &n->limits : &s->limits;
    double own = 0, percent = limits->percent;
    u64 pinned = mps_pin_for(limits, &s->at, &c->device), mine;
    if (mps_parse_percent(c->percent, &own) && (percent <= 0 || own < percent)) percent = own;
    pinned = pinned_by_client(c->pinned, base, &c->device, &mine) ? lower(pinned, mine) : 0;
    int code = CUDA_OK;
    sim_lock();
    if (!sim_slot_mine(state, c->slot, c->serial)) {
        sim_unlock();
        return CUDA_MPS_RPC_FAILURE;
    }
    struct sim_process *p = &state->processes[c->slot];
    p->pid = c->pid;
    p->uid = c->uid;
    p->gpu = (u32)c->device.gpu;
    p->gi = c->device.gi;
    p->ci = c->device.ci;
    p->sm_percent = percent > 0 ? (u32)(percent + 0.5) : 0;
    p->sm_count = mps_sms(mps_sm_total(state, &c->device), percent);
    p->memory_limit = pinned;
    snprintf(p->name, sizeof p->name, "%s", c->name);
    if (n) snprintf(p->mps_namespace, sizeof p->mps_namespace, "%s/%s", s->name, n->name);
    if (c->cgroup[0]) snprintf(p->cgroup, sizeof p->cgroup, "%s", c->cgroup);
    else if (c->pid) sim_cgroup_of(state, c->pid, p->cgroup, sizeof p->cgroup);
    else p->cgroup[0] = 0;
    u64 context = (u64)state->context_mib << 20;
    if (mps_room(state, c->slot) < context) {
        p->gpu = SIM_MAX_GPUS;
        code = CUDA_OUT_OF_MEMORY;
    } else {
        p->memory = context;
        p->kind = SIM_PROCESS_MPS_CLIENT;
    }
    sim_unlock();
    return code;
}

/* Attaches a client if it may, refuses it, or leaves it waiting. */
void mps_admit(struct mps_connection *c) {
    struct sim_state *state = sim_state();
    if (mps.quitting) {
        drop(c, CUDA_MPS_SERVER_NOT_READY);
        return;
    }
    struct mps_server *s = server_for(c);
    if (!s || s->hung || s->status == MPS_INITIALIZING) return;
    if (s->status == MPS_STOPPED) {
        if (s->link < 0) mps_server_start(s);
        mps_log("NEW CLIENT %u from user %u: Server is not ready, push client to pending list", c->pid, c->uid);
        return;
    }
    int index = mps_server_index(s), code = CUDA_OK;
    if (s->status == MPS_FAULT || s->retire || mps_draining(index)) {
        drop(c, CUDA_MPS_SERVER_NOT_READY);
        return;
    }
    struct mps_devices base = {0}, chosen;
    for (int i = 0; i < s->at.count; i++)
        if (c->visible >> s->at.at[i].gpu & 1) base.at[base.count++] = s->at.at[i];
    mps_select(state, c->has_list ? c->list : NULL, &base, &chosen);
    if (c->ordinal < 0 || c->ordinal >= chosen.count) {
        drop(c, CUDA_NO_DEVICE);
        return;
    }
    c->device = chosen.at[c->ordinal];
    if (contexts_on(&c->device) >= room_for_contexts(state, &c->device)) code = CUDA_MPS_MAX_CLIENTS_REACHED;
    else code = enter(c, s, &chosen);
    if (code != CUDA_OK) {
        drop(c, code);
        return;
    }
    c->server = index;
    c->kind = MPS_CLIENT;
    if (!c->pid) mps_server_log(s, "[memacct] failed to register client pid 0");
    mps_server_log(s, "Volta MPS Server: Received new client request");
    wire_send(c->fd, "ATTACHED\n");
}

struct mps_connection *mps_client_of(int server, u32 pid) {
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        int attached = c->kind == MPS_CLIENT || c->kind == MPS_LOST;
        if (c->fd >= 0 && attached && (server < 0 || c->server == server) && c->pid == pid) return c;
    }
    return NULL;
}

static void leave(struct mps_connection *c) {
    sim_lock();
    if (sim_slot_mine(sim_state(), c->slot, c->serial)) {
        struct sim_process *p = &sim_state()->processes[c->slot];
        p->kind = 0;
        p->memory = 0;
        p->gpu = SIM_MAX_GPUS;
    }
    sim_unlock();
}

void mps_client_end(struct mps_connection *c, int code) {
    leave(c);
    wire_send(c->fd, "ERROR %d\n", code);
    c->kind = MPS_TERMINATED;
    c->terminate = 0;
}

/* A fatal fault reaches every client on the GPU, and nobody says whose it was. */
static void fault(struct mps_connection *from) {
    struct mps_server *s = &mps.servers[from->server];
    struct mps_device where = from->device;
    s->status = MPS_FAULT;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0 || c->kind != MPS_CLIENT || c->server != mps_server_index(s) || !same(&c->device, &where)) continue;
        c->kind = MPS_LOST;
        c->in_kernel = 0;
        wire_send(c->fd, "ERROR %d\n", CUDA_LAUNCH_FAILED);
    }
    mps_server_log(s, "Server %d encountered a fatal exception; status FAULT", (int)s->pid);
}

void mps_client_line(struct mps_connection *c, const char *line) {
    if (!strcmp(line, "KERNEL 1")) c->in_kernel = 1;
    if (!strcmp(line, "KERNEL 0") || !strcmp(line, "BYE")) c->in_kernel = 0;
    if (!strcmp(line, "FAULT") && c->kind == MPS_CLIENT) fault(c);
}

/* A client that dies in the middle of a kernel leaves the server hanging until it is started anew. */
void mps_client_gone(struct mps_connection *c) {
    if (c->kind != MPS_CLIENT && c->kind != MPS_LOST) return;
    leave(c);
    if (c->server < 0) return;
    struct mps_server *s = &mps.servers[c->server];
    mps_server_log(s, "Receive command failed, assuming client exit");
    if (c->in_kernel && s->link >= 0) s->hung = 1;
    c->kind = MPS_NEW;
    mps_server_log(s, "Volta MPS: Client disconnected. Number of active client contexts is %d",
                   mps_clients_of(mps_server_index(s), -1));
}
